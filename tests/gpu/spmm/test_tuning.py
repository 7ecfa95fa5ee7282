"""The choice of tile sizes: the fastest that is right, kept on disk, checked when read."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from cuda_emulation.emulated_backend import cache_folder as kernel_cache
from cuda_emulation.emulated_device import EmulatedDevice, compiler

from portable_spdnn.errors import InputError
from portable_spdnn_gpu.compile import cache
from portable_spdnn_gpu.compile.cache import DIGEST
from portable_spdnn_gpu.compile.catalog import BOUNDED, Kernel, staged_configs
from portable_spdnn_gpu.compile.nvrtc import kernel_folder
from portable_spdnn_gpu.compile.precision import Precision
from portable_spdnn_gpu.device.interface import LaunchError
from portable_spdnn_gpu.spmm import tuning
from portable_spdnn_gpu.spmm.packing import pack
from portable_spdnn_gpu.spmm.tuning import layer_class, tune_staged

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler (g++, clang++)")
SINGLE, DOUBLE = Precision(), Precision(np.dtype(np.float64))
CONFIGS = staged_configs(SINGLE)
VERSIONS = {"nvrtc": "13.0"}
INPUTS_TIMED = tuning.CHECKED_PITCH


class TimedDevice(EmulatedDevice):
    """An emulated device whose clock stands still but for launches.

    One configuration, by its rows, minibatch and stage, takes a second; every other kernel two.
    """

    fast: tuple[int, int, int]

    def __init__(self, fast: Any, **options: Any) -> None:
        super().__init__(kernel_cache(), **options)
        self.fast = (fast.rows, fast.minibatch, fast.stage)
        self.now = 0.0

    def launch(self, kernel: Kernel, grid: tuple[int, int], arguments: Any) -> None:
        super().launch(kernel, grid, arguments)
        macros = dict(kernel.defines)
        tiles = tuple(int(macros.get(name, 0)) for name in ("ROWS", "MINIBATCH", "STAGE"))
        self.now += 1 if tiles == self.fast else 2

    def mark(self) -> float:
        return self.now

    def seconds(self, first: float, last: float) -> float:
        return last - first


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of kept choices, of the test alone; let measuring be short."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(tuning, "CALLS", 1)
    monkeypatch.setattr(tuning, "REPEATS", 1)
    monkeypatch.setattr(tuning, "ROWS", 30)
    monkeypatch.setattr(tuning, "INPUTS", 1)  # and so as many as the least, INPUTS_TIMED
    return tmp_path / "cache" / "portable_spdnn" / "staged_spmm"


def layer(dtype: Any = np.float32) -> Any:
    rng = np.random.default_rng(0)
    dense = np.where(rng.random((90, 70)) < 0.1, rng.uniform(-1, 1, (90, 70)), 0)
    return sp.csr_array(dense.astype(dtype))


@pytest.mark.parametrize("fast", [CONFIGS[0], CONFIGS[4], CONFIGS[-1]], ids=str)
def test_the_fastest_is_chosen_and_found_again(fast: Any) -> None:
    device = TimedDevice(fast)
    tuned = tune_staged(device, layer(), SINGLE, VERSIONS)
    assert tuned.config == fast
    done = sp.csr_array(layer()[: 30 * device.multiprocessors]).nnz * INPUTS_TIMED
    assert tuned.rates == {"csr": done / 2} | {
        str(config): done / (1 if config == fast else 2) for config in CONFIGS
    }
    assert tuned.measured == {"csr": done / 2, "staged": done}
    started = device.now
    again = tune_staged(device, layer(), SINGLE, VERSIONS)
    assert device.now == started
    assert (again.config, again.rates, again.origin) == (fast, tuned.rates, "from disk")
    said = again.describe().splitlines()
    assert said[0] == (
        "staged_spmm for 64 to 64 neurons, 8 entries each, rows of features used 8 times, "
        f"float32 (from disk): {fast}"
    )
    assert said[1].startswith(f"  {fast}: ")
    assert said[-1].startswith("  csr: ")


@pytest.mark.parametrize("precision", [DOUBLE, Precision(half=True)])
def test_every_precision_has_its_configurations(precision: Precision) -> None:
    fast = staged_configs(precision)[1]
    A = layer(precision.sums)
    tuned = tune_staged(TimedDevice(fast), A, precision, VERSIONS)
    assert tuned.config == fast
    assert not tuned.refused


@pytest.mark.parametrize(
    "change",
    [
        lambda content: b"",
        lambda content: b"{ not a choice",
        lambda content: content[:-40],
        lambda content: content + b" ",
        lambda content: content[DIGEST:],
        lambda content: content[:DIGEST],
        lambda content: content.replace(b"[0, ", b"[1, "),
        lambda content: content.replace(b'"csr": ', b'"csr": -'),
    ],
    ids=[
        "empty", "text", "truncated", "longer", "no digest", "a digest alone", "not the fastest",
        "negative",
    ],
)  # fmt: skip
def test_a_file_that_is_not_whole_is_measured_again(kept: Path, change: Any) -> None:
    device = TimedDevice(CONFIGS[0])
    tune_staged(device, layer(), SINGLE, VERSIONS)
    (file,) = kept.iterdir()
    whole = file.read_bytes()
    changed = change(whole)
    assert changed != whole
    file.write_bytes(changed)
    started = device.now
    again = tune_staged(device, layer(), SINGLE, VERSIONS)
    assert device.now > started
    assert (again.config, again.origin) == (CONFIGS[0], "measured")
    assert file.read_bytes() == whole
    assert list(kept.iterdir()) == [file]


def test_other_devices_versions_and_layers_are_measured_for_themselves(
    kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = TimedDevice(CONFIGS[0])

    def files_after(A: Any, versions: dict[str, str] = VERSIONS) -> int:
        tune_staged(device, A, SINGLE, versions)
        return len(list(kept.iterdir()))

    assert files_after(layer()) == 1
    assert files_after(layer(), {"nvrtc": "13.1"}) == 2
    assert files_after(sp.csr_array(layer()[:30])) == 3
    device.description = "another device"
    assert files_after(layer()) == 4
    monkeypatch.setattr(tuning, "__version__", "0")
    assert files_after(layer()) == 5
    monkeypatch.setattr(tuning, "FORM", 0)
    assert files_after(layer()) == 6
    sources = tmp_path / "kernels"
    shutil.copytree(kernel_folder(), sources, ignore=shutil.ignore_patterns("__pycache__"))
    with (sources / "spmm" / "staged_spmm.cu").open("a") as stream:
        stream.write("// faster\n")
    monkeypatch.setattr(cache, "kernel_folder", lambda: sources)
    assert files_after(layer()) == 7


def broken(tmp_path: Path, instead: str) -> Path:
    """Return a folder of kernels where those of one configuration are wrong."""
    sources = tmp_path / "kernels"
    shutil.copytree(kernel_folder(), sources, ignore=shutil.ignore_patterns("__pycache__"))
    file = sources / "spmm" / "staged_spmm.cu"
    text = file.read_text()
    assert "sums[v * WIDTH + i] += value" in text
    file.write_text(text.replace("sums[v * WIDTH + i] += value", instead))
    return sources


def test_a_configuration_with_wrong_answers_cannot_win(tmp_path: Path) -> None:
    sources = broken(tmp_path, "if (MINIBATCH != 16 || i) sums[v * WIDTH + i] += value")
    configs = staged_configs(DOUBLE)
    wrong = configs[2]
    assert [config.minibatch for config in configs] == [8, 8, 16]
    device, A = TimedDevice(wrong, sources=sources), layer(np.float64)
    tuned = tune_staged(device, A, DOUBLE, VERSIONS)
    assert tuned.config == configs[0]
    assert set(tuned.refused) == {str(wrong)}
    assert f"{wrong}: refused, its answers are not those of csr_spmm" in tuned.describe()
    again = tune_staged(device, A, DOUBLE, VERSIONS)
    assert again.refused == tuned.refused


def test_no_right_configuration_is_an_error(tmp_path: Path, kept: Path) -> None:
    device = TimedDevice(CONFIGS[0], sources=broken(tmp_path, "sums[v * WIDTH + i] -= value"))
    with pytest.raises(LaunchError, match="no configuration of staged_spmm gives the answers"):
        tune_staged(device, layer(np.float64), DOUBLE, VERSIONS)
    assert not kept.exists()


def test_a_device_with_less_shared_memory_has_fewer_configurations() -> None:
    device = TimedDevice(CONFIGS[0])
    device.shared_limit = 64 << 10  # as sm_75
    tuned = tune_staged(device, layer(), SINGLE, VERSIONS)
    assert set(tuned.rates) == {"csr", *map(str, CONFIGS[:6])}


def test_a_folder_that_cannot_be_made_is_said(kept: Path) -> None:
    kept.parent.mkdir(parents=True)
    kept.write_text("")
    tuned = tune_staged(TimedDevice(CONFIGS[0]), layer(), SINGLE, VERSIONS)
    assert tuned.config == CONFIGS[0]
    assert "measured, not kept: " in tuned.describe()


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (5, 4)])
def test_layers_without_entries_have_a_class(shape: tuple[int, int]) -> None:
    assert "1 entries each" in layer_class(sp.csr_array(shape, dtype=np.float32), SINGLE)


def test_a_layer_without_entries_is_not_measured() -> None:
    with pytest.raises(InputError, match="5 x 4 has no entries"):
        tune_staged(
            TimedDevice(CONFIGS[0]), sp.csr_array((5, 4), dtype=np.float32), SINGLE, VERSIONS
        )


def test_packing_takes_the_chosen_tiles() -> None:
    packed = pack(layer(), "staged", SINGLE, CONFIGS[1])
    (launch,) = packed.launches
    assert launch.panel == CONFIGS[1].minibatch
    assert launch.kernel(SINGLE, BOUNDED).threads == CONFIGS[1].rows
