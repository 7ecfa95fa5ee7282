"""NumPy's array objects in compiled code, which reads their fields where they lie.

To take an array as an argument, Numba has to know its type and dimensions before, which Python
looks up in a fifth of a microsecond or more. Here a kernel is given the object, and looks at all
that itself, in the fields that NumPy's C API gives arrays: `PyArrayObject_fields` of
ndarraytypes.h, which every extension module that was compiled for NumPy reads.

Another thread may change the shape of an array at any time, unless it waits for the interpreter's
lock. So a kernel of array objects is a `locked_kernel`: it reads all that it needs of them, and
only then computes without the lock. Nothing may be raised between `release_lock` and `take_lock`.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

import numpy as np
from numba.core import types
from numba.extending import NativeValue, models, register_model, unbox

from portable_spdnn_cpu.jit.compilation import (
    Array,
    Emission,
    Function,
    intrinsic,
    kernel,
    kernel_part,
)
from portable_spdnn_cpu.jit.jobs import array_at

# Numbers of the words of an array object: its type, which is the last that all objects have, where
# its items are, how many dimensions it has, where their extents and strides are, which array owns
# its items, its dtype and its flags. Dimensions and flags are 32 bits, the first half of a word.
TYPE = object.__basicsize__ // 8 - 1
DATA, NDIM, SHAPE, STRIDES, BASE, DTYPE, FLAGS = range(TYPE + 1, TYPE + 8)
WORDS_READ = FLAGS + 1
FLAG_C_CONTIGUOUS, FLAG_ALIGNED, FLAG_WRITEABLE = 0x1, 0x100, 0x400
MAX_NDIM = 2
# Words that tell what is expected of an array: type, dtype, dimensions and extents.
OF_TYPE, OF_DTYPE, OF_NDIM, OF_SHAPE = range(4)
EXPECTED_WORDS = OF_SHAPE + MAX_NDIM


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


def locked_kernel(function: Function) -> Function:
    """Compile a kernel that begins and ends with the interpreter's lock."""
    return kernel(function, nogil=False)


@intrinsic
def release_lock(typingctx: Any) -> Emission:
    """Let go of the interpreter's lock; return what `take_lock` wants."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        state = context.get_python_api(builder).save_thread()
        return builder.ptrtoint(state, context.get_value_type(types.intp))

    return types.intp(), codegen


@intrinsic
def take_lock(typingctx: Any, state: Any) -> Emission:
    """Wait for the interpreter's lock."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        api = context.get_python_api(builder)
        api.restore_thread(builder.inttoptr(args[0], api.voidptr))
        return context.get_dummy_value()

    return types.void(types.intp), codegen


def expected_words(shape: tuple[int, ...], dtype: np.dtype[Any]) -> list[int]:
    """Return, for `is_expected`, the words of an array of a shape and a dtype."""
    padding = [0] * (MAX_NDIM - len(shape))
    return [id(np.ndarray), id(np.dtype(dtype.type)), len(shape), *shape, *padding]


@kernel_part
def fields_of(given: Any) -> tuple[Array, Array]:
    """Return the fields of an array object, as words and as halves of words."""
    address = address_of_object(given)
    return array_at(address, WORDS_READ, np.int64), array_at(address, 2 * WORDS_READ, np.int32)


@kernel_part
def is_expected(given: Any, expected_at: int) -> bool:
    """Whether an object is an array like the `expected_words` at this address."""
    expected = array_at(expected_at, EXPECTED_WORDS, np.int64)
    words, halves = fields_of(given)
    if words[TYPE] != expected[OF_TYPE]:
        return False  # it may be too short for other fields
    if words[DTYPE] != expected[OF_DTYPE] or halves[2 * NDIM] != expected[OF_NDIM]:
        return False
    extents, same_shape = array_at(words[SHAPE], MAX_NDIM, np.int64), True
    for axis in range(expected[OF_NDIM]):
        same_shape &= extents[axis] == expected[OF_SHAPE + axis]
    return same_shape


@kernel_part
def is_writeable(given: Any) -> bool:
    """Whether an array object may be written to."""
    flags: int = fields_of(given)[1][2 * FLAGS]
    return flags & FLAG_WRITEABLE != 0


def fields_are_known() -> bool:
    """Whether this interpreter and this NumPy have arrays whose fields lie as above, and a lock."""
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        return False
    sample = np.zeros((2, 3), np.float32)
    words = (ctypes.c_int64 * WORDS_READ).from_address(id(sample))
    halves = (ctypes.c_int32 * (2 * WORDS_READ)).from_address(id(sample))
    flags = FLAG_C_CONTIGUOUS | FLAG_ALIGNED | FLAG_WRITEABLE
    found = words[TYPE], words[DTYPE], words[DATA], halves[2 * NDIM]
    if found != (id(np.ndarray), id(sample.dtype), sample.ctypes.data, 2):
        return False
    # Strides follow extents, wherever both lie.
    if words[STRIDES] - words[SHAPE] != 8 * sample.ndim:
        return False
    both = (ctypes.c_int64 * 4).from_address(words[SHAPE])
    return (*both,) == sample.shape + sample.strides and halves[2 * FLAGS] & flags == flags


FIELDS_ARE_KNOWN = fields_are_known()
