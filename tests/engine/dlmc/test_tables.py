"""Geometric means, crossovers, and what is printed of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from portable_spdnn.dlmc.collection import Case
from portable_spdnn.dlmc.tables import (
    as_json,
    by_matrix,
    choices,
    crossover_table,
    crossovers,
    means,
    means_table,
)
from portable_spdnn.dlmc.timing import Measurement


def measured(
    zeros: float,
    ratio: float,
    model: str = "net",
    path: Path | None = None,
    peak: float | None = 1e9,
) -> Measurement:
    """Return a product of 200 x 200 x 64 that took a millisecond."""
    case = Case(model, "body_a_fully_connected", (200, 200), round(40000 * (1 - zeros)), 64, path)
    dense, scipy = ratio * 1e-3, 8e-3
    return Measurement(case, "mine", 0.5, "all at once", 0.1, 1e-3, 2e-3, dense, "mm", scipy, peak)


def test_geometric_means_by_level() -> None:
    file = Path("/data/net/pruning/0.9/a.smtx")
    found = [
        measured(0.9, 2, path=file, peak=1e10),
        measured(0.89, 8, path=file, peak=4e10),
        measured(0.5, 0.5, path=file),
        measured(0.9, 3),
    ]
    rows = means(found)
    assert [(row["zeros"], row["random"], row["matrices"]) for row in rows] == [
        (50, False, 1), (90, False, 2), (90, True, 1),
    ]  # fmt: skip
    assert rows[1]["over_dense"] == pytest.approx(4)
    assert rows[1]["over_scipy"] == pytest.approx(8)
    flops = 2 * 64 * (4000 * 4400) ** 0.5 / 1e-3
    assert rows[1]["flops"] == pytest.approx(flops)
    assert rows[1]["of_peak"] == pytest.approx(flops / 2e10)
    columns, table = means_table([replace(one, peak=None) for one in found])
    assert len(table) == 3
    assert table[1] == ("mine", "net", "larger", "90 %", "2", "4.00", "8.00",
                        f"{flops / 1e9:.3g}", "-")  # fmt: skip
    assert table[2][1] == "net, random masks"
    assert len(columns) == len(table[0])
    assert [row["zeros"] for row in means([measured(0.65, 2), measured(0.649, 2)])] == [65]


@pytest.mark.parametrize(
    ("ratios", "least"),
    [
        ({0.5: 0.4, 0.7: 1.2, 0.9: 3}, 0.7),
        ({0.5: 1.4, 0.7: 0.9, 0.9: 3}, 0.9),  # it must win from there on
        ({0.5: 1.1, 0.7: 1.2, 0.9: 3}, 0.5),
        ({0.5: 0.4, 0.7: 1.2, 0.9: 0.9}, None),
    ],
)
def test_where_the_sparse_product_wins(ratios: dict[float, float], least: float | None) -> None:
    found = [measured(zeros, ratio) for zeros, ratio in ratios.items()]
    (row,) = crossovers(found)
    assert row["wins_from"] == (None if least is None else pytest.approx(least))
    assert row["measured_from"] == pytest.approx(0.5)
    _, (cells,) = crossover_table([*found])
    shown = "never" if least is None else f"{100 * least:.0f} %"
    assert tuple(cells) == ("mine", "net", "1", "50 %", shown, shown, shown)


def test_rows_and_choices() -> None:
    one = measured(0.9, 2)
    few = replace(one, dense_form="repeated mv", one_shot=None, choice="")
    other = replace(one, choice="in panels")
    columns, rows = by_matrix([one, few, other])
    first, second, third = (dict(zip(columns, row, strict=True)) for row in rows)
    assert first == {
        "model": "net", "layer": "a", "M x K x N": "200 x 200 x 64", "zeros": "90.0 %",
        "backend": "mine", "µs": "1000", "one-shot µs": "2000", "x dense": "2.00",
        "x scipy": "8.00", "GFLOP/s": "0.512", "of peak": "51 %", "chose": "1",
    }  # fmt: skip
    assert second["x dense"] == "2.00 (repeated mv)"
    assert (second["one-shot µs"], second["chose"], third["chose"]) == ("-", "-", "2")
    assert choices([few]) == {}


def test_json_has_no_folders_of_the_user() -> None:
    one = measured(0.9, 2, path=Path("/home/me/dlmc/net/pruning/0.9/a.smtx"))
    record = as_json({}, [one], ["spmm of mine on a"])
    (product,) = record["products"]
    assert product["path"] == "net/pruning/0.9/a.smtx"
    assert (product["over_dense"], product["zeros"]) == (2, pytest.approx(0.9))
    assert record["means"][0]["of_peak"] == pytest.approx(0.512)
    assert record["wrong"] == ["spmm of mine on a"]
