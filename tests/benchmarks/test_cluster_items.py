"""The instructions of a cluster's item, counted in machine code."""

from __future__ import annotations

import pytest
from benchmark_scripts import load_script

# Two instructions are skipped before the hot loop, and one between the stores.
TEXT = """
.text.kernel:
        /*0000*/                   MOV R1, c[0x0][0x28] ;
.L_x_0:
        /*0010*/                   BAR.SYNC 0x0 ;
        /*0020*/               @P0 BRA `(.L_x_1) ;
        /*0030*/                   STS [R2], R3 ;
        /*0040*/                   STS [R4], R3 ;
.L_x_1:
        /*0050*/                   LDG.E.64 R4, [R6.64] ;
        /*0060*/                   FFMA R2, R3, R4, R2 ;
        /*0070*/                   FFMA R5, R3, R4, R5 ;
        /*0080*/               @P1 BRA `(.L_x_1) ;
        /*0090*/                   FADD R2, R2, R7 ;
        /*00a0*/                   STG.E.64 desc[UR4][R2.64], R4 ;
        /*00b0*/              @!P2 BRA `(.L_x_2) ;
        /*00c0*/                   MOV R8, R9 ;
.L_x_2:
        /*00d0*/                   STG.E.64 desc[UR4][R2.64+0x8], R4 ;
        /*00e0*/               @P3 BRA `(.L_x_0) ;
        /*00f0*/                   EXIT ;
"""


def test_the_fewest_instructions_through_loop_and_stores() -> None:
    script = load_script("gpu/cluster_items")
    item = script.whole_item(TEXT, "STG.E.64 desc")
    passes = 32 * 16 * 2 // 2
    assert (item.before, item.loop, item.after) == (2, 4 * passes, 5)
    assert item.useful == 1024
    assert item.share == 1024 / (2 + 4 * passes + 5)


def test_a_store_that_no_way_leads_to() -> None:
    script = load_script("gpu/cluster_items")
    last = "               @P3 BRA `(.L_x_0)"
    behind = " EXIT ;\n        /*00e0*/ STG.E.64 desc[UR4][R2.64], R4 ;\n        /*00e0*/"
    text = TEXT.replace(last, behind + last)
    with pytest.raises(ValueError, match="no way leads from instruction"):
        script.whole_item(text, "STG.E.64 desc")
