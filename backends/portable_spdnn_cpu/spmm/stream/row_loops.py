"""Loops over rows of weights, for a panel of columns: what `loop_emitters` emits, for kernels.

Each is a function of its own: within the kernel their loops would have too few registers, and loads
from the stack compete with those of the panel.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from llvmlite import ir
from numba.core import types

from portable_spdnn_cpu.jit.compilation import Emission, intrinsic
from portable_spdnn_cpu.spmm.emitter import WORD, Value
from portable_spdnn_cpu.spmm.stream.loop_emitters import FinishedRowsLoop, RowsLoop
from portable_spdnn_cpu.spmm.stream.packing import BY_OFFSETS, GIVEN


@intrinsic
def sum_rows(
    typingctx: Any, form: Any, vectors: Any, vector_bytes: Any, halved: Any, dtype: Any,
    visits: Any, top: Any, stop: Any, offsets: Any, values: Any, entry: Any, panel: Any, sums: Any,
    later: Any, far: Any,
) -> Emission:  # fmt: skip
    """Add the entries of packed rows in a block, times a panel, to the sums of these rows.

    Parameters
    ----------
    form : tuple
        One of those that `packing` names: if it is not BY_OFFSETS nothing is emitted.
    vectors : tuple
        Its length is the panel's width in vectors. Numba compiles for each type of argument, and a
        tuple's length is part of its type.
    vector_bytes : int, constant
        Of a vector: a register, or several.
    halved : tuple
        Empty, unless only the first half of the last vector is computed: no column is in the other.
    dtype : type
        Of values.
    visits, top, stop : int
        Address of those that `packing.StreamPart` has, and which of them are meant.
    offsets, values, entry : int
        Addresses of what it has, and the number of the first entry.
    panel, sums : int
        Addresses of columns of B, a row after the other, and of the sums of row 0, likewise;
        aligned on vectors, and read and written in whole ones.
    later : bool
        Whether to start with the sums that are there, and not with 0.
    far : bool
        Whether sums of rows that come next are prefetched.
    """
    if not isinstance(vector_bytes, types.IntegerLiteral):
        return None  # type: ignore[return-value]  # Numba asks again with constants
    word, bit = types.intp, types.boolean
    signature = types.void(form, vectors, vector_bytes, halved, dtype, *[word] * 8, bit, bit)
    names = (
        "visits", "top", "stop", "offsets", "values", "entry", "panel", "sums", "later", "far",
    )  # fmt: skip

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        if len(form) == len(BY_OFFSETS):
            given = dict(zip(names, args[5:], strict=True))

            def emit(inner: Any, arguments: SimpleNamespace) -> None:
                size, half = vector_bytes.literal_value, len(halved) > 0
                rows = RowsLoop(inner, len(vectors), size, half, dtype.dtype, arguments)
                rows.each_packed(rows.sum)
                inner.ret_void()

            _call_apart(builder, "sum_rows", ir.VoidType(), given, emit)
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def finish_rows(
    typingctx: Any, form: Any, vectors: Any, vector_bytes: Any, halved: Any, skips: Any, dtype: Any,
    visits: Any, top: Any, stop: Any, offsets: Any, values: Any, entry: Any, panel: Any,
    stride: Any, panels: Any, columns: Any, skipped: Any, sums: Any, later: Any, far: Any, out: Any,
    out_stride: Any, bias: Any, residual: Any, residual_stride: Any, bounded: Any, lower: Any,
    upper: Any, nontemporal: Any, prefetches: Any,
) -> Emission:  # fmt: skip
    """Sum as `sum_rows` does, and write rows of C.

    Returns where it stopped: at `stop`, or a row beyond where two go together.

    Parameters
    ----------
    form : tuple
        One of those that `packing` names. GIVEN: `visits`, `offsets` and `values` are the addresses
        of A's indptr of int64, indices of int32 and data, rows are visited by their numbers, and
        `entry` is of no account.
    vectors, vector_bytes, dtype, visits, top, offsets, values, entry, panel, sums, later, far
        As `sum_rows` has them. Of rows as given `far` is of no account.
    halved : tuple
        As `sum_rows` has it; not empty only BY_OFFSETS, and where `skips` is empty.
    skips : tuple
        Where it is empty `skipped` is 0, and no code is emitted for it.
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
    bounded, lower, upper : bool, numbers
        Whether what is stored is between `lower` and `upper`; NaN passes.
    nontemporal : bool
        Whether whole vectors, which then are aligned in C, are written by non-temporal stores.
    prefetches : bool
        Whether lines of C of rows that come next are prefetched.
    """
    if not isinstance(vector_bytes, types.IntegerLiteral):
        return None  # type: ignore[return-value]  # Numba asks again with constants
    word, bit, element = types.intp, types.boolean, dtype.dtype
    signature = word(
        form, vectors, vector_bytes, halved, skips, dtype, *[word] * 12, bit, bit, *[word] * 5, bit,
        element, element, bit, bit,
    )  # fmt: skip
    names = (
        "visits", "top", "stop", "offsets", "values", "entry", "panel", "stride", "panels",
        "columns", "skipped", "sums", "later", "far", "out", "out_stride", "bias", "residual",
        "residual_stride", "bounded", "lower", "upper", "nontemporal", "prefetches",
    )  # fmt: skip

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        given = dict(zip(names, args[6:], strict=True))

        def emit(inner: Any, arguments: SimpleNamespace) -> None:
            size, half, skipping = vector_bytes.literal_value, len(halved) > 0, len(skips) > 0
            rows = FinishedRowsLoop(inner, len(vectors), size, half, element, arguments, skipping)
            if len(form) == len(GIVEN):
                rows.each_as_given()
                inner.ret(arguments.stop)
            elif len(form) == len(BY_OFFSETS):
                inner.ret(rows.each_packed(rows.finish_by_offsets))
            else:
                inner.ret(rows.each_packed(rows.finish_by_rows))

        return _call_apart(builder, "finish_rows", WORD, given, emit)

    return signature, codegen


def _call_apart(
    builder: Any,
    name: str,
    result: Value,
    given: dict[str, Value],
    emit: Callable[[Any, SimpleNamespace], None],
) -> Value:
    """Call a function of its own, with arguments of these names.

    ``emit(builder, arguments)`` emits its code.
    """
    kind = ir.FunctionType(result, [value.type for value in given.values()])
    function = ir.Function(builder.module, kind, builder.module.get_unique_name(name))
    function.linkage = "internal"
    function.attributes.add("noinline")
    inner = ir.IRBuilder(function.append_basic_block("entry"))
    emit(inner, SimpleNamespace(**dict(zip(given, function.args, strict=True))))
    return builder.call(function, list(given.values()))
