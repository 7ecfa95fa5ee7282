"""Instructions of a whole item of clustered_spmm: `cluster_items.py [--nvdisasm PATH]`.

An item is a cluster and a panel of columns. issue_slots.py reads the hot loop alone; where rows
have few entries, what comes before it (the item, its bounds, what is staged) and after it (bias,
bounds, marks, stores) takes issue slots as well. Here the fewest instructions are counted with
which a warp can go from one item to the next through the hot loop, as often as the common columns
of the challenge's layers ask for, and through every vector store of C: as warps with a full panel
do that stage nothing. No GPU is needed, and nothing is measured.
"""

from __future__ import annotations

import re
import sys
from collections import deque
from dataclasses import dataclass

from issue_slots import (
    ARCHITECTURE,
    JUMP,
    LABEL,
    disassembled,
    multiply_adds,
    nvdisasm_of_arguments,
)

from portable_spdnn_gpu.compile.catalog import BOUNDED, CLUSTER, clustered_spmm
from portable_spdnn_gpu.compile.nvrtc import compile_source
from portable_spdnn_gpu.compile.precision import Precision
from portable_spdnn_gpu.device.properties import DATA_SHEETS
from portable_spdnn_gpu.spmm.costs import CLUSTER_COLUMNS

COMMON = 32  # columns that the rows of a cluster share in the challenge's layers
INSTRUCTION = re.compile(r"\s+/\*[0-9a-f]+\*/\s+(@!?U?P\w+\s+)?(.*?);")
CONDITION = re.compile(r"BRA\s+!?U?P")  # beside the predicate before the instruction


@dataclass(frozen=True)
class Item:
    """The instructions of a warp for an item: before its hot loop, in all passes of it, after it.

    `useful` are the multiply-adds among them, one for each common column, row and column of C.
    """

    before: int
    loop: int
    after: int
    useful: int

    @property
    def share(self) -> float:
        """The part of the instructions that are multiply-adds."""
        return self.useful / (self.before + self.loop + self.after)


def main() -> int:
    """Print a row for each kernel."""
    nvdisasm = nvdisasm_of_arguments(__doc__)
    print("| kernel | before | hot loop | after | multiply-adds | issue slots |")
    print("|---|---|---|---|---|---|")
    for half in (False, True):
        precision = Precision(half=half)
        for constant in (True, False):
            code, _ = compile_source(clustered_spmm(precision, BOUNDED, constant), ARCHITECTURE)
            # A pair of columns of C is one store: of float 64 bits, of half precision 32.
            store = "STG.E desc" if half else "STG.E.64 desc"
            item = whole_item(disassembled(nvdisasm, code), store)
            rate = item.share * DATA_SHEETS[ARCHITECTURE].limits.flops / 2
            print(
                f"| clustered{' (equal weights)' if constant else ''}, {precision.storage} "
                f"| {item.before} | {item.loop:,} | {item.after} | {100 * item.share:.0f} % "
                f"| {rate / 1e12:.1f} |"
            )
    return 0


def whole_item(text: str, store: str) -> Item:
    """Return the instructions of an item, from the kernel's disassembled text."""
    code, labels = _parsed(text)
    plain = [instruction for _, instruction in code]
    targets = [labels[found[1]] if (found := JUMP.search(one)) else None for one in plain]
    loops = [(to, i + 1) for i, to in enumerate(targets) if to is not None and to <= i]
    inner = [one for one in loops if not any(two != one and _within(two, one) for two in loops)]
    hot = max(inner, key=lambda one: (multiply_adds(plain[slice(*one)]), one[0] - one[1]))
    first, end = max((one for one in loops if _within(hot, one)), key=lambda one: one[1] - one[0])
    useful = COMMON * CLUSTER * CLUSTER_COLUMNS
    passes = useful // multiply_adds(plain[slice(*hot)])
    after, at = 1, hot[1]
    for stop in [*(i for i in range(hot[1], end) if plain[i].startswith(store)), end - 1]:
        after += _fewest(code, targets, at, stop)
        at = stop
    before = _fewest(code, targets, first, hot[0])
    return Item(before, passes * (hot[1] - hot[0]), after, useful)


def _parsed(text: str) -> tuple[list[tuple[bool, str]], dict[str, int]]:
    """Return whether each instruction has a predicate, the instruction, and where labels are."""
    code: list[tuple[bool, str]] = []
    labels: dict[str, int] = {}
    for line in text.splitlines():
        if label := LABEL.match(line):
            labels[label[1]] = len(code)
        elif found := INSTRUCTION.match(line):
            code.append((found[1] is not None, found[2]))
    return code, labels


def _within(inner: tuple[int, int], outer: tuple[int, int]) -> bool:
    return outer[0] <= inner[0] and inner[1] <= outer[1]


def _fewest(code: list[tuple[bool, str]], targets: list[int | None], first: int, last: int) -> int:
    """Return the fewest instructions from one to another, without the last of them."""
    steps = {first: 0}
    waiting = deque([first])
    while waiting:
        at = waiting.popleft()
        if at == last:
            return steps[at]
        predicated, instruction = code[at]
        to = targets[at]
        leaves = instruction.startswith("EXIT") or to is not None
        conditional = predicated or CONDITION.match(instruction) is not None
        following = [] if to is None else [to]
        if conditional or not leaves:
            following.append(at + 1)
        for one in following:
            if one < len(code) and one not in steps:
                steps[one] = steps[at] + 1
                waiting.append(one)
    raise ValueError(f"no way leads from instruction {first} to {last}")


if __name__ == "__main__":
    sys.exit(main())
