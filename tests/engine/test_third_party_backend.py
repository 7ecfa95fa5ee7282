"""A backend from a package of its own: registered, chosen, and held to the contract."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PYPROJECT = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "toy-spdnn"
version = "1.0"
[project.entry-points."portable_spdnn.backends"]
toy = "toy_spdnn:ToyBackend"
broken = "toy_spdnn:Missing"
[tool.setuptools]
py-modules = ["toy_spdnn"]
"""

# All that the contract asks of a newcomer: three operations on dense NumPy arrays.
MODULE = '''
import numpy as np
import scipy.sparse as sp
from portable_spdnn.backend import Availability, Backend
from portable_spdnn.operations.handles import SpgemmHandle
from portable_spdnn.errors import InputError


class ToyHandle(SpgemmHandle):
    def __init__(self, A, B):
        self.A, self.B = A, B

    def symbolic(self):
        A, B = pattern(self.A), pattern(self.B)
        allowed = A.astype(int) @ B.astype(int) > 0
        return np.concatenate(([0], np.cumsum(allowed.sum(axis=1)))).astype(np.int64)

    def numeric(self, A_data=None, B_data=None):
        A, B = self.A.copy(), self.B.copy()
        for name, matrix, data in (("A", A, A_data), ("B", B, B_data)):
            if data is not None:
                if len(data) != matrix.nnz:
                    stored = f"{name}, which stores {matrix.nnz}"
                    raise InputError(f"{len(data)} new values for {stored}")
                matrix.data = np.asarray(data, matrix.dtype)
        C = np.zeros((A.shape[0], B.shape[1]), A.dtype)
        for i in range(A.shape[0]):
            for k in range(A.indptr[i], A.indptr[i + 1]):
                stored = slice(B.indptr[A.indices[k]], B.indptr[A.indices[k] + 1])
                C[i, B.indices[stored]] += A.data[k] * B.data[stored]
        return sp.csr_array(C)


def pattern(M):
    return sp.csr_array((np.ones(M.nnz), M.indices, M.indptr), shape=M.shape).toarray() > 0


def product(A, B):
    """A B over the stored entries of A, so that 0 x NaN outside the pattern stays 0."""
    C = np.zeros((A.shape[0], B.shape[1]), A.dtype)
    for i in range(A.shape[0]):
        for k in range(A.indptr[i], A.indptr[i + 1]):
            C[i] += A.data[k] * B[A.indices[k]]
    return C


class ToyBackend(Backend):
    name = "toy"
    execution_space = "serial"

    @classmethod
    def availability(cls):
        return Availability.yes("a slate", {"toy-spdnn": "1.0"})

    def run_spmm(self, A, B, epilogue, residual):
        return epilogue.apply(product(A, B), residual, per_row=True)

    def make_spgemm_handle(self, A, B):
        return ToyHandle(A, B)

    def run_layer(self, W, Y, epilogue, residual):
        Z = product(W.T.tocsr(), Y.toarray().T if sp.issparse(Y) else Y.T).T
        Z = epilogue.apply(Z, residual)
        return sp.csr_array(Z) if sp.issparse(Y) else Z
'''


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Install the toy package into a folder of its own and put that on the path."""
    source = tmp_path_factory.mktemp("toy")
    (source / "pyproject.toml").write_text(PYPROJECT)
    (source / "toy_spdnn.py").write_text(MODULE)
    site = tmp_path_factory.mktemp("site")
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run(
        [*install, "--no-build-isolation", "--target", str(site), str(source)],
        check=True,
        capture_output=True,
    )
    return {**os.environ, "PYTHONPATH": str(site)}


def run(environment: dict[str, str], *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command], env=environment, capture_output=True, text=True, check=False
    )


def test_it_passes_the_contract(environment: dict[str, str]) -> None:
    done = run(environment, "-m", "portable_spdnn.testing", "toy")
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout.splitlines()[-1]
    assert "failed" not in done.stdout.splitlines()[-1]


def test_it_is_listed_and_a_broken_one_says_why(environment: dict[str, str]) -> None:
    code = (
        "import portable_spdnn as ps\n"
        "for b in ps.backends(): print(b.name, b.availability.available, b.availability.reason)"
    )
    lines = run(environment, "-c", code).stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["cupy", "numba", "toy", "scipy", "broken"]
    assert lines[2].split() == ["toy", "True"]
    assert "cannot be loaded" in lines[-1]
    assert "Missing" in lines[-1]
