"""The emulation runs CUDA code as CUDA would, and finds planted mistakes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from cuda_emulation.emulated_device import GUARD, EmulatedDevice, compiler
from cuda_emulation.sanitized_run import sanitized

from portable_spdnn_gpu.compile.catalog import Kernel
from portable_spdnn_gpu.device.interface import LaunchError

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler (g++, clang++)")

PLANTED = r"""
extern "C" __global__ void warp_scan(const int* a, int* out) {
    int v = a[threadIdx.x];
    for (int d = 1; d < 32; d *= 2) {
        int u = __shfl_up_sync(0xffffffffu, v, d);
        if (threadIdx.x % 32 >= d) v += u;
    }
    out[threadIdx.x] = v + 1000 * __syncthreads_count(v & 1);
}
extern "C" __global__ void half_meet(int* out) {
    if (threadIdx.x < 16) __syncthreads();
    out[threadIdx.x] = 1;
}
extern "C" __global__ void half_shuffle(int* out) {
    if (threadIdx.x < 16) out[threadIdx.x] = __shfl_xor_sync(0xffffffffu, 1, 1);
}
extern "C" __global__ void apart(int* out) {
    if (threadIdx.x < 16) __syncwarp(0x0000ffffu); else __syncthreads();
    if (threadIdx.x < 16) __syncwarp(0xffffffffu);
    out[threadIdx.x] = 1;
}
extern "C" __global__ void no_barrier_static(float* out) {
    __shared__ float s[64];
    s[threadIdx.x] = threadIdx.x;
    out[threadIdx.x] = s[(threadIdx.x + 1) % 64];
}
extern "C" __global__ void no_barrier_dynamic(float* out) {
    DYNAMIC_SHARED(float, s);
    s[threadIdx.x] = threadIdx.x;
    out[threadIdx.x] = s[threadIdx.x ? threadIdx.x - 1 : 0];
}
extern "C" __global__ void copies(const float* a, float* out, int mistake) {
    __shared__ __align__(16) float s[128];
    copy_async<4>(s + threadIdx.x, a + threadIdx.x);
    if (mistake != 1) commit_copies();
    if (threadIdx.x < 16) copy_async<16>(s + 64 + 4 * threadIdx.x, a + 4 * threadIdx.x);
    commit_copies();
    if (mistake == 2) wait_copies<1>();  // the second group may still be on its way
    else if (mistake != 3) wait_copies<0>();
    if (mistake == 4) commit_copies();  // changes nothing any more
    __syncthreads();
    out[threadIdx.x] = s[threadIdx.x] + s[64 + (threadIdx.x + 5) % 64];
}
extern "C" __global__ void no_group(const float* a, float* out) {
    __shared__ float s[64];
    copy_async<4>(s + threadIdx.x, a + threadIdx.x);
    wait_copies<0>();
    out[threadIdx.x] = s[threadIdx.x];
}
extern "C" __global__ void misaligned(const float* a, float* out) {
    __shared__ __align__(16) float s[64];
    copy_async<8>(s + 1, a);
    out[0] = s[1];
}
extern "C" __global__ void count_all(int* out) { atomicAdd(out, 1); }
extern "C" __global__ void write_past(int* out, int where) { out[where] = 7; }
extern "C" __global__ void read_past(const int* a, int where, int* out) { out[0] = a[where]; }
extern "C" __global__ void read_past_shared(int* out, int where) {
    DYNAMIC_SHARED(int, s);
    out[0] = s[where];
}
"""


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("planted")
    (folder / "planted.cu").write_text(PLANTED)
    return folder


def planted_kernel(name: str, threads: int, shared: int = 0) -> Kernel:
    return Kernel(name, "planted.cu", threads, (), 0, dynamic_shared=shared)


@pytest.fixture(params=[False, True], ids=["rising", "falling"])
def device(request: pytest.FixtureRequest, planted: Path) -> EmulatedDevice:
    return EmulatedDevice(planted / "built", request.param, sources=planted)


def test_shuffles_and_counting_barriers(device: EmulatedDevice) -> None:
    a = np.random.default_rng(0).integers(0, 9, 256).astype(np.int32)
    out = device.empty((256,), np.int32)
    device.launch(planted_kernel("warp_scan", 256), (1, 1), [device.upload(a), out])
    scan = a.reshape(8, 32).cumsum(axis=1).ravel()
    np.testing.assert_array_equal(device.download(out), scan + 1000 * (scan & 1).sum())


def test_every_thread_of_every_block_runs_once(device: EmulatedDevice) -> None:
    out = device.upload(np.zeros(1, np.int32))
    device.launch(planted_kernel("count_all", 70), (3, 5), [out])
    device.launch(planted_kernel("count_all", 70), (0, 5), [out])
    assert device.download(out).tolist() == [70 * 15]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("half_meet", "some threads of the block have exited"),
        ("half_shuffle", "a lane named in the mask has exited"),
        ("apart", "waits at a barrier"),
    ],
)
def test_divergence_is_an_error(device: EmulatedDevice, name: str, message: str) -> None:
    with pytest.raises(LaunchError, match=f"{name}: .*{message}"):
        device.launch(planted_kernel(name, 32), (1, 1), [device.empty((32,), np.int32)])
    # And harms no launch after it.
    out = device.upload(np.zeros(1, np.int32))
    device.launch(planted_kernel("count_all", 32), (1, 1), [out])
    assert device.download(out).tolist() == [32]


@pytest.mark.parametrize("name", ["no_barrier_static", "no_barrier_dynamic"])
def test_a_missing_barrier_shows_in_one_order(planted: Path, name: str) -> None:
    wrong = []
    for falling in (False, True):
        device = EmulatedDevice(planted / "built", falling, sources=planted)
        out = device.empty((64,), np.float32)
        for _ in range(2):  # the second block must not see what the first left
            device.launch(planted_kernel(name, 64, 256), (1, 1), [out])
        wrong.append(int(np.isnan(device.download(out)).sum()))
    assert max(wrong) >= 60


@pytest.mark.parametrize(("mistake", "lost"), [(0, 0), (1, 0), (2, 64), (3, 64), (4, 0)], ids=str)
def test_asynchronous_copies_are_there_when_waited_for(
    device: EmulatedDevice, mistake: int, lost: int
) -> None:
    a = np.arange(64, dtype=np.float32)
    out = device.empty((64,), np.float32)
    kernel = planted_kernel("copies", 64)
    device.launch(kernel, (1, 1), [device.upload(a), out, np.int32(mistake)])
    found = device.download(out)
    assert np.isnan(found).sum() == lost
    if not lost:
        np.testing.assert_array_equal(found, a + np.roll(a, -5))


def test_copies_outside_a_group_never_arrive(device: EmulatedDevice) -> None:
    out = device.empty((64,), np.float32)
    a = device.upload(np.zeros(64, np.float32))
    device.launch(planted_kernel("no_group", 64), (1, 1), [a, out])
    assert np.isnan(device.download(out)).all()


def test_a_misaligned_copy_is_an_error(device: EmulatedDevice) -> None:
    out = device.empty((64,), np.float32)
    with pytest.raises(LaunchError, match="copy_async: an address is not a multiple of the size"):
        device.launch(planted_kernel("misaligned", 1), (1, 1), [out, out])


def test_shared_memory_is_given_to_the_limit_of_the_device(device: EmulatedDevice) -> None:
    out = device.empty((1,), np.int32)
    last = np.int32(100 * 256 - 1)
    kernel = planted_kernel("read_past_shared", 1, 100 << 10)
    device.launch(kernel, (1, 1), [out, last])
    assert device.download(out).tolist() == [-1]
    device.shared_limit = 64 << 10
    other = planted_kernel("read_past_shared", 1, (64 << 10) + 4)
    with pytest.raises(LaunchError, match="65540 bytes of shared memory are more than the 65536"):
        device.launch(other, (1, 1), [out, last])


def test_a_write_outside_an_array_is_an_error(device: EmulatedDevice) -> None:
    out = device.empty((4,), np.int32)
    kernel = planted_kernel("write_past", 1)
    device.launch(kernel, (1, 1), [out, np.int32(3)])
    with pytest.raises(LaunchError, match="write_past: wrote outside argument 0"):
        device.launch(kernel, (1, 1), [out, np.int32(4)])


def test_arguments_must_be_of_the_parameters_types(device: EmulatedDevice) -> None:
    kernel = planted_kernel("write_past", 1)
    out = device.empty((4,), np.int32)
    for wrong in (np.int64(0), np.float32(0), out, 3):
        with pytest.raises(LaunchError, match="argument 1 is"):
            device.launch(kernel, (1, 1), [out, wrong])
    with pytest.raises(LaunchError, match="argument 0 is"):
        device.launch(kernel, (1, 1), [device.empty((4,), np.float32), np.int32(0)])
    with pytest.raises(LaunchError, match="1 arguments for"):
        device.launch(kernel, (1, 1), [out])
    with pytest.raises(LaunchError, match=r"a grid of 1 x 65536 blocks"):
        device.launch(kernel, (1, 65536), [out, np.int32(0)])


def test_device_arrays_are_not_read_by_accident(device: EmulatedDevice) -> None:
    array = device.upload(np.ones(3))
    with pytest.raises(TypeError, match="implicit copy"):
        np.asarray(array)
    with pytest.raises(TypeError):
        np.ones(3) + array
    assert device.download(array).tolist() == [1, 1, 1]
    assert np.isnan(device.download(device.empty((3,), np.float64))).all()


SANITIZED = """
import sys, numpy as np
from pathlib import Path
from cuda_emulation.emulated_device import EmulatedDevice
from portable_spdnn_gpu.compile.catalog import Kernel
folder, name, where = Path(sys.argv[1]), sys.argv[2], np.int32(sys.argv[3])
device = EmulatedDevice(folder / "sanitized", sanitize=True, sources=folder)
kernel = Kernel(name, "planted.cu", 1, (), 0, dynamic_shared=64)
out = device.empty((4,), np.int32)
arguments = [device.upload(np.zeros(4, np.int32)), where, out]
device.launch(kernel, (1, 1), arguments if name == "read_past" else [out, where])
print("done")
"""


@pytest.mark.parametrize(
    # Four numbers and the guard behind them; then what the sanitizer keeps free.
    ("name", "inside", "outside"),
    [("read_past", 3, 4 + GUARD // 4 + 1), ("read_past_shared", 15, 16)],
)
def test_sanitizer_finds_reads_out_of_bounds(
    planted: Path, name: str, inside: int, outside: int
) -> None:
    fine = sanitized(SANITIZED, str(planted), name, str(inside))
    assert fine.returncode == 0, fine.stderr
    assert fine.stdout == "done\n"
    found = sanitized(SANITIZED, str(planted), name, str(outside))
    assert found.returncode != 0
    assert "heap-buffer-overflow" in found.stderr
