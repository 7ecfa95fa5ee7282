"""Cost models of the SpMM variants: what each needs for an edge.

One multiply-add is one edge and one column of B (an input of the network). Of C = A B, or of the
fused layer, with m rows, k columns and E entries of A and n columns of B, in items of s bytes, S
bytes of a sum:

**Levels.** `Limits` of a device: "l1" is shared memory and the first-level cache, one unit that
moves 128 bytes in a cycle for each multiprocessor, so that a read of one value by a whole warp
(a broadcast) takes of it what 128 bytes take; "l2" is what multiprocessors read of the second
level; "memory" is the device's memory, reads and writes together.

**Memory, in every variant.** Where A, B and C fit L2 together nothing is counted: the layer
before has left B there. Else B is read once and C written once, (m + k) n s bytes, and A is read
once. That a row of B is still in L2 when the next block reads it is assumed: less cannot move.

**Arithmetic, in every variant.** One fused multiply-add: 2 operations of float32, counted double
in float64, which data centre devices do at half the rate. Conversions of half precision are not
counted.

**csr** (one row of A, 512 columns). L2: an element of B for each multiply-add, s bytes; what
rows on one multiprocessor happen to share in its first-level cache is not counted, so that a
fraction above one says that they do. Index and value, 4 + s bytes an edge, serve 512 columns. L1:
the element again, and the two broadcasts, each for the 4 columns of 32 lanes: 2 x 128 / 128
bytes.

**clustered** (16 rows of A, 256 columns). L2: an element of B for each of `loads`, the common
columns of all clusters and what rows have alone: s loads / E bytes, at best s / 16. Indices of
loads and values of edges serve 256 columns. L1: the element, and the values, four (two in
float64) in one broadcast for the 2 columns of 32 lanes: 128 / (64 x 16 / S) bytes.

**staged** (a block of rows of A and c columns, the minibatch). L1: one element of the stage for
each multiply-add, s bytes, if no banks conflict; an element of B on its way into the stage, s
bytes for each of `staged` (the rows of B that blocks list, added up); a local index of 2 bytes
and a value, s bytes, for c columns. L2: the same without reads of the stage: s staged / E +
(2 + s) / c bytes.

Sources: S. Williams, A. Waterman and D. Patterson, Communications of the ACM 52 (2009), for the
model; the opening comments of the kernel files for what each variant reads.
"""

from __future__ import annotations

from dataclasses import dataclass

from portable_spdnn.kernel_model import KernelModel
from portable_spdnn_gpu.compile.catalog import CLUSTER_PANEL, CSR_PANEL
from portable_spdnn_gpu.compile.precision import Precision
from portable_spdnn_gpu.spmm.packing import PackedSpmm

WAVEFRONT = 128  # bytes that a multiprocessor's first level moves in a cycle
LANES = 32
VECTOR = 16  # bytes of the widest load
INDEX, LOCAL_INDEX = 4, 2  # bytes of a column of A, and of a place in the stages
CSR_COLUMNS, CLUSTER_COLUMNS = 4, 2  # columns of B that a thread computes


@dataclass(frozen=True)
class LayerSize:
    """The sizes of one product or fused layer.

    Attributes
    ----------
    edges : int
        The entries of A.
    rows, inner : int
        The shape of A: neurons out and neurons in.
    columns : int
        The columns of B: active inputs.
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
    """Return what the csr variant costs; `l2_bytes` is the size of the second-level cache."""
    entry = INDEX + size.itemsize
    broadcasts = 2 * WAVEFRONT / (LANES * CSR_COLUMNS)
    return _model(
        size, l2_bytes, entry,
        l1=size.itemsize + broadcasts,
        l2=size.itemsize + entry / CSR_PANEL,
    )  # fmt: skip


def clustered_cost(size: LayerSize, l2_bytes: int, loads: int) -> KernelModel:
    """Return what the clustered variant costs.

    Parameters
    ----------
    size : LayerSize
    l2_bytes : int
        The size of the second-level cache.
    loads : int
        The rows of B that clusters load, added up: `edges` where nothing is shared.
    """
    share = loads / max(size.edges, 1)
    values_in_a_read = VECTOR / size.sum_itemsize
    broadcast = WAVEFRONT / (LANES * CLUSTER_COLUMNS * values_in_a_read)
    entry = INDEX * share + size.itemsize
    return _model(
        size, l2_bytes, entry,
        l1=size.itemsize * share + broadcast,
        l2=size.itemsize * share + entry / CLUSTER_PANEL,
    )  # fmt: skip


def staged_cost(size: LayerSize, l2_bytes: int, staged: int, minibatch: int = 16) -> KernelModel:
    """Return what the staged variant costs.

    Parameters
    ----------
    size : LayerSize
    l2_bytes : int
        The size of the second-level cache.
    staged : int
        The rows of B that blocks stage, added up over the blocks.
    minibatch : int
        The columns of B that a block computes.
    """
    share = staged / max(size.edges, 1)
    entry = LOCAL_INDEX + size.itemsize
    entries = entry / minibatch
    return _model(
        size, l2_bytes, entry,
        l1=size.itemsize * (1 + share) + entries,
        l2=size.itemsize * share + entries,
    )  # fmt: skip


def packed_cost(
    packed: PackedSpmm, columns: int, precision: Precision, l2_bytes: int
) -> KernelModel:
    """Return what a packed matrix costs in its variant, for a number of columns of B."""
    rows, inner = packed.shape
    size = LayerSize(
        packed.nnz, rows, inner, columns, precision.storage.itemsize, precision.sums.itemsize
    )
    if packed.variant == "csr":
        return csr_cost(size, l2_bytes)
    if packed.variant == "clustered":
        return clustered_cost(size, l2_bytes, packed.loads)
    minibatch = packed.launches[0].panel if packed.launches else 1
    return staged_cost(size, l2_bytes, packed.loads, minibatch)


def _model(size: LayerSize, l2_bytes: int, entry_bytes: float, l1: float, l2: float) -> KernelModel:
    """Return the model of a variant, whose memory traffic is that of the operands."""
    features = (size.rows + size.inner) * size.columns * size.itemsize
    weights = entry_bytes * size.edges
    multiply_adds = max(size.edges * size.columns, 1)
    moved = features + weights if features + weights > l2_bytes else 0.0
    return KernelModel({"l1": l1, "l2": l2, "memory": moved / multiply_adds}, size.sum_itemsize / 2)
