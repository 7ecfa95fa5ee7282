"""Parts of vectors are loaded and stored, and no byte beyond them; bounds and multiply-adds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from guard_pages import array_before_a_guard_page
from llvmlite import ir
from numba import njit
from numba.core import types

from portable_spdnn_cpu.jit import vectors
from portable_spdnn_cpu.jit.compilation import intrinsic


def stored(lanes: int, constant: int | None) -> Any:
    """Return compiled code that stores lanes of 1, 2, ... to an array."""

    @intrinsic
    def store(typingctx: Any, out: Any, count: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            data = context.make_array(sig.args[0])(context, builder, args[0]).data
            kind = ir.VectorType(data.type.pointee, lanes)
            value = ir.Constant(kind, [float(lane + 1) for lane in range(lanes)])
            count = args[1] if constant is None else constant
            vectors.store_first(builder, value, data, count)
            return context.get_dummy_value()

        return types.void(out, types.intp), codegen

    return njit(lambda out, count: store(out, count))


@pytest.mark.parametrize("fast_masks", [True, False])
@pytest.mark.parametrize(("dtype", "lanes"), [(np.float32, 16), (np.float64, 8), (np.float32, 1)])
def test_any_number_of_lanes(
    monkeypatch: pytest.MonkeyPatch, fast_masks: bool, dtype: Any, lanes: int
) -> None:
    monkeypatch.setattr(vectors, "HAS_FAST_MASKS", fast_masks)
    run = stored(lanes, None)
    for count in range(lanes + 2):
        out = np.full(lanes + 4, -7, dtype)
        run(out, count)
        expected = np.where(np.arange(lanes + 4) < min(count, lanes), np.arange(lanes + 4) + 1, -7)
        np.testing.assert_array_equal(out, expected)
    out = np.full(lanes + 4, -7, dtype)
    stored(lanes, lanes // 2)(out, 0)
    assert out[: lanes // 2].tolist() == list(range(1, lanes // 2 + 1))
    assert (out[lanes // 2 :] == -7).all()


@pytest.mark.parametrize(("dtype", "lanes"), [(np.float32, 16), (np.float64, 8), (np.int32, 4)])
def test_lanes_that_are_not_loaded_are_zeros(dtype: Any, lanes: int) -> None:
    @intrinsic
    def copy(typingctx: Any, out: Any, source: Any, count: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            to, data = (
                context.make_array(sig.args[n])(context, builder, args[n]).data for n in (0, 1)
            )
            kind = ir.VectorType(data.type.pointee, lanes)
            value = vectors.load_first(builder, kind, data, args[2], np.dtype(dtype).itemsize)
            builder.store(value, builder.bitcast(to, kind.as_pointer()), align=1)
            return context.get_dummy_value()

        return types.void(out, source, types.intp), codegen

    run = njit(lambda out, source, count: copy(out, source, count))
    for count in (-(2**31), -1, 0, 1, lanes - 1, lanes, 2**32 + 1, 2**62):
        held = min(max(count, 0), lanes)
        source, out = array_before_a_guard_page(held, dtype), np.full(lanes, -7, dtype)
        source[:] = np.arange(1, held + 1)
        run(out, source, count)
        assert out.tolist() == [*range(1, held + 1), *[0] * (lanes - held)]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_clamped_keeps_nan(dtype: Any) -> None:
    @intrinsic
    def bound(typingctx: Any, value: Any, lower: Any, upper: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            return vectors.clamped(builder, *args)

        return value(value, value, value), codegen

    run = njit(lambda value, lower, upper: bound(value, lower, upper))
    given = [-np.inf, -3.0, -1.0, 0.5, 2.0, 9.0, np.inf]
    found = [run(dtype(value), dtype(-1), dtype(2)) for value in given]
    assert found == [-1, -1, -1, 0.5, 2, 2, 2]
    assert np.isnan(run(dtype(np.nan), dtype(-1), dtype(2)))
