"""Sparse attention, prepared: masks are packed once, K and V at each call or read in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from portable_spdnn.operations.heads import is_joined
from portable_spdnn_cpu.attention.kernel import Workspace, attend, attend_heads
from portable_spdnn_cpu.attention.operands import (
    Operands,
    attend_again,
    operands_in_place,
    pack_operands,
)
from portable_spdnn_cpu.attention.packing import PackedMask, pack_mask
from portable_spdnn_cpu.attention.stages import TILES_AT_ONCE
from portable_spdnn_cpu.jit.compilation import Array, read_only
from portable_spdnn_cpu.machine.buffers import Buffers, Spare
from portable_spdnn_cpu.machine.cpu_info import cache_bytes
from portable_spdnn_cpu.machine.thread_pool import ThreadPool, worth_waking
from portable_spdnn_cpu.sddmm.microkernels import has_headroom
from portable_spdnn_cpu.sddmm.operands import (
    ROW_STEP,
    heads_of,
    read_in_place,
    with_contiguous_rows,
)
from portable_spdnn_cpu.sddmm.register_tile import GROUP, RegisterTile, padded, register_tile
from portable_spdnn_cpu.sddmm.vectors import LANES

EXPECTED_D = 64  # columns of a head, where nothing is said
# Queries of a block: many where K and V come from beyond the second-level cache, once for each.
MANY, FEW, LEAST = 1024, 256, 64
BLOCKS_EACH = 4  # blocks of queries for every thread, where there are so many
HEADS_EACH = 8  # for every thread, from which on a thread takes whole heads
SCORES_SHARE = 4  # scores of a stage take this part of the second-level cache, where they can
MAX_PACKED = 1 << 28  # bytes of K and V that are packed at a time, or one head that takes more
DIVISIONS = 64  # of each mask, that a handle remembers


class SparseAttention:
    """O = softmax(scale Q K^T at the entries of masks) V.

    Parameters
    ----------
    workers : ThreadPool
    masks : list of csr_array
        One for all heads, or one for each; they are not changed while this is used.
    d : int or None
        Columns of K that are expected.

    Attributes
    ----------
    takes_batches : bool
        That operands of four dimensions are taken: see `AttentionOperations`.
    """

    takes_batches = True

    def __init__(self, workers: ThreadPool, masks: list[Any], d: int | None) -> None:
        self.workers, self.masks = workers, masks
        row_bytes = (EXPECTED_D if d is None else d) * np.dtype(np.float32).itemsize
        self.packed = [pack_mask(workers, mask, row_bytes) for mask in masks]
        self._patterns = [(read_only(mask.indptr), read_only(mask.indices)) for mask in masks]
        self._divisions: dict[tuple[int, ...], Division] = {}  # of shapes: see `divided`

    def __call__(
        self, Q: Array, K: Array, V: Array, scale: float, out: Array | None = None
    ) -> Array:
        """Return O, shape (heads, queries, columns of V); see `Backend.sparse_attention`.

        Operands of four dimensions are a batch, and so is O then.
        """
        shape = *Q.shape[:-1], V.shape[-1]
        if out is None:
            out = np.empty(shape, Q.dtype)
        if 0 in shape:
            return out
        if not K.shape[-2]:
            out[...] = 0
            return out
        # Heads, or members of a batch, for which K and V are packed at a time.
        shared = len(self.masks) == 1
        each = 3 * (K[0].nbytes + V[0].nbytes)
        if Q.ndim == 4 and each > MAX_PACKED:  # then some heads of a member at a time
            for member in range(shape[0]):
                self(Q[member], K[member], V[member], scale, out[member])
            return out
        most = max(1, MAX_PACKED // max(each, 1)) if shared else 1
        for first in range(0, shape[0], most):
            part = slice(first, min(first + most, shape[0]))
            number = 0 if shared else first
            self._run(number, Q[part], K[part], V[part], scale, out[part])
        return out

    def describe(self) -> str:
        """Return how each mask was divided into tiles and rows of keys."""
        lines = []
        for number, (mask, packed) in enumerate(zip(self.masks, self.packed, strict=True)):
            scattered = packed.keys.size - int(packed.padding.sum(dtype=np.int64))
            lines.append(
                f"{'All heads' if len(self.masks) == 1 else f'Head {number}'}: "
                f"{mask.nnz} entries of {mask.shape[0]} x {mask.shape[1]}; "
                f"{mask.nnz - scattered} of them in {packed.panels.size} dense tiles of "
                f"{GROUP} queries by {LANES} keys, {scattered} one by one in blocks of "
                f"{packed.block} keys."
            )
        return "\n".join(lines)

    def _run(self, number: int, Q: Array, K: Array, V: Array, scale: float, out: Array) -> None:
        """Compute some heads of one mask, or some members of a batch."""
        mask, packed = self.masks[number], self.packed[number]
        entries, width = mask.nnz, V.shape[-1]
        if Q.ndim == 4:
            out = out.reshape(-1, *out.shape[-2:])  # in C order, as it is
            if is_joined(K) and is_joined(V):
                K, V = (one.reshape(len(out), *one.shape[-2:]) for one in (K, V))
        heads = len(out)
        workers = worth_waking(self.workers, heads * entries * (Q.shape[-1] + width))
        threads, counters = workers.threads, np.zeros((2, 1), np.int64)
        # A mask of few entries has no tiles.
        in_place = K.ndim == 3 and read_in_place(entries, K, V)
        Q, K, V = map(with_contiguous_rows, (Q, K, V))
        q, k, v = map(heads_of, (Q, K, V))
        shape = Q.itemsize, Q.shape[-1], width, heads, threads, in_place
        division = self._divisions.get((number, *shape))
        if division is None:
            if len(self._divisions) == DIVISIONS * len(self.masks):
                self._divisions.clear()
            division = self._divisions[number, *shape] = divided(packed, mask.shape, *shape)
        tile, d, d_v, size, stage, scores = division
        factor, pattern = Q.dtype.type(scale), self._patterns[number]
        buffers = _SPARE.take()
        room = packed, K.shape[-2], d, d_v, Q.dtype
        spaces = [
            buffers.workspace(worker, size, d, d_v, scores, Q.dtype) for worker in range(threads)
        ]
        flawed: Array | None = None  # as `Operands` has it, where any row may be

        def run_blocks(operands: Operands, key_step: int, value_step: int) -> None:
            """Compute blocks of queries on all threads."""
            given = tile, packed, stage, q, operands, d, d_v, key_step, value_step, factor
            workers.run(lambda worker: attend(counters[1], *given, spaces[worker], out))

        if in_place:
            run_blocks(operands_in_place(K, V), k[ROW_STEP], v[ROW_STEP])
            # A flawed row of V makes the results of queries that see it infinite or NaN.
            if not np.isfinite(out).all():
                flawed = np.logical_not(has_headroom(V))
        elif heads % threads == 0 or heads >= HEADS_EACH * threads:
            own = [buffers.operands(worker, 1, *room) for worker in range(threads)]
            given = tile, packed, stage, *pattern, q, k, v

            def work(worker: int) -> None:
                attend_heads(counters[0], *given, *own[worker], d, d_v, factor, spaces[worker], out)

            workers.run(work)
        else:
            shared, readable = buffers.operands(0, heads, *room)
            workers.run(lambda worker: pack_operands(counters[0], k, v, shared, d, d_v))
            run_blocks(readable, d, d_v)
            flawed = shared.flawed
        if flawed is not None:
            for head in np.flatnonzero(flawed.any(axis=1)).tolist():
                attend_again(*pattern, q, k, v, head, flawed[head], factor, out[head])
        _SPARE.give_back(buffers)


class Division(NamedTuple):
    """How heads are computed.

    Attributes
    ----------
    tile : RegisterTile
    d, d_v : int
        Columns of K and V, padded to what the tile takes.
    size : int
        Queries of a block.
    stage, scores : int
        As `stages` returns them.
    """

    tile: RegisterTile
    d: int
    d_v: int
    size: int
    stage: int
    scores: int


def divided(
    packed: PackedMask, shape: tuple[int, int], itemsize: int, d: int, d_v: int, heads: int,
    threads: int, in_place: bool,
) -> Division:  # fmt: skip
    """Return how so many heads of a mask of a shape are computed, for K and V of d, d_v columns."""
    tile = register_tile(itemsize, d, d_v, in_place=in_place)
    d, d_v = padded(d, tile.key_part), padded(d_v, tile.value_part)
    size = block_of_queries(shape[0], heads, threads, shape[1] * d * itemsize)
    return Division(tile, d, d_v, size, *stages(packed, size, itemsize))


def block_of_queries(queries: int, heads: int, threads: int, key_bytes: int) -> int:
    """Return the queries of a block: whole groups, and enough blocks for all threads."""
    size = MANY if 4 * key_bytes > cache_bytes(2) else FEW
    each = -(-heads * queries // (BLOCKS_EACH * threads))
    size = min(size, max(LEAST, each))
    return min(-(-size // GROUP), -(-queries // GROUP)) * GROUP


def stages(mask: PackedMask, size: int, itemsize: int) -> tuple[int, int]:
    """Return the blocks of keys of a stage, and the room for scores that one takes at most."""
    blocks, queries = mask.counts.shape
    wanted = cache_bytes(2) // SCORES_SHARE // itemsize
    mean = mask.keys.size * size // max(1, queries * blocks)
    stage = max(1, min(blocks, wanted // max(1, mean)))
    most = 0
    if mask.keys.size:
        counts = np.add.reduceat(mask.counts, np.arange(0, blocks, stage), axis=0)
        rounded = -(-counts // LANES) * LANES
        firsts = np.arange(0, queries, size)
        most = int(np.add.reduceat(rounded, firsts, axis=1, dtype=np.int64).max())
    return stage, max(GROUP * LANES * TILES_AT_ONCE, most + LANES)


class AttentionBuffers(Buffers):
    """What attention computes in, for each worker."""

    def __init__(self) -> None:
        super().__init__()
        # Of each kind and worker what was taken last, and for what: calls of one shape follow one
        # another, and to take each array anew is a quarter of a short one.
        self._latest: dict[tuple[str, int], tuple[tuple[Any, ...], Any]] = {}

    def _again(
        self, kind: str, worker: int, wanted: tuple[Any, ...], make: Callable[[], Any]
    ) -> Any:
        latest = self._latest.get((kind, worker))
        if latest is None or latest[0] != wanted:
            latest = self._latest[kind, worker] = wanted, make()
        return latest[1]

    def operands(
        self, worker: int, heads: int, mask: PackedMask, keys: int, d: int, d_v: int, dtype: Any
    ) -> tuple[Operands, Operands]:
        """Return room for K and V of some heads as a mask needs it, and read-only views of it."""
        whole = -(-keys // LANES) * LANES
        panels, rows = whole * d if mask.panels.size else 0, keys * d if mask.keys.size else 0

        def make() -> tuple[Operands, Operands]:
            taken = Operands(
                self.take("panels", worker, (heads, panels), dtype),
                self.take("keys", worker, (heads, rows), dtype),
                self.take("values", worker, (heads, whole * d_v), dtype),
                self.take("flawed", worker, (heads, keys), np.dtype(bool)),
            )
            return taken, Operands(*map(read_only, taken))

        both: tuple[Operands, Operands] = self._again(
            "operands", worker, (heads, panels, rows, keys, d_v, dtype), make
        )
        return both

    def workspace(
        self, worker: int, size: int, d: int, d_v: int, scores: int, dtype: Any
    ) -> Workspace:
        """Return the buffers of a thread for blocks of `size` queries."""
        taken: Workspace = self._again(
            "workspace", worker, (size, d, d_v, scores, dtype),
            lambda: Workspace(
                self.take("queries", worker, (size * d,), dtype),
                self.take("sums", worker, (size * d_v,), dtype),
                self.take("scores", worker, (scores,), dtype),
                self.take("starts", worker, (size,), np.dtype(np.int64)),
                self.take("counts", worker, (size,), np.dtype(np.int64)),
                self.take("most", worker, (size,), dtype),
                self.take("totals", worker, (size,), dtype),
            ),
        )  # fmt: skip
        return taken


_SPARE = Spare(AttentionBuffers)
