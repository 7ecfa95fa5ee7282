"""Whether a processor predicts where rows or columns of A end, in products with a single column.

It learns the branches of matrices that are multiplied again and again, up to some ten thousand
rows of CSR, or columns of CSC. A table in each job holds which matrices it multiplied last, by the
addresses of their offsets. Where it is wrong a product takes longer, and C is the same: so threads
share it without a lock.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types

from portable_spdnn_cpu.jit.compilation import Emission, intrinsic, kernel_part
from portable_spdnn_cpu.jit.jobs import array_at
from portable_spdnn_cpu.jit.target import cpu_name, is_zen

SLOT_BITS = 12
SLOTS = 1 << SLOT_BITS  # matrices: so many that two which are multiplied by turns rarely share one
# How much a processor remembers, of matrices that come by turns: their entries, and so many for
# each row or column. Measured on a Zen 3, a Zen 4 and an Intel Xeon, with columns; others get the
# figure of their maker. Measured anew on a Zen 5, which forgets long columns later, and not all at
# once: times the square of their entries, on average, that adds.
COLUMN, REMEMBERED, OF_LONG = 4, 80_000 if is_zen() else 38_000, 0
if cpu_name() == "znver5":
    COLUMN, REMEMBERED, OF_LONG = 3, 105_000, 400
NEVER = 1 << 40  # more than any of these


@kernel_part
def multiplied_since(indptr: int, columns: int, entries: int) -> int:
    """Note a product, and return how much was multiplied since the last one with this A began.

    `indptr` is the address of its offsets. Returns more than a processor remembers at the first.
    """
    table = array_at(table_address(), 1 + 2 * SLOTS, np.int64)
    # Fibonacci hashing (Knuth, The Art of Computer Programming 3, 6.4): the upper bits.
    mixed = np.uint64(indptr) * np.uint64(0x9E3779B97F4A7C15)
    slot = 1 + 2 * np.int64(mixed >> np.uint64(64 - SLOT_BITS))
    before = table[slot + 1] if table[slot] == indptr else -NEVER
    after = table[0] + COLUMN * columns + entries
    table[0], table[slot], table[slot + 1] = after, indptr, after
    return int(after - before)


@intrinsic
def table_address(typingctx: Any) -> Emission:
    """Return the address of words that outlast a call, and are zero at first.

    They are what was multiplied up to now, and pairs of an address and what that was when it came
    last.
    """

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        kind = ir.ArrayType(ir.IntType(64), 1 + 2 * SLOTS)
        words = ir.GlobalVariable(builder.module, kind, builder.module.get_unique_name("history"))
        words.linkage, words.initializer = "internal", ir.Constant(kind, None)
        return builder.ptrtoint(words, ir.IntType(64))

    return types.intp(), codegen
