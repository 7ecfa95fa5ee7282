"""Loops that are emitted, their counters and where their code begins; cases by a number."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
from llvmlite import binding, ir

from portable_spdnn_cpu.jit.loops import CODE_LINE, by_number, loop

WORD = ir.IntType(64)


@pytest.fixture
def machine() -> Any:
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    binding.initialize_native_asmparser()
    return binding.Target.from_default_triple().create_target_machine(opt=3, jit=True)


def module_of(unrolls: bool) -> Any:
    """Return a module whose function sums the squares of two counters, one loop in the other."""
    module = ir.Module()
    module.triple = binding.get_default_triple()
    function = ir.Function(module, ir.FunctionType(WORD, [WORD, WORD, WORD]), "squares")
    builder = ir.IRBuilder(function.append_basic_block())
    begin, end, step = function.args
    total = builder.alloca(WORD)
    builder.store(WORD(0), total)
    with loop(builder, begin, end, step, unrolls) as i, loop(builder, i, end, step, unrolls) as j:
        builder.store(builder.add(builder.load(total), builder.mul(i, j)), total)
    builder.ret(builder.load(total))
    parsed = binding.parse_assembly(str(module))
    parsed.verify()
    return parsed


@pytest.mark.parametrize("unrolls", [True, False])
def test_a_loop_counts_to_its_end(unrolls: bool, machine: Any) -> None:
    engine = binding.create_mcjit_compiler(module_of(unrolls), machine)
    engine.finalize_object()
    call = ctypes.CFUNCTYPE(*[ctypes.c_int64] * 4)(engine.get_function_address("squares"))
    for begin, end, step in [(0, 9, 1), (2, 9, 3), (2, 8, 3), (-3, 2, 2), (5, 5, 1), (7, 3, 1)]:
        expected = sum(i * j for i in range(begin, end, step) for j in range(i, end, step))
        assert call(begin, end, step) == expected


@pytest.mark.parametrize("most", [1, 2, 5])
@pytest.mark.parametrize("returns", [True, False])
def test_the_code_for_a_number_runs_and_no_other(most: int, returns: bool, machine: Any) -> None:
    module = ir.Module()
    module.triple = binding.get_default_triple()
    function = ir.Function(module, ir.FunctionType(WORD, [WORD, WORD]), "chosen")
    builder = ir.IRBuilder(function.append_basic_block())
    number, start = function.args
    total = builder.alloca(WORD)
    builder.store(start, total)

    def emit(n: int) -> Any:
        with loop(builder, WORD(0), WORD(n), WORD(1)):  # a value may come from a later block
            builder.store(builder.mul(builder.load(total), WORD(n + 1)), total)
        return builder.load(total) if returns else None

    found = by_number(builder, number, most, emit)
    builder.ret(found if returns else builder.load(total))
    parsed = binding.parse_assembly(str(module))
    parsed.verify()
    engine = binding.create_mcjit_compiler(parsed, machine)
    engine.finalize_object()
    call = ctypes.CFUNCTYPE(*[ctypes.c_int64] * 3)(engine.get_function_address("chosen"))
    assert [call(n, 3) for n in range(1, most + 1)] == [
        3 * (n + 1) ** n for n in range(1, most + 1)
    ]


@pytest.mark.parametrize("unrolls", [True, False])
def test_the_inner_loop_begins_on_a_cache_line(unrolls: bool, machine: Any) -> None:
    text = machine.emit_assembly(module_of(unrolls))
    assert text.count(f".p2align\t{CODE_LINE.bit_length() - 1}") >= 1
