"""Collapsing slots, in plain Python and in tensors, and the loss that sums over ways to write."""

from __future__ import annotations

from itertools import groupby, product

import numpy as np
import pytest
import torch
from tests.networks.batch import batch_of
from tests.networks.cases import TINY

from paceline.core import tree as trees
from paceline.core.types import Budget
from paceline.errors import InvalidOption
from paceline.lab.training.objective import argmax_tokens
from paceline.methods.networks.ctc import CTC, CTCDrafter, beginnings, collapse, ctc_loss

BLANK = 2
STRINGS = [slots for size in range(5) for slots in product(range(3), repeat=size)]


def said(slots: tuple[int, ...], blank: int = BLANK) -> list[int]:
    """Reference: runs become one, then blanks go."""
    return [token for token, _ in groupby(slots) if token != blank]


@pytest.mark.parametrize("slots", STRINGS)
def test_collapse_is_that_of_the_definition(slots: tuple[int, ...]) -> None:
    assert [slots[i] for i in collapse(slots, BLANK)] == said(slots)


def test_equal_tokens_are_two_only_with_a_blank_between() -> None:
    assert collapse([7, 7, 9, 9, 7, 8], blank=9) == [0, 4, 5]
    assert collapse([9, 9], blank=9) == []


def test_greedy_tokens_of_a_batch_are_collapsed_alike() -> None:
    strings = [slots for slots in STRINGS if len(slots) == 4]
    logits = torch.nn.functional.one_hot(torch.tensor(strings), 3).float()[None].unbind(2)
    found = torch.stack(argmax_tokens(CTC(TINY, width=4), logits), dim=-1)[0]
    for slots, row in zip(strings, found.tolist(), strict=True):
        assert row == said(slots) + [-2] * (4 - len(said(slots)))


@pytest.mark.parametrize(("slots", "count"), [(3, 1), (4, 2), (4, 3), (5, 3)])
def test_the_loss_is_the_chance_of_all_ways_to_write_the_tokens(slots: int, count: int) -> None:
    columns, time = 4, 7
    generator = torch.Generator().manual_seed(slots)
    logits = list(torch.randn(slots, 2, time, columns, generator=generator).double())
    tokens = torch.randint(columns - 1, (2, time), generator=generator)
    batch = batch_of(tokens, lengths=[time, 5], prompts=[2, 2])
    found = ctc_loss(logits, batch, torch.arange(columns - 1), count, prompt_weight=0.5)
    total, weights = 0.0, 0.0
    for text, at in product(range(2), range(time)):
        if at + 1 + count >= batch.lengths[text]:
            continue
        wanted = tokens[text, at + 2 : at + 2 + count].tolist()
        distributions = [each[text, at].softmax(-1) for each in logits]
        chance = sum(
            float(
                torch.stack(
                    [
                        distribution[token]
                        for distribution, token in zip(distributions, way, strict=True)
                    ]
                ).prod()
            )
            for way in product(range(columns), repeat=slots)
            if said(way, blank=columns - 1) == wanted
        )
        if chance == 0:
            continue  # repeats need more slots than there are
        weight = 1.0 if at + 1 + count >= batch.prompt_lengths[text] else 0.5
        total -= weight * float(torch.tensor(chance).log()) / count
        weights += weight
    torch.testing.assert_close(found.item(), total / weights, rtol=1e-5, atol=1e-6)


def test_positions_with_unknown_tokens_do_not_count() -> None:
    logits = [torch.zeros(1, 6, 4, requires_grad=True) for _ in range(3)]
    batch = batch_of(torch.tensor([[0, 1, 2, 0, 1, 2]]), lengths=[6], prompts=[0])
    places = torch.full((3,), -1)
    loss = ctc_loss(logits, batch, places, 2, prompt_weight=1.0)
    assert loss.item() == 0
    loss.backward()


def test_more_tokens_than_slots_are_refused() -> None:
    with pytest.raises(InvalidOption, match="tokens must be 1 to 3"):
        CTC(TINY, width=3, tokens=4)


def exact(chances: np.ndarray) -> dict[tuple[int, ...], float]:
    """Reference: over all alignments."""
    slots, columns = chances.shape
    out: dict[tuple[int, ...], float] = {}
    for alignment in product(range(columns), repeat=slots):
        mass = float(np.prod(chances[range(slots), alignment]))
        text = said(alignment, columns - 1)
        for end in range(1, len(text) + 1):
            out[tuple(text[:end])] = out.get(tuple(text[:end]), 0.0) + mass
    return out


@pytest.mark.parametrize("seed", range(4))
def test_beginnings_have_the_mass_of_all_their_alignments(seed: int) -> None:
    """Control: the best alignment alone, collapsed, is less."""
    rng = np.random.default_rng(seed)
    chances = rng.dirichlet(np.ones(4), size=4)
    found, expected = beginnings(chances, beam=1000, tokens=3), exact(chances)
    assert found.keys() == expected.keys()
    for text, chance in expected.items():
        assert found[text] == pytest.approx(chance, abs=1e-12)
        assert text[:-1] == () or found[text[:-1]] >= chance - 1e-12
    best = tuple(chances.argmax(axis=1).tolist())
    if text := tuple(said(best, 3)):
        assert float(chances.max(axis=1).prod()) < expected[text[:1]]
    narrow = beginnings(chances, beam=3, tokens=2)
    assert all(chance <= expected[text] + 1e-12 for text, chance in narrow.items())


def test_the_tree_has_the_most_probable_beginnings() -> None:
    """Of every size; a chain of the collapsed argmax would lack the siblings."""
    rng = np.random.default_rng(1)
    logits = (3 * rng.normal(size=(4, 6))).astype(np.float32)
    drafter = CTCDrafter.__new__(CTCDrafter)
    drafter._ids = np.array([10, 20, 30, 40, 50])
    chances = np.exp(logits.astype(np.float64))
    expected = beginnings(chances / chances.sum(axis=1, keepdims=True))
    for nodes in (1, 3, 8):
        tree = drafter._grow_tree(logits, Budget(nodes, 3))
        trees.validate(tree)
        paths = [
            tuple(int(t) // 10 - 1 for t in tree.tokens[list(trees.path_to(tree, node))])
            for node in range(len(tree))
        ]
        assert len(paths) == nodes
        assert max(map(len, paths)) <= 3
        least = min(expected[path] for path in paths)
        others = [text for text in expected if text not in paths and len(text) <= 3]
        assert all(expected[text] <= least for text in others)
        assert tree.scores is not None
        np.testing.assert_allclose(tree.scores, [expected[path] for path in paths], atol=1e-6)
    assert len({path[0] for path in paths}) > 1
