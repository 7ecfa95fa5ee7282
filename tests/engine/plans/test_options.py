"""What the options of a plan may be."""

from __future__ import annotations

from typing import Any

import pytest

import portable_spdnn as ps


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"storage": "float8"}, "storage is 'float8'; choose one of same, float16"),
        ({"storage": "float16", "dtype": "float64"}, "storage float16 goes with dtype float32"),
        ({"device_memory": 0}, "device_memory is 0;"),
        ({"dtype": None}, "dtype is None; choose float32 or float64"),
        ({"devices": "0;1"}, "devices is '0;1'; give 'all' or numbers"),
        ({"expected_survival": ()}, r"expected_survival is \(\); a sequence of parts from 0 to 1"),
        ({"expected_survival": (1, 1.5)}, r"expected_survival is \(1, 1.5\); a sequence of parts"),
        ({"expected_survival": 0.5}, "expected_survival is 0.5; a sequence of parts"),
        ({"expected_survival": "11"}, "expected_survival is '11'; a sequence of parts"),
    ],
)
def test_device_options_without_a_valid_value(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ps.InputError, match=message):
        ps.PlanOptions(**options)
