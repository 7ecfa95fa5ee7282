"""Where entries of packed weights lie: what packing and kernels agree on, and their addresses."""

from __future__ import annotations

from typing import Any

from numba.core import cgutils

from portable_spdnn_cpu.jit.grouped_loads import GROUP
from portable_spdnn_cpu.jit.loops import hidden
from portable_spdnn_cpu.spmm.emitter import WORD, Value

OFFSET_BYTES = 2  # of an entry's offset into the panel
OFFSET_UNIT = 8  # bytes; x86 addresses scale an index by 8 at no cost
# Items behind the last entry: so many offsets are read there (`RowsEmitter.add_packed`), and fewer
# values.
PADDING = 2 * GROUP


class Entries:
    """Emits where the next entry lies: the addresses of its offset and its value, in slots.

    They go through `hidden`: LLVM would keep the beginnings of both arrays and numbers of entries
    instead, for which registers do not suffice.

    Parameters
    ----------
    builder : llvmlite.ir.IRBuilder
    offsets, values, first : LLVM words
        Addresses of arrays, and the number of the entry to begin with.
    itemsize : int
        Bytes of a value.
    """

    def __init__(
        self, builder: Any, offsets: Value, values: Value, first: Value, itemsize: int
    ) -> None:
        self.builder, self.itemsize = builder, itemsize
        self._offset, self._value = (cgutils.alloca_once(builder, WORD) for _ in range(2))
        self._set(offsets, values, first)

    def offset(self) -> Value:
        """Return the address of the offset."""
        return self.builder.load(self._offset)

    def value(self) -> Value:
        """Return the address of the value."""
        return self.builder.load(self._value)

    def go_to(self, offset: Value, value: Value) -> None:
        """Go to the entry with its offset and value at two addresses."""
        for slot, address in ((self._offset, offset), (self._value, value)):
            self.builder.store(hidden(self.builder, address), slot)

    def pass_by(self, count: Value) -> None:
        """Pass by so many entries."""
        self._set(self.offset(), self.value(), count)

    def _set(self, offset: Value, value: Value, count: Value) -> None:
        """Go to the entry so many behind one."""
        builder = self.builder
        sizes = ((offset, OFFSET_BYTES), (value, self.itemsize))
        self.go_to(*(builder.add(at, builder.mul(count, WORD(size))) for at, size in sizes))
