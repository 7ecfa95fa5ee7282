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
# Matrices: two addresses share a slot, and forget each other, with a chance of 1 in so many.
SLOTS = 1 << SLOT_BITS
# The ends of a matrix are predicted if at most REMEMBERED was multiplied since it came last:
# entries, and COLUMN for each row or column. Measured with columns on a Zen 3, a Zen 4, a Zen 5 and
# an Intel Xeon; others get the figure of their maker. A Zen 5 forgets long columns later, and not
# all at once: OF_LONG times the square of the mean number of entries in a column is added for CSC.
COLUMN, REMEMBERED, OF_LONG = 4, 80_000 if is_zen() else 38_000, 0
if cpu_name() == "znver5":
    COLUMN, REMEMBERED, OF_LONG = 3, 105_000, 400
NEVER = 1 << 40  # at the first product


@kernel_part
def multiplied_since(indptr: int, columns: int, entries: int) -> int:
    """Note a product, and return how much was multiplied since the last one with this A.

    This one counts as well. `indptr` is the address of A's offsets. Returns NEVER, at least, at the
    first product.
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
