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
float64) in one broadcast for the 2 columns of 32 lanes: 128 / (64 x 16 / S) bytes. Where all values
are equal none is read.

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
    constant : bool
        Whether all values of A are equal.
    """

    edges: int
    rows: int
    inner: int
    columns: int
    itemsize: int = 4
    sum_itemsize: int = 4
    constant: bool = False


def variant_cost(
    variant: str,
    size: LayerSize,
    l2_bytes: int,
    loads: float,
    minibatch: int = 16,
    padding: float = 1.0,
    conflicts: float = 1.0,
) -> KernelModel:
    """Return what a variant costs; see the module.

    Parameters
    ----------
    variant : {"csr", "clustered", "staged"}
    size : LayerSize
    l2_bytes : int
        The size of the second-level cache.
    loads : float
        The rows of B that clusters and single rows load, or that blocks stage, added up: `edges`
        where nothing is shared, as in csr.
    minibatch : int
        The columns of B that a block of staged computes.
    padding, conflicts : float
        Of staged: the slots of the slices over the edges, and passes through shared memory for a
        read. Both add to the reads of the stages, `itemsize` bytes of the first level.
    """
    itemsize, share = size.itemsize, loads / max(size.edges, 1)
    if variant == "staged":
        entry: float = LOCAL_INDEX + itemsize
        entries = padding * entry / minibatch
        reads = itemsize * padding * conflicts
    elif variant == "clustered":
        entry = INDEX * share + (0 if size.constant else itemsize)
        entries = entry / CLUSTER_PANEL
        value = 0 if size.constant else size.sum_itemsize
        reads = WAVEFRONT * value / (LANES * CLUSTER_COLUMNS * VECTOR)
    else:
        entry = INDEX + itemsize
        entries = entry / CSR_PANEL
        reads = 2 * WAVEFRONT / (LANES * CSR_COLUMNS)
    features = (size.rows + size.inner) * size.columns * itemsize
    weights = entry * size.edges
    moved = features + weights if features + weights > l2_bytes else 0.0
    levels = {
        "l1": itemsize * share + reads + (entries if variant == "staged" else 0.0),
        "l2": itemsize * share + entries,
        "memory": moved / max(size.edges * size.columns, 1),
    }
    return KernelModel(levels, padding * size.sum_itemsize / 2)


def packed_cost(
    packed: PackedSpmm, columns: int, precision: Precision, l2_bytes: int
) -> KernelModel:
    """Return what a packed matrix costs in its variant, for a number of columns of B."""
    size = LayerSize(
        packed.nnz, *packed.shape, columns, precision.storage.itemsize, precision.sums.itemsize,
        packed.constant,
    )  # fmt: skip
    minibatch = packed.launches[0].panel if packed.launches else 1
    return variant_cost(packed.variant, size, l2_bytes, packed.loads, minibatch)
