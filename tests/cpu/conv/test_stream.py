"""The stream kernel of convolutions: every way to cut one, and what is packed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from guard_pages import array_before_a_guard_page, array_behind_a_guard_page
from noted_calls import noted_calls

import portable_spdnn as ps
from portable_spdnn.operations.convolutions.geometry import conv_geometry
from portable_spdnn.testing import oracle
from portable_spdnn_cpu.conv import packing, stream, tuning
from portable_spdnn_cpu.conv.stream import StreamConv, conv_size
from portable_spdnn_cpu.conv.tuning import Cut, cuts
from portable_spdnn_cpu.jit.target import VECTOR_BYTES
from portable_spdnn_cpu.machine.thread_pool import ThreadPool
from portable_spdnn_cpu.spmm.stream import microkernels
from portable_spdnn_cpu.spmm.stream.entries import PADDING
from portable_spdnn_cpu.spmm.stream.packing import PAIR

POOL = ThreadPool(2)
# x, weights, stride, padding, dilation, groups
CASES = [
    ((1, 6, 9, 11), (7, 6, 3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1), 1),
    ((2, 6, 12, 33), (4, 3, 3, 3), (2, 2), ((1, 1), (1, 1)), (1, 1), 2),
    ((1, 3, 20, 20), (5, 3, 5, 2), (3, 2), ((1, 2), (0, 3)), (2, 1), 1),
    ((1, 4, 5, 6), (3, 4, 2, 3), (1, 1), ((2, 3), (4, 5)), (1, 1), 1),
    # Panels that see rows of the image alone, with edges at both sides, and without.
    ((2, 2, 30, 28), (4, 1, 3, 3), (1, 1), ((1, 1), (1, 1)), (1, 1), 2),
    ((1, 3, 31, 19), (4, 3, 5, 5), (1, 1), ((4, 4), (4, 4)), (2, 2), 1),
    ((1, 2, 24, 25), (3, 2, 3, 3), (1, 1), ((0, 0), (0, 0)), (1, 1), 1),
    # More positions without an image than are noted, by one and by many; phases of rows shorter
    # than a vector, and of one phase in a row.
    ((1, 1, 60, 13), (1, 1, 5, 5), (1, 1), ((2, 2), (2, 2)), (1, 1), 1),
    ((1, 2, 60, 5), (3, 2, 3, 5), (1, 1), ((1, 1), (2, 2)), (1, 1), 1),
    ((1, 2, 21, 30), (3, 2, 3, 1), (2, 2), ((0, 0), (0, 0)), (1, 1), 1),
    ((2, 3, 21, 9), (4, 3, 3, 3), (2, 2), ((1, 1), (1, 1)), (1, 1), 1),
    ((1, 2, 40, 70), (3, 2, 3, 3), (2, 2), ((1, 0), (1, 0)), (1, 1), 1),
    ((1, 2, 17, 40), (3, 2, 1, 1), (2, 2), ((0, 0), (0, 0)), (1, 1), 1),
]


def pruned(shape: tuple[int, ...], density: float) -> np.ndarray:
    rng = np.random.default_rng(0)
    return np.where(rng.random(shape) < density, rng.uniform(-1, 1, shape), 0).astype(np.float32)


@pytest.mark.parametrize("halves", [False, True])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_cut_gives_the_convolution(
    case, halves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(microkernels, "has_cheap_halves", lambda _: halves)
    x_shape, w_shape, stride, padding, dilation, groups = case
    x = np.random.default_rng(1).uniform(-1, 1, x_shape).astype(np.float32)
    weights = pruned(w_shape, 0.4)
    expected = oracle.conv2d(x, weights, stride, padding, dilation, groups)
    geometry = conv_geometry("conv2d", x_shape[1:], w_shape, stride, padding, dilation, groups)
    choices = some_cuts(weights, geometry, x_shape[0])
    if VECTOR_BYTES == 64:  # two results have four vectors at most
        widths = {2, 4} if x_shape[2:] in ((20, 20), (21, 9)) else {2, 4, 7}
        assert {cut.vectors for cut in choices} == widths
    assert 2 in {cut.vectors for cut in choices} <= set(range(1, 8))
    assert {cut.threads for cut in choices} == {1, 2}
    for cut in [*choices, Cut(2, 5, 1, 3, 2)]:
        convolution = StreamConv(POOL, weights, geometry, ps.Epilogue(), x_shape[0], cut)
        np.testing.assert_allclose(convolution(x, None, None), expected, atol=1e-5)
        assert str(cut.vectors) in convolution.describe()


@pytest.mark.parametrize("activation", ["relu", "silu"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
# Whole panels, all but one position, a vector with one, and rows of a result shorter than an
# image's.
@pytest.mark.parametrize(
    ("size", "sides"), [((16, 28), 1), ((17, 79), 1), ((7, 23), 1), ((7, 25), 0)]
)
def test_every_cut_finishes_sums(
    size: tuple[int, int],
    sides: int,
    dtype: type,
    activation: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(microkernels, "has_cheap_halves", lambda _: True)
    rng = np.random.default_rng(3)
    padding = ((1, 1), (sides, sides))
    x = rng.uniform(-1, 1, (2, 3, *size)).astype(dtype)
    of_result = 2, 5, size[0], size[1] - 2 + 2 * sides
    residual = rng.uniform(-1, 1, of_result).astype(dtype)
    weights, bias = pruned((5, 3, 3, 3), 0.4).astype(dtype), rng.uniform(-1, 1, 5).astype(dtype)
    weights[2] = 0
    sums = oracle.conv2d(x, weights, (1, 1), padding, (1, 1))
    added = sums + bias[:, None, None] + residual
    expected = np.maximum(added, 0) if activation == "relu" else added / (1 + np.exp(-added))
    expected = np.clip(expected, -0.2, 0.7)
    geometry = conv_geometry("conv2d", x.shape[1:], weights.shape, 1, padding, 1, 1)
    epilogue = ps.Epilogue(bias, activation, -0.2, 0.7).prepared("conv2d", 5, x.dtype)
    for cut in some_cuts(weights, geometry, 2):
        convolution = StreamConv(POOL, weights, geometry, epilogue, 2, cut)
        np.testing.assert_allclose(convolution(x, None, residual), expected, atol=1e-5)
        plain = StreamConv(POOL, weights, geometry, ps.Epilogue(), 2, cut)
        np.testing.assert_allclose(plain(x, None, None), sums, atol=1e-5)


@pytest.mark.parametrize("array", [array_before_a_guard_page, array_behind_a_guard_page])
@pytest.mark.parametrize(
    ("size", "kernel", "stride", "padding"),
    [
        # Without padding above and below, the first panels and the last see the image alone.
        ((30, 28), (3, 3), 1, ((0, 0), (1, 1))),
        ((30, 28), (3, 3), 1, ((1, 0), (1, 0))),
        ((30, 28), (3, 3), 2, ((1, 0), (1, 0))),
        # The last panel is full, and sees beyond the last column.
        ((16, 32), (1, 2), 1, ((0, 0), (0, 1))),
        ((7, 32), (1, 2), 1, ((0, 0), (0, 1))),
        ((30, 32), (1, 3), 1, ((0, 0), (0, 2))),
        # Of the last panel only the first vectors are there.
        ((11, 29), (3, 3), 1, ((0, 0), (1, 1))),
    ],
)
def test_nothing_is_read_beside_images(
    array: Any, size: tuple[int, int], kernel: tuple[int, int], stride: int, padding: Any
) -> None:
    x = array(size[0] * size[1], np.float32).reshape(1, 1, *size)
    x[:] = np.random.default_rng(4).uniform(-1, 1, x.shape)
    weights = np.ones((3, 1, *kernel), np.float32)
    expected = oracle.conv2d(x, weights, (stride, stride), padding, (1, 1))
    geometry = conv_geometry("conv2d", x.shape[1:], weights.shape, stride, padding, 1, 1)
    for cut in some_cuts(weights, geometry, 1):
        convolution = StreamConv(POOL, weights, geometry, ps.Epilogue(), 1, cut)
        np.testing.assert_allclose(convolution(x, None, None), expected, atol=1e-5)


def some_cuts(weights: np.ndarray, geometry: Any, images: int) -> list[Cut]:
    """Return all cuts, and the same with small blocks, as of images beyond the first level."""
    matrices = weights.reshape(geometry.matrix_shape)
    layout = packing.image_layout(matrices, geometry)
    found = cuts(conv_size(matrices, geometry, layout, images), POOL.threads)
    return found + [replace(cut, block=4) for cut in found]


def test_one_thread_has_cuts_whatever_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "cache_bytes", lambda level: 4096)
    geometry = conv_geometry("conv2d", (40, 30, 30), (4, 40, 3, 3), 2, 1, 1, 1)
    matrices = pruned((4, 40, 3, 3), 0.5).reshape(geometry.matrix_shape)
    size = conv_size(matrices, geometry, packing.image_layout(matrices, geometry), 1)
    for cut in cuts(size, 1):
        assert cut.threads == 1
        assert 1 <= cut.bands <= size.panels(cut)
        assert cut.bands == size.panels(cut) or size.copied_items(cut) * 4 <= 2 * 4096


@pytest.mark.parametrize(
    ("positions", "whole", "rest"),
    [
        (14, None, (1, False)),
        (5, None, (1, True)),
        (65, (4, False), (1, True)),
        (64, (4, False), None),
        (40, None, (3, True)),
        (60, None, (4, False)),
    ],
)
def test_kernels_of_whole_panels_and_of_what_is_left(
    positions: int, whole: Any, rest: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(microkernels, "has_cheap_halves", lambda _: True)
    asked = noted_calls(monkeypatch, stream, "finishing_code")
    # Positions are those of vectors of 16 items.
    length = max(1, positions * VECTOR_BYTES // 64)
    x = np.random.default_rng(0).uniform(-1, 1, (1, 2, 1, length)).astype(np.float32)
    weights = pruned((3, 2, 1, 3), 0.6)
    geometry = conv_geometry("conv2d", x.shape[1:], weights.shape, 1, ((0, 0), (1, 1)), 1, 1)
    convolution = StreamConv(POOL, weights, geometry, ps.Epilogue(), 1, Cut(4, 16, 1, 1, 1))
    expected = oracle.conv2d(x, weights, (1, 1), ((0, 0), (1, 1)), (1, 1))
    np.testing.assert_allclose(convolution(x, None, None), expected, atol=1e-5)
    if VECTOR_BYTES == 64:
        found = [(vectors, halved) for vectors, *_, halved, _ in asked]
        assert found == [each for each in (whole, rest) if each is not None]
    assert asked


def test_what_is_left_of_an_image_costs_as_many_vectors_as_it_has() -> None:
    geometry = conv_geometry("conv2d", (8, 14, 14), (8, 8, 3, 3), 1, 1, 1, 1)
    matrices = pruned((8, 8, 3, 3), 0.5).reshape(geometry.matrix_shape)
    layout = packing.image_layout(matrices, geometry)
    itemsize = 4 * VECTOR_BYTES // 64  # so that a vector has 16 items
    size = tuning.ConvSize(geometry, layout, 1, int(np.count_nonzero(matrices)), itemsize)
    assert size.vectors == 13
    cycles = {}
    for vectors in (2, 4, 7):
        cut = Cut(vectors, 1 << 10, size.panels(Cut(vectors, 1, 1, 1, 1)), 1, 1)
        cycles[vectors] = size.cycles(cut)
    # All have 13 vectors, and differ by what a panel takes besides: of 7, 4 and 2 panels.
    each = (cycles[2] - cycles[7]) / 5
    assert each > 0
    assert cycles[4] - cycles[7] == pytest.approx(2 * each)


def test_packed_weights_are_those_given() -> None:
    matrices = pruned((2, 9, 30), 0.3)
    matrices[:, :, 4] = matrices[1, 3] = 0  # a column and a row without a weight
    sources = np.arange(30).reshape(10, 3)
    for parts in (1, 2):
        packed = packing.pack(matrices, sources, vectors=4, block=7, parts=parts)
        assert_unpacked(packed, matrices, parts)


def assert_unpacked(packed: packing.PackedConv, matrices: np.ndarray, parts: int) -> None:
    """Read the entries back in their order, and compare."""
    groups, outputs, _ = matrices.shape
    found = np.zeros_like(matrices)
    assert 4 not in packed.sources
    np.testing.assert_array_equal(packed.kernel_entries, packed.sources % 3)
    for task in range(groups * parts):
        group, part = divmod(task, parts)
        rows = range(part * outputs // parts, (part + 1) * outputs // parts)
        for block in range(packed.ranges[task], packed.ranges[task + 1]):
            source, end, visit, last_visit, entry = packed.blocks[block]
            assert end - source <= 7
            while visit < last_visit:
                count, together = packed.visits[visit, 1], 1
                if count >= PAIR:
                    count, together = count - PAIR, 2
                    assert packed.visits[visit + 1, 1] == count
                for place in range(count * together):
                    row = rows[packed.visits[visit + place % together, 0]]
                    # Offsets are in units of 8 bytes.
                    place_in_panel, left = divmod(packed.offsets[entry], 4 * VECTOR_BYTES // 8)
                    assert left == 0
                    found[group, row, packed.sources[source + place_in_panel]] += packed.values[
                        entry
                    ]
                    entry += 1
                visit += together
    np.testing.assert_array_equal(found, matrices)
    assert packed.values.size == np.count_nonzero(matrices) + groups * parts * PADDING
    if parts == 1:  # most outputs have as many entries in a block as another one
        assert (packed.visits[:, 1] >= PAIR).any()
    # The first block of a part begins the sums of all of its outputs.
    for task in range(groups * parts):
        visit, last_visit = packed.blocks[packed.ranges[task], 2:4]
        part = task % parts
        own = (part + 1) * outputs // parts - part * outputs // parts
        assert sorted(packed.visits[visit:last_visit, 0]) == list(range(own))


def test_handles_serve_calls_at_once() -> None:
    from concurrent.futures import ThreadPoolExecutor

    weights = pruned((8, 6, 3, 3), 0.4)
    images = np.random.default_rng(2).uniform(-1, 1, (12, 1, 6, 10, 13)).astype(np.float32)
    handle = ps.get_backend("numba", threads=2).conv2d_handle(weights, images.shape[1:], padding=1)
    alone = [handle.apply(image) for image in images]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(handle.apply, images))
    np.testing.assert_array_equal(together, alone)
