"""The examples in docstrings run and print what they say."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import portable_spdnn
from portable_spdnn.operations.convolutions.interface import CONVOLUTIONS

MODULES = [
    module.name
    for module in pkgutil.walk_packages(portable_spdnn.__path__, "portable_spdnn.")
    if not module.name.endswith("__main__") and ".testing" not in module.name
]


@pytest.mark.parametrize("name", ["portable_spdnn", *MODULES])
def test_examples(name: str) -> None:
    if name == "portable_spdnn.mpi.run":
        pytest.importorskip("mpi4py", reason="extra mpi is not installed")
    found = doctest.testmod(importlib.import_module(name))
    assert found.failed == 0


def test_public_names_have_examples() -> None:
    for name in set(portable_spdnn.__all__) - {"__version__"}:
        assert ">>>" in (getattr(portable_spdnn, name).__doc__ or ""), name
    operations = ("spmm", "spmm_handle", "spgemm", "spgemm_handle", "layer", "layer_handle")
    optional = ("sddmm", "sparse_softmax", "sparse_attention", "attention_handle")
    convolutions = [f"{name}{handle}" for name in CONVOLUTIONS for handle in ("", "_handle")]
    for name in (*operations, *optional, *convolutions):
        assert ">>>" in (getattr(portable_spdnn.Backend, name).__doc__ or ""), name
