"""Compare speeds with a baseline: `python benchmarks/compare_ratios.py --run`.

What is compared is, for each case and backend, the ratio of the reference's fastest round to
the backend's fastest round *in the same run*: absolute times on shared machines say more about
the neighbours than about the code. A case fails when its ratio has lost more than the threshold
against the baseline. With ``--run`` the cases that fail are measured again, reference included,
up to twice: a regression shows each time, a disturbance does not.

Exit code 0: nothing lost; 1: a ratio lost too much, a case of the baseline is gone or ran on other
data than the baseline's, or a benchmark failed; 2: wrong usage, or a file cannot be read.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
BASELINE = FOLDER / "baseline.json"
REFERENCE = "scipy"
THRESHOLD = 0.15
RETRIES = 2

Case = tuple[str, str]  # group (operation and size), backend
Ratios = dict[Case, float]


class IllFormed(ValueError):
    """A record lacks what ratios need; the message says what."""


@dataclass(frozen=True)
class Change:
    """One case, then and now.

    Attributes
    ----------
    case : tuple of str
        Operation and size, backend.
    before, now : float or None
        Ratio to the reference; None where the case is not in that record.
    other_data : str
        What the case ran on, then and now, where that differs; empty where it does not.
    """

    case: Case
    before: float | None
    now: float | None
    other_data: str = ""

    @property
    def loss(self) -> float | None:
        """Part of the ratio that is gone; negative where it grew."""
        if self.before is None or self.now is None:
            return None
        return 1 - self.now / self.before

    def fails(self, threshold: float) -> bool:
        """Whether the case vanished, ran on other data, or lost more than `threshold`."""
        if self.before is None:
            return False
        if self.other_data:
            return True
        return self.now is None or 1 - self.now / self.before > threshold


def ratios_of(record: Any) -> Ratios:
    """Return reference time / backend time of every case but the reference itself.

    Parameters
    ----------
    record : dict
        What `run_benchmarks` stores.

    Raises
    ------
    IllFormed
        If there is no entry, one lacks its group, backend or fastest round, two are of the same
        case, or a group has no reference.
    """
    times: dict[Case, float] = {}
    try:
        for entry in record["benchmarks"]:
            case = (str(entry["group"]), str(entry["extra_info"]["backend"]))
            if case in times:
                raise IllFormed(f"{' '.join(case)}: is there twice")
            times[case] = float(entry["stats"]["min"])
            if not 0 < times[case] < math.inf:
                raise IllFormed(f"{' '.join(case)}: the fastest round took {times[case]} s")
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, IllFormed):
            raise
        raise IllFormed(f"no benchmark record: {type(error).__name__} {error}") from error
    if not times:
        raise IllFormed("holds no benchmark")
    ratios: Ratios = {}
    for (group, backend), seconds in times.items():
        if backend == REFERENCE:
            continue
        if (group, REFERENCE) not in times:
            raise IllFormed(f"{group}: the reference {REFERENCE} is not in the same run")
        ratios[group, backend] = times[group, REFERENCE] / seconds
    return ratios


def compare(before: Ratios, now: Ratios, old: Any = None, new: Any = None) -> list[Change]:
    """Pair the cases of two records, those of the baseline first.

    Parameters
    ----------
    before, now : dict
        Ratios.
    old, new : dict, optional
        The records that they are from, for what the cases ran on.
    """
    then_on, now_on = _inputs_of(old), _inputs_of(new)
    changes = []
    for case in [*before, *(case for case in now if case not in before)]:
        then, today = then_on.get(case), now_on.get(case)
        differs = then is not None and today is not None and then != today
        other_data = f"{then}; now {today}" if differs else ""
        changes.append(Change(case, before.get(case), now.get(case), other_data))
    return changes


def _inputs_of(record: Any) -> dict[Case, str | None]:
    """Return the inputs of each case of a record that `ratios_of` has taken.

    Official and generated weights have the same structure, and the same entries in the first
    layers: they count as one.
    """
    return {
        (str(entry["group"]), str(entry["extra_info"]["backend"])): entry["extra_info"].get(
            "inputs"
        )
        for entry in (record or {}).get("benchmarks", ())
    }


def best_of(first: Ratios, second: Ratios) -> Ratios:
    """Return for each case of `first` the larger ratio of the two."""
    return {case: max(ratio, second.get(case, ratio)) for case, ratio in first.items()}


def retried(
    before: Ratios,
    now: Ratios,
    threshold: float,
    again: Callable[[set[str]], Ratios],
) -> Ratios:
    """Measure failing cases again, at most twice, and keep the best ratio of each.

    Parameters
    ----------
    before, now : dict
    threshold : float
    again : callable
        Measures the given groups and returns their ratios.
    """
    for _ in range(RETRIES):
        failing = {
            change.case[0]
            for change in compare(before, now)
            if change.now is not None and change.fails(threshold)
        }
        if not failing:
            break
        print(f"measuring again: {', '.join(sorted(failing))}", flush=True)
        now = best_of(now, again(failing))
    return now


def table(changes: Iterable[Change], threshold: float) -> str:
    """Return a line a case: ratio in the baseline, ratio now, change."""
    lines = [f"{'case':<34} {'backend':<14} {'baseline':>9} {'now':>9} {'change':>8}"]
    for change in changes:
        before, now = (
            "-" if ratio is None else f"{ratio:.2f} x" for ratio in (change.before, change.now)
        )
        note = "new" if change.before is None else "GONE"
        if change.loss is not None:
            note = f"{-100 * change.loss:+.1f} %"
        mark = "  LOST" if change.fails(threshold) and change.now is not None else ""
        if change.other_data:
            mark = f"  OTHER DATA: {change.other_data}"
        group, backend = change.case
        lines.append(f"{group:<34} {backend:<14} {before:>9} {now:>9} {note:>8}{mark}")
    return "\n".join(lines)


def _share_below_one(text: str) -> float:
    share = float(text)
    if not 0 < share < 1:
        raise ValueError(text)
    return share


def _cpu_of(record: Any) -> str:
    facts = record.get("machine_info")
    return str(facts.get("cpu", "unknown")) if isinstance(facts, dict) else "unknown"


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise IllFormed(f"cannot be read ({error}); make one with run_benchmarks.py") from error


def _fresh() -> tuple[Any, Callable[[set[str]], Ratios]]:
    """Run all benchmarks; return the record, and how to run some groups again."""
    from run_benchmarks import run_benchmarks

    record = run_benchmarks()
    names: dict[str, list[str]] = {}
    for entry in record["benchmarks"]:
        names.setdefault(entry["group"], []).append(entry["fullname"])

    def again(groups: set[str]) -> Ratios:
        chosen = [name for group in sorted(groups) for name in names[group]]
        return ratios_of(run_benchmarks(chosen))

    return record, again


def main(arguments: list[str] | None = None) -> int:
    """Compare two stored records, or a fresh run with the baseline."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("baseline", nargs="?", type=Path, default=BASELINE)
    parser.add_argument("new", nargs="?", type=Path, help="record to judge; or use --run")
    parser.add_argument("--run", action="store_true", help="measure now, and judge that")
    parser.add_argument(
        "--threshold",
        type=_share_below_one,
        default=THRESHOLD,
        help="between 0 and 1; default: 0.15",
    )
    options = parser.parse_args(arguments)
    if options.run == (options.new is not None):
        parser.error("give either a NEW record or --run")
    path = options.baseline
    try:
        old = _read(path)
        before = ratios_of(old)
        if options.run:
            sys.path.insert(0, str(FOLDER))
            from run_benchmarks import BenchmarksFailed

            try:
                new, again = _fresh()
                now = retried(before, ratios_of(new), options.threshold, again)
            except BenchmarksFailed as error:
                print(f"compare_ratios: a benchmark failed: {error}", file=sys.stderr)
                return 1
        else:
            path = options.new
            new = _read(path)
            now = ratios_of(new)
    except IllFormed as error:
        print(f"compare_ratios: {path}: {error}", file=sys.stderr)
        return 2
    cpus = [_cpu_of(record) for record in (old, new)]
    if cpus[0] != cpus[1]:
        print(f"the baseline is of another processor ({cpus[0]}, now {cpus[1]}): ratios may differ")
    changes = compare(before, now, old, new)
    print(table(changes, options.threshold))
    failed = [change for change in changes if change.fails(options.threshold)]
    if failed:
        print(f"{len(failed)} case(s) lost more than {100 * options.threshold:.0f} % or are gone")
    if any(change.other_data for change in failed):
        print(
            "OTHER DATA cannot be judged: put the baseline's beside the checkout, or make a "
            "baseline here with run_benchmarks.py --out benchmarks/baseline.json"
        )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
