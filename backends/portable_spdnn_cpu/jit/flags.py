"""Conditions that hold for a whole loop, for emitters."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from portable_spdnn_cpu.jit.loops import hidden

WORD = ir.IntType(64)


class Flags:
    """Conditions as the bits of a word, which stays in a register.

    LLVM keeps each by itself, on the stack where registers do not suffice, and loads it each time
    that the loop comes to it. Such loads compete with those of vectors.

    Parameters
    ----------
    builder : llvmlite.ir.IRBuilder
        Where the word is made, before the loop.
    conditions : dict
        LLVM values of one bit, by name.
    """

    def __init__(self, builder: Any, conditions: dict[str, Any]) -> None:
        self._builder, self._places = builder, {name: n for n, name in enumerate(conditions)}
        word = WORD(0)
        for place, condition in enumerate(conditions.values()):
            word = builder.or_(word, builder.shl(builder.zext(condition, WORD), WORD(place)))
        self._word = hidden(builder, word)

    def __getitem__(self, name: str) -> Any:
        """Emit whether a condition holds, where the builder is then."""
        bit = self._builder.and_(self._word, WORD(1 << self._places[name]))
        return self._builder.icmp_unsigned("!=", bit, WORD(0))
