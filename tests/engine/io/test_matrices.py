"""Sparse matrices in files: what is read, and what is said of damage."""

from __future__ import annotations

import gzip
import io
import lzma
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp

import portable_spdnn as ps
from portable_spdnn.io.matrices import matrix_name

SMTX = "3, 4, 5\n0 2 2 5 \n0 3 0 1 3 \n"
DENSE = [[1, 0, 0, 1], [0, 0, 0, 0], [1, 1, 0, 1]]
BANNER = "%%MatrixMarket matrix coordinate real general\n"


def assert_canonical(matrix: Any, dense: Any, dtype: Any) -> None:
    assert isinstance(matrix, sp.csr_array)
    assert matrix.dtype == dtype
    assert matrix.indices.dtype == np.int32
    matrix.check_format(full_check=True)
    for start, end in zip(matrix.indptr, matrix.indptr[1:], strict=False):
        assert (np.diff(matrix.indices[start:end]) > 0).all()
    np.testing.assert_array_equal(matrix.toarray(), dense)


@pytest.mark.parametrize(
    ("ending", "pack"), [("", bytes), (".gz", gzip.compress), (".xz", lzma.compress)]
)
def test_a_pattern(tmp_path: Path, ending: str, pack: Callable[[bytes], bytes]) -> None:
    path = tmp_path / f"layer.smtx{ending}"
    for text in (SMTX, SMTX.replace("\n", "\r\n"), SMTX.rstrip(), SMTX + "\n \n"):
        path.write_bytes(pack(text.encode()))
        assert_canonical(ps.load_matrix(path), DENSE, np.float32)
    for text, shape in (("2, 3, 0\n0 0 0\n\n", (2, 3)), ("0, 3, 0\n0\n", (0, 3))):
        path.write_bytes(pack(text.encode()))
        assert_canonical(ps.load_matrix(path), np.zeros(shape), np.float32)


def test_a_pattern_of_the_collection(shared: Path) -> None:
    path = shared / "dlmc/transformer/magnitude_pruning/0.95"
    if not path.is_dir():
        pytest.skip(f"patterns of the Deep Learning Matrix Collection are not there: {path}")
    matrix = ps.load_matrix(path / "body_encoder_layer_0_ffn_conv1_fully_connected.smtx")
    assert (matrix.shape, matrix.nnz, matrix.dtype) == ((2048, 512), 52428, np.float32)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: b'' is no header; 'rows, columns, nnz' is expected"),
        ("3 4 5\n", "line 1: b'3 4 5"),
        ("3, 4, -5\n", "line 1"),
        ("9" * 300, "line 1"),
        (f"{10**17}, 4, 5\n", "line 1: 100000000000000000 rows with 5 nonzeros would take"),
        (f"3, 4, {10**17}\n0 1 1 2\n", "line 1: 3 rows with 100000000000000000 nonzeros"),
        ("3, 4, 5\n0 2 5\n0 3 0 1 3\n", "line 2: 3 numbers where line 1 asks for 4"),
        ("3, 4, 5\n0 2 2 5 5\n0 3 0 1 3\n", "line 2: 5 numbers where line 1 asks for 4"),
        ("3, 4, 5\n0 2 2 5\n0 3 0 1\n", "line 3: 4 numbers where line 1 asks for 5"),
        ("3, 4, 5\n0 2 2 5", "line 3: 0 numbers where line 1 asks for 5"),
        ("3, 4, 5\n0 2 2 4\n0 3 0 1 3\n", "line 2: row offsets end at 4; line 1 says 5"),
        ("3, 4, 5\n0 2 2 6\n0 3 0 1 3\n", "row offsets end at 6, but there are 5"),
        ("3, 4, 5\n0 3 2 5\n0 3 0 1 3\n", "row offsets do not rise from 0"),
        ("3, 4, 5\n1 2 2 5\n0 3 0 1 3\n", "row offsets do not rise from 0"),
        ("3, 4, 5\n0 2 2 5\n0 4 0 1 3\n", "column index 4 is outside 0 .. 3"),
        ("3, 4, 5\n0 2 2 5\n0 -3 0 1 3\n", "line 3: b'-3' is in no column index"),
        ("3, 4, 5\n0 x 2 5\n0 3 0 1 3\n", "line 2: b'x' is in no row offset"),
        ("3, 4, 5\n0 2 2 5\n0 3 0 1.0 3\n", "line 3: b'.0' is in no column index"),
        ("3, 4, 5\n0 2 2 5\n0 3 0 1 " + "9" * 19, "line 3: b'9999999999999999999' is in no"),
        ("3, 4, 5\n0 2 2 5\n0 3 1 0 3\n", "line 3: the column indices of row 2, counted from 0"),
        ("3, 4, 5\n0 2 2 5\n0 3 0 1 1\n", "line 3: the column indices of row 2"),
        ("3, 4, 5\n0 2 2 5\n0 3 0 1 3\n7\n", "goes on after its column indices"),
        ("3, 4, 5\n0 2 2 5\n" + " " * 999 + "0 3 0 1 3\n", "goes on after|where line 1 asks"),
    ],
)
def test_a_pattern_that_is_none(tmp_path: Path, text: str, message: str) -> None:
    for ending, pack in ((".smtx", bytes), (".smtx.gz", gzip.compress)):
        path = tmp_path / f"bad{ending}"
        path.write_bytes(pack(text.encode()))
        with pytest.raises(ps.InputError, match=message) as raised:
            ps.load_matrix(path)
        assert str(raised.value).startswith(str(path))
        assert "\n" not in str(raised.value)


@pytest.mark.parametrize("ending", [".mtx", ".mtx.gz"])
def test_matrix_market(tmp_path: Path, ending: str) -> None:
    rng = np.random.default_rng(0)
    square = np.where(rng.random((9, 9)) < 0.4, rng.standard_normal((9, 9)), 0)
    for dense, kinds in (
        (square[:5], {}),
        (square + square.T, {"symmetry": "symmetric"}),
        (square - square.T, {"symmetry": "skew-symmetric"}),
        (np.rint(4 * square), {"field": "integer"}),
        ((square != 0) * 1.0, {"field": "pattern"}),
    ):
        written = io.BytesIO()
        scipy.io.mmwrite(written, sp.coo_array(dense), precision=17, **kinds)
        text, path = written.getvalue(), tmp_path / f"matrix{ending}"
        path.write_bytes(gzip.compress(text) if ending.endswith("gz") else text)
        dtype = np.float32 if kinds.get("field") == "pattern" else np.float64
        assert_canonical(ps.load_matrix(path), dense, dtype)


def test_matrix_market_in_any_order(tmp_path: Path) -> None:
    path = tmp_path / "matrix.mtx"
    path.write_text(BANNER.upper() + "%\n\n% c\n 2 3 3 \n2 3 1e-3\n\n1 2 -4\r\n  1\t1 +2.5 \n\n")
    assert_canonical(ps.load_matrix(path), [[2.5, -4, 0], [0, 0, 1e-3]], np.float64)
    path.write_text(BANNER + "0 3 0\n")
    assert ps.load_matrix(path).shape == (0, 3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: '' is no Matrix Market banner"),
        ("1 1 1\n", "line 1: '1 1 1' is no Matrix Market banner"),
        (BANNER.replace("coordinate", "array") + "1 1\n1\n", r"line 1: a dense matrix \(array\)"),
        (BANNER.replace("real", "complex") + "1 1 1\n1 1 1 1\n", "line 1: 'complex' is none of"),
        (BANNER.replace("general", "hermitian") + "1 1 1\n1 1 1\n", "'hermitian' is none of"),
        (
            BANNER.replace("general", "skew-symmetric") + "2 2 2\n2 1 1\n2 2 3\n",
            r"entry \(2, 2\) of a skew-symmetric matrix is not 0",
        ),
        (BANNER, "ends before the line 'rows columns entries'"),
        (BANNER + "% c\n", "ends before the line 'rows columns entries'"),
        (BANNER + "2 2\n", "line 2: b'2 2.*' is no size"),
        (BANNER + "2 -2 1\n", "line 2: b'2 -2 1.*' is no size"),
        (BANNER + "9" * 20 + " 1 1\n1 1 1\n", "line 2: .* is no size"),
        (BANNER + f"{10**17} 1 1\n1 1 1\n", "line 2: a matrix of 100000000000000000 rows would"),
        (BANNER + f"2 2 {10**17}\n1 1 1\n", "line 2 says 100000000000000000 entries, and 1 are"),
        (BANNER + "2 2 2\n1 1 1\n", "line 2 says 2 entries, and 1 are there"),
        (BANNER + "2 2 1\n1 1 1\n2 2 1\n", "line 2 says 1 entries, and 2 are there"),
        (BANNER + "2 2 1\n", "says 1 entries, and 0 are there"),
        (BANNER + "2 2 1\n3 1 1\n", r"line 3: row 3 is outside 1 \.\. 2"),
        (BANNER + "2 2 1\n\n1 0 1\n", r"line 4: column 0 is outside 1 \.\. 2"),
        (BANNER + "2 2 1\n-1 1 1\n", "line 3: row -1 is outside"),
        (BANNER + "2 2 1\n1.0 1 1\n", "line 3: row b'1.0' is no whole number"),
        (BANNER + "2 2 1\n1 1\n", r"line 3: 2 field\(s\); 3 are expected"),
        (BANNER + "2 2 2\n1 1 1\n1 2 1 1\n", r"line 4: 4 field\(s\); 3 are expected"),
        (BANNER + "2 2 1\n1 1 nan\n", "line 3: value b'nan' is no finite number"),
        (BANNER + "2 2 1\n1 1 1e999\n", "line 3: value b'1e999' is no finite number"),
        (BANNER + "2 2 1\n1 1 0x10\n", "line 3: value b'0x10' is no finite number"),
        (BANNER + "2 2 1\n1 1 1.5abc\n", "line 3: value b'1.5abc' is no finite number"),
        (BANNER + "2 2 1\n1 1 1\0\n", r"line 3: value b'1\\x00' is no finite number"),
        (BANNER.replace("real", "integer") + "2 2 1\n1 1 7.5\n", "line 3: .* is no integer"),
        (BANNER.replace("real", "pattern") + "2 2 1\n1 1 7\n", r"line 3: 3 field\(s\); 2 are"),
        (BANNER + "2 2 2\n1 2 1\n1 2 1\n", "the entry of row 1, column 2 is there twice"),
        (BANNER.replace("general", "symmetric") + "2 2 2\n1 2 1\n2 1 1\n", "is there twice"),
        (BANNER.replace("general", "symmetric") + "2 3 1\n1 2 1\n", "2 x 3 cannot be symmetric"),
    ],
)
def test_matrix_market_that_is_none(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.mtx"
    path.write_text(text)
    with pytest.raises(ps.InputError, match=message) as raised:
        ps.load_matrix(path)
    assert str(raised.value).startswith(str(path))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("form", ["csr", "csc", "coo"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int8, bool])
def test_saved_by_scipy(tmp_path: Path, form: str, dtype: Any) -> None:
    rng = np.random.default_rng(0)
    for share in (0.4, 0):
        dense = np.where(rng.random((5, 7)) < share, rng.integers(1, 9, (5, 7)), 0).astype(dtype)
        for compressed in (False, True):
            sp.save_npz(tmp_path / "a.npz", sp.coo_array(dense).asformat(form), compressed)
            wide = np.float64 if dtype is np.float64 else np.float32
            assert_canonical(ps.load_matrix(tmp_path / "a.npz"), dense, wide)


def test_unsorted_and_repeated_entries_of_scipy(tmp_path: Path) -> None:
    matrix = sp.csr_array((np.array([1.0, 2, 4]), [2, 0, 2], [0, 3, 3]), shape=(2, 3))
    sp.save_npz(tmp_path / "a.npz", matrix)
    assert_canonical(ps.load_matrix(tmp_path / "a.npz"), [[2, 0, 5], [0, 0, 0]], np.float64)


def saved(**changed: Any) -> bytes:
    """Return an archive like SciPy's with other members; bytes are a whole member, None is none."""
    members: dict[str, Any] = {
        "format": np.array(b"csr"), "shape": np.array([2, 3]), "data": np.ones(2),
        "indices": np.array([2, 0]), "indptr": np.array([0, 1, 2]),
    }  # fmt: skip
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w") as archive:
        for name, content in (members | changed).items():
            if isinstance(content, bytes):
                archive.writestr(f"{name}.npy", content)
            elif content is not None:
                with archive.open(f"{name}.npy", "w") as stream:
                    np.lib.format.write_array(stream, content)
    return written.getvalue()


def test_arrays_that_scipy_does_not_write(tmp_path: Path) -> None:
    for dtype in (">f4", np.float16):
        content = saved(data=np.array([1, 2], dtype), indptr=np.array([0, 1, 2], ">i2"))
        (tmp_path / "a.npz").write_bytes(content)
        assert_canonical(ps.load_matrix(tmp_path / "a.npz"), [[0, 0, 1], [2, 0, 0]], np.float32)


def claim(shape: str, descr: str = "<f8") -> bytes:
    """Return an array file of 16 bytes that claims a shape."""
    header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header + bytes(16)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "damaged or no .npz file"),
        (b"PK\3\4" + b"junk" * 20, "damaged or no .npz file"),
        (saved()[:-30], "damaged or no .npz file"),
        (saved(data=None), "holds no sparse matrix .*data.npy"),
        (saved(format=None), "holds no sparse matrix .*format.npy"),
        (saved(format=np.array(b"bsr")), "holds a matrix of format 'bsr'; convert it"),
        (saved(shape=np.array([2.0, 3])), "two whole numbers are expected"),
        (saved(shape=np.array([2, 3, 4])), "two whole numbers are expected"),
        (saved(shape=np.array([-2, 3])), "two whole numbers are expected"),
        (saved(shape=np.array([10**17, 3])), "a matrix of 100000000000000000 x 3 would take"),
        (saved(shape=np.array([3, 3])), "3 row offsets of type int64; 3 rows take 4"),
        (saved(indices=np.array([3, 0])), r"column index 3 is outside 0 \.\. 2"),
        (saved(indices=np.array([-1, 0])), "column index -1 is outside"),
        (saved(indices=np.array([1.0, 0])), "column indices are float64; integers"),
        (saved(indices=np.array([1])), "row offsets end at 2, but there are 1 column indices"),
        (saved(indptr=np.array([0, 2, 1])), "row offsets do not rise from 0"),
        (saved(data=np.ones(2, complex)), "the values has type complex128|real numbers"),
        (saved(data=np.array(["a", "b"])), "real numbers are expected"),
        (saved(data=claim("(3,)")), "data has 16 bytes; its header says 24"),
        (saved(data=claim("(1,)")), "data has 9 bytes; its header says 8"),
        (saved(data=claim(f"({10**17},)")), "data, of shape .* would take"),
        (saved(data=claim("(-2,)")), "data is no array of numbers"),
        (saved(data=claim("(2,)", "|O")), "data is no array of numbers"),
        (saved(data=claim("(" * 90 + ")" * 90)), "data is no array of numbers"),
        (saved(format=np.array(b"coo"), row=np.array([0, 2]), col=np.array([1, 1])),
         r"row index 2 is outside 0 \.\. 1"),
        (saved(format=np.array(b"coo"), row=np.array([0]), col=np.array([1, 1])),
         "as many row indices as values"),
        (saved(format=np.array(b"csc")), "3 column offsets of type int64; 3 columns take 4"),
    ],
)  # fmt: skip
def test_an_archive_that_is_no_matrix(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "bad.npz"
    path.write_bytes(content)
    with pytest.raises(ps.InputError, match=message) as raised:
        ps.load_matrix(path)
    assert str(raised.value).startswith(str(path))


def test_names_and_files_that_are_none(tmp_path: Path) -> None:
    assert matrix_name("a/b.c.smtx") == ("b.c", ".smtx")
    assert matrix_name(Path("b.MTX.gz")) == ("b", ".mtx")
    assert matrix_name("b.npz.gz")[1] == matrix_name("b.txt")[1] == matrix_name("smtx")[1] == ""
    with pytest.raises(ps.InputError, match=r"a.txt: is named as no matrix; .smtx, .mtx"):
        ps.load_matrix(tmp_path / "a.txt")
    for ending in (".smtx", ".mtx", ".npz"):
        with pytest.raises(ps.InputError, match="cannot be read"):
            ps.load_matrix(tmp_path / f"absent{ending}")
        (tmp_path / f"folder{ending}").mkdir()
        with pytest.raises(ps.InputError, match="cannot be read"):
            ps.load_matrix(tmp_path / f"folder{ending}")
