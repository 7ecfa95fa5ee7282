"""A performance model of data-parallel inference: calibrated on one node, drawn for many.

`calibrate` measures a node, `Model` answers a `Question` from what it
measured: one `Point` for each number of nodes, strong and weak.
"""

from __future__ import annotations

from portable_spdnn.scaling.calibration import Calibration, load_calibration, save_calibration
from portable_spdnn.scaling.measuring import calibrate
from portable_spdnn.scaling.prediction import Model, Point, Question
from portable_spdnn.scaling.sampling import Sample

__all__ = [
    "Calibration",
    "Model",
    "Point",
    "Question",
    "Sample",
    "calibrate",
    "load_calibration",
    "save_calibration",
]
