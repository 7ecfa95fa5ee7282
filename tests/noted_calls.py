"""Functions that note what they are called with."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest


def noted_calls(monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str) -> list[Any]:
    """Let a module's function note its positional arguments; return the list that they come to."""
    calls: list[Any] = []
    function = getattr(module, name)

    def noted(*arguments: Any, **others: Any) -> Any:
        calls.append(arguments)
        return function(*arguments, **others)

    monkeypatch.setattr(module, name, noted)
    return calls
