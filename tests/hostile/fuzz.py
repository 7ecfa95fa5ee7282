"""Fuzz what reads files of strangers: `make fuzz`, or `python tests/hostile/fuzz.py --help`.

Every target (`targets.py`) runs in a child process with limits on memory and on the time of each
input; half of the time inputs are mutated at random, half of it by atheris, which looks for new
paths through the code, where it is installed. The input of a fault is kept, and named.
"""

from __future__ import annotations

import argparse
import importlib.util
import multiprocessing
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

if "--guided" in sys.argv:  # what is to be guided through is instrumented as it is loaded
    import atheris

    with atheris.instrument_imports(include=["portable_spdnn"]):
        from targets import TARGETS, Target
else:
    from targets import TARGETS, Target

from portable_spdnn.errors import SpdnnError  # noqa: E402

GIB = 1 << 30
SECONDS_EACH = 20  # that one input may take


class Fault(RuntimeError):
    """An input did what no input may do."""


def read(target: Target, data: bytes) -> bool:
    """Read an input; return whether it was accepted, raise Fault where it did harm."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        path.write_bytes(data)
        signal.alarm(SECONDS_EACH)
        try:
            target.read(path)
        except SpdnnError:
            return False
        except BaseException as error:
            raise Fault(traceback.format_exc()) from error
        finally:
            signal.alarm(0)
    return True


def fuzz_at_random(name: str, seconds: float, runs: int, seed: int, keep: Path) -> None:
    """Mutate samples until the time or the number of runs is over."""
    target, rng = TARGETS[name], random.Random(seed)
    samples, accepted, done = target.samples(), 0, 0
    for sample in samples:
        if not read(target, target.pack(sample)):
            raise Fault(f"{name}: an intact sample is refused")
    end = time.monotonic() + seconds
    while done < runs and time.monotonic() < end:
        data = target.mutate(rng.choice(samples), rng)
        keep.write_bytes(data)  # a crash leaves it
        accepted += read(target, data)
        done += 1
    print(f"{name}: {done} inputs, {accepted} of them accepted, no fault")


def fuzz_guided(name: str, seconds: float, keep: Path) -> None:
    """Let atheris look for inputs that take new paths; it ends the process itself."""
    target = TARGETS[name]
    samples = target.samples()

    def one(data: bytes) -> None:
        keep.write_bytes(data)
        read(target, data)

    def mutate(data: bytes, size: int, seed: int) -> bytes:
        rng = random.Random(seed)
        if rng.random() < 0.7:
            return target.mutate(rng.choice(samples), rng)[:size]
        return bytes(atheris.Mutate(data, size))

    limits = [f"-max_total_time={max(1, int(seconds))}", "-max_len=8192", "-rss_limit_mb=0"]
    atheris.Setup([sys.argv[0], *limits, "-verbosity=0"], one, custom_mutator=mutate)
    atheris.Fuzz()


def limit(memory: int, folder: Path) -> None:
    """Limit this process to so many GiB of address space, and let it work in a folder."""
    for kind, most in ((resource.RLIMIT_AS, memory * GIB), (resource.RLIMIT_CORE, 0)):
        resource.setrlimit(kind, (most, most))
    os.chdir(folder)


def fuzz_in_fork(name: str, seconds: float, keep: Path, options: Any) -> None:
    """Run one target at random under limits."""
    limit(options.memory, keep.parent)
    fuzz_at_random(name, seconds, options.runs, options.seed, keep)


def main() -> int:
    """Fuzz; exit code 1 where there was a fault."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", choices=sorted(TARGETS), help="default: all")
    parser.add_argument("--seconds", type=float, default=600, help="of all targets together")
    parser.add_argument("--runs", type=int, default=1 << 40, help="of each target at most")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--memory", type=int, default=16, help="GiB of address space of a child")
    parser.add_argument("--faults", type=Path, default=Path("fuzz-faults"))
    parser.add_argument("--guided", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--random", action="store_true", help="without atheris")
    parser.add_argument("--keep", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.guided:  # in the process that `run_child` started
        limit(options.memory, options.keep.parent)
        fuzz_guided(options.target, options.seconds, options.keep)
        return 0
    ways = [False] if options.random else [False, True]
    if len(ways) == 2 and importlib.util.find_spec("atheris") is None:
        print("atheris is not installed (extra fuzz): inputs are mutated at random alone")
        ways = [False]
    names = [options.target] if options.target else sorted(TARGETS)
    each = options.seconds / len(names) / len(ways)
    faults = 0
    for name in names:
        for guided in ways:
            faults += not run_child(name, guided, each, options)
    return int(faults > 0)


def run_child(name: str, guided: bool, seconds: float, options: Any) -> bool:
    """Run one target in a process of its own; return whether there was no fault.

    It is a fork of this one; for guided fuzzing a new interpreter, since code is instrumented as it
    is imported.
    """
    with tempfile.TemporaryDirectory() as folder:
        keep, log = Path(folder) / "input", ""
        if guided:
            command = [sys.executable, __file__, "--guided", "--target", name, "--keep", str(keep),
                       "--seconds", str(seconds), "--memory", str(options.memory)]  # fmt: skip
            done = subprocess.run(command, check=False, timeout=seconds + 120, capture_output=True)
            code, log = done.returncode, done.stderr.decode(errors="replace")[-4000:]
        else:
            forked = multiprocessing.get_context("fork").Process(
                target=fuzz_in_fork, args=(name, seconds, keep, options), daemon=True
            )
            forked.start()
            forked.join(seconds + 120)
            if forked.exitcode is None:
                forked.kill()
                forked.join()
            code = forked.exitcode
        if not code:
            if guided:
                print(f"{name}: {seconds:.0f} s with atheris, no fault")
            return True
        options.faults.mkdir(exist_ok=True)
        kept = options.faults / f"{name.replace(' ', '-')}-{options.seed}{'-guided' * guided}"
        kept.write_bytes(keep.read_bytes() if keep.exists() else b"")
        sys.stderr.write(log)
        print(f"{name}: FAULT, exit code {code}; its input is kept in {kept}")
        return False


if __name__ == "__main__":
    sys.exit(main())
