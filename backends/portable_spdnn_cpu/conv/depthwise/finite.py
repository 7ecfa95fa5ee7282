"""Whether all items of a span are finite."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types

from portable_spdnn_cpu.conv.spans import WORD, Value, VectorEmitter
from portable_spdnn_cpu.jit.compilation import Emission, intrinsic
from portable_spdnn_cpu.jit.vectors import multiply_add


@intrinsic
def all_finite(typingctx: Any, values: Any, first: Any, count: Any) -> Emission:
    """Return whether no NaN and no infinity is among values[first : first + count]."""
    signature = types.boolean(values, types.intp, types.intp)

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        emitter = VectorEmitter(context, builder, sig.args[0].dtype)
        start = builder.gep(emitter.data(sig.args[0], args[0]), [args[1]])
        zeros = ir.Constant(emitter.vector, None)
        # 0 times a number is NaN where the number is not finite. Some chains, so that additions do
        # not wait for each other.
        chains = [cgutils.alloca_once_value(builder, zeros) for _ in range(4)]

        def add(offset: Value, left: Value | None, chain: Value) -> None:
            value = emitter.read(emitter.at(start, offset), left)
            total = multiply_add(builder, value, zeros, builder.load(chain))
            builder.store(total, chain)

        step = WORD(len(chains) * emitter.lanes)
        whole = builder.sub(args[2], builder.srem(args[2], step))
        with cgutils.for_range_slice(builder, WORD(0), whole, step, WORD) as (offset, _):
            for number, chain in enumerate(chains):
                add(builder.add(offset, WORD(number * emitter.lanes)), None, chain)
        rest = builder.sub(args[2], whole)
        emitter.over_span(
            rest, lambda offset, left: add(builder.add(whole, offset), left, chains[0])
        )
        total = builder.load(chains[0])
        for chain in chains[1:]:
            total = builder.fadd(total, builder.load(chain))
        lanes = builder.bitcast(
            builder.fcmp_unordered("uno", total, total), ir.IntType(emitter.lanes)
        )
        return builder.icmp_unsigned("==", lanes, lanes.type(0))

    return signature, codegen
