"""Which plan is made of which options, and what is refused before one is made."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import portable_spdnn as ps


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kernel": "csr"}, "kernel"),
        ({"storage": "float16"}, r"takes no option storage \('float16'\)"),
        ({"device_memory": 1 << 30}, "takes no option device_memory"),
        ({"devices": "all"}, r"takes no option devices \('all'\)"),
    ],
)
def test_options_of_other_backends_are_errors(options: dict[str, Any], message: str) -> None:
    network = ps.Network([ps.Layer(sp.csr_array(np.eye(3)))])
    with pytest.raises(ps.InputError, match=message):
        ps.infer(network, np.eye(3), "scipy", **options)
