"""Where entries of packed weights lie, for emitters."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils

from portable_spdnn_cpu.jit.grouped_loads import GROUP
from portable_spdnn_cpu.jit.loops import hidden

OFFSET_BYTES = 2  # of an entry's offset into the panel
OFFSET_UNIT = 8  # bytes; x86 addresses scale an index by 8 at no cost
AHEAD = 2 * GROUP  # offsets that are read behind the last entry
WORD = ir.IntType(64)
Value = Any  # an LLVM value; llvmlite has no types


class Entries:
    """Emits where the next entry's offset and value lie: slots of two addresses.

    LLVM does not know how they come about. It would keep more in registers, and then on the stack.
    """

    def __init__(self, builder: Any, offsets: Value, values: Value) -> None:
        self.builder = builder
        self.offsets, self.values = (cgutils.alloca_once(builder, WORD) for _ in range(2))
        self.go_to([offsets, values])

    def addresses(self) -> list[Value]:
        """Return the addresses of the offset and the value."""
        return [self.builder.load(slot) for slot in (self.offsets, self.values)]

    def go_to(self, addresses: list[Value]) -> None:
        """Go on with the offset and the value at two addresses."""
        for slot, address in zip((self.offsets, self.values), addresses, strict=True):
            self.builder.store(hidden(self.builder, address), slot)

    def pass_by(self, count: Value, itemsize: int) -> None:
        """Pass by so many entries, with values of so many bytes."""
        builder = self.builder
        lengths = [builder.mul(count, WORD(size)) for size in (OFFSET_BYTES, itemsize)]
        self.go_to(list(map(builder.add, self.addresses(), lengths)))
