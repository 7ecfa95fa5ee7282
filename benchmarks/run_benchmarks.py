"""Run the benchmarks and store what they measured: `python benchmarks/run_benchmarks.py`.

The result is pytest-benchmark's JSON without the time of each single round, in
benchmarks/results/ under the date, the processor and its cores.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
RESULTS = FOLDER / "results"


class BenchmarksFailed(RuntimeError):
    """A benchmark gave a wrong answer or did not run; what it printed says which."""


def run_benchmarks(selection: list[str] | None = None) -> dict[str, Any]:
    """Run benchmarks and return pytest-benchmark's record, without the single rounds.

    Parameters
    ----------
    selection : list of str, optional
        Arguments for pytest: test identifiers, or ``-k`` and an expression. Default: all.

    Raises
    ------
    BenchmarksFailed
        If a benchmark failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "benchmarks.json"
        chosen = selection or []
        if not any("::" in word for word in chosen):
            chosen = [*chosen, str(FOLDER)]
        command = [
            sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider",
            "--benchmark-columns=min,median,rounds", "--benchmark-sort=fullname",
            f"--benchmark-json={target}", *chosen,
        ]  # fmt: skip
        done = subprocess.run(command, cwd=FOLDER.parent, check=False)
        if done.returncode:
            raise BenchmarksFailed(f"pytest ended with exit code {done.returncode}")
        record: dict[str, Any] = json.loads(target.read_text())
    for benchmark in record["benchmarks"]:
        for unwanted in ("data", "outliers", "iqr_outliers", "stddev_outliers"):
            benchmark["stats"].pop(unwanted, None)
    return record


def dated_name(record: dict[str, Any]) -> str:
    """Return the file name of a record: date, processor, cores."""
    sys.path.insert(0, str(FOLDER))
    from machine_facts import cpu_slug

    day = datetime.datetime.fromisoformat(record["datetime"]).date()
    return f"{day.isoformat()}-{cpu_slug(record['machine_info'])}.json"


def store(record: dict[str, Any], target: Path) -> None:
    """Write a record, all or nothing."""
    from portable_spdnn.io.atomic_output import atomic_output

    target.parent.mkdir(parents=True, exist_ok=True)
    with atomic_output(target) as stream:
        stream.write((json.dumps(record, indent=1) + "\n").encode())


def limits_table(record: dict[str, Any]) -> str:
    """Return a line for each kernel whose binding limit is known: rate, and part of the limit."""
    lines = [f"{'kernel':<24} {'backend':<14} {'G edges/s':>9} {'of limit':>9}  bound by"]
    for entry in record["benchmarks"]:
        info = entry["extra_info"]
        if "fraction_of_limit" in info:
            lines.append(
                f"{entry['group']:<24} {info['backend']:<14} {info['executed_edge_rate_g']:>9.1f} "
                f"{100 * info['fraction_of_limit']:>7.0f} %  {info['bound_by']}"
            )
    return "\n".join(lines)


def main() -> int:
    """Run, store, and say where; exit code 1 where a benchmark failed or the file cannot be."""
    from portable_spdnn.errors import InputError

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="file to write; default: a dated one in results/")
    parser.add_argument(
        "-k",
        metavar="EXPRESSION",
        help="only benchmarks whose names match; stored only where --out says",
    )
    options = parser.parse_args()
    if options.out is not None and options.out.is_dir():
        parser.error(f"--out {options.out} is a folder; the name of a file is expected")
    try:
        record = run_benchmarks(["-k", options.k] if options.k else None)
    except BenchmarksFailed as error:
        print(f"run_benchmarks: {error}", file=sys.stderr)
        return 1
    print(limits_table(record))
    if options.k and options.out is None:
        print("not stored: only a part ran; name a file with --out")
        return 0
    target = options.out or RESULTS / dated_name(record)
    try:
        store(record, target)
    except InputError as error:
        print(f"run_benchmarks: {error}", file=sys.stderr)
        return 1
    print(f"stored in {target}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
