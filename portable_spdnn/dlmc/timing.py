"""Products, checked against an independent one and timed by turns beside dense ones and SciPy's."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from threadpoolctl import ThreadpoolController

from portable_spdnn.arrays import Array
from portable_spdnn.backend import Backend
from portable_spdnn.dlmc.collection import FEW_COLUMNS, Case, aligned_empty

ROUNDS = 6  # turns of each
SECONDS, LEAST_CALLS = 0.015, 2  # of a turn
# Before each turn: threads of a BLAS wait in a loop for more work, OpenBLAS's for some 30 ms, and
# would take a core from whatever comes next.
PAUSE = 0.05

Call = Callable[[], object]


@dataclass(frozen=True)
class Measurement:
    """One product on one backend; seconds are the least of all calls.

    Attributes
    ----------
    case : Case
    backend : str
    error : float
        The largest error, as a part of its bound; what is above 1 is wrong.
    choice : str
        What the handle says that it chose.
    prepare, prepared, one_shot : float
        Seconds to make the handle, to multiply by it, and of `spmm`, which prepares anew (None
        for other libraries).
    dense, scipy : float
        Seconds of the best dense product on as many threads, and of SciPy's on one.
    dense_form : str
        Which of `dense_forms` that was.
    peak : float or None
        The most operations per second of multiply-adds alone, on as many threads, that were
        measured between the turns; None where that is not measured. The speed of a machine that
        others share may change within a minute, by more than a kernel could gain.
    """

    case: Case
    backend: str
    error: float
    choice: str
    prepare: float
    prepared: float
    one_shot: float | None
    dense: float
    dense_form: str
    scipy: float
    peak: float | None

    @property
    def over_dense(self) -> float:
        """How many times faster than the dense product."""
        return self.dense / self.prepared

    @property
    def over_scipy(self) -> float:
        """How many times faster than SciPy's."""
        return self.scipy / self.prepared

    @property
    def flops(self) -> float:
        """Operations per second, two for each entry of A and column of B."""
        return 2 * self.case.nnz * self.case.columns / self.prepared

    @property
    def of_peak(self) -> float | None:
        """Which part of the peak `flops` is; None where the peak was not measured."""
        return None if self.peak is None else self.flops / self.peak


def measure(
    case: Case, backends: Sequence[Backend], seed: int, blas: ThreadpoolController
) -> Iterator[Measurement | str]:
    """Check a product on every backend, then time all of them by turns.

    Yields what was measured, and where a product is wrong, in words, which one and how wrong.
    """
    A, B = case.operands(seed)
    within = error_of(A, B)
    ways: dict[tuple[str, str], tuple[Call, int]] = {("", "scipy"): (lambda: A @ B, 1)}
    found: dict[str, tuple[float, float, str]] = {}
    for backend in backends:
        time.sleep(PAUSE)  # a handle's own trials are to be as undisturbed
        start = time.perf_counter()
        handle = backend.spmm_handle(A, columns=case.columns)
        prepare = time.perf_counter() - start
        features = backend.upload(B)
        out = backend.upload(aligned_empty((A.shape[0], case.columns)))
        calls: dict[str, Call] = {
            "spmm_handle": functools.partial(handle.multiply, features, out),
            "spmm": functools.partial(backend.spmm, A, features),
        }
        errors = {name: within(backend.download(call())) for name, call in calls.items()}
        for name, error in errors.items():
            if not error <= 1:
                yield f"{name} of {backend.name} on {case}: its error is {error:.3g} of the bound"
        if not all(error <= 1 for error in errors.values()):
            continue
        found[backend.name] = prepare, max(errors.values()), handle.describe()
        calls |= dense_forms(backend, A.toarray(), features)
        for name, call in calls.items():
            ways[backend.name, name] = functools.partial(_finish, backend, call), backend.threads
    if not found:
        return
    rates = {one.name: one.measure_flops for one in backends if one.name in found}
    seconds, peaks = by_turns(ways, blas, rates)
    for name, (prepare, error, choice) in found.items():
        own = {way: spent for (owner, way), spent in seconds.items() if owner == name}
        prepared, one_shot = own.pop("spmm_handle"), own.pop("spmm")
        form = min(own, key=own.__getitem__)
        yield Measurement(
            case, name, error, choice, prepare, prepared, one_shot, own[form], form,
            seconds["", "scipy"], peaks.get(name),
        )  # fmt: skip


def error_of(A: sp.csr_array, B: Array) -> Callable[[Array], float]:
    """Return the function that gives the largest error of a product as a part of its bound.

    The bound of an entry is (n + 5) u Σ abs(a) abs(b), n the entries of its row of A, u the unit
    roundoff of float32: sums in any order (N. Higham, *Accuracy and Stability of Numerical
    Algorithms*, 2nd edition, section 3.3). What is compared with is SciPy's product in float64.
    """
    wide, unit = A.astype(np.float64), np.finfo(np.float32).eps / 2
    exact = wide @ B.astype(np.float64)
    bound = (np.diff(A.indptr)[:, None] + 5) * unit * (abs(wide) @ abs(B).astype(np.float64))

    def error(C: Array) -> float:
        if C.shape != exact.shape:
            return float("inf")
        with np.errstate(invalid="ignore"):  # infinity less infinity
            part = np.abs(C - exact) / np.maximum(bound, np.finfo(np.float64).tiny)
        return float(part.max()) if not np.isnan(part).any() else float("nan")

    return error


def dense_forms(backend: Backend, W: Array, B: Any) -> dict[str, Call]:
    """Return the dense products with a matrix that has the zeros of A.

    They are by the BLAS of NumPy, or of the device. With few columns B may as well lie transposed,
    one product for all columns or one for each.
    """
    if backend.memory_space != "host":
        on_device = backend.upload(W)
        return {"mm": lambda: on_device @ B}
    columns = B.shape[1]
    forms: dict[str, Call] = {
        "mm": functools.partial(np.matmul, W, B, out=aligned_empty((W.shape[0], columns)))
    }
    if columns < FEW_COLUMNS:
        X, Y = np.ascontiguousarray(B.T), np.empty((columns, W.shape[0]), np.float32)

        def repeated() -> Array:
            for x, y in zip(X, Y, strict=True):
                np.matmul(W, x, out=y)
            return Y

        forms["transposed mm"] = functools.partial(np.matmul, X, W.T, out=Y)
        forms["repeated mv"] = repeated
    return forms


def by_turns(
    ways: Mapping[Any, tuple[Call, int]],
    blas: ThreadpoolController,
    rates: Mapping[str, Callable[[], float]],
) -> tuple[dict[Any, float], dict[str, float]]:
    """Return the least seconds of each call, and the largest of each rate.

    With a call stands how many threads a BLAS may use. Rates are functions that measure them; one
    that raises NotImplementedError is left out.
    """
    least, most = dict.fromkeys(ways, float("inf")), dict.fromkeys(rates, 0.0)
    for _ in range(ROUNDS):
        for name in list(most):
            time.sleep(PAUSE)
            try:
                most[name] = max(most[name], rates[name]())
            except NotImplementedError:
                del most[name]
        for name, (call, threads) in ways.items():
            time.sleep(PAUSE)
            with blas.limit(limits=threads, user_api="blas"):
                calls, end = 0, time.perf_counter() + SECONDS
                while calls < LEAST_CALLS or time.perf_counter() < end:
                    start = time.perf_counter()
                    call()
                    least[name] = min(least[name], time.perf_counter() - start)
                    calls += 1
    return least, most


def _finish(backend: Backend, call: Call) -> None:
    call()
    backend.synchronize()
