"""What a backend compiles, compiled before anybody waits for it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from command_line import Cli, expect_error

import portable_spdnn as ps
from portable_spdnn import warm_up
from portable_spdnn.warm_up import SIZE
from portable_spdnn_cpu.layout.clusters import cluster_outputs


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_every_operation_is_called_in_that_type(
    dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = ps.get_backend("scipy")
    hooks = {name for name in dir(backend) if name.startswith(("run_", "make_"))}
    assert {"run_spmm", "make_spmm", "make_spgemm_handle", "run_conv", "make_attention"} <= hooks
    called: dict[str, set[Any]] = {}

    def noting(name: str) -> Any:
        hook = getattr(backend, name)

        def call(*arguments: Any) -> Any:
            first = arguments[0][0] if isinstance(arguments[0], list) else arguments[0]
            called.setdefault(name, set()).add(first.dtype)
            return hook(*arguments)

        return call

    for name in hooks:
        monkeypatch.setattr(backend, name, noting(name))
    told: list[tuple[str, float]] = []
    seconds = ps.compile_kernels(backend, dtype, lambda *operation: told.append(operation))
    assert list(seconds) == ["spmm", "layer", "spgemm", "plan", "attention", "convolutions"]
    assert told == list(seconds.items())
    assert called == {name: {np.dtype(dtype)} for name in hooks}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_handles_of_weights_in_clusters_are_called(dtype: Any) -> None:
    shared = sp.csr_array(warm_up._alike(np.dtype(dtype)).T)
    assert shared.dtype == dtype
    assert cluster_outputs(shared.indptr.astype(np.int64), shared.indices).number == SIZE // 4


def test_the_command_says_what_each_operation_took(cli: Cli) -> None:
    done = cli("compile", "--backend", "scipy", "--dtype", "float64")
    assert done.code == 0
    first, *lines = done.out.splitlines()
    assert first.startswith("backend scipy (")
    assert first.endswith(", float64")
    assert [line.partition(": ")[0] for line in lines] == [
        "spmm", "layer", "spgemm", "plan", "attention", "convolutions"
    ]  # fmt: skip
    assert all(line.endswith(" s") for line in lines)


def test_what_cannot_be_compiled_is_named(cli: Cli) -> None:
    with pytest.raises(ps.InputError, match="dtype is 'int8'; choose float32 or float64"):
        ps.compile_kernels("scipy", "int8")
    expect_error(cli("compile", "--backend", "none"), "none")
