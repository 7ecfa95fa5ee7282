"""Survivors of tiles between launches: pools, room in the spill buffer, widths of tiles."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cpu.test_numba_backend import inputs_of_every_strength, thinning_network
from hypothesis import given, settings
from hypothesis import strategies as st
from tile_settings import set_tile_costs

import portable_spdnn as ps
from portable_spdnn.testing import oracle
from portable_spdnn_cpu.network import plan as depth_first
from portable_spdnn_cpu.network.survivors import SurvivorPools, join
from portable_spdnn_cpu.tiles.launch import cut_tiles
from portable_spdnn_cpu.tiles.tuning import TileCosts

pytestmark = pytest.mark.usefixtures("depth_first_plans")


def launched(next_layers: list[int], begin: int) -> Any:
    """Return two inputs for each tile, and where each tile was spilled, 10 features apart."""
    inputs = np.arange(2 * len(next_layers)) + 100 * begin
    tiles = cut_tiles(inputs, 0, 9, 2, True, True, np.ones(9, np.bool_))
    tiles.next_layer[:] = next_layers
    tiles.position[:] = begin + 10 * np.arange(len(next_layers))
    tiles.survivor_count[:] = 2
    tiles.survivors[:] = inputs.reshape(-1, 2)
    return tiles


def test_pools_keep_inputs_places_and_strides() -> None:
    pools = SurvivorPools(100)
    finished = join(pools.collect(launched([5, 0, 3, 5], 20), 20, 60))
    assert finished.inputs.tolist() == [2002, 2003]
    assert (pools.next_layer(), pools.waiting(3), pools.waiting(5)) == (3, 2, 4)
    assert pools.waiting(4) == 0
    assert pools.take(3).position.tolist() == [40, 41]
    pool = pools.take(5)
    assert pool.inputs.tolist() == [2000, 2001, 2006, 2007]
    assert pool.position.tolist() == [20, 21, 50, 51]
    assert pool.stride.tolist() == [2, 2, 2, 2]
    assert pools.next_layer() is None


def test_room_is_free_again_once_the_last_pool_is_done() -> None:
    pools = SurvivorPools(100)
    assert pools.gap(100) == 0
    pools.collect(launched([3, 5], 0), 0, 30)
    pools.collect(launched([5], 30), 30, 60)
    assert pools.gap(40) == 60
    assert pools.gap(41) is None
    pools.take(3)
    pools.release(3)
    assert pools.gap(41) is None  # layer 5 has something in both regions
    pools.take(5)
    pools.collect(launched([7], 60), 60, 90)
    pools.release(5)
    assert pools.gap(60) == 0
    assert pools.gap(61) is None
    pools.collect(launched([0], 0), 0, 0)  # all finished: nothing is taken
    assert pools.gap(60) == 0


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 40), st.integers(1, 6)), max_size=12), st.randoms())
def test_gaps_never_overlap_what_is_spilled(launches: list[tuple[int, int]], random: Any) -> None:
    pools, taken = SurvivorPools(120), dict[int, set[int]]()
    for number, (size, spilled) in enumerate(launches):
        begin = pools.gap(size)
        occupied = set().union(*taken.values())
        if begin is None:
            longest = free = 0
            for place in range(120):
                free = 0 if place in occupied else free + 1
                longest = max(longest, free)
            assert longest < size
            continue
        room = set(range(begin, begin + size))
        assert not room & occupied
        assert max(room) < 120
        layers = [random.randint(number + 1, number + 4) for _ in range(spilled)]
        pools.collect(launched(layers, begin), begin, begin + size)
        for layer in layers:
            taken[layer] = taken.get(layer, set()) | room
        layer = pools.next_layer()
        assert layer == min(taken)
        if random.random() < 0.5 and layer is not None:
            pools.take(layer)
            pools.release(layer)
            del taken[layer]


def run_recorded(monkeypatch: pytest.MonkeyPatch, width: int) -> tuple[Any, list[Any]]:
    """Run the network whose inputs become inactive all along; return the result and launches."""
    set_tile_costs(monkeypatch, width)
    launches: list[Any] = []
    launch = depth_first.launch

    def recorded(*arguments: Any, **options: Any) -> Any:
        launches.append(arguments[4])
        return launch(*arguments, **options)

    monkeypatch.setattr(depth_first, "launch", recorded)
    network = thinning_network()
    result = ps.infer(network, inputs_of_every_strength(), "numba", threads=2)
    return result, [tiles for tiles in launches if tiles.inputs.size]


def test_few_inputs_stop_where_others_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    result, launches = run_recorded(monkeypatch, 64)
    stopped = [tiles for tiles in launches if tiles.stop_layer < len(thinning_network())]
    assert stopped
    layers = [tiles.layer for tiles in launches]
    assert all(tiles.stop_layer in layers[layers.index(tiles.layer) :] for tiles in stopped)
    wanted = oracle.infer(thinning_network(), inputs_of_every_strength())
    assert result.categories.tolist() == wanted[0]
    np.testing.assert_allclose(result.scores, wanted[1], rtol=1e-4, atol=1e-5)
    assert [record.alive_inputs for record in result.records] == wanted[2]


@pytest.mark.parametrize("share", [0, 1])
def test_tiles_go_on_where_the_spill_buffer_is_full(
    share: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    roomy, _ = run_recorded(monkeypatch, 32)
    monkeypatch.undo()
    monkeypatch.setattr(depth_first, "SPILL_SHARE", share)
    tight, launches = run_recorded(monkeypatch, 32)
    assert len(launches) == 1 or share
    np.testing.assert_array_equal(tight.scores, roomy.scores)
    assert tight.categories.tolist() == roomy.categories.tolist()


@pytest.mark.parametrize(
    ("inputs", "threads", "width", "seconds"),
    [
        (60_000, 2, 128, 30_048),
        (256, 2, 128, 128),
        (128, 2, 64, 64),
        (129, 1, 128, 144),  # the second tile is a vector block
        (600, 2, 128, 352),
        (540, 2, 128, 288),
        (380, 2, 64, 192),
        (40, 2, 32, 32),
        (16, 2, 16, 16),
        (17, 2, 16, 16),
        (1, 1, 16, 16),
        (0, 1, 16, 0),
    ],
)
def test_few_inputs_are_shared_out_by_narrower_tiles(
    inputs: int, threads: int, width: int, seconds: int
) -> None:
    """Costs go with vector blocks here; each is as wide as it may be within FEWER_ARE_WORTH."""
    costs = TileCosts(128, {}, np.arange(9) * 16.0, 1e-12, True)
    assert costs.cheapest(inputs, threads) == (width, seconds)


def test_narrow_tiles_that_cost_as_much_are_not_taken() -> None:
    costs = TileCosts(64, {}, np.array([0.0, 1, 1, 1, 1]), 1e-12, True)
    assert costs.cheapest(200, 2) == (64, 2.0)
