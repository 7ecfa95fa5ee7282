"""Kernels that gather what the positions of a panel see of images: code for one width each.

The kernel of convolutions, compiled once for all widths, calls them by address.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from numba.core import cgutils, types

from portable_spdnn_cpu.conv.spans import WORD, VectorEmitter
from portable_spdnn_cpu.jit.compilation import Emission, intrinsic, job_kernel
from portable_spdnn_cpu.jit.jobs import LENGTH, array_at, code_address
from portable_spdnn_cpu.jit.target import VECTOR_BYTES

# Vectors are copied whole where each column of the kernel has at most so many positions of a panel
# outside of the image: two of each row of 14 pixels in the widest panel of float32, by a kernel 5
# wide.
MAX_EDGES = 16


@functools.cache
def masked_gather_code(vectors: int, dtype: np.dtype[Any]) -> int:
    """Return the address of `gather_masked` for `call_code`, for so many vectors."""
    return code_address(gather_masked, "i" * 9, (0,) * vectors, dtype.type)


@functools.cache
def whole_gather_code(vectors: int, dtype: np.dtype[Any]) -> int:
    """Return the address of `gather_whole` for `call_code`, for so many vectors."""
    return code_address(gather_whole, "i" * 9, (0,) * vectors, dtype.type)


@job_kernel
def gather_masked(
    panel: int, apart: int, images: int, base: int, sources: int, kernel_entries: int, first: int,
    last: int, masks: int, vectors: tuple[int, ...], dtype: Any,
) -> None:  # fmt: skip
    """Copy what positions see of images to the rows of a panel, for some entries of kernels.

    `panel`, `images`, `sources` (int64), `kernel_entries` (uint32), both with an item for each
    entry that kernels see, and `masks` (uint32) are addresses; the others count items.

    Row k - first of the panel, for k = first .. last - 1, begins `apart` items behind the one
    before, where a vector is aligned, and has len(vectors) vectors: what lies at
    images[base + sources[k]] and on, with zeros in the lanes that bit masks[kernel_entries[k], v]
    of vector v has no 1 for. These are not read, wherever they are.

    All vectors are stored whole and aligned: a store that crosses a cache line takes as long as
    several that do not.
    """
    _gather_masked(
        vectors, array_at(panel, LENGTH, dtype), apart, array_at(images, LENGTH, dtype), base,
        array_at(sources, LENGTH, np.int64), array_at(kernel_entries, LENGTH, np.uint32), first,
        last, array_at(masks, LENGTH, np.uint32),
    )  # fmt: skip


@job_kernel
def gather_whole(
    panel: int, apart: int, images: int, base: int, sources: int, kernel_entries: int, first: int,
    last: int, edges: int, vectors: tuple[int, ...], dtype: Any,
) -> None:  # fmt: skip
    """Gather as `gather_masked` does, where `edges` has the positions that see nothing.

    `panels.find_edges` fills that array. Whole vectors are copied, and zeros stored to these
    positions: masked loads took 1.5 times as long on an Intel Xeon.
    """
    items, seen = array_at(panel, LENGTH, dtype), array_at(images, LENGTH, dtype)
    places = array_at(sources, LENGTH, np.int64)
    entries = array_at(kernel_entries, LENGTH, np.uint32)
    unseen = array_at(edges, (LENGTH, 1 + MAX_EDGES), np.int64)
    for k in range(first, last):
        row, entry = (k - first) * apart, entries[k]
        _copy_vectors(vectors, items, row, seen, base + places[k])
        for number in range(1, 1 + unseen[entry, 0]):
            items[row + unseen[entry, number]] = 0


@intrinsic
def _gather_masked(
    typingctx: Any,
    width: Any,
    panel: Any,
    apart: Any,
    images: Any,
    base: Any,
    sources: Any,
    kernel_entries: Any,
    first: Any,
    last: Any,
    masks: Any,
) -> Emission:
    """Emit what `gather_masked` says."""
    vectors = len(width)
    word = types.intp
    signature = types.void(
        width, panel, word, images, word, sources, kernel_entries, word, word, masks
    )

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        emitter = VectorEmitter(context, builder, sig.args[1].dtype)
        panel, images, sources, entries, masks = (
            emitter.data(sig.args[n], args[n]) for n in (1, 3, 5, 6, 9)
        )
        base, first, last = args[4], args[7], args[8]
        with cgutils.for_range_slice(builder, first, last, WORD(1), WORD) as (k, _):
            source = builder.add(base, builder.load(builder.gep(sources, [k])))
            entry = builder.zext(builder.load(builder.gep(entries, [k])), WORD)
            row = builder.mul(builder.sub(k, first), args[2])
            for vector in range(vectors):
                shift = WORD(vector * emitter.lanes)
                place = builder.add(builder.mul(entry, WORD(vectors)), WORD(vector))
                mask = emitter.mask_of(builder.load(builder.gep(masks, [place])))
                value = emitter.load_masked(emitter.at(images, builder.add(source, shift)), mask)
                pointer = emitter.at(panel, builder.add(row, shift))
                builder.store(value, pointer, align=VECTOR_BYTES)
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def _copy_vectors(
    typingctx: Any, width: Any, panel: Any, to: Any, images: Any, start: Any
) -> Emission:
    """panel[to + q] = images[start + q] for all items q of len(width) vectors.

    `to` is where a vector of the panel begins.
    """
    signature = types.void(width, panel, types.intp, images, types.intp)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        emitter = VectorEmitter(context, builder, sig.args[1].dtype)
        panel, images = (emitter.data(sig.args[n], args[n]) for n in (1, 3))
        for vector in range(len(width)):
            shift = WORD(vector * emitter.lanes)
            value = emitter.load(emitter.at(images, builder.add(args[4], shift)))
            pointer = emitter.at(panel, builder.add(args[2], shift))
            builder.store(value, pointer, align=VECTOR_BYTES)
        return context.get_dummy_value()

    return signature, codegen
