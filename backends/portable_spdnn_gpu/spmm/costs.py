"""Cost models of the designs.

What each design needs for an edge: device kernels are held against this.

One multiply-add is one edge and one column of B (an input of the network). Of C = A B, or of the
fused layer, with m rows, k columns and E entries of A and n columns of B, in items of s bytes, S
bytes of a sum:

**Levels.** `roofline.Limits` of a device: "l1" is shared memory and the first-level cache, one
unit that moves 128 bytes in a cycle for each multiprocessor, so that a read of one value by a
whole warp (a broadcast) takes of it what 128 bytes take; "l2" is what multiprocessors read of the
second level; "memory" is the device's memory, reads and writes together.

**Memory, in every design.** Where A, B and C fit L2 together nothing is counted: the layer
before has left B there. Else B is read once and C written once, (m + k) n s bytes, and A is read
once. That a row of B is still in L2 when the next block wants it is assumed: less cannot move.

**Arithmetic, in every design.** One fused multiply-add: 2 operations of float32, counted double
in double, which devices for computing do at half the rate. Conversions of half precision are not
counted.

**csr** (one row of A, 512 columns). L2: an element of B for each multiply-add, s bytes; what
rows on one multiprocessor happen to share in its first-level cache is not counted, so that a
fraction above one says that they do. Index and value, 4 + s bytes an edge, serve 512 columns. L1:
the element again, and the two broadcasts, each for the 4 columns of 32 lanes: 2 x 128 / 128
bytes.

**clustered** (16 rows of A, 256 columns). L2: an element of B for each of `loads`, the common
columns of all clusters and what rows have alone: s loads / E bytes, at best s / 16. Indices of
loads and values of edges serve 256 columns. L1: the element, and the values, four (two in
double) in one broadcast for the 2 columns of 32 lanes: 128 / (64 x 16 / S) bytes.

**staged** (a block of rows of A and c columns, the minibatch). L1: one element of the stage for
each multiply-add, s bytes, if no banks conflict; an element of B on its way into the stage, s
bytes for each of `staged` (the rows of B that blocks list, added up); a position of 2 bytes and
a value, s bytes, for c columns. L2: the same without reads of the stage: s staged / E + (2 + s) /
c bytes.

**resident** (a run of layers; 16 rows and a tile of inputs). L1: a feature for each of `loads`,
and the weights, which lanes of a row share. L2: a weight for a tile of inputs. Memory: none; what
the first layer reads and the last one writes is shared by all of them.

Sources: S. Williams, A. Waterman and D. Patterson, Communications of the ACM 52 (2009), for the
model; the opening comments of the kernel files for what each design reads.
"""

from __future__ import annotations

from dataclasses import dataclass

from portable_spdnn.kernel_model import KernelModel
from portable_spdnn_gpu.compile.catalog import CLUSTER_STRIP, CSR_STRIP
from portable_spdnn_gpu.compile.precision import Precision
from portable_spdnn_gpu.persistent.launch import PackedRun
from portable_spdnn_gpu.spmm.packing import PackedProduct

WAVEFRONT = 128  # bytes that a multiprocessor's first level moves in a cycle
LANES = 32
VECTOR = 16  # bytes of the widest load
INDEX, POSITION = 4, 2  # bytes
RESIDENT_WEIGHTS = 0.6  # bytes of the first level for the weights of a multiply-add, in float
CSR_COLUMNS, CLUSTER_COLUMNS = 4, 2  # of a thread


@dataclass(frozen=True)
class LayerSize:
    """Sizes of one product or fused layer.

    Attributes
    ----------
    edges : int
        Entries of A.
    rows, inner : int
        Of A: neurons out and in.
    columns : int
        Of B: inputs that are alive.
    itemsize : int
        Bytes of a feature or weight as it is kept: 2, 4 or 8.
    sum_itemsize : int
        Bytes of a sum: 4 or 8.
    """

    edges: int
    rows: int
    inner: int
    columns: int
    itemsize: int = 4
    sum_itemsize: int = 4


def csr_cost(size: LayerSize, l2_bytes: int) -> KernelModel:
    """Return what row by row costs.

    Parameters
    ----------
    size : LayerSize
    l2_bytes : int
        Of the device's second level.
    """
    entry = INDEX + size.itemsize
    broadcasts = 2 * WAVEFRONT / (LANES * CSR_COLUMNS)
    return _model(
        size, l2_bytes, entry,
        l1=size.itemsize + broadcasts,
        l2=size.itemsize + entry / CSR_STRIP,
    )  # fmt: skip


def clustered_cost(size: LayerSize, l2_bytes: int, loads: int) -> KernelModel:
    """Return what clusters cost.

    Parameters
    ----------
    size : LayerSize
    l2_bytes : int
    loads : int
        Rows of B that clusters load, added up: `edges` where nothing is shared.
    """
    share = loads / max(size.edges, 1)
    values_in_a_read = VECTOR / size.sum_itemsize
    broadcast = WAVEFRONT / (LANES * CLUSTER_COLUMNS * values_in_a_read)
    entry = INDEX * share + size.itemsize
    return _model(
        size, l2_bytes, entry,
        l1=size.itemsize * share + broadcast,
        l2=size.itemsize * share + entry / CLUSTER_STRIP,
    )  # fmt: skip


def staged_cost(size: LayerSize, l2_bytes: int, staged: int, minibatch: int = 16) -> KernelModel:
    """Return what stages cost.

    Parameters
    ----------
    size : LayerSize
    l2_bytes : int
    staged : int
        Rows of B that blocks stage, added up over the blocks.
    minibatch : int
        Columns of a block.
    """
    share = staged / max(size.edges, 1)
    entry = POSITION + size.itemsize
    entries = entry / minibatch
    return _model(
        size, l2_bytes, entry,
        l1=size.itemsize * (1 + share) + entries,
        l2=size.itemsize * share + entries,
    )  # fmt: skip


def resident_cost(size: LayerSize, loads: int, tile: int) -> KernelModel:
    """Return what a layer of a run costs.

    Parameters
    ----------
    size : LayerSize
    loads : int
        Features that are read for each input.
    tile : int
        Inputs of a block.
    """
    share = loads / max(size.edges, 1)
    # Of 8 rows and 4 inputs a lane reads 8 weights, which the lanes of a row share.
    l1 = RESIDENT_WEIGHTS * size.itemsize / 4 + size.itemsize * share
    model = {"l1": l1, "l2": size.itemsize / tile}
    return KernelModel(model, size.sum_itemsize / 2)


def design_cost(
    packed: PackedProduct, columns: int, precision: Precision, l2_bytes: int
) -> KernelModel:
    """Return what a packed matrix costs in its design, for so many columns."""
    rows, inner = packed.shape
    size = LayerSize(
        packed.nnz, rows, inner, columns, precision.storage.itemsize, precision.sums.itemsize
    )
    if packed.design == "csr":
        return csr_cost(size, l2_bytes)
    if packed.design == "clustered":
        return clustered_cost(size, l2_bytes, packed.loads)
    minibatch = packed.launches[0].strip if packed.launches else 1
    return staged_cost(size, l2_bytes, packed.loads, minibatch)


def step_cost(
    packed: PackedProduct | PackedRun,
    layer: int,
    columns: int,
    precision: Precision,
    l2_bytes: int,
) -> KernelModel:
    """Return what a layer of a step costs, for so many columns; the first is layer 0."""
    if not isinstance(packed, PackedRun):
        return design_cost(packed, columns, precision, l2_bytes)
    edges = int(packed.nnz[layer])
    size = LayerSize(
        edges, packed.neurons_out, packed.neurons_in, columns, precision.storage.itemsize,
        precision.sums.itemsize,
    )  # fmt: skip
    loads = round(packed.loads * edges / max(packed.edges, 1))
    return resident_cost(size, loads, packed.form.tile)


def _model(size: LayerSize, l2_bytes: int, entry_bytes: float, l1: float, l2: float) -> KernelModel:
    """Return the model of a design, whose memory traffic is that of the operands."""
    features = (size.rows + size.inner) * size.columns * size.itemsize
    weights = entry_bytes * size.edges
    multiply_adds = max(size.edges * size.columns, 1)
    moved = features + weights if features + weights > l2_bytes else 0.0
    return KernelModel({"l1": l1, "l2": l2, "memory": moved / multiply_adds}, size.sum_itemsize / 2)
