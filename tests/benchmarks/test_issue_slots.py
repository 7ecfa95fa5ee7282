"""The hot loop of a kernel, found in its machine code."""

from __future__ import annotations

import pytest
from benchmark_scripts import load_script

TEXT = """
.text.kernel:
        /*0000*/                   MOV R1, c[0x0][0x28] ;
.L_x_0:
        /*0010*/                   FFMA R2, R3, R4, R2 ;
.L_x_1:
        /*0020*/              @!P0 LDG.E.64 R4, [R6.64] ;
        /*0030*/                   FFMA R2, R3, R4, R2 ;
        /*0040*/                   FFMA R5, R3, R4, R5 ;
        /*0050*/               @P1 BRA `(.L_x_1) ;
.L_x_2:
        /*0060*/                   FFMA R5, R3, R4, R5 ;
        /*0070*/               @P1 BRA `(.L_x_2) ;
        /*0080*/               @P2 BRA `(.L_x_0) ;
        /*0090*/                   BRA `(.L_x_3) ;
.L_x_3:
        /*00a0*/                   EXIT ;
"""


def test_the_innermost_loop_with_the_most_multiply_adds() -> None:
    script = load_script("gpu/issue_slots")
    loop = script.hot_loop(TEXT)
    assert [one.split()[0] for one in loop] == ["LDG.E.64", "FFMA", "FFMA", "BRA"]
    assert script.multiply_adds(loop) == 2
    with pytest.raises(ValueError, match="no loop"):
        script.hot_loop(TEXT.replace("BRA", "NOP"))
