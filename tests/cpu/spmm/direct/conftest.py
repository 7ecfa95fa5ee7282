"""Threads share all products here, however small."""

from __future__ import annotations

import pytest

from portable_spdnn_cpu.spmm.direct import product


@pytest.fixture(autouse=True)
def _threads_share_all_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(product, "is_shared", lambda *size: True)
