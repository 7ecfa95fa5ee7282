"""Random networks on every backend, path, pass and form of features, against a float64 loop."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from random_networks import Case, cases, scores_and_bound

import portable_spdnn as ps

BACKENDS = [info.name for info in ps.backends() if info.availability.available]


@pytest.mark.parametrize("name", BACKENDS)
@settings(suppress_health_check=[HealthCheck.too_slow])
@given(case=cases())
def test_scores_and_categories_are_those_of_a_loop(name: str, case: Case) -> None:
    scores, bound = scores_and_bound(case)
    if case.options["path"] == "spgemm" and not case.network.sparse_features_exact:
        with pytest.raises(ps.InputError, match="spgemm"):
            ps.plan(case.network, name, threads=case.threads, **case.options)
        return
    plan = ps.plan(case.network, name, threads=case.threads, **case.options)
    result = plan.run(case.given())
    found = np.asarray(result.scores, np.float64)
    off = np.abs(found - scores)
    assert (off <= bound).all(), (off - bound).max()
    # An input is in a category by its largest score: one that is sure has to be right.
    largest = scores.max(axis=1, initial=-np.inf)
    positive = (scores - bound > 0).any(axis=1)
    negative = (scores + bound <= 0).all(axis=1)
    categories = np.zeros(largest.size, bool)
    categories[result.categories] = True
    assert categories[positive].all()
    assert not categories[negative].any()
    again = plan.run(case.given())
    np.testing.assert_array_equal(np.asarray(again.scores), np.asarray(result.scores))
