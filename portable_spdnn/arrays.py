"""Types that annotations of many modules share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy.typing as npt

Array = npt.NDArray[Any]  # of NumPy, in host memory
Progress = Callable[[int, int], None]  # called with (work done, work in all)
