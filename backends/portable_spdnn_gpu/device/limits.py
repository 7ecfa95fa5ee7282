"""Limits of a device, measured.

Each kernel of limits.cu is started with enough rounds that one launch takes SECONDS, timed TURNS
times between two events of the device, and its answer is checked: a rate is of work that was
done. Source of the model: see `Limits`.
"""

from __future__ import annotations

from collections.abc import Sequence

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


def filled_words(device: Device, size: int) -> tuple[DeviceArray, int]:
    """Return an array of about `size` bytes, and how many chunks of it each block reads.

    It holds uint32 whose sum is known (`total`), in whole chunks, at least one for each block.
    """
    chunks = max(size // (_blocks(device) * CHUNK), 1)
    words = device.empty((_blocks(device) * chunks * CHUNK // 4,), np.uint32)
    _launch(device, "fill_words", [np.int32(chunks), words])
    return words, chunks


def total(count: int) -> int:
    """Return the sum of so many of these words, modulo 2^32."""
    return count * (count - 1) // 2 * SCATTER % 2**32


def global_read_rate(device: Device, size: int) -> float:
    """Return bytes per second read from an array of about `size` bytes, again and again."""
    words, chunks = filled_words(device, size)
    results = device.empty((_blocks(device) * LIMIT_THREADS,), np.uint32)
    rounds, seconds = _timed_rounds(device, "read_global", [np.int32(chunks), words, results])
    found = device.download(results).sum(dtype=np.uint32)
    _check("read_global", found, np.uint32(rounds * total(int(words.size)) % 2**32))
    return float(words.nbytes) * rounds / seconds


def _blocks(device: Device) -> int:
    return BLOCKS * device.multiprocessors


def _launch(device: Device, name: str, arguments: Sequence[Argument]) -> float:
    """Start a kernel on all multiprocessors, and return the seconds."""
    kernel, grid = limit_kernel(name), (_blocks(device), 1)
    return seconds_of(device, lambda: device.launch(kernel, grid, arguments))


def _timed_rounds(device: Device, name: str, arguments: Sequence[Argument]) -> tuple[int, float]:
    """Double the rounds of a kernel until they take SECONDS; return them and their least time."""

    def run(rounds: int) -> float:  # the kernel's first parameter
        return _launch(device, name, [np.int32(rounds), *arguments])

    rounds = 1
    run(rounds)  # compiles
    while run(rounds) < SECONDS:
        rounds *= 2
    return rounds, min(run(rounds) for _ in range(TURNS))


def _check(kernel: str, found: npt.ArrayLike, expected: npt.ArrayLike) -> None:
    if not np.array_equal(np.broadcast_to(expected, np.shape(found)), found):
        raise WrongAnswerError(
            f"{kernel}: the answer is wrong, so that its time means nothing; check the device and "
            "its driver with the tests of the kernels"
        )
