"""Categories of the Graph Challenge: their files, the truth, and the verdict.

Categories are the inputs that have a positive score after the last layer. They are counted from
0 in this package and from 1 in files. Source: the files at graphchallenge.mit.edu.
"""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from portable_spdnn.arrays import Array
from portable_spdnn.errors import InputError
from portable_spdnn.graphchallenge.configurations import INPUTS
from portable_spdnn.io.atomic_output import atomic_output
from portable_spdnn.io.compressed import open_decompressed, read_text

_OFFICIAL_TRUTH = re.compile(r"neuron([1-9]\d*)-l([1-9]\d*)-categories\.tsv")


def layers_of_truth(name: str, neurons: int) -> int | None:
    """Return the number of layers in an official truth file's name, None for other names."""
    match = _OFFICIAL_TRUTH.fullmatch(name)
    return int(match[2]) if match and int(match[1]) == neurons else None


def read_categories(path: str | os.PathLike[str]) -> Array:
    """Read categories: one input number a line, counted from 1.

    Parameters
    ----------
    path : path-like
        The numbers may stand in any order. A file without any says that no input survives.

    Returns
    -------
    ndarray of int64, shape (categories,)
        Counted from 0, rising.

    Raises
    ------
    InputError
        If the file cannot be read, or a line is no number, is zero or negative, or repeats an
        earlier one.
    """
    return np.array(sorted(_lines_of_categories(Path(path))), dtype=np.int64) - 1


def write_categories(path: str | os.PathLike[str], categories: npt.ArrayLike) -> None:
    """Write categories, counted from 0, as the challenge does: one a line, counted from 1.

    Raises
    ------
    InputError
        If the categories are not rising whole numbers from 0, or the file cannot be written.
    """
    text = _official_bytes(categories)
    with atomic_output(path) as stream:
        stream.write(text)


def categories_sha256(categories: npt.ArrayLike) -> str:
    """Return the SHA-256 (hexadecimal) of the file that `write_categories` would write.

    Two runs agree on the categories exactly where the digests agree, and the digest of an
    official truth file is that of its bytes.
    """
    return hashlib.sha256(_official_bytes(categories)).hexdigest()


@dataclass(frozen=True)
class Truth:
    """The categories to be found among the inputs at hand.

    Attributes
    ----------
    categories : ndarray of int64
        Counted from 0, rising; all below the number of inputs at hand.
    beyond : int
        Number of categories left out because their inputs are not at hand.
    source : str
        Where they come from, as messages name it.
    """

    categories: Array
    beyond: int
    source: str


def truth_for(
    path: str | os.PathLike[str], total_inputs: int, inputs_at_hand: int | None = None
) -> Truth:
    """Read a truth file and keep what concerns the inputs at hand.

    A file with an official name (``neuronN-lL-categories.tsv``) speaks of the 60,000 official
    inputs, of which an input file may hold only the first; any other speaks of exactly the
    inputs of the input file.

    Parameters
    ----------
    path : path-like
    total_inputs : int
        Number of inputs in the input file.
    inputs_at_hand : int, optional
        How many of them are used, counted from the first; default: all.

    Raises
    ------
    InputError
        If a category is beyond the inputs that the file speaks of, or for any reason that
        `read_categories` names.
    """
    path = Path(path)
    lines = _lines_of_categories(path)
    official = _OFFICIAL_TRUTH.fullmatch(path.name) is not None
    limit = max(INPUTS, total_inputs) if official else total_inputs
    wrong = min(((line, number) for number, line in lines.items() if number > limit), default=None)
    if wrong is not None:
        raise InputError(
            f"{path}, line {wrong[0]}: category {wrong[1]} is beyond the {limit} inputs; "
            "is this the truth of these inputs?"
        )
    categories = np.array(sorted(lines), dtype=np.int64) - 1
    return known_truth(categories, total_inputs if inputs_at_hand is None else inputs_at_hand, path)


def known_truth(categories: Array, inputs_at_hand: int, source: object) -> Truth:
    """Keep the categories, counted from 0 and rising, that concern the inputs at hand."""
    kept = categories[: np.searchsorted(categories, inputs_at_hand)]
    return Truth(kept, categories.size - kept.size, str(source))


@dataclass(frozen=True)
class Verdict:
    """How categories compare with the truth.

    Attributes
    ----------
    missing : ndarray of int64
        Categories of the truth that were not found, counted from 0.
    extra : ndarray of int64
        Categories found that are not in the truth, counted from 0.
    source : str
        Where the truth comes from.
    """

    missing: Array
    extra: Array
    source: str

    @property
    def passed(self) -> bool:
        """Whether the categories are exactly the true ones."""
        return not self.missing.size and not self.extra.size

    def __str__(self) -> str:
        if self.passed:
            return f"PASSED against {self.source}"
        parts = []
        for kind, found in (("missing", self.missing), ("extra", self.extra)):
            if found.size:
                first = [str(category + 1) for category in found[:5]] + ["..."] * (found.size > 5)
                parts.append(f"{found.size} {kind} ({', '.join(first)})")
        return f"FAILED against {self.source}: categories {', '.join(parts)}, counted from 1"


def judge(categories: npt.ArrayLike, truth: Truth) -> Verdict:
    """Compare categories, counted from 0, with the truth.

    Returns
    -------
    Verdict
        Its text names how many categories are missing or extra, and the first of them.
    """
    found = np.asarray(categories, dtype=np.int64)
    return Verdict(
        np.setdiff1d(truth.categories, found), np.setdiff1d(found, truth.categories), truth.source
    )


def _official_bytes(categories: npt.ArrayLike) -> bytes:
    array = np.asarray(categories)
    if array.size == 0:
        return b""
    whole = array.ndim == 1 and array.dtype.kind in "iu"
    if not whole or array[0] < 0 or (array[1:] <= array[:-1]).any():
        raise InputError(
            f"categories are {array.dtype} of shape {array.shape}; expected one dimension of "
            "rising whole numbers from 0"
        )
    return "".join(f"{category + 1}\n" for category in array.tolist()).encode()


def _lines_of_categories(path: Path) -> dict[int, int]:
    """Return the number in each line, as in the file, and the line where it stands."""
    with open_decompressed(path) as stream:
        text = read_text(stream, str(path))
    lines: dict[int, int] = {}
    blank = 0
    for line, entry in enumerate(text.splitlines(), start=1):
        entry = entry.strip()
        if not entry:
            blank = blank or line
            continue
        if blank or not entry.isdigit() or len(entry) > 18 or int(entry) == 0:
            shown = "" if blank else entry[:40].decode("utf-8", "replace")
            raise InputError(
                f"{path}, line {blank or line}: {shown!r} is no category; expected one whole "
                "number from 1 up"
            )
        number = int(entry)
        if number in lines:
            raise InputError(
                f"{path}, line {line}: category {number} stands in line {lines[number]} already"
            )
        lines[number] = line
    return lines
