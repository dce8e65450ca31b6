"""A grid by distance: passes, what rows see, and the numbers of one masked forward."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from tests.helpers.tiny_model import tiny_config
from tests.runtimes.tiny_cpu import weights

from paceline.errors import InvalidOption
from paceline.methods.neighbours import Neighbours, Rings
from paceline.runtimes.cpu.target import CpuTarget
from paceline.runtimes.reference.target import ReferenceTarget
from paceline.sampling.randomness import KeyedRandomness

SYMBOLS = 5
CONFIG = replace(tiny_config("qwen2"), vocab_size=2 * SYMBOLS)
WEIGHTS = weights(CONFIG)
SIDE = 12  # more than one chunk of sums
BOX = np.random.default_rng(3).integers(SYMBOLS - 1, size=(SIDE, SIDE))


def cpu_target() -> CpuTarget:
    return CpuTarget(CONFIG, WEIGHTS, "fp32", kv_tokens=1024)


def test_rings_are_cells_of_a_distance() -> None:
    grid = Rings((3, 2))
    assert [ring.tolist() for ring in grid.rings] == [[0], [1, 2], [3, 4], [5]]
    assert grid.order.tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert grid.parents.tolist() == [[-1, -1], [-1, 0], [0, -1], [1, 2], [2, -1], [3, 4]]
    assert Rings((3, 3)).order.tolist() == [0, 1, 2, 4, 3, 5, 7, 6, 8, 9]


@pytest.mark.parametrize("shape", [(1,), (7,), (4, 6), (3, 4, 5)])
def test_a_ring_a_pass_and_every_cell_once(shape: tuple[int, ...]) -> None:
    grid = Rings(shape)
    assert len(grid.rings) == sum(shape) - len(shape) + 1
    assert sorted(grid.order) == list(range(int(np.prod(shape)) + 1))
    for ring, cells in enumerate(grid.rings):
        for cell in cells:
            nearer = grid.parents[cell][grid.parents[cell] >= 0]
            assert set(nearer) <= set(grid.rings[ring - 1] if ring else ())


def test_a_cell_has_the_mean_of_its_neighbours() -> None:
    said = np.random.default_rng(1).standard_normal((10, 2, SYMBOLS)).astype(np.float32)
    corner, edge, inner = Rings((3, 3)).mixed(said, np.array([0, 1, 4]))
    assert np.array_equal(corner, said[0].mean(axis=0))
    assert np.array_equal(edge, said[1, 1])  # of what is left of it, along the last axis
    assert np.array_equal(inner, (said[2, 0] + said[4, 1]) / 2)


def test_a_box_is_drawn_in_2n_minus_1_passes_and_by_its_seed() -> None:
    system = Neighbours(cpu_target(), (SIDE, SIDE), SYMBOLS)
    first, again, other = (system.draw(KeyedRandomness(seed)) for seed in (1, 1, 2))
    assert system.passes == 2 * SIDE - 1
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert set(first.ravel()) <= set(range(SYMBOLS - 1))


@pytest.mark.parametrize("kind", ["cpu", "reference"])
def test_passes_are_the_masked_forward_bit_for_bit(kind: str) -> None:
    target: Any = cpu_target() if kind == "cpu" else ReferenceTarget(CONFIG, WEIGHTS, "fp32")
    box = BOX if kind == "cpu" else BOX[:4, :4]
    system = Neighbours(target, box.shape, SYMBOLS)
    found = []
    forward = target.forward

    def noted(rows: Any, layers: Any = None) -> Any:
        out = forward(rows, layers)
        found.append(out[0].logits.copy())
        return out

    target.forward = noted
    system.nats(box)
    target.forward = forward
    cache = target.open()
    [whole] = target.forward([system.masked_rows(cache, box)])
    assert np.array_equal(np.concatenate(found), whole.logits)


def test_nothing_farther_is_seen() -> None:
    """Change a cell: rows of its distance and beyond change, and no nearer one."""
    target, grid = cpu_target(), Rings((SIDE, SIDE))
    system = Neighbours(target, (SIDE, SIDE), SYMBOLS)
    distance = np.indices((SIDE, SIDE)).sum(axis=0)
    [plain] = target.forward([system.masked_rows(target.open(), BOX)])
    plain = plain.logits.copy()
    for cell in ((0, 0), (3, 5), (10, 10)):
        other = BOX.copy()
        other[cell] = (other[cell] + 1) % (SYMBOLS - 1)
        [changed] = target.forward([system.masked_rows(target.open(), other)])
        differs = (changed.logits != plain).any(axis=1)
        far = np.array([-1, *distance.ravel()])[grid.order[: len(plain)]] >= distance[cell]
        assert np.array_equal(differs, far)


def test_likelihoods_of_all_boxes_sum_to_one() -> None:
    """Of all symbols, the start too, which no box that is drawn has."""
    config = replace(CONFIG, vocab_size=4)
    target = CpuTarget(config, weights(config), "fp32", kv_tokens=64)
    system = Neighbours(target, (2, 2), 2)
    total = sum(
        np.exp(-system.nats(np.array(each).reshape(2, 2))) for each in product(range(2), repeat=4)
    )
    assert abs(total - 1) < 1e-6


def test_boxes_that_cannot_be_drawn_are_refused() -> None:
    with pytest.raises(InvalidOption, match="10 rows, not 4 for each of 2 axes"):
        Neighbours(cpu_target(), (4, 4), 4)
    with pytest.raises(InvalidOption, match="sides of 1 or more"):
        Rings((4, 0))
