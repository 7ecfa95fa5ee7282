"""Vector moves of features.

Between tiles and features: whole granules, transposed blocks.

A *granule* is 64 bytes of neighbouring inputs (16 float32 or 8 float64), whatever vectors the
processor has: LLVM splits it into what fits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import types
from numba.core.typing.templates import Signature

from portable_spdnn_cpu.jit.compilation import intrinsic
from portable_spdnn_cpu.layout.tile_shape import BLOCK_BYTES


@intrinsic
def copy_granule(
    typingctx: Any, dst: Any, to: Any, src: Any, start: Any
) -> tuple[Signature, Callable[..., Any]]:
    """Copy one granule between arrays of one type: items from `start` on, to `to` on.

    Positions count items from the first of each array, whatever its shape.
    """
    element = dst.dtype
    signature = types.void(dst, types.intp, src, types.intp)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        vector = ir.VectorType(context.get_value_type(element), BLOCK_BYTES * 8 // element.bitwidth)

        def pointer(position: int) -> Any:
            array = context.make_array(sig.args[position])(context, builder, args[position])
            first = builder.gep(array.data, [args[position + 1]])
            return builder.bitcast(first, vector.as_pointer())

        align = element.bitwidth // 8
        builder.store(builder.load(pointer(2), align=align), pointer(0), align=align)
        return context.get_dummy_value()

    return signature, codegen


TRANSPOSE_BYTES = 32  # of a row of a block: 8 x 8 float32 or 4 x 4 float64


def _make_transpose(to_tile: bool) -> Callable[..., None]:
    """Build the intrinsic that moves a square block between features and a tile."""

    @intrinsic
    def transpose(
        typingctx: Any, tile: Any, places: Any, neuron: Any, column: Any, features: Any, rows: Any
    ) -> tuple[Signature, Callable[..., Any]]:
        """tile[places[neuron + q], column + p] = features[rows[column + p], neuron + q], or back.

        For p, q in 0 .. TRANSPOSE_BYTES / item size - 1; both arrays in C order; `places` is of
        int32, or None: each neuron in its own row.
        """
        element = tile.dtype
        side = TRANSPOSE_BYTES * 8 // element.bitwidth
        item_bytes = element.bitwidth // 8
        signature = types.void(tile, places, types.intp, types.intp, features, rows)

        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            vector = ir.VectorType(context.get_value_type(element), side)

            def array(position: int) -> Any:
                return context.make_array(sig.args[position])(context, builder, args[position])

            inside, outside, chosen = array(0), array(4), array(5)
            moved = None if isinstance(sig.args[1], types.NoneType) else array(1).data
            neuron, column = args[2:4]
            in_tile, in_features = [], []
            for step in range(side):
                shift = ir.Constant(neuron.type, step)
                leading = builder.extract_value(inside.shape, 1)
                place = builder.add(neuron, shift)
                if moved is not None:
                    place = builder.sext(builder.load(builder.gep(moved, [place])), neuron.type)
                offset = builder.add(builder.mul(place, leading), column)
                in_tile.append(builder.gep(inside.data, [offset]))
                row = builder.load(builder.gep(chosen.data, [builder.add(column, shift)]))
                leading = builder.extract_value(outside.shape, 1)
                offset = builder.add(builder.mul(row, leading), neuron)
                in_features.append(builder.gep(outside.data, [offset]))
            sources, targets = (in_features, in_tile) if to_tile else (in_tile, in_features)
            block = [
                builder.load(builder.bitcast(pointer, vector.as_pointer()), align=item_bytes)
                for pointer in sources
            ]
            # Swap the off-diagonal quarters of ever larger squares: log2(side) rounds.
            span = 1
            while span < side:
                first = [e if not e & span else side + e - span for e in range(side)]
                second = [e + span if not e & span else side + e for e in range(side)]
                for upper in range(side):
                    if not upper & span:
                        pair = block[upper], block[upper + span]
                        block[upper] = builder.shuffle_vector(*pair, _lanes(first))
                        block[upper + span] = builder.shuffle_vector(*pair, _lanes(second))
                span *= 2
            for value, pointer in zip(block, targets, strict=True):
                builder.store(
                    value, builder.bitcast(pointer, vector.as_pointer()), align=item_bytes
                )
            return context.get_dummy_value()

        return signature, codegen

    return transpose


def _lanes(chosen: list[int]) -> Any:
    return ir.Constant(ir.VectorType(ir.IntType(32), len(chosen)), chosen)


transpose_into_tile = _make_transpose(True)
transpose_from_tile = _make_transpose(False)
