"""The Sparse DNN Graph Challenge: configurations, generated networks, text files."""

from __future__ import annotations

import importlib
from typing import Any


def __getattr__(name: str) -> Any:
    # Loaded on first use: it loads pandas, which takes 0.3 s, and few runs read text.
    if name != "tsv_table":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module(f"{__name__}.{name}")
