"""Peers on the pruned matrices of DLMC, by turns in one process: the second part of `make peers`.

The products, their checks and the turns are those of `portable-spdnn dlmc`. A peer's result is
beside the best dense product in the run, of NumPy's BLAS and of torch's, and beside SciPy's. A
dated JSON in benchmarks/results is written, and the geometric means in docs/results.
"""

from __future__ import annotations

import argparse
import datetime
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

# Threads of MKL wait for more work in a loop, by default for 200 ms: longer than until the next
# turn, which is another library's.
os.environ.setdefault("KMP_BLOCKTIME", "20")
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from machine_facts import cpu_slug, machine_facts  # noqa: E402
from mkl_peer import MklPeer  # noqa: E402
from operands import SHARED, Peer  # noqa: E402
from own_peers import NumbaPeer  # noqa: E402
from run_benchmarks import RESULTS, store  # noqa: E402
from run_peers import DOCS  # noqa: E402
from threadpoolctl import ThreadpoolController  # noqa: E402
from torch_peer import TorchPeer  # noqa: E402

import portable_spdnn as ps  # noqa: E402
from portable_spdnn.dlmc import tables  # noqa: E402
from portable_spdnn.dlmc.collection import Case, collect  # noqa: E402
from portable_spdnn.dlmc.timing import (  # noqa: E402
    PAUSE,
    Measurement,
    by_turns,
    dense_forms,
    error_of,
)


def measure(
    case: Case, peers: Sequence[Peer], threads: int, blas: ThreadpoolController
) -> Iterator[Measurement]:
    """Check a product by every peer, then time all by turns; AssertionError where one is wrong."""
    A, B = case.operands(seed=0)
    within = error_of(A, B)
    forms = dense_forms(ps.get_backend("scipy"), A.toarray(), B)
    forms["mm of torch"] = TorchPeer.dense(A.toarray(), B)
    ways = {name: (call, threads) for name, call in forms.items()}
    ways["scipy"] = (lambda: A @ B), 1
    checks: dict[str, tuple[float, float]] = {}
    for peer in peers:
        time.sleep(PAUSE)
        start = time.perf_counter()
        operation = peer.spmm(A, B)
        prepare = time.perf_counter() - start
        error = within(peer.host(operation()))
        assert error <= 1, f"{peer.name} on {case}: its error is {error:.3g} of the bound"
        checks[peer.name] = prepare, error
        ways[peer.name] = operation, peer.threads
    least, peaks = by_turns(ways, blas, {"numba": ps.get_backend("numba", threads).measure_flops})
    form = min(forms, key=least.__getitem__)
    scipy = least["scipy"]
    for name in (*checks, "scipy"):
        prepare, error = checks.get(name, (0.0, 0.0))
        peak = None if name == "scipy" and threads > 1 else peaks["numba"]  # it has one thread
        yield Measurement(
            case, name, error, "", prepare, least[name], None, least[form], form, scipy, peak
        )


def main() -> int:
    """Measure, print, store; exit code 2 where the collection is not there."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="default: all cores")
    parser.add_argument("--data", type=Path, default=SHARED / "dlmc", help="folder of matrices")
    parser.add_argument("--columns", type=int, nargs="*", default=(), help="default: as in DLMC")
    parser.add_argument("--out", type=Path, help="JSON file; default: a dated one in results/")
    options = parser.parse_args()
    if not options.data.is_dir():
        print(f"skipped: needs {options.data}", file=sys.stderr)
        return 2
    peers: list[Peer] = [peer(options.threads) for peer in (MklPeer, TorchPeer, NumbaPeer)]
    cases, blas = collect(options.data, options.columns), ThreadpoolController()
    found: list[Measurement] = []
    for done, case in enumerate(cases, start=1):
        found += measure(case, peers, options.threads, blas)
        print(f"{done} of {len(cases)}: {case.model} {case.layer}", file=sys.stderr, flush=True)
    tables.show(found, to_stderr=False)
    facts = machine_facts()
    about = {
        "datetime": datetime.datetime.now(datetime.UTC).isoformat(),
        "machine_info": facts,
        "threads": options.threads,
        "versions": {peer.name: peer.version for peer in peers},
    }
    name = f"{about['datetime'][:10]}-{cpu_slug(facts)}-dlmc-peers"
    target = options.out or RESULTS / f"{name}.json"
    store(tables.as_json(about, found, []), target)
    if options.out is None:
        (DOCS / "dlmc.md").write_text(page(about, name, tables.means_table(found)))
    print(f"stored in {target}")
    return 0


def page(about: dict[str, Any], name: str, table: tables.Table) -> str:
    """Return the page of docs/results: what was measured on what, and the geometric means."""
    facts, (columns, rows) = about["machine_info"], table
    lines = ["| " + " | ".join(row) + " |" for row in (columns, ["---"] * len(columns), *rows)]
    versions = ", ".join(f"{peer} {version}" for peer, version in about["versions"].items())
    return f"""# Pruned matrices beside other libraries

Measured by `make peers` on {about["datetime"][:10]}: {facts["cpu"]}, {facts["cores"]} cores,
{about["threads"]} threads (scipy.sparse has one), float32, {facts["system"]}; {versions}. All
libraries by turns in one process, each matrix prepared beforehand where a library can (MKL:
inspector-executor with hints and a kept handle). The least time of each; *dense* is the faster of
NumPy's and torch's product on as many threads. *Of peak* is of the multiply-adds measured between
the turns. Each product was checked first. Each matrix is in `benchmarks/results/{name}.json`.

{chr(10).join(lines)}
"""


if __name__ == "__main__":
    sys.exit(main())
