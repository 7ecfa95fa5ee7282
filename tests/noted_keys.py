"""Tables that note what is looked up in them."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest


def noted_keys(monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str) -> list[Any]:
    """Let a module's dict note the keys that are looked up; return the list that they come to."""
    keys: list[Any] = []

    class Noted(dict[Any, Any]):
        def __getitem__(self, key: Any) -> Any:
            keys.append(key)
            return super().__getitem__(key)

    monkeypatch.setattr(module, name, Noted(getattr(module, name)))
    return keys
