"""Lines of two indices and a value, separated by tabs: the text of Graph Challenge files."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import numpy as np

from portable_spdnn import graphchallenge
from portable_spdnn.arrays import Array
from portable_spdnn.errors import InputError
from portable_spdnn.graphchallenge.configurations import OFFICIAL_NEURONS
from portable_spdnn.host import usable_cores

# The parser releases the interpreter's lock; past four threads its source cannot keep up.
PARSERS = min(4, usable_cores())
_NUMERIC = b"0123456789+-.eE\t\r\n "
_WHOLE = re.compile(r"[ \r]*[+-]?[0-9]{1,4000}[ \r]*")  # int() would take more, such as 1_000
_FLOAT32_MAX = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class TripleFormat:
    """What the three fields of a line are called and how far the indices go.

    Attributes
    ----------
    names : tuple of str
    limits : tuple of int
        Largest first and second index.
    """

    names: tuple[str, str, str]
    limits: tuple[int, int]


def parse_triples(
    text: bytes, form: TripleFormat, source: str, first_line: int = 1
) -> tuple[Array, Array, Array]:
    """Parse lines ``index TAB index TAB value``, indices counted from 1.

    Lines may end in LF or CRLF; blank lines and a missing last line end do no harm.

    Parameters
    ----------
    text : bytes
        Whole lines.
    form : TripleFormat
    source : str
        The file, as messages name it.
    first_line : int
        Where `text` begins in the file, counted from 1.

    Returns
    -------
    first, second : ndarray of int64
        Counted from 1, as in the file.
    values : ndarray of float64
        All finite, also in float32.

    Raises
    ------
    InputError
        At the first line that does not have three fields, or whose index is not a whole
        number within its limits, or whose value is no number that is finite in float32.
    """
    if not text or text.isspace():
        return np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.float64)
    cause: Exception | None = None
    if text.translate(None, _NUMERIC):  # pandas would take True, or a mark at the beginning
        raise _first_fault(text, form, source, first_line, None)
    try:
        columns: list[Array] = graphchallenge.tsv_table.read_table(text)
        if len(columns) == 3:
            first, second, values = columns
            if (
                all(index.dtype == np.int64 for index in (first, second))
                and all(
                    int(index.min()) >= 1 and int(index.max()) <= limit
                    for index, limit in zip((first, second), form.limits, strict=True)
                )
                # A comparison with NaN is false, so it is found as well.
                and float(values.min()) >= -_FLOAT32_MAX
                and float(values.max()) <= _FLOAT32_MAX
            ):
                return first, second, values
    except (ValueError, OverflowError) as error:
        cause = error
    raise _first_fault(text, form, source, first_line, cause) from cause


def _first_fault(
    text: bytes, form: TripleFormat, source: str, first_line: int, cause: Exception | None
) -> InputError:
    """Scan line by line for what the fast parser refused."""
    for line, entry in enumerate(text.splitlines(), start=first_line):
        if entry.strip():
            fault = _fault(entry.decode("utf-8", "replace").split("\t"), form)
            if fault:
                return InputError(f"{source}, line {line}: {fault}")
    why = cause or "it holds a character that no number has"
    return InputError(f"{source}: cannot be parsed ({why}); download or copy it again")


def _fault(fields: list[str], form: TripleFormat) -> str | None:
    if len(fields) != 3:
        return f"{len(fields)} field(s); expected three with tabs between: {', '.join(form.names)}"
    for name, field, limit in zip(form.names, fields, form.limits, strict=False):
        if not _WHOLE.fullmatch(field):
            return f"{name} {field[:40]!r} is no whole number"
        index = int(field)
        if not 1 <= index <= limit:
            larger = next((n for n in OFFICIAL_NEURONS if n >= index > limit), None)
            hint = f"; was neurons={larger} meant?" if larger else ""
            memory = name == "input" and limit < index and limit < (1 << 31) - 1
            held = ", the inputs that the memory available would hold" if memory else ""
            return f"{name} {index} is outside 1 .. {limit}{held}{hint}"
    name, field = form.names[2], fields[2].strip(" \r")
    try:
        value = float(field if field.isprintable() and "_" not in field else "")
    except ValueError:
        return f"{name} {field[:40]!r} is no number"
    if not math.isfinite(value):
        return f"{name} {field[:40]!r} is not finite; all must be finite numbers"
    if abs(value) > _FLOAT32_MAX:
        return f"{name} {field[:40]!r} is too large for float32"
    return None
