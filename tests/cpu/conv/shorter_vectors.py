"""Run in a process of its own: convolutions in code for processors without AVX-512, or AVX.

Prints the wide registers that machine code names; raises where a result is wrong.
"""

from __future__ import annotations

import re

import numba
import numpy as np

import portable_spdnn as ps
from portable_spdnn.operations.convolutions.geometry import conv_geometry
from portable_spdnn.testing import oracle
from portable_spdnn_cpu.conv import kernel as stream
from portable_spdnn_cpu.conv.depthwise.microkernels import convolve_plane, plane_signature
from portable_spdnn_cpu.conv.stream import StreamConv
from portable_spdnn_cpu.conv.tuning import Cut
from portable_spdnn_cpu.jit.target import VECTOR_BYTES
from portable_spdnn_cpu.machine.thread_pool import ALONE
from portable_spdnn_cpu.spmm.stream.packing import BY_OFFSETS
from portable_spdnn_cpu.spmm.stream.row_loops import finish_rows, finish_signature

SAME = ((1, 1), (1, 1))


def main() -> None:
    """Convolve in both ways, then look at the code."""
    backend, rng = ps.get_backend("numba", threads=1), np.random.default_rng(0)
    for width in (1, 5, 8, 9, 23):
        x = rng.uniform(-1, 1, (2, 4, 7, width)).astype(np.float32)
        pruned = np.where(rng.random((6, 4, 3, 3)) < 0.4, 1.5, 0).astype(np.float32)
        single = rng.uniform(-1, 1, (4, 1, 3, 3)).astype(np.float32)
        for weights, groups in ((pruned, 1), (single, 4)):
            expected = oracle.conv2d(x, weights, (1, 1), SAME, (1, 1), groups)
            found = backend.conv2d(x, weights, padding=1, groups=groups)
            np.testing.assert_allclose(found, expected, atol=1e-5)
    geometry = conv_geometry("conv2d", (4, 7, 23), (6, 4, 3, 3), 1, 1, 1, 1)
    expected = oracle.conv2d(x, pruned, (1, 1), SAME, (1, 1), 1)
    for vectors in stream.WIDTHS:
        cut = Cut(vectors, block=16, bands=1, parts=1, threads=1)
        found = StreamConv(ALONE, pruned, geometry, ps.Epilogue(), 2, cut)(x, None, None)
        np.testing.assert_allclose(found, expected, atol=1e-5)
    float32, named = np.dtype(np.float32), set[str]()
    kernels = {
        finish_rows: finish_signature(4, float32, BY_OFFSETS, False, False, VECTOR_BYTES),
        convolve_plane: plane_signature(4, 3, (1, 1), 1, float32),
    }
    for function, signature in kernels.items():
        compiled = numba.njit(nogil=True)(function.py_func)
        compiled.compile(signature)
        text = "".join(compiled.inspect_asm().values())
        named |= set(re.findall(r"vfmadd\w+ps.*%([yz]mm)", text))
    print(*sorted(named))


if __name__ == "__main__":
    main()
