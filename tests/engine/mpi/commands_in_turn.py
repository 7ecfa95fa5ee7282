"""Commands one after the other in one MPI job; `test_run.py` runs it on several ranks."""

from __future__ import annotations

import json
import sys

from portable_spdnn.cli import main
from portable_spdnn.mpi.ranks import launched_rank

for arguments in json.loads(sys.argv[1]):
    sys.argv = ["portable-spdnn", *arguments]
    try:
        main()
    except SystemExit as end:
        if end.code:
            raise
    if launched_rank() == 0:
        print(end="\f", flush=True)  # what a command printed ends here
