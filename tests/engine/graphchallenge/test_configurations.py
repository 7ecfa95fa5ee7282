"""The challenge's numbers, its truth files and the verdict."""

from __future__ import annotations

import hashlib
import re

import numpy as np
import pytest

from portable_spdnn.errors import InputError
from portable_spdnn.graphchallenge.categories import (
    categories_sha256,
    judge,
    known_truth,
    layers_of_truth,
    read_categories,
    truth_for,
    write_categories,
)
from portable_spdnn.graphchallenge.configurations import CONFIGURATIONS, challenge_bias

OFFICIAL = "neuron1024-l120-categories.tsv"


def test_configurations_are_the_twelve_official_ones():
    assert len(CONFIGURATIONS) == 12
    assert {(c.neurons, c.bias) for c in CONFIGURATIONS} == {
        (1024, -0.30),
        (4096, -0.35),
        (16384, -0.40),
        (65536, -0.45),
    }
    assert {c.layers for c in CONFIGURATIONS} == {120, 480, 1920}
    assert {c.edges for c in CONFIGURATIONS if c.neurons == 1024} == {
        3_932_160,
        15_728_640,
        62_914_560,
    }


@pytest.mark.parametrize(("neurons", "bias"), [(16, -0.15), (32, -0.175), (2048, -0.325)])
def test_bias_of_other_sizes_is_on_the_line(neurons, bias):
    assert challenge_bias(neurons) == bias


@pytest.mark.parametrize("neurons", [-1024, 0, 1, 8, 17, 1000, 1025])
def test_bias_of_foreign_sizes_must_be_given(neurons):
    with pytest.raises(InputError, match=rf"{neurons} neurons.*bias="):
        challenge_bias(neurons)


def test_truth_names():
    assert layers_of_truth(OFFICIAL, 1024) == 120
    assert layers_of_truth(OFFICIAL, 4096) is None
    assert layers_of_truth("neuron1024-l120-categories.tsv.bak", 1024) is None


def test_categories_are_counted_from_one_in_files(tmp_path):
    path = tmp_path / "categories.tsv"
    write_categories(path, [0, 4, 17])
    assert path.read_bytes() == b"1\n5\n18\n"
    categories = read_categories(path)
    assert categories.dtype == np.int64
    assert categories.tolist() == [0, 4, 17]
    assert [p.name for p in tmp_path.iterdir()] == ["categories.tsv"]


def test_no_category_at_all_is_legal(tmp_path):
    path = tmp_path / "categories.tsv"
    write_categories(path, np.empty(0, np.int64))
    assert path.read_bytes() == b""
    assert read_categories(path).shape == (0,)


@pytest.mark.parametrize("text", [b"18\n1\n5", b"1\r\n5\r\n18\r\n", b" 1\n5 \n18\n\n \n"])
def test_order_line_ends_and_blank_ends_do_not_matter(tmp_path, text):
    path = tmp_path / "categories.tsv"
    path.write_bytes(text)
    assert read_categories(path).tolist() == [0, 4, 17]


@pytest.mark.parametrize(
    ("text", "line", "fault"),
    [
        (b"1\n2\n0\n", 3, "'0' is no category"),
        (b"1\n-2\n", 2, "'-2' is no category"),
        (b"one\n", 1, "'one' is no category"),
        (b"1\t1\n", 1, "is no category"),
        (b"1.5\n", 1, "'1.5' is no category"),
        (b"1\n\n2\n", 2, "'' is no category"),
        (b"1\n" + b"9" * 5000, 2, "is no category"),
        (b"4\n7\n4\n", 3, "category 4 stands in line 1 already"),
    ],
)
def test_malformed_categories_name_file_and_line(tmp_path, text, line, fault):
    path = tmp_path / "categories.tsv"
    path.write_bytes(text)
    with pytest.raises(InputError, match=re.escape(f"{path}, line {line}: ") + ".*" + fault):
        read_categories(path)


def test_missing_categories_file_is_named(tmp_path):
    with pytest.raises(InputError, match=r"absent.tsv: cannot be read"):
        read_categories(tmp_path / "absent.tsv")


@pytest.mark.parametrize("categories", [[3, 1], [1, 1], [-1, 2], [0.5], [[1, 2]]])
def test_only_rising_whole_numbers_are_written(tmp_path, categories):
    with pytest.raises(InputError, match="rising whole numbers"):
        write_categories(tmp_path / "categories.tsv", categories)
    assert not list(tmp_path.iterdir())


def test_rising_is_checked_for_unsigned_numbers_too():
    with pytest.raises(InputError, match="rising"):
        categories_sha256(np.array([3, 1], np.uint64))


def test_digest_is_that_of_the_file(tmp_path):
    path = tmp_path / "categories.tsv"
    categories = np.array([2, 3, 59_999])
    write_categories(path, categories)
    assert categories_sha256(categories) == hashlib.sha256(path.read_bytes()).hexdigest()
    assert categories_sha256([]) == hashlib.sha256(b"").hexdigest()


def test_digest_of_the_official_truth_is_that_of_its_file(shared):
    path = shared / "graphchallenge" / OFFICIAL
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert categories_sha256(read_categories(path)) == digest


def test_official_truth_beyond_the_inputs_at_hand_does_not_count(shared):
    truth = truth_for(shared / "graphchallenge" / OFFICIAL, total_inputs=1200)
    assert (truth.categories.size, truth.beyond) == (19, 1793)
    assert truth.categories[[0, -1]].tolist() == [286, 1199]
    fewer = truth_for(shared / "graphchallenge" / OFFICIAL, 1200, inputs_at_hand=287)
    assert (fewer.categories.tolist(), fewer.beyond) == ([286], 1811)


@pytest.mark.parametrize(("category", "inputs"), [(60_001, 1200), (70_001, 70_000)])
def test_official_truth_beyond_all_inputs_is_an_error(tmp_path, category, inputs):
    path = tmp_path / OFFICIAL
    path.write_text(f"5\n{category}\n")
    fault = f"{path}, line 2: category {category} is beyond the {max(60_000, inputs)} inputs"
    with pytest.raises(InputError, match=re.escape(fault)):
        truth_for(path, inputs)


def test_official_truth_of_more_than_the_official_inputs(tmp_path):
    path = tmp_path / OFFICIAL
    path.write_text("5\n70000\n")
    assert truth_for(path, 70_000).categories.tolist() == [4, 69_999]


def test_other_truth_must_fit_the_input_file(tmp_path):
    path = tmp_path / "truth.tsv"
    path.write_text("3\n1300\n12\n1201\n")
    fault = f"{path}, line 2: category 1300 is beyond the 1200 inputs"
    with pytest.raises(InputError, match=re.escape(fault)):
        truth_for(path, total_inputs=1200)
    truth = truth_for(path, total_inputs=1300, inputs_at_hand=12)
    assert (truth.categories.tolist(), truth.beyond, truth.source) == ([2, 11], 2, str(path))


def test_verdict_passes_only_on_the_very_same_categories():
    truth = known_truth(np.array([1, 4, 8]), 8, "truth.tsv")
    assert truth.beyond == 1
    verdict = judge([1, 4], truth)
    assert verdict.passed
    assert str(verdict) == "PASSED against truth.tsv"


def test_verdict_names_missing_and_extra_categories():
    truth = known_truth(np.arange(0, 20, 2), 100, "truth.tsv")
    verdict = judge(np.array([0, 7]), truth)
    assert not verdict.passed
    assert verdict.missing.tolist() == list(range(2, 20, 2))
    assert verdict.extra.tolist() == [7]
    assert str(verdict) == (
        "FAILED against truth.tsv: categories 9 missing (3, 5, 7, 9, 11, ...), 1 extra (8), "
        "counted from 1"
    )
    assert not judge([], truth).passed
    assert judge([], known_truth(np.empty(0, np.int64), 100, "none")).passed
