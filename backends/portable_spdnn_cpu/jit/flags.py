"""Conditions that hold for a whole loop, for emitters."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils

from portable_spdnn_cpu.jit.loops import hidden

WORD = ir.IntType(64)
PLACES = 16  # of conditions


class Flags:
    """Conditions as the bits of a word, which stays in a register.

    LLVM keeps each by itself, on the stack where registers do not suffice, and loads it each time
    that the loop comes to it. Such loads compete with those of vectors. So does what counts how
    often the loop is still to run: it may have the bits above.

    Parameters
    ----------
    builder : llvmlite.ir.IRBuilder
        Where the word is made, before the loop.
    conditions : dict
        LLVM values of one bit, by name: at most PLACES.
    left : optional
        How often the loop is to run, an LLVM value: a signed word of less than 48 bits.
    """

    def __init__(self, builder: Any, conditions: dict[str, Any], left: Any = None) -> None:
        self._builder, self._places = builder, {name: n for n, name in enumerate(conditions)}
        word = WORD(0) if left is None else builder.shl(left, WORD(PLACES))
        for place, condition in enumerate(conditions.values()):
            word = builder.or_(word, builder.shl(builder.zext(condition, WORD), WORD(place)))
        self._word = cgutils.alloca_once(builder, WORD)
        builder.store(hidden(builder, word), self._word)

    def __getitem__(self, name: str) -> Any:
        """Emit whether a condition holds, where the builder is then."""
        bit = self._builder.and_(self._builder.load(self._word), WORD(1 << self._places[name]))
        return self._builder.icmp_unsigned("!=", bit, WORD(0))

    def are_left(self) -> Any:
        """Emit whether the loop is to run again."""
        word = self._builder.load(self._word)
        return self._builder.icmp_signed(">=", word, WORD(1 << PLACES))

    def count_down(self, number: int) -> None:
        """Emit that the loop is to run less often by a number."""
        word = self._builder.load(self._word)
        self._builder.store(self._builder.sub(word, WORD(number << PLACES)), self._word)

    def left(self) -> Any:
        """Emit how often the loop is to run again: less than none where more was taken away."""
        return self._builder.ashr(self._builder.load(self._word), WORD(PLACES))
