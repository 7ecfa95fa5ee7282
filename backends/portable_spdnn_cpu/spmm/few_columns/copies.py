"""Copies of B as microkernels want it: windows of columns, or rows of 1 to 32 entries."""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from portable_spdnn_cpu.spmm.emitter import Value
from portable_spdnn_cpu.spmm.few_columns.operands import Operands
from portable_spdnn_cpu.spmm.few_columns.specs import LanesSpec, RowsSpec, SlicedSpec

RowCopySpec = RowsSpec | SlicedSpec  # of the forms that load whole rows of B


def copy_to_windows(at: Operands, spec: LanesSpec, scratch: Value, plane: Value) -> None:
    """Emit the copy of each column of B to a plane, in which windows lie.

    An aligned window holds ``spec.window - 1`` entries and a zero, which is there already.

    Parameters
    ----------
    at : Operands
    spec : LanesSpec
    scratch, plane
        The address of the first plane, and the bytes from one to the next.
    """
    with at.if_copied():
        depth, held = at.table("depth"), spec.window - 1
        windows = at.builder.udiv(at.add(depth, held - 1), at.number(held))
        # Whole windows whose vectors end before B does: the last lane is of the next window.
        whole = at.builder.sdiv(at.add(depth, -1), at.number(held))
        adjacent = at.is_adjacent("B_row")
        packed = _rows_are_contiguous(at, spec.columns, gaps=False)
        fast = at.builder.or_(adjacent, packed)
        first = at.builder.select(fast, whole, at.zero)
        with at.builder.if_then(adjacent), at.loop(at.zero, whole) as window:
            _copy_columns(at, spec, scratch, plane, window)
        if spec.columns > 1:
            transposed = at.builder.and_(packed, at.builder.not_(adjacent))
            with at.builder.if_then(transposed), at.loop(at.zero, whole) as window:
                _separate_columns(at, spec, scratch, plane, window, gaps=False)
            # Of rows with gaps more is loaded, as in `copy_to_rows`.
            excess = _excess_rows(_padded_columns(spec), spec.columns)
            readable = at.builder.sdiv(at.add(depth, -1 - excess), at.number(held))
            by_rows = _rows_are_contiguous(at, spec.columns, gaps=True)
            by_rows = at.builder.and_(by_rows, at.builder.not_(fast))
            first = at.builder.select(by_rows, readable, first)
            with at.builder.if_then(by_rows), at.loop(at.zero, readable) as window:
                _separate_columns(at, spec, scratch, plane, window, gaps=True)
        with at.loop(first, windows) as window:
            start = at.times(window, held)
            count = at.least(at.builder.sub(depth, start), at.number(held))
            target = at.add(scratch, at.times(window, spec.window * spec.itemsize))
            with at.loop(at.zero, count) as entry:
                for column in range(spec.columns):
                    value = at.load(at.scalar, _entry_of_b(at, at.add(start, entry), column))
                    place = at.add(target, at.times(entry, spec.itemsize))
                    at.store(value, at.add(place, at.times(plane, column)))


def copy_to_rows(
    at: Operands, spec: RowCopySpec, scratch: Value, blocks: Value, block_rows: Value
) -> None:
    """Emit the copy of B to rows of `spec.width` entries, each block of which begins with zeros.

    That row of zeros is there already.

    Parameters
    ----------
    at : Operands
    spec : RowsSpec or SlicedSpec
    scratch, blocks, block_rows
        The address of the first block, their number, and the rows of B in each.
    """
    builder = at.builder
    with at.if_copied():
        depth, row_step = at.table("depth"), at.argument["B_row"]
        columns_apart = at.is_adjacent("B_row")
        by_rows = _rows_are_contiguous(at, spec.columns, gaps=True)
        by_rows = builder.and_(by_rows, builder.not_(columns_apart))
        # Loads of `spec.width` items reach into what follows a row: the next one, or a gap, memory
        # of the array that B is a slice of. From row `safe` on they might reach beyond B, even
        # without gaps.
        excess = 0 if _reads_by_mask(spec) else _excess_rows(spec.width, spec.columns)
        safe = builder.sub(depth, at.number(excess))
        safe = builder.select(by_rows, safe, at.zero)
        with at.loop(at.zero, blocks) as block:
            first = at.times(block, block_rows)
            end = at.least(at.add(first, block_rows), depth)
            before = at.add(at.times(block, at.add(block_rows, 1)), 1)
            target = at.add(scratch, at.times(before, spec.row_bytes))
            begin = at.slot(first.type)
            builder.store(first, begin)
            # A single column is copied by vectors as one of several is, below.
            if 1 < spec.columns == spec.width and spec.row_bytes < spec.vector_bytes:
                with builder.if_then(_rows_are_contiguous(at, spec.columns, gaps=False)):
                    builder.store(_copy_vectors(at, spec, target, first, end), begin)
            with builder.if_then(by_rows):
                stop = at.least(safe, end)
                with at.loop(builder.load(begin), stop) as row:
                    source = at.add(at.argument["B"], at.times(row, row_step))
                    at.store(_row_of_b(at, spec, source), _row_at(at, spec, target, row, first))
                done = builder.load(begin)
                builder.store(
                    builder.select(builder.icmp_signed(">", stop, done), stop, done), begin
                )
            with builder.if_then(columns_apart):
                lanes = spec.lanes
                tiles = builder.udiv(builder.sub(end, first), at.number(lanes))
                with at.loop(at.zero, tiles) as tile:
                    _transpose(at, spec, target, first, at.add(first, at.times(tile, lanes)))
                builder.store(at.add(first, at.times(tiles, lanes)), begin)
            with at.loop(builder.load(begin), end) as row:
                for column in range(spec.columns):
                    value = at.load(at.scalar, _entry_of_b(at, row, column))
                    place = _row_at(at, spec, target, row, first)
                    at.store(value, at.add(place, column * spec.itemsize))


def _copy_vectors(
    at: Operands, spec: RowCopySpec, target: Value, first: Value, end: Value
) -> Value:
    """Copy rows first .. end - 1, between which there are no gaps, by whole vectors.

    Returns the first row that is left: what fills no vector.
    """
    rows = spec.vector_bytes // spec.row_bytes
    stop = at.add(first, at.builder.and_(at.builder.sub(end, first), at.number(-rows)))
    with at.loop(first, stop, rows) as row:
        found = at.load(at.vector(spec.lanes), _entry_of_b(at, row, 0))
        at.store(found, _row_at(at, spec, target, row, first))
    return stop


def _rows_are_contiguous(at: Operands, columns: int, gaps: bool) -> Value:
    """Return whether items of B's rows are adjacent, and rows too, or with gaps between them."""
    row = at.number(at.itemsize * columns)
    apart = at.builder.icmp_signed(">=" if gaps else "==", at.argument["B_row"], row)
    return at.builder.and_(apart, at.is_adjacent("B_column")) if columns > 1 else apart


def _excess_rows(width: int, columns: int) -> int:
    """Return how many rows at the end of B may end behind it, if `width` items of each are loaded.

    As many as where rows follow each other without gaps.
    """
    return -(-(width - columns) // columns)


def _entry_of_b(at: Operands, row: Value, column: int) -> Value:
    """Return the address of an entry of B, in any order."""
    start = at.add(at.argument["B"], at.times(row, at.argument["B_row"]))
    return at.add(start, at.times(at.argument["B_column"], column))


def _row_at(at: Operands, spec: RowCopySpec, target: Value, row: Value, first: Value) -> Value:
    """Return where a row of B goes, in the block that begins with row `first`."""
    return at.add(target, at.times(at.builder.sub(row, first), spec.row_bytes))


def _row_of_b(at: Operands, spec: RowCopySpec, source: Value) -> Value:
    """Load a contiguous row of B, and zeros beyond it; without a mask more of B is read."""
    kind = at.vector(spec.width)
    if not _reads_by_mask(spec):
        return _first_lanes(at, at.load(kind, source), spec.columns)
    return at.load_first(kind, source, spec.columns)


def _reads_by_mask(spec: RowCopySpec) -> bool:
    """Whether a row of B is loaded under a mask, so that nothing beyond it is read.

    Whole vectors of AVX-512 are: of a shuffle with zeros LLVM makes an expanding load there if the
    number of columns is even, which takes twice as long on a Zen 5.
    """
    return spec.vector_bytes == 64 and spec.row_bytes >= spec.vector_bytes


def _first_lanes(at: Operands, vector: Value, count: int) -> Value:
    """Return a vector with zeros beyond its first lanes."""
    lanes = vector.type.count
    chosen = [lane if lane < count else lanes + lane for lane in range(lanes)]
    return at.shuffle(vector, ir.Constant(vector.type, None), chosen)


def _each_piece(at: Operands, spec: LanesSpec, copy: Callable[[Value, bool], None]) -> None:
    """Emit copy(first, is_last) in a loop over the vectors of a window, and for the last."""
    last = at.number(spec.window - spec.lanes)
    with at.loop(at.zero, last, spec.lanes) as first:
        copy(first, False)
    copy(last, True)


def _store_piece(
    at: Operands, spec: LanesSpec, vector: Value, target: Value, first: Value, is_last: bool
) -> None:
    """Store a vector of a window, keeping the zero at the window's end."""
    if is_last:
        vector = _first_lanes(at, vector, spec.lanes - 1)
    at.store(vector, at.add(target, at.times(first, spec.itemsize)))


def _copy_columns(
    at: Operands, spec: LanesSpec, scratch: Value, plane: Value, window: Value
) -> None:
    """Copy a window of each column of a B whose columns are contiguous."""
    start = at.times(window, spec.window - 1)
    target = at.add(scratch, at.times(window, spec.window * spec.itemsize))

    def copy(first: Value, is_last: bool) -> None:
        for column in range(spec.columns):
            source = _entry_of_b(at, at.add(start, first), column)
            found = at.load(at.vector(spec.lanes), source)
            to = at.add(target, at.times(plane, column))
            _store_piece(at, spec, found, to, first, is_last)

    _each_piece(at, spec, copy)


def _padded_columns(spec: LanesSpec) -> int:
    """Return how many items of a row are loaded where there are gaps: a power of two."""
    return 1 << (spec.columns - 1).bit_length()


def _load_rows(at: Operands, spec: LanesSpec, row: Value, gaps: bool) -> list[Value]:
    """Load as many rows of B as a vector has lanes: vectors that hold them one after the other.

    With gaps between them each row is loaded by itself, and padded.
    """
    if not gaps:
        source = _entry_of_b(at, row, 0)
        starts = range(0, spec.columns * spec.vector_bytes, spec.vector_bytes)
        return [at.load(at.vector(spec.lanes), at.add(source, start)) for start in starts]
    width = _padded_columns(spec)
    found = [
        at.load(at.vector(width), _entry_of_b(at, at.add(row, number), 0))
        for number in range(spec.lanes)
    ]
    while len(found) > width:
        both = list(range(2 * found[0].type.count))
        pairs = zip(found[::2], found[1::2], strict=True)
        found = [at.shuffle(*pair, both) for pair in pairs]
    return found


def _separate_columns(
    at: Operands, spec: LanesSpec, scratch: Value, plane: Value, window: Value, gaps: bool
) -> None:
    """Copy a window of each column of a B whose rows are contiguous, without gaps or with."""
    lanes = spec.lanes
    start = at.times(window, spec.window - 1)
    target = at.add(scratch, at.times(window, spec.window * spec.itemsize))

    def copy(first: Value, is_last: bool) -> None:
        found = _load_rows(at, spec, at.add(start, first), gaps)
        for column in range(spec.columns):
            # Lane l of the column is number l * width + column of what was loaded.
            width = len(found)
            wanted = [lane * width + column for lane in range(lanes)]
            vector = found[0]
            for number in range(1, width):
                chosen = [
                    lanes + place % lanes if place // lanes == number else lane
                    for lane, place in enumerate(wanted)
                ]
                if number == 1:
                    chosen = [place if place < 2 * lanes else 0 for place in wanted]
                vector = at.shuffle(vector, found[number], chosen)
            to = at.add(target, at.times(plane, column))
            _store_piece(at, spec, vector, to, first, is_last)

    _each_piece(at, spec, copy)


def _transpose(at: Operands, spec: RowCopySpec, target: Value, first: Value, row: Value) -> None:
    """Copy rows from `row` on, as many as a vector has lanes, of a B with contiguous columns."""
    kind, place = at.vector(spec.lanes), _row_at(at, spec, target, row, first)
    together = min(spec.width, spec.lanes)  # columns
    for begin in range(0, spec.width, together):
        vectors = [
            at.load(kind, _entry_of_b(at, row, column))
            if column < spec.columns
            else ir.Constant(kind, None)
            for column in range(begin, begin + together)
        ]
        # Each vector holds one row or more, or a part of a row.
        for number, vector in enumerate(at.interleave(vectors)):
            to = number * max(spec.vector_bytes, spec.row_bytes) + begin * spec.itemsize
            at.store(vector, at.add(place, to))
