"""Kernels that multiply rows of weights by a panel, each compiled for one width.

One adds to sums that wait in memory, one writes finished rows of C. The kernels of streamed
products and of convolutions, compiled once for all widths, call them by address
(`jit.jobs.call_code`). So the loops that `loop_emitters` emits have all registers, and code for a
further width is compiled in a third of a second.
"""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

import numpy as np
from numba.core import types

from portable_spdnn_cpu.jit.compilation import Emission, intrinsic, job_kernel
from portable_spdnn_cpu.jit.jobs import code_address, code_signature, machine_code
from portable_spdnn_cpu.layout.tile_shape import BLOCK_BYTES
from portable_spdnn_cpu.spmm.stream.loop_emitters import FinishedRowsLoop, RowsLoop
from portable_spdnn_cpu.spmm.stream.packing import BY_OFFSETS, GIVEN

LEAST_VECTOR = 16  # bytes, as with SSE2: sizes of vectors are told in units of these


@functools.cache
def summing_code(
    vectors: int, dtype: np.dtype[Any], halved: bool = False, vector_bytes: int = BLOCK_BYTES
) -> int:
    """Return the address of `sum_rows` for `call_code`.

    Parameters
    ----------
    vectors : int
        Width of the panel.
    dtype : dtype
        Of values.
    halved : bool
        Whether only the first half of the last vector is computed: no column is in the other.
    vector_bytes : int
        Of a vector, a register or several: 16, 32 or 64.
    """
    constants = (0,) * vectors, (0,) * (vector_bytes // LEAST_VECTOR), (0,) * halved, dtype.type
    return code_address(sum_rows, "i" * 10, *constants)


@functools.cache
def finishing_code(
    vectors: int,
    dtype: np.dtype[Any],
    form: tuple[int, ...],
    skips: bool = False,
    halved: bool = False,
    vector_bytes: int = BLOCK_BYTES,
) -> int:
    """Return the address of `finish_rows` for `call_code_for_integer`.

    Parameters
    ----------
    vectors, dtype, vector_bytes
        As `summing_code` has them.
    form : tuple
        One of those that `packing` names.
    skips : bool
        Whether panels may begin before column 0.
    halved : bool
        As `summing_code` has it; only BY_OFFSETS, and where `skips` is false.
    """
    signature = finish_signature(vectors, dtype, form, skips, halved, vector_bytes)
    return machine_code(finish_rows, signature)


def finish_signature(
    vectors: int,
    dtype: np.dtype[Any],
    form: tuple[int, ...],
    skips: bool,
    halved: bool,
    vector_bytes: int,
) -> Any:
    """Return the signature of `finish_rows` for what `finishing_code` takes."""
    lengths = vectors, vector_bytes // LEAST_VECTOR, halved, skips
    constants = *((0,) * length for length in lengths), form, dtype.type
    return code_signature("i" * 20 + "ffii", *constants, returns=True)


@job_kernel
def sum_rows(
    visits: int, top: int, stop: int, offsets: int, values: int, entry: int, panel: int, sums: int,
    later: int, far: int,
    vectors: tuple[int, ...], units: tuple[int, ...], halved: tuple[int, ...], dtype: Any,
) -> None:  # fmt: skip
    """Add the entries of packed rows in a block, times a panel, to the sums of these rows.

    Parameters
    ----------
    visits, top, stop : int
        Address of those that `packing.StreamPart` has, and which of them are meant.
    offsets, values, entry : int
        Addresses of what it has, and the number of the first entry.
    panel, sums : int
        Addresses of columns of B, a row after the other, and of the sums of row 0, likewise;
        aligned on vectors, and read and written in whole ones.
    later : int
        Not 0: start with the sums that are there, and not with 0.
    far : int
        Not 0: sums of rows that come next are prefetched.
    vectors, units, halved : tuple
        Their lengths, which Numba knows as it compiles, are those of a panel in vectors and of a
        vector in units of LEAST_VECTOR bytes; of `halved` it is 1 if only the first half of the
        last vector is computed, else 0.
    dtype : type
        Of values.
    """
    _emit_sums(
        vectors, units, halved, dtype,
        visits, top, stop, offsets, values, entry, panel, sums, later != 0, far != 0,
    )  # fmt: skip


@job_kernel
def finish_rows(
    visits: int, top: int, stop: int, offsets: int, values: int, entry: int, panel: int,
    stride: int, panels: int, columns: int, skipped: int, sums: int, later: int, far: int,
    out: int, out_stride: int, bias: int, residual: int, residual_stride: int,
    bounded: int, lower: float, upper: float, nontemporal: int, prefetches: int,
    vectors: tuple[int, ...], units: tuple[int, ...], halved: tuple[int, ...],
    skips: tuple[int, ...], form: tuple[int, ...], dtype: Any,
) -> int:  # fmt: skip
    """Sum as `sum_rows` does, and write rows of C.

    Returns where it stopped: at `stop`, or a row beyond where two go together.

    Parameters
    ----------
    visits, top, offsets, values, entry, panel, sums, later, far, vectors, units, halved, dtype
        As `sum_rows` has them. Of rows as given `far` is of no account.
    stop : int
        The visit before which to stop.
    stride, panels : int
        Items from a row of the panel to the next, and how many panels, which lie beside each other,
        a row meets. BY_OFFSETS `stride` is of no account, as offsets are for one, and there is one
        panel.
    columns, skipped : int
        How many columns of each panel are stored, but for so many at the beginning of the first:
        less than a vector. All vectors but the last are within `columns`.
    out, out_stride, residual, residual_stride : int
        Addresses of row 0 of C and of the residual, 0 if there is none, at the panel's first
        column, and items to the next row.
    bias : int
        Address of an item for each row; 0 if there is none.
    bounded, lower, upper : numbers
        Where `bounded` is not 0 what is stored is between `lower` and `upper`; NaN passes.
    nontemporal : int
        Not 0: whole vectors, which then are aligned in C, are written by non-temporal stores.
    prefetches : int
        Not 0: lines of C of rows that come next are prefetched.
    skips : tuple
        Where it is empty `skipped` is 0, and no code is emitted for it.
    form : tuple
        One of those that `packing` names. GIVEN: `visits`, `offsets` and `values` are the addresses
        of A's indptr of int64, indices of int32 and data, rows are visited by their numbers, and
        `entry` is of no account.
    """
    stopped: int = _emit_finished_rows(
        vectors, units, halved, skips, form, dtype, visits, top, stop, offsets, values, entry,
        panel, stride, panels, columns, skipped, sums, later != 0, far != 0, out, out_stride, bias,
        residual, residual_stride, bounded != 0, dtype(lower), dtype(upper), nontemporal != 0,
        prefetches != 0,
    )  # fmt: skip
    return stopped


@intrinsic
def _emit_sums(
    typingctx: Any, vectors: Any, units: Any, halved: Any, dtype: Any, visits: Any, top: Any,
    stop: Any, offsets: Any, values: Any, entry: Any, panel: Any, sums: Any, later: Any, far: Any,
) -> Emission:  # fmt: skip
    word, bit = types.intp, types.boolean
    signature = types.void(vectors, units, halved, dtype, *[word] * 8, bit, bit)
    names = (
        "visits", "top", "stop", "offsets", "values", "entry", "panel", "sums", "later", "far",
    )  # fmt: skip

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        given = SimpleNamespace(**dict(zip(names, args[4:], strict=True)))
        size, half = len(units) * LEAST_VECTOR, len(halved) > 0
        rows = RowsLoop(builder, len(vectors), size, half, dtype.dtype, given)
        rows.each_packed(rows.sum)
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def _emit_finished_rows(
    typingctx: Any, vectors: Any, units: Any, halved: Any, skips: Any, form: Any, dtype: Any,
    visits: Any, top: Any, stop: Any, offsets: Any, values: Any, entry: Any, panel: Any,
    stride: Any, panels: Any, columns: Any, skipped: Any, sums: Any, later: Any, far: Any, out: Any,
    out_stride: Any, bias: Any, residual: Any, residual_stride: Any, bounded: Any, lower: Any,
    upper: Any, nontemporal: Any, prefetches: Any,
) -> Emission:  # fmt: skip
    word, bit, element = types.intp, types.boolean, dtype.dtype
    signature = word(
        vectors, units, halved, skips, form, dtype, *[word] * 12, bit, bit, *[word] * 5, bit,
        element, element, bit, bit,
    )  # fmt: skip
    names = (
        "visits", "top", "stop", "offsets", "values", "entry", "panel", "stride", "panels",
        "columns", "skipped", "sums", "later", "far", "out", "out_stride", "bias", "residual",
        "residual_stride", "bounded", "lower", "upper", "nontemporal", "prefetches",
    )  # fmt: skip

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        given = SimpleNamespace(**dict(zip(names, args[6:], strict=True)))
        size, half = len(units) * LEAST_VECTOR, len(halved) > 0
        rows = FinishedRowsLoop(
            builder, len(vectors), size, half, element, given, skips=len(skips) > 0
        )
        if len(form) == len(GIVEN):
            rows.each_as_given()
            return given.stop
        if len(form) == len(BY_OFFSETS):
            return rows.each_packed(rows.finish_by_offsets)
        return rows.each_packed(rows.finish_by_rows)

    return signature, codegen
