"""Emitted loops, which begin on a cache line of code, and cases by a number.

Where a short loop lies across two lines, a processor may fetch it at half the rate: additions of
sparse columns took a third longer on a Zen 3, or not, by where the system had put the code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from llvmlite import ir
from llvmlite.ir.values import MDValue, MetaDataString

CODE_LINE = 64  # bytes of a cache line
Value = Any  # an LLVM value; llvmlite has no types


@contextmanager
def loop(
    builder: Any, begin: Value, end: Value, step: Value, unrolls: bool = True
) -> Iterator[Value]:
    """Emit a loop around what is emitted inside; gives the counter.

    It takes begin, begin + step, ... below `end`, signed. LLVM may unroll it unless told not to.
    """
    body, after = (builder.append_basic_block(name) for name in ("loop", "loop.end"))
    before = builder.block
    builder.cbranch(builder.icmp_signed("<", begin, end), body, after)
    builder.position_at_end(body)
    counter = builder.phi(begin.type)
    counter.add_incoming(begin, before)
    yield counter
    following = builder.add(counter, step)
    if not unrolls:
        following = hidden(builder, following)
    counter.add_incoming(following, builder.block)
    align_loop(builder, builder.cbranch(builder.icmp_signed("<", following, end), body, after))
    builder.position_at_end(after)


def by_number(builder: Any, number: Value, most: int, emit: Callable[[int], Value]) -> Value:
    """Emit a switch: where `number` is n the code of ``emit(n)`` runs; returns its value, if any.

    The number is 1 to `most`, which is not checked.
    """
    after = builder.append_basic_block("after_cases")
    cases = [builder.append_basic_block(f"of_{n}") for n in range(1, most + 1)]
    switch, found = builder.switch(number, cases[-1]), []
    for n, case in enumerate(cases, 1):
        if n < most:
            switch.add_case(ir.Constant(number.type, n), case)
        builder.position_at_end(case)
        found.append((emit(n), builder.block))
        builder.branch(after)
    builder.position_at_end(after)
    if found[0][0] is None:
        return None
    value = builder.phi(found[0][0].type)
    for each in found:
        value.add_incoming(*each)
    return value


def hidden(builder: Any, value: Value, register: str = "r") -> Value:
    """Return a value through an empty asm, so that LLVM does not know how it came about.

    `register` is what an asm constraint calls its kind: "r" for a word, "v" for a vector of x86.
    """
    kind = ir.FunctionType(value.type, [value.type])
    return builder.asm(kind, "", f"={register},0", [value], False)


def align_loop(builder: Any, latch: Any) -> None:
    """Let the loop that a branch closes begin on a cache line.

    By the metadata ``llvm.loop.align``, which a version of LLVM that does not know it passes over.
    """
    module = builder.module
    alignment = [MetaDataString(module, "llvm.loop.align"), ir.IntType(32)(CODE_LINE)]
    operands = [module.add_metadata(alignment)]
    latch.set_metadata("llvm.loop", _LoopId(module, operands, str(len(module.metadata))))


class _LoopId(MDValue):  # type: ignore[misc]
    """What LLVM tells a loop by: metadata that names itself first, unknown to llvmlite."""

    def descr(self, buf: list[str]) -> None:
        """Write it out."""
        others = ", ".join(each.get_reference() for each in self.operands)
        buf += (f"distinct !{{ {self.get_reference()}, {others} }}\n",)
