"""Limits of a device, measured.

Each kernel of limits.cu is started with enough rounds that one launch takes SECONDS, timed TURNS
times between two events of the device, and its answer is checked: a rate is of work that was
done. Source of the model: see `Limits`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from portable_spdnn.errors import SpdnnError
from portable_spdnn.kernel_model import Limits
from portable_spdnn_gpu.compile.catalog import LIMIT_THREADS, LIMIT_VECTORS, limit_kernel
from portable_spdnn_gpu.device.interface import Argument, Array, Device, DeviceArray, seconds_of

# As in limits.cu.
CHAINS, UNROLL, READS = 8, 16, 4
SHARED_READS, WINDOW, SHARED_STEP = 8, 512, 64
SCATTER = 2654435761
VECTOR = 16  # bytes
CHUNK = LIMIT_THREADS * READS * VECTOR

BLOCKS = 4  # for each multiprocessor; all of them are resident
SECONDS = 0.02  # that one launch takes
TURNS = 10  # launches that are timed; clocks have risen by the last of them
L2_PART = 3  # an array of a third of L2 stays there whatever else passes
BEYOND_L2 = 32  # an array of so many times L2 comes from memory, all but a thirtieth


class WrongAnswerError(SpdnnError, RuntimeError):
    """A kernel that measures gave a wrong answer: its time means nothing."""


@dataclass(frozen=True)
class GlobalArray:
    """Words with a known sum, in whole chunks for each block.

    Attributes
    ----------
    words : device array of uint32
    chunks : int
        How many chunks each block reads.
    """

    words: DeviceArray
    chunks: int

    @property
    def total(self) -> int:
        """The sum of the words modulo 2^32."""
        count = int(self.words.size)
        return count * (count - 1) // 2 * SCATTER % 2**32


def measure(device: Device) -> Limits:
    """Measure a device, which takes a second or two.

    Of the limits `l1` is shared memory (the same unit as the first-level cache), `l2` the second
    level, `memory` the device's memory, and `l3`, which devices do not have, equals `memory`.

    Raises
    ------
    WrongAnswerError
        If a kernel did not do the work that it was timed for.
    DeviceMemoryError
        If an array of 32 times the second level does not fit.
    """
    memory = global_read_rate(device, BEYOND_L2 * device.l2_bytes)
    return Limits(
        flops=fma_rate(device),
        l1=shared_read_rate(device),
        l2=global_read_rate(device, device.l2_bytes // L2_PART),
        l3=memory,
        memory=memory,
    )


def fma_rate(device: Device) -> float:
    """Return float32 operations per second, two for each fused multiply-add."""
    # x -> term - x: every step changes the bits and none rounds, and the compiler, which does not
    # know the factor, can leave none out.
    factor, term = np.float32(-1), np.float32(1.625)
    threads = _blocks(device) * LIMIT_THREADS
    starts = (np.arange(threads) % 1024 / 1024).astype(np.float32)
    given, results = device.upload(starts), device.empty((threads,), np.float32)
    rounds, seconds = _timed_rounds(device, "fma_chains", [factor, term, given, results])
    # UNROLL is even: every chain is back where it began.
    expected = CHAINS * starts + np.float32(CHAINS * (CHAINS - 1) / 2)
    _check("fma_chains", device.download(results), expected)
    return 2.0 * threads * CHAINS * UNROLL * rounds / seconds


def shared_read_rate(device: Device) -> float:
    """Return bytes per second read from shared memory, by all multiprocessors together."""
    threads = _blocks(device) * LIMIT_THREADS
    results = device.empty((threads,), np.uint32)
    rounds, seconds = _timed_rounds(device, "read_shared", [results])
    _check("read_shared", device.download(results).reshape(-1, LIMIT_THREADS), shared_sums(rounds))
    return float(threads) * SHARED_READS * VECTOR * rounds / seconds


def shared_sums(rounds: int) -> Array:
    """Return the sum that each thread of a block of `read_shared` has to find, as uint32."""
    words = np.arange(4 * LIMIT_VECTORS, dtype=np.uint32) * np.uint32(SCATTER)
    vectors = words.reshape(-1, 4).sum(axis=1, dtype=np.uint32)
    begins = np.arange(WINDOW)[:, None] + SHARED_STEP * np.arange(SHARED_READS)
    from_begin = vectors[begins].sum(axis=1, dtype=np.uint32)
    threads, period = np.arange(LIMIT_THREADS), WINDOW // 8
    sums = np.zeros(LIMIT_THREADS, np.uint32)
    for phase in range(min(period, rounds)):
        times = np.uint32(len(range(phase, rounds, period)))
        sums += times * from_begin[(threads + 8 * phase) % WINDOW]
    return sums


def global_array(device: Device, size: int) -> GlobalArray:
    """Fill an array of about `size` bytes, at least one chunk for each block."""
    chunks = max(size // (_blocks(device) * CHUNK), 1)
    words = device.empty((_blocks(device) * chunks * CHUNK // 4,), np.uint32)
    _launch(device, "fill_words", [np.int32(chunks), words])
    return GlobalArray(words, chunks)


def global_read_rate(device: Device, size: int) -> float:
    """Return bytes per second read from an array of about `size` bytes, again and again."""
    array = global_array(device, size)
    results = device.empty((_blocks(device) * LIMIT_THREADS,), np.uint32)
    arguments: list[Argument] = [np.int32(array.chunks), array.words, results]
    rounds, seconds = _timed_rounds(device, "read_global", arguments)
    _check_total(device, results, rounds * array.total)
    return float(array.words.nbytes) * rounds / seconds


def copy_rate(device: Device) -> float:
    """Return the bytes per second that a copy in memory moves, read and written together."""
    array = global_array(device, BEYOND_L2 * device.l2_bytes // 2)
    copy = GlobalArray(device.empty(array.words.shape, np.uint32), array.chunks)
    arguments: list[Argument] = [np.int32(array.chunks), array.words, copy.words]
    times, seconds = _timed(lambda times: _launch(device, "copy_global", arguments, times))
    results = device.empty((_blocks(device) * LIMIT_THREADS,), np.uint32)
    _launch(device, "read_global", [np.int32(1), np.int32(copy.chunks), copy.words, results])
    _check_total(device, results, array.total)
    return 2.0 * float(array.words.nbytes) * times / seconds


def _blocks(device: Device) -> int:
    return BLOCKS * device.multiprocessors


def _launch(device: Device, name: str, arguments: Sequence[Argument], times: int = 1) -> float:
    """Start a kernel on all multiprocessors, `times` times, and return the seconds."""
    kernel, grid = limit_kernel(name), (_blocks(device), 1)
    return seconds_of(device, lambda: device.launch(kernel, grid, arguments), times)


def _timed_rounds(device: Device, name: str, arguments: Sequence[Argument]) -> tuple[int, float]:
    """Time a kernel whose first parameter is the number of its rounds, as `_timed` does."""
    return _timed(lambda rounds: _launch(device, name, [np.int32(rounds), *arguments]))


def _timed(run: Callable[[int], float]) -> tuple[int, float]:
    """Double an amount of work until it takes SECONDS; return the amount and its least time."""
    amount = 1
    run(amount)  # compiles
    while run(amount) < SECONDS:
        amount *= 2
    return amount, min(run(amount) for _ in range(TURNS))


def _check_total(device: Device, results: DeviceArray, expected: int) -> None:
    found = int(device.download(results).sum(dtype=np.uint32))
    _check("read_global", np.uint32(found), np.uint32(expected % 2**32))


def _check(kernel: str, found: npt.ArrayLike, expected: npt.ArrayLike) -> None:
    if not np.array_equal(np.broadcast_to(expected, np.shape(found)), found):
        raise WrongAnswerError(
            f"{kernel}: the answer is wrong, so that its time means nothing; check the device and "
            "its driver with the tests of the kernels"
        )
