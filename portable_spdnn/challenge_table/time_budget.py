"""How long a network will take, predicted from those that are done.

A prediction is ``edges x inputs / edge rate + edges x (loading + planning) per edge``, both
measured on the nearest network that is done: the same number of neurons if there is one, then
the nearest number of layers. Inputs of another number of neurons are loaded besides, in as much
time for each feature. Deeper networks tend to run faster than that, because few inputs are active
by then, and wider ones slower, because features leave the caches.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any

from portable_spdnn.errors import InputError
from portable_spdnn.graphchallenge.configurations import Configuration

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
_DURATION = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([smh]?)\s*", re.IGNORECASE)


def parse_duration(text: str, option: str) -> float:
    """Return a duration in seconds: of ``90``, ``90s``, ``10m`` or ``2h``.

    Raises InputError, which calls it `option`, if it is no positive duration.
    """
    match = _DURATION.fullmatch(text)
    seconds = float(match[1]) * _UNITS[match[2].lower()] if match else 0.0
    if not 0 < seconds < math.inf:
        raise InputError(f"{option} is {text!r}; give a duration such as 90, 90s, 10m or 2h")
    return seconds


def predict(done: Iterable[dict[str, Any]], configuration: Configuration, inputs: int) -> float:
    """Return the seconds that a network will take: to load its inputs and it, plan, run, verify.

    `done` are the records of finished networks, at least one (`report.run_report.run_record`).
    """

    def distance(one: dict[str, Any]) -> tuple[float, float]:
        return (
            abs(math.log2(one["neurons"] / configuration.neurons)),
            abs(math.log2(one["layers"] / configuration.layers)),
        )

    nearest = min(done, key=distance)
    setup = nearest["load_seconds"] + nearest["plan_seconds"]
    run = nearest["inference_seconds"] + (nearest["reference_seconds"] or 0.0)
    edges = configuration.edges / nearest["edges"]
    wider = configuration.neurons / nearest["neurons"]
    loading = 0.0 if wider == 1 else wider * nearest["inputs_load_seconds"]
    return float(edges * (setup + run * inputs / nearest["inputs"]) + loading)
