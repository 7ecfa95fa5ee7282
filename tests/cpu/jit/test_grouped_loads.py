"""Numbers that are loaded together: as words, and each in all lanes of a vector."""

from __future__ import annotations

import ctypes
import functools
import re
from typing import Any

import numpy as np
import pytest
from llvmlite import binding, ir

from portable_spdnn_cpu.jit.grouped_loads import (
    GROUP,
    load_broadcasts,
    load_numbers,
    load_words,
    shuffle_broadcasts,
)
from portable_spdnn_cpu.jit.target import VECTOR_BYTES, is_x86

LENGTHS = [length for length in (64, 32, 16) if length <= VECTOR_BYTES]
NATIVE = binding.get_default_triple()


@functools.cache
def targets() -> None:
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()


def module_of(
    bits: int, itemsize: int, lanes: int, vector_bytes: int, triple: str, each_loaded: bool
) -> Any:
    """Return a module whose function stores the words, and the vectors, of a group."""
    module = ir.Module()
    module.triple = triple
    scalar = ir.FloatType() if itemsize == 4 else ir.DoubleType()
    vector, word = ir.VectorType(scalar, lanes), ir.IntType(64)
    kinds = [kind.as_pointer() for kind in (ir.IntType(bits), scalar, word, vector)]
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), kinds), "spread")
    builder = ir.IRBuilder(function.append_basic_block())
    offsets, values, words, vectors = function.args
    if each_loaded:
        spread = load_broadcasts(builder, vector, values)
    else:
        spread = shuffle_broadcasts(builder, vector, values, vector_bytes)
    results = (words, load_numbers(builder, offsets), 8), (vectors, spread, itemsize)
    for target, found, align in results:
        assert len(found) == GROUP
        for number, value in enumerate(found):
            builder.store(value, builder.gep(target, [word(number)]), align=align)
    builder.ret_void()
    parsed = binding.parse_assembly(str(module))
    parsed.verify()
    return parsed


def machine_of(triple: str, cpu: str, **options: Any) -> Any:
    targets()
    return binding.Target.from_triple(triple).create_target_machine(cpu=cpu, opt=3, **options)


@pytest.mark.parametrize("vector_bytes", LENGTHS)
@pytest.mark.parametrize("itemsize", [4, 8])
@pytest.mark.parametrize("bits", [16, 32])
@pytest.mark.parametrize("lanes", [4, 8, 16])
@pytest.mark.parametrize("each_loaded", [False, True])
def test_each_number_is_where_it_belongs(
    bits: int, itemsize: int, lanes: int, vector_bytes: int, each_loaded: bool
) -> None:
    host = {"features": binding.get_host_cpu_features().flatten(), "jit": True}
    machine = machine_of(NATIVE, binding.get_host_cpu_name(), **host)
    engine = binding.create_mcjit_compiler(
        module_of(bits, itemsize, lanes, vector_bytes, NATIVE, each_loaded), machine
    )
    engine.finalize_object()
    call = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 4)(engine.get_function_address("spread"))
    rng, most = np.random.default_rng(0), 2**bits if bits == 16 else 2**31
    # In the middle of an array: items are aligned, and no more than they.
    offsets = rng.integers(0, most, GROUP + 3).astype(f"u{bits // 8}")
    offsets[1] = most - 1
    values = rng.standard_normal(GROUP + 3).astype(f"f{itemsize}")
    words, vectors = np.zeros(GROUP, np.int64), np.zeros((GROUP, lanes), values.dtype)
    call(offsets[1:].ctypes.data, values[1:].ctypes.data, words.ctypes.data, vectors.ctypes.data)
    np.testing.assert_array_equal(words, offsets[1 : GROUP + 1])
    np.testing.assert_array_equal(vectors, np.repeat(values[1 : GROUP + 1, None], lanes, axis=1))


@pytest.mark.parametrize(
    ("triple", "cpu", "vector_bytes", "spread"),
    [
        ("x86_64-unknown-linux-gnu", "skylake-avx512", 64, r"vshufps\s+\$\d+, %zmm"),
        ("x86_64-unknown-linux-gnu", "x86-64-v3", 32, r"(vshufps|vpermilps)\s+\$\d+, %ymm"),
        ("x86_64-unknown-linux-gnu", "x86-64", 16, r"shufps\s+\$\d+, %xmm"),
        ("aarch64-unknown-linux-gnu", "neoverse-n1", 16, r"dup\s+v\d+\.4s, v\d+\.s\[\d\]"),
    ],
)
def test_one_load_takes_four_offsets_and_one_four_values(
    triple: str, cpu: str, vector_bytes: int, spread: str
) -> None:
    module = module_of(16, 4, vector_bytes // 4, vector_bytes, triple, each_loaded=False)
    text = machine_of(triple, cpu).emit_assembly(module)
    assert len(re.findall(spread, text)) >= GROUP - 1  # the first may be spread otherwise
    # No load of one offset or one value: of 16 bits, or of a scalar.
    assert not re.search(
        r"movz?w\w?\s+\d*\(%rdi\)|v?(movss|broadcastss)\s+\d*\(|ldrh|ldr\s+s", text
    )


def test_where_each_number_is_loaded_no_shuffle_spreads_it() -> None:
    triple = "x86_64-unknown-linux-gnu"
    module = module_of(16, 4, 16, 64, triple, each_loaded=True)
    text = machine_of(triple, "sapphirerapids").emit_assembly(module)
    assert len(re.findall(r"vbroadcastss\s+\d*\(%rsi\), %zmm", text)) == GROUP
    assert not re.search(r"vshuf|vperm", text)


def words_module(count: int) -> Any:
    """Return a module whose function stores words from an address on."""
    module, word = ir.Module(), ir.IntType(64)
    module.triple = NATIVE
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [word, word]), "copy")
    builder = ir.IRBuilder(function.append_basic_block())
    source, target = function.args
    words = load_words(builder, source, count, 2)
    assert len(words) == count
    for number, value in enumerate(words):
        place = builder.inttoptr(builder.add(target, word(8 * number)), word.as_pointer())
        builder.store(value, place, align=8)
    builder.ret_void()
    return binding.parse_assembly(str(module))


@pytest.mark.skipif(not is_x86(NATIVE), reason="two words are loaded to a register of x86")
@pytest.mark.parametrize("count", [1, 2])
def test_words_come_by_one_load(count: int) -> None:
    host = {"features": binding.get_host_cpu_features().flatten(), "jit": True}
    machine = machine_of(NATIVE, binding.get_host_cpu_name(), **host)
    text = machine.emit_assembly(words_module(count))
    assert len(re.findall(r"\(%rdi\)", text)) == 1
    assert (re.search(r"\(%rdi\), %xmm", text) is not None) == (count == 2)  # a vector's register
    engine = binding.create_mcjit_compiler(words_module(count), machine)
    engine.finalize_object()
    call = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 2)(engine.get_function_address("copy"))
    numbers = np.random.default_rng(0).integers(0, 2**16, 4 * count + 1).astype(np.uint16)
    found = np.zeros(count, np.uint64)
    call(numbers[1:].ctypes.data, found.ctypes.data)  # aligned as its numbers are, no more
    np.testing.assert_array_equal(found.view(np.uint16), numbers[1:])
