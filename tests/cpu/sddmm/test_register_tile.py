"""What register tiles hold, and the code that is emitted for vectors of another length."""

from __future__ import annotations

import math
import re
from typing import Any

import numba
import numpy as np
import pytest
from llvmlite import binding

from portable_spdnn_cpu.attention.microkernels import add_rows, add_tiles, drop_last, score_tiles
from portable_spdnn_cpu.sddmm.microkernels import (
    exponentials,
    largest,
    load_row,
    score_rows,
    store_row,
)
from portable_spdnn_cpu.sddmm.register_tile import (
    GROUP,
    TOGETHER,
    RegisterTile,
    padded,
    part_blocks,
    register_tile,
)

AVX512, AVX2, SSE2 = (64, 32), (32, 16), (16, 16)  # bytes of a vector register, their number


def lengths(tile: RegisterTile) -> dict[str, int]:
    return {
        name: count if isinstance(count, int) else len(count)
        for name, count in tile._asdict().items()
    }


@pytest.mark.parametrize("machine", [AVX512, AVX2, SSE2])
@pytest.mark.parametrize("itemsize", [4, 8])
@pytest.mark.parametrize("d", [1, 16, 17, 64, 80, 128, 1000])
def test_tiles_fit_into_the_registers(machine: tuple[int, int], itemsize: int, d: int) -> None:
    vector_bytes, registers = machine
    tile = lengths(register_tile(itemsize, d, d, vector_bytes, registers))
    each = 16 * itemsize // vector_bytes
    assert GROUP % tile["rows"] == 0
    for blocks in (tile["keys"], tile["columns"]):
        assert blocks == 1 or each * (tile["rows"] * blocks + blocks + 1) <= registers
    # A part of a query, a sum that grows, the others of a register each, and what is loaded.
    assert tile["key_part"] == 1 or each * (tile["key_part"] + 1) + TOGETHER <= registers
    whole = padded(d, tile["key_part"])
    assert d <= whole < d + 16 * math.ceil(d / 16 / 4) + 16 * tile["key_part"]
    assert whole % (16 * tile["key_part"]) == 0


def test_tiles_of_machines() -> None:
    wide = lengths(register_tile(4, 64, 64, *AVX512))
    assert wide == {"one": 1, "rows": 8, "keys": 3, "columns": 2, "key_part": 4, "value_part": 4}
    narrow = lengths(register_tile(4, 64, 64, *AVX2))
    assert narrow == {"one": 1, "rows": 4, "keys": 1, "columns": 1, "key_part": 4, "value_part": 4}
    # A block of float64 is four registers, to whose time that of a part adds less.
    doubles = [register_tile(8, d, d, *AVX2).key_part for d in (16, 32, 48, 64, 80, 128)]
    assert doubles == [1, 2, 1, 2, 1, 2]
    assert [part_blocks(d, 4) for d in (1, 16, 64, 65, 80, 96, 128)] == [1, 1, 4, 3, 3, 3, 4]
    assert [part_blocks(d, 3) for d in (16, 80, 112, 128, 256)] == [1, 3, 2, 2, 2]
    assert [part_blocks(d, 3, in_place=True) for d in (48, 80, 96, 128)] == [3, 1, 3, 2]
    for d in range(16, 600, 16):  # read in place, no row is padded
        assert all(padded(d, part_blocks(d, most, in_place=True)) == d for most in (2, 3, 4))


def all_microkernels(
    tile: Any, x: Any, keys: Any, numbers: Any, bits: Any, out: Any, more: bool
) -> Any:
    score_rows(tile.key_part, x, 0, x, 0, 64, keys, 0, 9, x[0], out, 0, more)
    score_tiles(tile.rows, tile.keys, x, 0, 64, x, numbers, bits, 0, 0, x[0], out, 0, 64)
    add_tiles(tile.rows, tile.columns, x, 0, 64, x, 64, numbers, 0, 3, 0, out, 0)
    add_rows(tile.value_part, x, 0, x, 0, 64, keys, 0, 9, out, 0)
    drop_last(out, 10, 3)
    store_row(out, 0, x[1], out, 64, 50)
    return exponentials(out, 0, 50, x[0]) + largest(out, 0, 50) + load_row(x, 0, 50, out, 0, 64)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_code_for_avx2_has_vectors_of_its_length_alone(dtype: Any) -> None:
    tile = register_tile(np.dtype(dtype).itemsize, 64, 64, *AVX2)
    compiled: Any = numba.njit(all_microkernels)
    arrays = [np.zeros(4096, kind) for kind in (dtype, np.int32, np.uint32, np.uint16, dtype)]
    compiled.compile((numba.typeof(tile), *map(numba.typeof, arrays), numba.boolean))
    [code] = compiled.inspect_llvm().values()
    module = binding.parse_assembly(re.sub(r"^target (triple|datalayout).*$", "", code, flags=re.M))
    if "x86_64" not in binding.get_default_triple():
        pytest.skip("no processor of the family that has AVX2")
    target = binding.Target.from_triple("x86_64-unknown-linux-gnu")
    text = target.create_target_machine(cpu="x86-64-v3", opt=3).emit_assembly(module)
    assert "zmm" not in text
    assert len(re.findall(r"vfmadd.*ymm", text)) > 20
