"""What the sources of the kernels repeat of Python."""

from __future__ import annotations

import re

from portable_spdnn.epilogue import ACTIVATIONS
from portable_spdnn_gpu.compile.nvrtc import kernel_folder


def test_codes_of_activations_are_those_of_the_kernels() -> None:
    header = (kernel_folder() / "compile" / "common.cuh").read_text()
    codes = re.findall(r"#define ACTIVATION_(\w+) (\d+)\n", header)
    assert [(name.lower(), int(code)) for name, code in codes] == [
        (name, code) for code, name in enumerate(ACTIVATIONS)
    ]
