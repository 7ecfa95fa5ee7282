"""Images whose channels come last in memory (NHWC), brought into the order of kernels (NCHW)."""

from __future__ import annotations

from typing import Any

import numpy as np

from portable_spdnn_cpu.jit.compilation import Array, job_kernel
from portable_spdnn_cpu.jit.job_start import COUNTERS, FIRST_OWN, INPUT, OUT, WORKERS
from portable_spdnn_cpu.jit.jobs import (
    COUNTER_PADDING,
    Job,
    address_of,
    array_at,
    in_order,
    next_task,
)
from portable_spdnn_cpu.layout.canonical import VALUE_TYPES
from portable_spdnn_cpu.layout.tile_shape import BLOCK_BYTES
from portable_spdnn_cpu.machine.thread_pool import ALONE, ThreadPool
from portable_spdnn_cpu.spmm.transposes import load_columns
from portable_spdnn_cpu.tiles.copies import TRANSPOSE_BYTES

SHARED_BYTES = 1 << 17  # of images, from which threads share a copy
# Words of a job after those of `jit.job_start`: bytes from image to image and items from pixel to
# pixel; how many images, channels, pixels, and channels of a task there are.
IMAGE_BYTES, PIXEL_ITEMS, COUNT, CHANNELS, PIXELS, BLOCK, END = range(FIRST_OWN, FIRST_OWN + 7)


def channels_first(images: Array, pool: ThreadPool) -> Array:
    """Return images in C order with aligned items: themselves if they are so, else a copy.

    Where the channels of a pixel are adjacent, eight of float32 at least, and pixels equally far
    apart, as in a transposed view of (images, height, width, channels), the copy is made by squares
    in registers, which takes a quarter of the time of NumPy's.

    Parameters
    ----------
    images : ndarray, shape (images, channels, height, width)
        Of float32 or float64.
    pool : ThreadPool
        Shares the copy.
    """
    flags, item = images.flags, images.itemsize
    if flags.c_contiguous and flags.aligned:
        return images
    count, channels, height, width = images.shape
    _, channel, row, pixel = images.strides
    if not (
        flags.aligned
        and channel == item
        and pixel % item == 0
        and pixel >= channels * item >= TRANSPOSE_BYTES
        and row == width * pixel
        and images.size
    ):
        return in_order(images)
    workers = pool if images.nbytes >= SHARED_BYTES else ALONE
    copy, line = np.empty(images.shape, images.dtype), BLOCK_BYTES // item
    block = -(-channels // workers.threads // line) * line  # whole cache lines of a pixel
    words = np.zeros(END + COUNTER_PADDING + workers.threads, np.int64)
    words[WORKERS], words[COUNTERS] = workers.threads, words.size - workers.threads
    words[INPUT], words[OUT] = address_of(images), address_of(copy)
    words[IMAGE_BYTES:END] = (
        images.strides[0], pixel // item, count, channels, height * width, block
    )  # fmt: skip
    workers.run_job(TRANSPOSE[images.dtype], words)
    return copy


@job_kernel
def transpose_images(worker: int, words: Any, dtype: Any) -> None:
    """Copy images, matrices of channels by pixels in Fortran order, some channels at a time."""
    pixels, channels, itemsize = words[PIXELS], words[CHANNELS], array_at(0, 1, dtype).itemsize
    blocks = -(-channels // words[BLOCK])
    tasks = words[COUNT] * blocks
    while True:
        task = next_task(words, words[COUNTERS], worker, words[WORKERS], tasks)
        if task < 0:
            break
        image, first = task // blocks, task % blocks * words[BLOCK]
        stop = min(first + words[BLOCK], channels)
        source = words[INPUT] + image * words[IMAGE_BYTES]
        target = words[OUT] + (image * channels + first) * pixels * itemsize
        apart = words[PIXEL_ITEMS]
        load_columns(source, apart, target, pixels, pixels, first, stop, pixels, dtype)


TRANSPOSE = {dtype: Job(transpose_images, dtype.type) for dtype in VALUE_TYPES}
