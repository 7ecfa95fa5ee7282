"""A performance model of data-parallel inference: calibrated on one node, drawn for many."""
