"""Cost models of a network's steps: layers by themselves, and fused segments.

**A layer in a fused segment** (persistent_layers.cu: 16 rows of A and a tile of T inputs). Of E
edges and m rows, of which a part s of the edges is loaded (each feature once for the rows of a
cluster), with weights of b bytes and features of f bytes in shared memory, a multiply-add moves
0.15 b + s f bytes in the first level (weights, which the lanes of a row share, and features) and
(b + 4 s + 6 m / E) / T bytes of L2: for a tile of inputs a weight, a column of 4 bytes for each
load, and of each row its number and its bias. Where all weights of a layer are equal none is read:
b is 0. Memory moves nothing: what the first layer reads and the last one writes is shared by all
of them.

The estimate of its time, from the largest of these terms on one multiprocessor:

    seconds = waves x (time for E T multiply-adds + BARRIERS)

A wave is as many tiles as there are multiprocessors.
"""

from __future__ import annotations

from portable_spdnn.kernel_model import KernelModel
from portable_spdnn_gpu.compile.precision import Precision
from portable_spdnn_gpu.device.properties import DeviceProperties
from portable_spdnn_gpu.persistent.layout import COLUMN, ROW, Layout
from portable_spdnn_gpu.persistent.packing import PackedSegment
from portable_spdnn_gpu.spmm.costs import packed_cost
from portable_spdnn_gpu.spmm.packing import PackedSpmm
from portable_spdnn_gpu.spmm.selection import ReuseStatistics

# Weights read in the first level for a multiply-add: of 8 rows and 4 inputs a lane reads 8 for 32
# multiply-adds, and some of these reads are shared by the lanes of a row.
WEIGHT_READS = 0.15
BARRIERS = 0.4e-6  # seconds between the layers of a segment, in which nothing else happens


def segment_layer_cost(edges: int, rows: int, loads: float, layout: Layout) -> KernelModel:
    """Return what a layer of a fused segment costs; see the module.

    `loads` is how many features are loaded for each input. Of many layers all three are sums.
    """
    edges = max(edges, 1)
    columns = COLUMN.itemsize * loads
    outputs = (ROW.itemsize + layout.precision.sums.itemsize) * rows
    moved = {
        "l1": WEIGHT_READS * layout.weight_bytes + layout.features.itemsize * loads / edges,
        "l2": (layout.weight_bytes + (columns + outputs) / edges) / layout.tile,
    }
    return KernelModel(moved, layout.precision.sums.itemsize / 2)


def segment_layer_seconds(
    statistics: ReuseStatistics, layout: Layout, device: DeviceProperties, inputs: int
) -> float:
    """Return the estimated seconds of a layer in a fused segment; see the module.

    `inputs` are as many as are expected to be active.
    """
    edges, at_a_time = statistics.edges, layout.tile * device.multiprocessors
    cost = segment_layer_cost(edges, statistics.rows, statistics.loads, layout)
    rate, _ = cost.bound(device.limits)
    return -(-inputs // at_a_time) * (edges * at_a_time / rate + BARRIERS)


def step_cost(
    packed: PackedSpmm | PackedSegment, columns: int, precision: Precision, l2_bytes: int
) -> KernelModel:
    """Return what a layer of a step costs, for a number of active inputs."""
    if isinstance(packed, PackedSpmm):
        return packed_cost(packed, columns, precision, l2_bytes)
    # The layers of a segment are taken to share alike.
    return segment_layer_cost(int(packed.nnz.sum()), packed.rows, packed.loads, packed.layout)
