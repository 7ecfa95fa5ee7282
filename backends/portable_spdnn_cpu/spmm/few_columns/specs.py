"""The forms of A for few columns, and what their code is generated from.

*Lanes*: rows of A of like length lie in the lanes of a vector, one each, and a step takes at most
one entry of each row, all out of a window of consecutive entries of a column of B. *Sliced*
(sliced ELLPACK): a step takes the next entry of each of so many rows, and loads the rows of B that
these meet, of one column or two. *Rows*: row by row, an entry times a whole row of B.
The parameters follow from a spec's fields alone, so that code for any processor can be generated on
any other, but for stores of parts of vectors, which are those of the processor at hand.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from portable_spdnn_cpu.jit.grouped_loads import GROUP

STEPS = 4  # of lanes, whose positions are the bytes of one word of 32 bits a lane
UNIT = 8  # bytes in which row by row the places of B's rows are given
ENTRIES = GROUP  # of rows: their columns are one word of 64 bits, and rows have whole words
PERMUTED_ITEMSIZE = 4  # bytes of the items that AVX2 permutes among all lanes


@dataclass(frozen=True)
class Spec:
    """What the code of all forms is generated from.

    Attributes
    ----------
    columns : int
        Of B.
    itemsize : int
        Bytes of a value: 4 or 8.
    vector_bytes : int
        64 with AVX-512, 32 with AVX2, 16 with what all have.
    prefetches : bool
        Whether entries of A are prefetched.
    """

    columns: int
    itemsize: int
    vector_bytes: int
    prefetches: bool = field(default=False, kw_only=True)

    @property
    def registers(self) -> int:
        """How many vectors the processor holds."""
        return 32 if self.vector_bytes == 64 else 16

    @property
    def lanes(self) -> int:
        """Items of a vector; in lanes and sliced, the rows that are computed together."""
        return self.vector_bytes // self.itemsize

    @property
    def width(self) -> int:
        """Columns of a row of B, once it is copied: as many as B has, or more."""
        return self.columns

    @property
    def row_bytes(self) -> int:
        """Bytes of such a row."""
        return self.width * self.itemsize


@dataclass(frozen=True)
class LanesSpec(Spec):
    """The form in lanes, of processors that look up items of a vector by a permute.

    Attributes
    ----------
    window_bytes : int
        Of the number of a window: 2 where that fits, else 4.
    wide : bool
        With vectors of 64 bytes, whether windows have four of them, and not two.
    """

    window_bytes: int = 2
    wide: bool = field(default=False, kw_only=True)

    @property
    def registers_of_window(self) -> int:
        """Vectors that hold a window; 0 where no permute looks up items, and there is no such form.

        A permute of AVX-512 looks up two. With four there are two permutes and a blend for each
        column, and a tenth to a fifth fewer steps, of float64 a sixth to a third (70 to 95 %
        zeros).
        """
        if self.vector_bytes == 64:
            return 4 if self.wide else 2
        return 1 if self.vector_bytes == 32 and self.itemsize == PERMUTED_ITEMSIZE else 0

    @property
    def window(self) -> int:
        """Entries of a window, one of them a zero that is no entry of B.

        It is the last of an aligned window: wherever a window begins, it has one.
        """
        return self.registers_of_window * self.lanes

    @property
    def window_step(self) -> int:
        """Windows begin at multiples of so many entries.

        A window of one vector begins anywhere: a fifth fewer steps for loads that cross cache
        lines. With more vectors those loads would cost more than the steps.
        """
        return 1 if self.registers_of_window == 1 else self.lanes

    @property
    def shared_steps(self) -> int:
        """Steps that use the same window, which is loaded once for them.

        One with 8 entries, where a row seldom has two; two with 16 and 32, for a twentieth more
        steps; four with 64, for a fiftieth more at 80 % zeros, and a seventh at 95 %.
        """
        return {8: 1, 64: 4}.get(self.window, 2)

    @property
    def chains(self) -> int:
        """Sums of each row and column, to which steps add by turns: to hide the latency.

        Four where all sums take a quarter of the registers at most; more gained nothing.
        """
        if 4 * self.columns <= self.registers // 4:
            return 4
        return 2 if self.columns <= 4 else 1


@dataclass(frozen=True)
class SlicedSpec(Spec):
    """The sliced form, for one column or two.

    Attributes
    ----------
    place_bytes : int
        Of the number of a row of B: 2 where that fits, else 4.
    """

    place_bytes: int = 2

    @property
    def items_of_16_bytes(self) -> int:
        """Items in 16 bytes, within which AVX shuffles by an immediate operand."""
        return 16 // self.itemsize

    @property
    def chains(self) -> int:
        """Sums of each row and column, a power of two, to which steps add by turns."""
        return 2


@dataclass(frozen=True)
class RowsSpec(Spec):
    """The form row by row."""

    @property
    def width(self) -> int:
        """Columns of a row of B, once it is copied."""
        return next(width for width in (4, 8, 16, 32) if width >= self.columns)

    @property
    def chains(self) -> int:
        """Sums of a row, to which entries are added by turns: to hide the latency."""
        vectors = max(1, self.row_bytes // self.vector_bytes)
        return max(1, min(ENTRIES, self.registers // 2 // vectors))

    @property
    def further_chains(self) -> int:
        """Further sums for long rows, as many as `chains`, or 0.

        A sum takes its next entry after four cycles, while a core begins a multiply-add in each. 0
        where a row of B has more than 32 bytes, whose loads bind as much, or takes more than a
        register.
        """
        return self.chains if self.row_bytes <= min(32, self.vector_bytes) else 0
