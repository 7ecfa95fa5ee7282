"""Text files that lie: indices that are none, lines without an end, texts beyond memory."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from portable_spdnn.errors import InputError
from portable_spdnn.graphchallenge.categories import read_categories
from portable_spdnn.graphchallenge.inputs_tsv import read_inputs
from portable_spdnn.graphchallenge.tsv_triples import TripleFormat, parse_triples


@pytest.mark.parametrize(
    "index", ["2.0", "1e1", "True", "0x2", "1_0", "\u0661", "", "\x1c4", "4\x1d"]
)
def test_an_index_is_a_whole_number_in_digits(index):
    for text in (f"{index}\t1\t1\n", f"3\t1\t1\n3\t{index}\t1\n"):
        with pytest.raises(InputError, match=r"f, line .: (row|column) .* is no whole number"):
            parse_triples(text.encode(), TripleFormat(("row", "column", "value"), (9, 9)), "f")


def test_a_line_without_an_end_is_refused_early(tmp_path):
    bomb = tmp_path / "bomb.tsv.gz"
    bomb.write_bytes(gzip.compress(b"1" * (9 << 20)) * 50)
    for path in (bomb, Path("/dev/zero")):
        for read in (lambda file: read_inputs(file, 64), read_categories):
            with pytest.raises(InputError, match="line 1: goes on for more than 8 MiB"):
                read(path)


def test_a_text_larger_than_memory_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("portable_spdnn.io.compressed.available_bytes", lambda: 100)
    path = tmp_path / "categories.tsv"
    path.write_text("\n".join(map(str, range(1, 50))))
    with pytest.raises(InputError, match=r"categories.tsv: is a text of more than .* of memory"):
        read_categories(path)


@pytest.mark.parametrize("value", ["True", "1_0", "\u00a01", "\u0661", "0x1", "1\x1c", ""])
def test_a_value_is_a_number(value: str) -> None:
    text = f"3\t2\t{value}\n".encode()
    with pytest.raises(InputError, match=r"f(, line 1: value .* is no number|: cannot be parsed)"):
        parse_triples(text, TripleFormat(("row", "column", "value"), (9, 9)), "f")
