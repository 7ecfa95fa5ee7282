"""Which products a folder of matrices stands for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp

from portable_spdnn.dlmc.collection import SIZES, collect
from portable_spdnn.errors import InputError


def write_smtx(path: Path, pattern: sp.csr_array) -> None:
    lines = (", ".join(map(str, (*pattern.shape, pattern.nnz))), pattern.indptr, pattern.indices)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(x if isinstance(x, str) else " ".join(map(str, x)) for x in lines))


@pytest.fixture
def patterns(tmp_path: Path) -> Path:
    """Five files of three formats, laid out as the collection is."""
    rng = np.random.default_rng(0)
    folder = tmp_path / "dlmc"
    for name, shape, density in (
        ("rn50/magnitude_pruning/0.8/first.smtx", (6, 9), 0.2),
        ("rn50/magnitude_pruning/0.8/last.smtx", (5, 9), 0.3),
        ("transformer/l0/0.5/body_x_fully_connected.smtx", (150, 140), 0.5),
    ):
        write_smtx(folder / name, sp.random_array(shape, density=density, rng=rng).tocsr())
    mine = sp.random_array((7, 8), density=0.5, rng=rng)
    (folder / "mine").mkdir()
    scipy.io.mmwrite(folder / "mine" / "a.mtx", mine)
    sp.save_npz(folder / "mine" / "b.npz", mine.tocsr())
    (folder / "mine" / "readme.txt").write_text("no matrix")
    (folder / SIZES).write_text("first,49\n\nelsewhere,3\n")
    return folder


def test_models_layers_and_columns(patterns: Path) -> None:
    found = [(one.model, one.layer, one.shape, one.columns) for one in collect(patterns)]
    assert found == [
        ("mine", "a", (7, 8), 256),
        ("mine", "b", (7, 8), 256),
        ("rn50", "first", (6, 9), 49),
        ("rn50", "last", (5, 9), 256),
        ("transformer", "body_x_fully_connected", (150, 140), 256),
    ]
    # The sizes stand above the folder; a file is taken as well.
    (one,) = collect(patterns / "rn50/magnitude_pruning/0.8/first.smtx")
    assert (one.columns, one.size, round(one.zeros, 2)) == (49, "M or K below 128", 0.8)
    sized = [
        (one.model, one.columns, one.size) for one in collect(patterns / "transformer", (8, 32))
    ]
    assert sized == [("transformer, N = 8", 8, "N below 16"), ("transformer, N = 32", 32, "larger")]


def test_masks_for_each_shape(patterns: Path) -> None:
    cases = [one for one in collect(patterns, masks=(0.5, 0.9999)) if one.path is None]
    assert [(one.shape, one.nnz) for one in cases] == [
        ((7, 8), 28), ((7, 8), 1), ((6, 9), 27), ((6, 9), 1), ((5, 9), 22), ((5, 9), 1),
        ((150, 140), 10500), ((150, 140), 2),
    ]  # fmt: skip
    for one in cases:
        A, B = one.operands(0)
        A.check_format(full_check=True)
        assert (A.shape, A.nnz, A.dtype, A.has_canonical_format) == (
            one.shape, one.nnz, np.float32, True,
        )  # fmt: skip
        assert B.shape == (one.shape[1], one.columns)
    rows = np.diff(cases[-2].operands(0)[0].indptr)
    assert 40 < rows.min() < 70 < rows.max() < 100  # spread over the rows


def test_values_depend_on_seed_and_name_alone(patterns: Path) -> None:
    cases = {one.layer: one for one in collect(patterns)}
    (alone,) = collect(patterns / "mine" / "a.mtx")
    A, B = cases["a"].operands(1)
    for again in (cases["a"].operands(1), alone.operands(1)):
        np.testing.assert_array_equal(again[0].toarray(), A.toarray())
        np.testing.assert_array_equal(again[1], B)
    for other in (cases["a"].operands(2), cases["b"].operands(1)):
        assert (other[1] != B).any()
    assert B.ctypes.data % 64 == 0
    assert abs(B.mean()) < 0.1 < 0.9 < B.std() < 1.1


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("a,49\nb\n", "line 2: 'b'"),
        ("a,0\n", "line 1"),
        ("a,-3\n", "line 1"),
        ("a," + "9" * 99, "1"),
        ("a,\n", "line 1"),
        ("a," + " " * 10 + "99999999999\n", "line 1"),
    ],
)
def test_sizes_that_are_none(patterns: Path, lines: str, message: str) -> None:
    (patterns / SIZES).write_text(lines)
    with pytest.raises(InputError, match=message) as raised:
        collect(patterns)
    assert SIZES in str(raised.value)


def test_folders_without_matrices(patterns: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not there; name a folder of"):
        collect(tmp_path / "absent")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="holds no matrix"):
        collect(tmp_path / "empty")
    with pytest.raises(InputError, match="holds no matrix"):
        collect(patterns / "mine" / "readme.txt")
    bad = patterns / "rn50" / "bad.smtx"
    bad.write_text("3, 4, 5\n0 1\n")
    with pytest.raises(InputError, match=r"bad.smtx, line 2"):
        collect(patterns)
    bad.write_text("3, 4, 0\n0 0 0 0\n\n")
    with pytest.raises(InputError, match=r"bad.smtx: its matrix of 3 x 4 has no entries"):
        collect(patterns)
    bad.write_text(f"3, {10**9}, 1\n0 1 1 1\n7\n")
    with pytest.raises(InputError, match=r"3 x 1000000000 x 256 and its dense form would take"):
        collect(patterns)
