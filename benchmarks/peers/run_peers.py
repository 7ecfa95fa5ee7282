"""All peers on all cases, one after the other: `make peers`.

Each pair of peer and case runs in a process of its own, with the same threads, case after case
and peer after peer, so that a noisy machine treats neighbours in the table alike. Answers are
checked before anything is timed. Written are a dated JSON in benchmarks/results, and the table
and a plot in docs/results.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from machine_facts import cpu_slug, machine_facts  # noqa: E402
from one_peer import PEERS  # noqa: E402
from operands import CASES, IMAGES, INPUTS, WEIGHTS, executed_edges  # noqa: E402
from run_benchmarks import RESULTS, store  # noqa: E402

DOCS = HERE.parents[1] / "docs" / "results"
OWN = ("portable_spdnn numba", "portable_spdnn numba, exact passes")
MINUTES = 30  # of one peer on one case

Record = dict[str, Any]


def run_one(peer: str, case: str, threads: int) -> Record | None:
    """Run one peer on one case; None where it fails, which is said."""
    command = [sys.executable, str(HERE / "one_peer.py"), peer, str(threads), case]
    environment = {
        **os.environ,
        **{f"{name}_NUM_THREADS": str(threads) for name in ("OMP", "MKL", "NUMBA", "OPENBLAS")},
    }
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=True,
            timeout=60 * MINUTES,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        print(f"{case}: {peer} took more than {MINUTES} minutes and was stopped", flush=True)
        return None
    except subprocess.CalledProcessError as error:
        last = (error.stderr.strip().splitlines() or ["no message"])[-1]
        print(f"{case}: {peer} failed: {last}", flush=True)
        return None
    record: Record = json.loads(done.stdout.splitlines()[-1])
    return record


def table(results: list[Record]) -> str:
    """Return the results as Markdown: one row for each case and operation."""
    peers = list(dict.fromkeys(entry["peer"] for entry in results))
    lines = [
        "| case | G edges | " + " | ".join(peers) + " | best peer / this |",
        "| --- | --- |" + " --- |" * (len(peers) + 1),
    ]
    for case, operation in dict.fromkeys((entry["case"], entry["operation"]) for entry in results):
        cells = {
            entry["peer"]: entry
            for entry in results
            if (entry["case"], entry["operation"]) == (case, operation)
        }
        row = [f"{case}, {operation}", f"{next(iter(cells.values()))['edges'] / 1e9:.3g}"]
        row += [_time(cells[peer]["least"]) if peer in cells else "-" for peer in peers]
        others = [cells[peer]["least"] for peer in cells if peer not in OWN]
        ours = cells.get(OWN[0])
        row.append(f"{min(others) / ours['least']:.2f}" if ours and others else "-")
        lines.append("| " + " | ".join(row) + " |")
    return "\n".join(lines)


def _time(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{1e3 * seconds:.3g} ms" if seconds >= 1e-3 else f"{1e6 * seconds:.0f} µs"


def plot(results: list[Record], target: Path) -> None:
    """Draw, for each case, the speed of each peer relative to the best one that is not ours."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    rows = list(dict.fromkeys((entry["case"], entry["operation"]) for entry in results))
    peers = list(dict.fromkeys(entry["peer"] for entry in results))
    figure, axes = plt.subplots(figsize=(9, 0.55 * len(rows) + 1.5), layout="constrained")
    height = 0.8 / len(peers)
    for number, peer in enumerate(peers):
        places, speeds = [], []
        for row, (case, operation) in enumerate(rows):
            times = {
                entry["peer"]: entry["least"]
                for entry in results
                if (entry["case"], entry["operation"]) == (case, operation)
            }
            others = [seconds for name, seconds in times.items() if name not in OWN]
            if peer in times and others:
                places.append(row + (number - len(peers) / 2) * height)
                speeds.append(min(others) / times[peer])
        axes.barh(places, speeds, height, label=peer, align="edge")
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_xlabel("speed, best peer = 1 (longer is faster)")
    axes.set_yticks(range(len(rows)), [f"{case}, {operation}" for case, operation in rows])
    axes.invert_yaxis()
    axes.legend(fontsize=8)
    figure.savefig(target, dpi=110)
    plt.close(figure)


def main() -> int:
    """Measure, print, store; exit code 1 where a peer failed on a case, or peers disagree."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="default: all cores")
    parser.add_argument("--cases", nargs="*", default=CASES, choices=CASES, metavar="CASE")
    parser.add_argument("--peers", nargs="*", default=[name for name, *_ in PEERS])
    parser.add_argument("--out", type=Path, help="JSON file; default: a dated one in results/")
    options = parser.parse_args()
    if not (WEIGHTS.is_dir() and IMAGES.is_file()):
        print(f"skipped: needs {WEIGHTS} and {IMAGES}", file=sys.stderr)
        return 2
    facts = machine_facts()
    results: list[Record] = []
    versions: dict[str, str] = {}
    failed = 0
    for case in options.cases:
        edges = executed_edges(case)
        before = len(results)
        for peer in options.peers:
            record = run_one(peer, case, options.threads)
            if record is None:
                failed += 1
                continue
            versions[record["peer"]] = record["version"]
            for operation, timing in record["timings"].items():
                about = {"case": case, "operation": operation, "edges": edges}
                name, threads = record["peer"], record["threads"]
                results.append({**about, "peer": name, "threads": threads, **timing})
                least = _time(timing["least"])
                rate = edges / timing["least"] / 1e9
                print(f"{case:<20} {operation:<16} {name:<36} {least:>9} {rate:9.1f} G edges/s",
                      flush=True)  # fmt: skip
        answers = {one["operation"] for one in results[before:]}
        if case.startswith("inference") and len(answers) > 1:
            print(f"{case}: peers disagree: {', '.join(sorted(answers))}", flush=True)
            failed += 1
    record = {
        "datetime": datetime.datetime.now(datetime.UTC).isoformat(),
        "machine_info": facts,
        "threads": options.threads,
        "versions": versions,
        "inputs": INPUTS,
        "results": results,
    }
    name = f"{record['datetime'][:10]}-{cpu_slug(facts)}-peers"
    target = options.out or RESULTS / f"{name}.json"
    store(record, target)
    print(table(results))
    if options.out is None:
        DOCS.mkdir(parents=True, exist_ok=True)
        (DOCS / "peers.md").write_text(page(record, name))
        plot(results, DOCS / "peers.png")
    print(f"stored in {target}")
    return 1 if failed else 0


def page(record: Record, name: str) -> str:
    """Return the page of docs/results: what was measured on what, the table, the plot."""
    facts = record["machine_info"]
    versions = "\n".join(f"  - {peer} {version}" for peer, version in record["versions"].items())
    return f"""# Beside other libraries

Measured by `make peers` on {record["datetime"][:10]}: {facts["cpu"]}, {facts["cores"]} cores,
{record["threads"]} threads (scipy.sparse has one), float32, {facts["system"]}. Fastest rounds; the
record with medians is `benchmarks/results/{name}.json`.

- Versions:
{versions}
- *spmm NxC*: a layer of the challenge (N x N, 32 entries a row) times C dense columns; *product*
  alone, and *layer* with bias, ReLU and clamp. Each library prepares the matrix beforehand where
  it can, and reuses the result's memory where it can.
- *random*: 1 % random entries, row lengths Pareto-distributed.
- *spgemm 1, 2*: the sparse features before layer 1 and 2 ({record["inputs"]:,} images) times the
  weights, including what a library does to find the pattern of the result.
- *spgemm wide*: layers 1 and 2 of 65,536 neurons times each other, sixteen products to an entry;
  *spgemm random*: random matrices of that size, 16 entries to a row, hardly two products to an
  entry. MKL leaves the columns of a row unsorted, the others sort them.
- *inference*: the whole network on {record["inputs"]:,} images; the number is that of the
  survivors, equal for all. G edges are the challenge's, inputs x edges.

{table(record["results"])}

![Speed relative to the best peer](peers.png)
"""


if __name__ == "__main__":
    sys.exit(main())
