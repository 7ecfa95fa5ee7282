"""``portable-spdnn backends`` and ``generate``, and the package as a program."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
from command_line import Cli, expect_error

import portable_spdnn as ps


def test_backends_lists_all_with_reasons(cli: Cli) -> None:
    done = cli("backends", "--json", "-")
    records = {record["backend"]: record for record in json.loads(done.out)}
    assert records["scipy"]["available"] is True
    assert records["numba"]["execution_space"] == "threads"
    assert "spgemm" in records["numba"]["operations"]
    assert records["cupy"]["available"] is False
    assert records["cupy"]["reason"]
    shown = cli("backends").out
    assert all(name in shown for name in records)
    assert records["cupy"]["reason"] in shown


def test_generate_writes_what_others_read(cli: Cli, tmp_path: Path) -> None:
    out = tmp_path / "net"
    done = cli(
        "generate", "radixnet", "--neurons", 256, "--layers", 9, "--seed", 5, "--out", out,
        "--first-inputs", 20,
    )  # fmt: skip
    assert done.code == 0
    assert sorted(path.name for path in out.iterdir()) == ["neuron256", "sparse-images-256.tsv.gz"]
    # An independent reading of the official layout.
    lines = (out / "neuron256" / "n256-l9.tsv").read_text().splitlines()
    assert len(lines) == 32 * 256
    W = np.zeros((256, 256))
    for line in lines:
        row, column, value = line.split("\t")
        W[int(row) - 1, int(column) - 1] = float(value)
    expected = ps.radixnet(256, 9, seed=5).layers[8].csr().toarray()
    np.testing.assert_array_equal(W, expected)
    pixels = gzip.decompress((out / "sparse-images-256.tsv.gz").read_bytes()).decode().splitlines()
    Y = np.zeros((20, 256))
    for line in pixels:
        image, pixel, value = line.split("\t")
        Y[int(image) - 1, int(pixel) - 1] = float(value)
    np.testing.assert_array_equal(Y, ps.digits_features(256)[:20].dense())
    store = tmp_path / "net.spdnn"
    again = cli(
        "generate", "radixnet", "--neurons", 256, "--layers", 9, "--seed", 5, "--out", store,
        "--store", "--first-inputs", 20,
    )  # fmt: skip
    assert again.code == 0
    results = [
        json.loads(cli("run", "--data", data, "--verify", "--json", "-").out)
        for data in (out, store)
    ]
    assert results[0]["categories_sha256"] == results[1]["categories_sha256"]
    assert results[0]["verdict"] == "PASSED"
    expect_error(
        cli("generate", "radixnet", "--out", out), str(out), "not an empty folder", "name a new one"
    )


def test_python_m_and_version() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "portable_spdnn", "--version"], capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    assert done.stdout == f"portable-spdnn {ps.__version__}\n"
