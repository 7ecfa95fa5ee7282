"""Draw how the ratios to the reference went: `make history`.

Each dated record in benchmarks/results is a point: for each case and backend the reference's
fastest round over the backend's, as the gate compares it. Records of different processors are
not comparable and get a picture each, docs/results/history-PROCESSOR.png.
"""

from __future__ import annotations

import argparse
import json
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER))

from compare_ratios import Case, IllFormed, ratios_of  # noqa: E402
from machine_facts import cpu_slug  # noqa: E402

DOCS = FOLDER.parent / "docs" / "results"
Points = list[tuple[datetime, float]]


def histories(files: list[Path]) -> dict[str, dict[Case, Points]]:
    """Read records; return, for each processor, the points of each case in the order of time.

    Parameters
    ----------
    files : list of Path
        Records of other programs (without ``benchmarks``) are left out.

    Raises
    ------
    IllFormed
        If a record cannot be read, or has no date or processor.
    """
    found: dict[str, dict[Case, Points]] = {}
    for file in files:
        try:
            record: Any = json.loads(file.read_text())
            if "benchmarks" not in record:
                continue
            when = datetime.fromisoformat(record["datetime"])
            processor = cpu_slug(record["machine_info"])
            ratios = ratios_of(record)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise IllFormed(f"{file}: {type(error).__name__} {error}") from error
        for case, ratio in ratios.items():
            found.setdefault(processor, {}).setdefault(case, []).append((when, ratio))
    for cases in found.values():
        for points in cases.values():
            points.sort()
    return found


def draw(cases: dict[Case, Points], target: Path) -> None:
    """Draw one processor's history: a panel for each operation, a line for each case."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    operations = list(dict.fromkeys(group.partition(" ")[0] for group, _ in cases))
    figure, panels = plt.subplots(
        len(operations), figsize=(8, 3 * len(operations)), sharex=True, squeeze=False,
        layout="constrained",
    )  # fmt: skip
    for operation, axes in zip(operations, panels[:, 0], strict=True):
        for (group, backend), points in cases.items():
            name, _, size = group.partition(" ")
            if name == operation:
                days, ratios = zip(*points, strict=True)
                axes.plot(days, ratios, marker="o", label=f"{size} {backend}")
        axes.set_title(operation)
        axes.set_ylabel("times the reference")
        axes.set_yscale("log")
        axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.autofmt_xdate()
    figure.savefig(target, dpi=110)
    plt.close(figure)


def main(arguments: list[str] | None = None) -> int:
    """Draw all histories; exit code 2 where a record cannot be read or there is none."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, default=FOLDER / "results", help="folder")
    parser.add_argument("--out", type=Path, default=DOCS, help="folder for the pictures")
    options = parser.parse_args(arguments)
    try:
        found = histories(sorted(options.results.glob("*.json")))
    except IllFormed as error:
        print(f"plot_history: {error}", file=sys.stderr)
        return 2
    if not found:
        print(f"plot_history: no record in {options.results}; make bench", file=sys.stderr)
        return 2
    options.out.mkdir(parents=True, exist_ok=True)
    for processor, cases in found.items():
        target = options.out / f"history-{processor}.png"
        draw(cases, target)
        print(f"stored in {target}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
