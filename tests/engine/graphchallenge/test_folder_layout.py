"""What a folder of the challenge's files holds."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from portable_spdnn.errors import InputError
from portable_spdnn.graphchallenge.folder_layout import layers_present


def test_layers_present_counts_up_to_the_first_gap(tmp_path: Path) -> None:
    folder = tmp_path / "neuron16"
    folder.mkdir()
    assert layers_present(folder, 16, 3) == 0
    for name in ("n16-l1.tsv", "n16-l2.tsv", "n16-l4.tsv", "n32-l3.tsv", "n16-l3.tsv.orig"):
        (folder / name).touch()
    assert [layers_present(folder, 16, wanted) for wanted in (1, 2, 3, 4)] == [1, 2, 2, 2]
    archive = tmp_path / "neuron16.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(folder, "neuron16")
    assert [layers_present(archive, 16, wanted) for wanted in (1, 2, 3, 4)] == [1, 2, 2, 2]
    archive.write_bytes(archive.read_bytes()[:-9])
    with pytest.raises(InputError, match="truncated"):
        layers_present(archive, 16, 4)
