"""Fused segments: consecutive layers in the form that `persistent_layers` reads."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from portable_spdnn.host import map_in_threads
from portable_spdnn.sparse_arrays import index_dtype
from portable_spdnn_gpu.compile.catalog import CLUSTER, Kernel, persistent_layers, persistent_rows
from portable_spdnn_gpu.compile.precision import Precision
from portable_spdnn_gpu.device.interface import Array
from portable_spdnn_gpu.persistent.layout import (
    ALIGNMENT,
    BEGIN,
    COLUMN,
    COMMON,
    HALVES,
    HEADER,
    LINE,
    MAY_STOP,
    NEXT,
    NEXT_LINES,
    NO_ROW,
    OWN,
    ROW,
    ROWS,
    STEPS,
    UNIT,
    WEIGHT,
    Layout,
    feature_rows,
)
from portable_spdnn_gpu.spmm.clusters import Clusters
from portable_spdnn_gpu.spmm.output_rows import OutputRows
from portable_spdnn_gpu.spmm.packing import packing_threads


@dataclass(frozen=True)
class SegmentLayer:
    """A layer of a fused segment.

    Attributes
    ----------
    A : OutputRows, shape (neurons_out, neurons_in)
        The transposed weights.
    bias : ndarray, shape (neurons_out,)
    keeps_inactive : bool
        Whether an input that is inactive before the layer is inactive after it.
    """

    A: OutputRows
    bias: Array
    keeps_inactive: bool

    @property
    def needs_no_weights(self) -> bool:
        """Whether the sums need one weight alone: padding, by features of 0, must give 0."""
        return not self.A.nnz or (self.A.constant and bool(np.isfinite(self.A.weight[0])))


@dataclass(eq=False)
class PackedSegment:
    """Consecutive layers in the form of `persistent_layers`, as one piece of host memory.

    Attributes
    ----------
    kernel : Kernel
        The configuration of the kernel that reads them.
    layout : Layout
        What the form depends on beside the layers.
    neurons_in, neurons_out : int
        The neurons before the first layer and after the last.
    nnz : ndarray of int64, shape (layers,)
        The entries of each layer.
    rows : int
        The outputs of all layers.
    loads : int
        How many features all layers read for each input.
    memory : ndarray of uint8
        The headers, then the data of all groups; empty once the host's copy has been released.
    data : int
        The offset of the data in the memory.
    """

    kernel: Kernel
    layout: Layout
    neurons_in: int
    neurons_out: int
    nnz: Array
    rows: int
    loads: int
    memory: Array
    data: int

    @property
    def constant(self) -> bool:
        """Whether each layer has but one weight."""
        return self.layout.constant


@dataclass(frozen=True)
class _RowPlaces:
    """Where the rows of A go: a cluster, and one of its CLUSTER places."""

    cluster: Array  # the cluster of each row
    place: Array  # the place of each row in it
    common: Array  # how many common columns each cluster has
    order: Array  # the found clusters, in the order that they take


def pack_segment(
    layers: Sequence[SegmentLayer], precision: Precision, shared_limit: int
) -> PackedSegment:
    """Pack consecutive layers: at least one, and none wider than `persistent_layers` takes.

    Parameters
    ----------
    layers : sequence of SegmentLayer
    precision : Precision
    shared_limit : int
        The bytes of shared memory that a block may ask for: `Device.shared_limit`.

    Raises
    ------
    InputError
        If a weight is beyond what half precision holds.
    """
    widths = [layers[0].A.shape[1], *(layer.A.shape[0] for layer in layers)]
    constant = all(layer.needs_no_weights for layer in layers)
    kernel = persistent_layers(precision, max(widths), shared_limit, constant)
    assert kernel is not None  # whoever cuts a network into segments has asked before
    layout = Layout.of(kernel, precision, persistent_rows(max(widths)))
    parts = [empty_group(layout)]
    headers = np.zeros((len(layers), layout.groups, HEADER), np.int32)
    begins, loads = [parts[0].size], 0
    pack = partial(pack_layer, layout=layout)
    threads = packing_threads(sum(layer.A.nnz for layer in layers) // len(layers))
    for number, found in enumerate(map_in_threads(pack, layers, threads)):
        of_layer, data, layer_loads = found
        of_layer[:, BEGIN] += begins[-1] // UNIT
        headers[number, : len(of_layer)] = of_layer
        parts.append(data)
        begins.append(begins[-1] + data.size)
        loads += layer_loads
    headers[:-1, :, NEXT] = np.array(begins[1:-1])[:, None] // UNIT
    headers[:-1, :, NEXT_LINES] = np.diff(begins)[1:, None] // LINE
    # A tile without active inputs stops after a layer when no later one activates any.
    keeps = [layer.keeps_inactive for layer in layers[1:]] + [True]
    headers[:, :, MAY_STOP] = np.logical_and.accumulate(keeps[::-1])[::-1, None]
    gap = np.zeros(-headers.nbytes % ALIGNMENT, np.uint8)
    parts.append(np.zeros(LINE, np.uint8))  # columns are read up to a step behind the last group
    return PackedSegment(
        kernel, layout, widths[0], widths[-1],
        np.array([layer.A.nnz for layer in layers], np.int64), sum(widths[1:]), loads,
        np.concatenate([headers.reshape(-1).view(np.uint8), gap, *parts]),
        headers.nbytes + gap.size,
    )  # fmt: skip


def empty_group(layout: Layout) -> Array:
    """Return the data of a group without rows."""
    rows = layout.parts * ROWS
    size = rows * (ROW.itemsize + layout.precision.sums.itemsize)
    data = np.zeros(-(-size // LINE) * LINE, np.uint8)
    data.view(ROW)[:rows] = NO_ROW
    return data


def pack_layer(layer: SegmentLayer, layout: Layout) -> tuple[Array, Array, int]:
    """Pack a layer; the groups hold at least as many rows as it has outputs.

    Returns
    -------
    headers : ndarray of int32, shape (groups, HEADER)
        The headers of its groups; BEGIN counts from the layer's first byte, and the fields
        about other layers are 0.
    data : ndarray of uint8
        The data of its groups, whole cache lines.
    loads : int
        How many features are read for each input.

    Raises
    ------
    InputError
        If a weight is beyond what half precision holds.
    """
    A, bias = copy.copy(layer.A), layer.bias  # so that what is found here is not kept
    found = A.clusters
    row, rank, own_columns, own_values = A.own_entries()
    lengths = np.bincount(row, minlength=A.shape[0])
    places = _place_rows(found, lengths, layout)
    groups = -(-places.common.size // layout.clusters)
    group = places.cluster // layout.clusters
    part = places.cluster % layout.clusters * HALVES + places.place // ROWS
    slot = places.place % ROWS

    common = np.zeros(groups * layout.clusters, np.int64)
    common[: places.common.size] = places.common
    common = -(-common.reshape(groups, layout.clusters).max(axis=1) // STEPS)
    own = np.zeros((groups, ROWS), np.int64)
    np.maximum.at(own, (group, slot), -(-lengths // STEPS))
    ends = own.cumsum(axis=1)

    sums, stored = layout.precision.sums, layout.precision.storage
    steps, own_steps = common * (STEPS * layout.clusters), ends[:, -1] * (STEPS * layout.parts)
    fixed = np.full(groups, layout.parts * ROWS)
    weight = layout.weight_bytes
    sizes = np.stack(
        [ROW.itemsize * fixed, sums.itemsize * fixed, COLUMN.itemsize * steps,
         weight * CLUSTER * steps, COLUMN.itemsize * own_steps, weight * own_steps]
    ).T  # fmt: skip
    begins = np.cumsum(sizes).reshape(sizes.shape) - sizes
    data = np.zeros(-(-int(sizes.sum()) // LINE) * LINE, np.uint8)
    rows, columns, numbers = data.view(ROW), data.view(COLUMN), data.view(stored)
    padding = layout.zero_row * layout.row_bytes
    fills = (rows, 0, NO_ROW), (columns, 2, padding), (columns, 4, padding)
    for g in range(groups):
        for view, section, fill in fills:
            first = begins[g, section] // view.itemsize
            view[first : first + sizes[g, section] // view.itemsize] = fill
    at = part * ROWS + slot
    rows[begins[group, 0] // ROW.itemsize + at] = feature_rows(np.arange(A.shape[0]))
    data.view(sums)[begins[group, 1] // sums.itemsize + at] = bias

    _write_common(found, places, layout, begins, columns, numbers)
    of = group[row]
    step = ends[of, slot[row]] - own[of, slot[row]] + rank // STEPS
    at = (step * layout.parts + part[row]) * STEPS + rank % STEPS
    columns[begins[of, 4] // COLUMN.itemsize + at] = feature_rows(own_columns) * layout.row_bytes
    if not layout.constant:
        numbers[begins[of, 5] // stored.itemsize + at] = layout.precision.stored(own_values)

    headers = np.zeros((groups, HEADER), np.int32)
    headers[:, BEGIN] = begins[:, 0] // UNIT
    headers[:, COMMON] = common
    headers[:, OWN : OWN + ROWS] = ends
    if layout.constant and A.nnz:
        kept = layout.precision.stored(A.weight)
        headers[:, WEIGHT] = kept.astype(np.float32).view(np.int32)
    return headers, data, int(steps.sum() + own_steps.sum())


def _place_rows(found: Clusters, lengths: Array, layout: Layout) -> _RowPlaces:
    """Put clusters with similar numbers of common columns together, and rows of similar lengths.

    Rows of a cluster that lanes store at the same time have their features in different banks, as
    far as there are such.
    """
    counts = found.common_counts
    order = np.argsort(-counts, kind="stable")
    rest = found.rest[np.argsort(-lengths[found.rest], kind="stable")]
    cluster = np.empty(lengths.size, np.int64)
    rank = np.empty(lengths.size, np.int64)
    members = found.rows.reshape(-1, CLUSTER)[order]
    members = np.take_along_axis(members, _store_order(members, lengths, layout), axis=1)
    cluster[members] = np.arange(found.count)[:, None]
    rank[members] = np.arange(CLUSTER)
    cluster[rest] = found.count + np.arange(rest.size) // CLUSTER
    rank[rest] = np.arange(rest.size) % CLUSTER
    total = found.count - (-rest.size // CLUSTER)
    common = np.zeros(total, np.int64)
    common[: found.count] = counts[order]
    # The two halves of a cluster get rows by turns, so that row r of both is of similar length.
    return _RowPlaces(cluster, rank % HALVES * ROWS + rank // HALVES, common, order)


def _store_order(members: Array, lengths: Array, layout: Layout) -> Array:
    """Return the order of the rows of clusters, shape (clusters, CLUSTER).

    A quarter of a warp stores the rows of equal rank of both halves of one cluster, or of two
    where a tile has 8 inputs: the halves get rows by turns, whose banks are to differ.
    """
    apart = layout.apart
    # Of two clusters the first begins with the lower banks, and the second with the upper ones.
    turned = np.arange(len(members))[:, None] * HALVES
    bank = (feature_rows(members) + turned) % apart
    nth = np.tril(bank[:, :, None] == bank[:, None, :], -1).sum(axis=2)  # of its bank
    # Longer rows first; of one length two banks by turns, one for each half, then two others.
    return np.lexsort((bank % HALVES, nth, bank // HALVES, -lengths[members]), axis=1)


def _write_common(
    found: Clusters,
    places: _RowPlaces,
    layout: Layout,
    begins: Array,
    columns: Array,
    numbers: Array,
) -> None:
    """Write the common columns of all clusters and their weights."""
    itemsize = layout.precision.storage.itemsize
    cluster, column, rank = found.common_columns()
    moved = np.empty(found.count, np.int64)
    moved[places.order] = np.arange(found.count)
    to = moved[cluster]
    # The clusters of a group read at the same time: they begin with columns in different banks.
    feature_row = feature_rows(column)
    # Stable: columns rise in a cluster. In few bits: NumPy sorts 16 by their digits, many times as
    # fast as more.
    key = to * layout.apart + (feature_row - to) % layout.apart
    order = np.argsort(key.astype(index_dtype(found.count * layout.apart)), kind="stable")
    counts = places.common[: found.count]
    step = np.arange(order.size) - (np.cumsum(counts) - counts)[to[order]]
    group, member = to[order] // layout.clusters, to[order] % layout.clusters
    at = (step // STEPS * layout.clusters + member) * STEPS + step % STEPS
    columns[begins[group, 2] // COLUMN.itemsize + at] = feature_row[order] * layout.row_bytes
    if layout.constant:
        return
    source = found.starts[cluster] + rank * CLUSTER
    values = layout.precision.stored(found.values[source[order, None] + np.arange(CLUSTER)])
    place = places.place[found.rows.reshape(-1, CLUSTER)][cluster[order]]
    at = (step * layout.clusters + member) * CLUSTER + begins[group, 3] // itemsize
    numbers[at[:, None] + place] = values
