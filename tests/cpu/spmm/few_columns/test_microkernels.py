"""The generator's code for processors of all kinds, assembled on any."""

from __future__ import annotations

import functools
import re

import pytest
from llvmlite import binding, ir

from portable_spdnn_cpu.jit import grouped_loads
from portable_spdnn_cpu.spmm.few_columns.microkernels import define_product
from portable_spdnn_cpu.spmm.few_columns.specs import (
    LanesSpec,
    RowsSpec,
    SlicedSpec,
    Spec,
)

X86 = "x86_64-unknown-linux-gnu"


@functools.cache
def targets() -> None:
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()


def assembled(spec: Spec, cpu: str, triple: str = X86) -> str:
    """Return the assembly text of a product, which is also assembled."""
    targets()
    module = ir.Module()
    module.triple = triple
    define_product(module, "product", spec)
    parsed = binding.parse_assembly(str(module))
    parsed.verify()
    machine = binding.Target.from_triple(triple).create_target_machine(cpu=cpu, opt=3)
    builder = binding.create_pass_builder(
        machine, binding.create_pipeline_tuning_options(speed_level=3)
    )
    builder.getModulePassManager().run(parsed, builder)
    assert len(machine.emit_object(parsed)) > 1000
    return machine.emit_assembly(parsed)


WITH_AVX512 = pytest.mark.parametrize("cpu", ["skylake-avx512", "sapphirerapids", "znver4"])


@WITH_AVX512
def test_avx512_permutes_windows_of_two_vectors(cpu):
    for itemsize, suffix in ((4, "ps"), (8, "pd")):
        text = assembled(LanesSpec(2, itemsize, 64), cpu)
        assert re.search(rf"vperm[it]2{suffix}\s.*zmm", text)
        assert re.search(rf"vfmadd\w+{suffix}\s.*zmm", text)
        assert "gather" not in text


@WITH_AVX512
@pytest.mark.parametrize(("itemsize", "suffix"), [(4, "ps"), (8, "pd")])
def test_avx512_looks_up_one_column_in_windows_of_four_vectors(cpu, itemsize, suffix):
    text = assembled(LanesSpec(1, itemsize, 64, wide=True), cpu)
    # Two permutes and a blend for each of the four steps of a chunk.
    assert len(re.findall(rf"vperm[it]2{suffix}\s.*zmm", text)) == 8
    assert len(re.findall(r"vptestn?m[dq]\s.*zmm", text)) == 4
    assert re.search(rf"vfmadd\w+{suffix}\s.*zmm", text)
    assert "gather" not in text


@WITH_AVX512
@pytest.mark.parametrize(("columns", "wide"), [(1, True), (2, True), (4, True), (5, False)])
def test_windows_and_sums_stay_in_registers(cpu, columns, wide):
    text = assembled(LanesSpec(columns, 4, 64, wide=wide), cpu)
    blends = len(re.findall(r"vptestn?m[dq]\s.*zmm", text))
    assert blends == (4 if wide else 0)  # one for each step of a chunk
    assert not re.search(r"v(perm[it]2|fmadd\w+)p[sd]\s+\d*\(%rsp\)", text)


@pytest.mark.parametrize(
    ("spec", "lines"),
    [  # of cache, for values and for places
        (LanesSpec(1, 4, 64), 0),
        (LanesSpec(1, 4, 64, prefetches=True), 4 + 1),
        (LanesSpec(5, 4, 64, prefetches=True), 4 + 1),
        (LanesSpec(2, 8, 64, prefetches=True), 4 + 1),
        (LanesSpec(2, 4, 32, prefetches=True), 2 + 1),
        (SlicedSpec(1, 4, 64), 0),
        (SlicedSpec(1, 4, 64, prefetches=True), 2 + 1),
        (RowsSpec(15, 4, 64), 0),
        (RowsSpec(15, 4, 64, prefetches=True), 2 * (1 + 1)),  # in a loop, and at the end of a row
        # In the loops of short rows and of long ones, and at the end of a row.
        (RowsSpec(8, 4, 64, prefetches=True), 3 * (1 + 1)),
    ],
)
def test_entries_are_prefetched_where_the_spec_says_so(spec, lines):
    text = assembled(spec, "znver4" if spec.vector_bytes == 64 else "x86-64-v3")
    assert len(re.findall(r"prefetcht0\s", text)) == lines


@WITH_AVX512
def test_slices_store_rows_of_eight_columns_at_once(cpu):
    text = assembled(LanesSpec(8, 4, 64), cpu)
    # A row of each lane, from a vector or the upper half of one, to places that registers name.
    stores = re.findall(r"(?:vmovup[sd]\s+%ymm|vextractf\w+\s+\$1, %zmm)\d+, \(%r", text)
    assert len(stores) == 16


@pytest.mark.parametrize("cpu", ["x86-64-v3", "skylake", "znver3"])
def test_avx2_permutes_windows_of_one_vector(cpu):
    text = assembled(LanesSpec(2, 4, 32), cpu)
    # One permute for each step and column, of a window that was loaded before.
    operands = re.findall(r"vperm(?:ps|d)\s+(.).*ymm", text)
    assert len(operands) >= 4 * 2
    assert set(operands) == {"%"}
    assert re.search(r"vfmadd\w+ps\s.*ymm", text)
    assert "zmm" not in text


@pytest.mark.parametrize(
    ("spec", "register"), [(SlicedSpec(2, 4, 32), "ymm"), (SlicedSpec(2, 4, 16), "xmm")]
)
def test_one_load_brings_both_columns_of_a_row(spec, register):
    text = assembled(spec, "x86-64-v3")
    # Three steps, two of them in a loop: every other row goes into the upper half of a register.
    loads = re.findall(r"vmovhp[sd]\s+\(%r\w+,%r\w+,8\)", text)
    assert len(loads) == 3 * spec.lanes // 2
    # Values 0, 0, 1, 1 of every four, and 2, 2, 3, 3.
    for lanes, unpacked in ((80, "l"), (250, "h")):
        spread = rf"(vshufps|vpermilps)\s+\${lanes}, .*{register}|vunpck{unpacked}ps\s.*{register}"
        assert len(re.findall(spread, text)) >= 3
    assert "gather" not in text


def test_a_single_column_is_copied_once():
    text = assembled(SlicedSpec(1, 4, 32), "x86-64-v3")
    moved = re.findall(r"vmovups\s+-?\d*\([^)]*\), (%ymm\d+)\n\s+vmovups\s+\1, -?\d*\(", text)
    assert 1 <= len(moved) <= 5  # a loop that is unrolled four times, and its rest


@pytest.mark.parametrize(
    ("cpu", "length", "register"),
    [("skylake-avx512", 64, "zmm"), ("x86-64-v3", 32, "ymm"), ("skylake", 32, "ymm")],
)
@pytest.mark.parametrize("itemsize", [4, 8])
@pytest.mark.parametrize("each_loaded", [False, True])
def test_rows_multiply_and_add_whole_rows_of_b(
    monkeypatch, cpu, length, register, itemsize, each_loaded
):
    monkeypatch.setattr(grouped_loads, "has_fast_broadcasts", lambda: each_loaded)
    text = assembled(RowsSpec(15, itemsize, length), cpu)
    # Values are loaded four together, and spread among lanes by an immediate operand; or each of
    # 64 bytes is loaded into all lanes, perhaps by the multiply-add itself.
    shuffled = re.search(rf"(vshufps|vpermilps|vpermpd)\s+\$\d+, .*{register}", text)
    assert (shuffled is None) == (each_loaded and length == 64)
    assert re.search(rf"vfmadd\w+p[sd]\s+-?\d*\(.*{register}", text)
    assert ("zmm" in text) == (register == "zmm")


@pytest.mark.parametrize(
    ("cpu", "triple", "spec"),
    [
        ("x86-64", X86, SlicedSpec(2, 4, 16)),
        ("x86-64", X86, RowsSpec(5, 4, 16)),
        ("x86-64-v3", X86, SlicedSpec(2, 4, 32)),
        ("x86-64-v3", X86, SlicedSpec(1, 8, 32, 4)),
        ("x86-64-v3", X86, SlicedSpec(2, 8, 32)),
        ("neoverse-n1", "aarch64-unknown-linux-gnu", SlicedSpec(2, 4, 16)),
        ("neoverse-n1", "aarch64-unknown-linux-gnu", RowsSpec(5, 4, 16)),
    ],
)
def test_other_processors_get_code_without_permutes_among_lanes(cpu, triple, spec):
    text = assembled(spec, cpu, triple)
    assert not re.search(r"vpermps|vperm[it]2p|zmm", text)
