"""One peer on one case, in a process of its own: prints JSON. Called by run_peers.py."""

from __future__ import annotations

import importlib
import json
import sys
from dataclasses import asdict

from operands import run_case

# Name, module, class: the order of the table.
PEERS = (
    ("scipy", "scipy_peer", "ScipyPeer"),
    ("graphblas", "graphblas_peer", "GraphblasPeer"),
    ("mkl", "mkl_peer", "MklPeer"),
    ("torch", "torch_peer", "TorchPeer"),
    ("numba", "own_peers", "NumbaPeer"),
    ("exact-passes", "own_peers", "ExactPassesPeer"),
)


def main() -> int:
    """Run `one_peer.py PEER THREADS CASE`."""
    peer_name, threads, case = sys.argv[1:]
    module, cls = {name: home for name, *home in PEERS}[peer_name]
    peer = getattr(importlib.import_module(module), cls)(int(threads))
    timings = run_case(case, peer)
    print(
        json.dumps(
            {
                "peer": peer.name,
                "version": peer.version,
                "threads": peer.threads,
                "timings": {name: asdict(timing) for name, timing in timings.items()},
            }
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
