"""The first lanes of a vector are stored, however many, and no byte beyond them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from llvmlite import ir
from numba import njit
from numba.core import types

from portable_spdnn_cpu.jit import partial_vectors
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
            partial_vectors.store_first(builder, value, data, count)
            return context.get_dummy_value()

        return types.void(out, types.intp), codegen

    return njit(lambda out, count: store(out, count))


@pytest.mark.parametrize("fast_masks", [True, False])
@pytest.mark.parametrize(("dtype", "lanes"), [(np.float32, 16), (np.float64, 8), (np.float32, 1)])
def test_any_number_of_lanes(
    monkeypatch: pytest.MonkeyPatch, fast_masks: bool, dtype: Any, lanes: int
) -> None:
    monkeypatch.setattr(partial_vectors, "HAS_FAST_MASKS", fast_masks)
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
