"""Checkpoints that are damaged anywhere: an error that names the file, never another answer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import portable_spdnn as ps


@pytest.mark.parametrize("path", ["spmm", "spgemm"])
def test_no_damaged_byte_gives_another_answer(path: str, tmp_path: Path) -> None:
    network = ps.Network([ps.Layer(np.eye(16), -0.5)] * 2)
    features = ps.PackedFeatures.from_dense(np.eye(3, 16))
    folder = tmp_path / "kept"

    def run() -> np.ndarray:
        return ps.infer(network, features, backend="scipy", path=path, checkpoint=folder).scores

    expected = np.asarray(run())
    files = [file for file in folder.iterdir() if file.name.startswith("batch")]
    assert len(files) == (2 if path == "spmm" else 1)
    refused: list[str] = []
    for file in files:
        intact = file.read_bytes()
        for at in range(0, len(intact), 11):
            damaged = bytearray(intact)
            damaged[at] ^= 0x41
            file.write_bytes(damaged)
            try:
                found = run()
            except ps.InputError as error:
                refused.append(str(error))
            else:
                np.testing.assert_array_equal(found, expected)
        file.write_bytes(intact)
    assert len(refused) > 50
    assert all(str(folder) in error and "is damaged" in error for error in refused)
    np.testing.assert_array_equal(run(), expected)
