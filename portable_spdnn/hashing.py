"""A hash of 64-bit words, for finding what is equal or alike before comparing it."""

from __future__ import annotations

import numpy as np

from portable_spdnn.arrays import Array


def mix64(words: Array) -> Array:
    """Scramble 64-bit words, an ndarray of uint64, into as many others.

    Stafford's thirteenth variant, the finaliser of SplitMix64. Source: Steele, Lea and Flood, "Fast
    Splittable Pseudorandom Number Generators", OOPSLA 2014.
    """
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(words ^ (words >> np.uint64(31)))
