"""Array objects in compiled code: which are as is expected, whatever is given."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numba.core import types

from portable_spdnn_cpu.jit import array_objects
from portable_spdnn_cpu.jit.array_objects import (
    ARRAY_OBJECT,
    expected_words,
    is_expected,
    is_writeable,
    locked_kernel,
)
from portable_spdnn_cpu.jit.compilation import entry_point
from portable_spdnn_cpu.jit.jobs import address_of


@locked_kernel
def how_it_fits(given: Any, at: int) -> int:
    """Return 0 where an object is not as expected, 1 where it is, 2 if it may be written to too."""
    if not is_expected(given, at):
        return 0
    return 2 if is_writeable(given) else 1


FITS = entry_point(how_it_fits, ARRAY_OBJECT, types.intp)


def expects(given: object, shape: tuple[int, ...], dtype: Any) -> int:
    words = np.array(expected_words(shape, np.dtype(dtype)), np.int64)
    return int(FITS(given, address_of(words)))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(5,), (5, 3), (1, 1), (0, 3)])
def test_an_array_as_expected(shape: tuple[int, ...], dtype: Any) -> None:
    array = np.zeros(shape, dtype)
    assert expects(array, shape, dtype) == 2
    assert expects(np.asfortranarray(array), shape, dtype) == 2
    assert expects(np.zeros((*shape, 2), dtype)[..., 0], shape, dtype) == 2
    array.flags.writeable = False
    assert expects(array, shape, dtype) == 1


@pytest.mark.parametrize(
    "given",
    [
        None, True, 7, 2**80, 1.5, "text", b"", (), [[1.0]], {}, object(), np.float32(1),
        np.zeros((5, 3)), np.zeros((5, 3), np.int32), np.zeros((5, 3), ">f4"),
        np.zeros((3, 5), np.float32), np.zeros((5, 4), np.float32), np.zeros(5, np.float32),
        np.zeros((5, 3, 1), np.float32), np.zeros((), np.float32), np.zeros((5, 3), object),
        np.zeros((5, 3), np.float32).view(np.memmap), np.ma.zeros((5, 3), np.float32),
        np.zeros((5, 3), [("value", np.float32)]), np.ndarray,
    ],
    ids=lambda given: type(given).__name__ + str(getattr(given, "shape", "")),
)  # fmt: skip
def test_anything_else(given: object) -> None:
    assert expects(given, (5, 3), np.float32) == 0


def test_fields_elsewhere_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert array_objects.fields_are_known()
    monkeypatch.setattr(array_objects, "DTYPE", array_objects.DTYPE - 1)
    assert not array_objects.fields_are_known()
    monkeypatch.undo()
    monkeypatch.setattr(array_objects, "FLAGS", array_objects.FLAGS - 3)
    assert not array_objects.fields_are_known()
