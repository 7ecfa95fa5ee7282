"""Cost models of a network's steps: layers by themselves, and fused segments.

**A layer in a fused segment** (persistent_layers.cu: 16 rows of A and a tile of T inputs). Of E
edges, of which a part s is loaded (each feature once for the rows of a cluster), in items of b
bytes, a multiply-add moves (0.15 + s) b bytes in the first level (weights, which the lanes of a
row share, and features) and b / T bytes of L2 (a weight for a tile of inputs). Memory moves
nothing: what the first layer reads and the last one writes is shared by all of them.

The estimate of its time, from the largest of these terms on one multiprocessor:

    seconds = waves x (time for E T multiply-adds + BARRIERS)

A wave is as many tiles as there are multiprocessors.
"""

from __future__ import annotations

from portable_spdnn.kernel_model import KernelModel
from portable_spdnn_gpu.compile.precision import Precision
from portable_spdnn_gpu.device.properties import DeviceProperties
from portable_spdnn_gpu.persistent.packing import PackedSegment
from portable_spdnn_gpu.spmm.costs import packed_cost
from portable_spdnn_gpu.spmm.packing import PackedSpmm
from portable_spdnn_gpu.spmm.selection import ReuseStatistics

# Items of the first level for the weights of a multiply-add: of 8 rows and 4 inputs a lane reads 8
# weights for 32 multiply-adds, and some of these reads are shared by the lanes of a row.
WEIGHT_READS = 0.15
BARRIERS = 0.4e-6  # seconds between the layers of a segment, in which nothing else happens


def segment_layer_cost(share: float, tile: int, precision: Precision) -> KernelModel:
    """Return what a layer of a fused segment costs, whose blocks compute a `tile` of inputs each.

    `share` is how many features are loaded for each input, over the layer's edges.
    """
    itemsize = precision.storage.itemsize
    moved = {"l1": itemsize * (WEIGHT_READS + share), "l2": itemsize / tile}
    return KernelModel(moved, precision.sums.itemsize / 2)


def segment_layer_seconds(
    statistics: ReuseStatistics, precision: Precision, device: DeviceProperties, inputs: int,
    tile: int,
) -> float:  # fmt: skip
    """Return the estimated seconds of a layer in a fused segment; see the module.

    `inputs` are as many as are expected to be active; a block computes a `tile` of them.
    """
    share = statistics.loads / max(statistics.edges, 1)
    rate, _ = segment_layer_cost(share, tile, precision).bound(device.limits)
    waves = -(-inputs // (tile * device.multiprocessors))
    return waves * (statistics.edges * tile * device.multiprocessors / rate + BARRIERS)


def step_cost(
    packed: PackedSpmm | PackedSegment, columns: int, precision: Precision, l2_bytes: int
) -> KernelModel:
    """Return what a layer of a step costs, for a number of active inputs."""
    if isinstance(packed, PackedSpmm):
        return packed_cost(packed, columns, precision, l2_bytes)
    # The layers of a segment are taken to share alike.
    share = packed.loads / max(int(packed.nnz.sum()), 1)
    return segment_layer_cost(share, packed.layout.tile, precision)
