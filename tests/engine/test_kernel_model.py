"""The roofline of a kernel: what binds it, and how near to that a layer came."""

from __future__ import annotations

import pytest

import portable_spdnn as ps
from portable_spdnn.kernel_model import KernelModel, Limits

SOME = Limits(flops=400e9, l1=800e9, l2=200e9, l3=80e9, memory=20e9)


def test_the_smaller_of_bandwidth_and_peak_binds() -> None:
    assert KernelModel({"l2": 4}, 2).bound(SOME) == (50e9, "l2")
    assert KernelModel({"l1": 5}, 2).bound(SOME) == (160e9, "l1")
    assert KernelModel({"l2": 0.5}, 2).bound(SOME) == (200e9, "flops")
    assert KernelModel({"l1": 8, "memory": 1, "l3": 0}, 2).bound(SOME) == (20e9, "memory")
    with pytest.raises(ps.InputError, match="level is 'l4'; choose one of l1, l2, l3, memory"):
        KernelModel({"l4": 4}, 2)
