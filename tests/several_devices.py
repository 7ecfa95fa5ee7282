"""What the tests of several devices share: a network, devices that are the host, plans."""

from __future__ import annotations

from typing import Any

import pytest
from cuda_emulation.emulated_backend import EmulatedCupyBackend
from cuda_emulation.emulated_device import compiler

import portable_spdnn as ps
from portable_spdnn.backend import Backend
from portable_spdnn.plans.multi_device import MultiDevicePlan
from portable_spdnn.plans.planner import make_plan
from portable_spdnn.plans.result import Result
from portable_spdnn_cpu.scipy_backend import ScipyBackend

needs_compiler = pytest.mark.skipif(compiler() is None, reason="no C++ compiler (g++, clang++)")
NETWORK = ps.radixnet(64, 6, seed=2, bias=-0.25)
FEATURES = ps.digits_features(64)[:40]


class HostDevices(ScipyBackend):
    """Two devices that are the host: what a backend of another make has to give."""

    name = "host-devices"
    plan_options = frozenset({"devices"})

    def device_numbers(self) -> tuple[int, ...]:
        return (3, 5)

    def on_device(self, number: int) -> Backend:
        return HostDevices()


def planned(devices: str, **options: Any) -> MultiDevicePlan:
    wanted = ps.PlanOptions(devices=devices, **{"path": "spmm"} | options)
    plan = make_plan(EmulatedCupyBackend(), NETWORK, wanted)
    assert isinstance(plan, MultiDevicePlan)
    return plan


def alive(result: Result) -> list[int | None]:
    return [record.alive_inputs for record in result.records]
