"""NumPy's array objects in compiled code, which reads their fields where they lie.

To take an array as an argument, Numba has to know its type and dimensions before, which Python
looks up in a fifth of a microsecond. Here a kernel is given the object, and looks at all that
itself, in the fields that NumPy's C API gives arrays: `PyArrayObject_fields` of ndarraytypes.h,
which every extension module that was compiled for NumPy reads.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from numba.core import types
from numba.extending import NativeValue, models, register_model, unbox

from portable_spdnn_cpu.jit.compilation import Array, Emission, intrinsic, kernel_part
from portable_spdnn_cpu.jit.jobs import array_at

# Words of an array object; numbers of 32 bits are the first half of theirs. The type is the last
# that all objects have.
TYPE = object.__basicsize__ // 8 - 1
DATA, DIMENSIONS, SHAPE, STRIDES, BASE, DTYPE, FLAGS = range(TYPE + 1, TYPE + 8)
FIELDS = FLAGS + 1
C_CONTIGUOUS, ALIGNED, WRITEABLE = 0x1, 0x100, 0x400  # flags
MAX_DIMENSIONS = 2
EXPECTED = 3 + MAX_DIMENSIONS  # words of what is expected of an array


class ArrayObject(types.Opaque):
    """Numba's type of Python objects that may be arrays."""


ARRAY_OBJECT = ArrayObject("ArrayObject")
register_model(ArrayObject)(models.OpaqueModel)
# An object is handed to a kernel as it is: whoever calls the kernel holds a reference.
unbox(ArrayObject)(lambda kind, value, context: NativeValue(value))


@intrinsic
def address_of_object(typingctx: Any, given: Any) -> Emission:
    """Return the address of an object."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.ptrtoint(args[0], context.get_value_type(types.intp))

    return types.intp(given), codegen


def expected_words(shape: tuple[int, ...], dtype: np.dtype[Any]) -> list[int]:
    """Return, for `is_expected`, an array's type, dtype, dimensions and shape."""
    padding = [0] * (MAX_DIMENSIONS - len(shape))
    return [id(np.ndarray), id(np.dtype(dtype.type)), len(shape), *shape, *padding]


@kernel_part
def fields_of(given: Any) -> tuple[Array, Array]:
    """Return the fields of an array object, as words and as halves of words."""
    address = address_of_object(given)
    return array_at(address, FIELDS, np.int64), array_at(address, 2 * FIELDS, np.int32)


@kernel_part
def is_expected(given: Any, at: int) -> bool:
    """Whether an object is an array as `expected_words` at this address say."""
    expected = array_at(at, EXPECTED, np.int64)
    words, halves = fields_of(given)
    if words[TYPE] != expected[0]:
        return False  # it may be too short for other fields
    if words[DTYPE] != expected[1] or halves[2 * DIMENSIONS] != expected[2]:
        return False
    shape, as_long = array_at(words[SHAPE], MAX_DIMENSIONS, np.int64), True
    for axis in range(expected[2]):
        as_long &= shape[axis] == expected[3 + axis]
    return as_long


@kernel_part
def is_writeable(given: Any) -> bool:
    """Whether an array object may be written to."""
    flags: int = fields_of(given)[1][2 * FLAGS]
    return flags & WRITEABLE != 0


def fields_are_known() -> bool:
    """Whether this interpreter and this NumPy have arrays whose fields lie as above."""
    sample = np.zeros((2, 3), np.float32)
    words = (ctypes.c_int64 * FIELDS).from_address(id(sample))
    halves = (ctypes.c_int32 * (2 * FIELDS)).from_address(id(sample))
    flags = C_CONTIGUOUS | ALIGNED | WRITEABLE
    found = words[TYPE], words[DTYPE], words[DATA], halves[2 * DIMENSIONS]
    if found != (id(np.ndarray), id(sample.dtype), sample.ctypes.data, 2):
        return False
    shape, strides = ((ctypes.c_int64 * 2).from_address(words[at]) for at in (SHAPE, STRIDES))
    is_as_it_looks = (*shape,) == sample.shape and (*strides,) == sample.strides
    return is_as_it_looks and halves[2 * FLAGS] & flags == flags


KNOWN = fields_are_known()
