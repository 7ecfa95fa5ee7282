"""Kernel: sort keys of 63 bits by their upper bits.

Keys are what accumulators of `numeric` list: a column in the upper bits, and in the lower ones
where its value lies. One integer instead of a pair is moved in one store, and needs no comparison
of two parts. Of its 64 bits the sign stays clear: signed comparison is the one that vector units
have before AVX-512, and the largest integer is then above all keys, to fill up a vector.

Short lists are sorted by rank, the number of smaller keys: quadratic, but in vectors and without
a branch that depends on keys. Longer ones are sorted by digits from the lowest on, which never
compares. Digits that are the same in all keys are left out, and a list that is in order already
is not touched.

Source: D. E. Knuth, The Art of Computer Programming 3, sections 5.2 and 5.2.5.
"""

from __future__ import annotations

import numpy as np

from portable_spdnn_cpu.jit.compilation import Array, kernel
from portable_spdnn_cpu.jit.intrinsics import bit_length

# Measured on random keys of 20 bits, nanoseconds a key: by rank 7.2 for 8 keys, 3.5 for 16, 5.8
# for 32, 7.5 for 64, 8.3 for 96; by digits 8.6 for 64, 8.4 for 96, 5 from 200 on. Insertion
# takes 10 for 8 keys and 16 for 24.
RANK_TO = 64
# Emptying and adding up the buckets of a digit must not cost more than moving the keys: lists of
# less than SHORT_LIST keys have digits of fewer bits.
SHORT_LIST, SHORT_DIGIT, LONG_DIGIT = 128, 6, 8
BUCKETS = 1 << LONG_DIGIT
PADDING = 16  # keys beyond the last that `order` must have room for: whole vectors
LARGEST = np.int64((1 << 63) - 1)


@kernel
def sort_keys(order: Array, spare: Array, starts: Array, count: int, low: np.uint64) -> None:
    """Sort order[:count] by the bits from `low` on.

    Keys differ, and those that are equal from `low` on must be in order already; they stay so.

    Parameters
    ----------
    order : ndarray of int64, shape (count + PADDING,) or more
        The keys, not negative; takes the result.
    spare : ndarray of int64, of the shape of `order`
        Memory to work in.
    starts : ndarray of int64, shape (BUCKETS,)
        Memory for where the keys of each bucket begin.
    count : int
        The number of keys.
    low : uint64
        The lowest bit that counts.
    """
    if count <= RANK_TO:
        padded = (count + PADDING - 1) & -PADDING
        for k in range(count, padded):
            order[k] = LARGEST
        for k in range(count):
            key = order[k]
            rank = 0
            for other in range(padded):
                rank += order[other] < key
            spare[rank] = key
        for k in range(count):
            order[k] = spare[k]
        return
    first, previous = order[0], order[0]
    varying = np.int64(0)
    rising = True
    for k in range(count):
        key = order[k]
        varying |= key ^ first
        rising &= key >= previous
        previous = key
    if rising:
        return
    # Equal digits of the bits up to the highest that varies.
    width = bit_length(np.uint64(varying) >> low)
    widest = SHORT_DIGIT if count < SHORT_LIST else LONG_DIGIT
    passes = (width + widest - 1) // widest
    digit = np.uint64((width + passes - 1) // passes)
    buckets = np.uint64(1) << digit
    mask = buckets - np.uint64(1)
    for number in range(passes):
        shift = low + np.uint64(number) * digit
        for bucket in range(buckets):
            starts[bucket] = 0
        for k in range(count):
            starts[(np.uint64(order[k]) >> shift) & mask] += 1
        place = 0
        for bucket in range(buckets):
            size = starts[bucket]
            starts[bucket] = place
            place += size
        for k in range(count):
            key = order[k]
            own = (np.uint64(key) >> shift) & mask
            spare[starts[own]] = key
            starts[own] += 1
        order, spare = spare, order
    if passes & 1:
        # The names have changed places: what is sorted lies in the caller's spare.
        for k in range(count):
            spare[k] = order[k]
