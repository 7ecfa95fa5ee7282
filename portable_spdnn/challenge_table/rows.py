"""What is asked of the table, and the rows that it gets."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from portable_spdnn.graphchallenge.configurations import Configuration
from portable_spdnn.plans.options import PlanOptions


@dataclass(frozen=True)
class ChallengeOptions:
    """What a user may ask of the table.

    Attributes
    ----------
    configurations : tuple of Configuration
    data, inputs : Path or None
        Folder or store with networks, inputs and truth; file with other inputs.
    first_inputs : int or None
    seed : int
        Of generated networks.
    plan : PlanOptions
        Its `memory`, where set, holds for every network.
    verify : bool
        Run the serial reference on every network as well.
    time_budget : float or None
        Seconds that the whole may take.
    checkpoint : Path or None
        Folder of finished networks and batches.
    """

    configurations: tuple[Configuration, ...]
    data: Path | None = None
    inputs: Path | None = None
    first_inputs: int | None = None
    seed: int = 0
    plan: PlanOptions = field(default_factory=PlanOptions)
    verify: bool = False
    time_budget: float | None = None
    checkpoint: Path | None = None


@dataclass(frozen=True)
class Row:
    """One network of the table.

    Attributes
    ----------
    configuration : Configuration
    network_kind, inputs_kind : str
        Where they come from; `inputs_kind` is empty where they were not loaded.
    record : dict or None
        As `report.run_record`, and more; None where the network was skipped.
    skipped : str
        Why; empty where it was not.
    predicted_seconds : float or None
        What it was expected to take, where there is a time budget.
    from_checkpoint : bool
        Whether an earlier run had finished it.
    """

    configuration: Configuration
    network_kind: str
    inputs_kind: str = ""
    record: dict[str, Any] | None = None
    skipped: str = ""
    predicted_seconds: float | None = None
    from_checkpoint: bool = False

    @property
    def failed(self) -> bool:
        """Whether the categories are wrong, by the truth or by the serial reference."""
        if self.record is None:
            return False
        return self.record["verdict"] == "FAILED" or self.record["reference_agrees"] is False
