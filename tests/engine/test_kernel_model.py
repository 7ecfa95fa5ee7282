"""The roofline of a kernel: what binds it, and how near to that a layer came."""

from __future__ import annotations

import pytest

import portable_spdnn as ps
from portable_spdnn.kernel_model import KernelModel, Limits, part_of_limit, speed, speed_text

SOME = Limits(flops=400e9, l1=800e9, l2=200e9, l3=80e9, memory=20e9)


def test_the_smaller_of_bandwidth_and_peak_binds() -> None:
    assert KernelModel({"l2": 4}, 2).bound(SOME) == (50e9, "l2")
    assert KernelModel({"l1": 5}, 2).bound(SOME) == (160e9, "l1")
    assert KernelModel({"l2": 0.5}, 2).bound(SOME) == (200e9, "flops")
    assert KernelModel({"l1": 8, "memory": 1, "l3": 0}, 2).bound(SOME) == (20e9, "memory")
    with pytest.raises(ps.InputError, match="level is 'l4'; choose one of l1, l2, l3, memory"):
        KernelModel({"l4": 4}, 2)


def test_speed_is_held_against_what_binds() -> None:
    # 10^9 multiply-adds in 0.1 s: 40 GB/s of the 200 that the second level gives.
    found = speed(KernelModel({"l2": 4, "l3": 0}, 2), SOME, 1e9, 0.1)
    assert (found.edge_rate, found.flops, found.binding) == (1e10, 2e10, "l2")
    assert found.bandwidth == {"l2": 4e10}
    assert found.fraction == pytest.approx(0.2)
    assert speed_text(found, SOME) == (
        "0.010 T edges/s, 0.02 of 0.40 TFLOP/s, l2 0.04 of 0.20 TB/s: 20 % of what l2 allows"
    )


def test_kernels_one_after_the_other_share_a_limit() -> None:
    # 10^9 multiply-adds at 50 x 10^9 a second, by L2, and as many at 200 x 10^9, by arithmetic.
    models = [KernelModel({"l2": 4}, 2), KernelModel({"l2": 0.5}, 2)]
    part, binding = part_of_limit(models, SOME, [1e9, 1e9], 0.1)
    assert part == pytest.approx(0.25)
    assert binding == "l2"
    assert part_of_limit(models, SOME, [1e9, 1e10], 0.1)[1] == "flops"


def test_multiply_adds_are_measured_again_or_what_was_measured_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backend = ps.get_backend("numba", threads=1)
    found = [backend.measure_flops() for _ in range(2)]
    assert min(found) > 1e8
    assert found[0] != found[1]  # of the clock
    other = ps.get_backend("scipy")
    with pytest.raises(NotImplementedError, match="scipy does not measure its limits"):
        other.measure_flops()
    asked: list[Limits] = []

    def once() -> Limits:
        asked.append(SOME)
        return SOME

    monkeypatch.setattr(other, "measure_limits", once)
    assert [other.measure_flops() for _ in range(2)] == [SOME.flops] * 2
    assert len(asked) == 1
