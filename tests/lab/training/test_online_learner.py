"""Learning from examples: what was missed weighs, and what is no number is undone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch")

import torch
from tests.helpers.tiny_model import named_tensors, tiny_config

from paceline.core import tree as trees
from paceline.core.types import SamplingParams, Verdict
from paceline.drafters.network.online import Example, Examples, Trace
from paceline.lab.training.module import DraftModule
from paceline.lab.training.online import OnlineLearner
from paceline.networks.catalogue import build, names
from paceline.networks.weights import Trained
from paceline.policy.constants import STRETCH_CONTEXT, STRETCH_ROWS, UPDATE_ROWS
from paceline.sampling.generation import Generation

CONFIG = tiny_config(vocab_size=64, layers=3)
TENSORS = named_tensors(CONFIG)
SOURCE: Any = SimpleNamespace(config=CONFIG, weights=lambda: TENSORS)
EMBEDDING = TENSORS["embed"]


def trained(name: str) -> Trained:
    sizes = build(name, CONFIG, {}).settings()
    network = build(name, CONFIG, {"exit": 2} if "exit" in sizes else {})
    rng = np.random.default_rng(0)
    parameters = {
        key: rng.normal(1.0 if len(shape) == 1 else 0.0, 0.1, shape).astype(np.float32)
        for key, shape in network.shapes().items()
    }
    return Trained(network, parameters, np.arange(64), {})


def example(missed: list[int], rows: int = 40, seed: int = 0) -> Example:
    rng = np.random.default_rng(seed)
    marks = np.zeros(rows, dtype=np.bool_)
    marks[missed] = True
    features = rng.normal(size=(rows, 4 * CONFIG.hidden_size)).astype(np.float32)
    return Example(features, rng.integers(0, 64, rows), marks)


# They do not learn while serving: see tests/methods/gad.
HEAR = ("gad", "paraformer")


@pytest.mark.parametrize("name", [each for each in names() if not each.startswith(HEAR)])
def test_every_network_learns_and_its_weights_are_new_ones(name: str) -> None:
    begin = trained(name)
    learner = OnlineLearner(begin, SOURCE, rate=0.01)
    first = learner.learn([example([10, 30]), example([5], rows=20)])
    second = learner.learn([example([10, 30])])
    assert first is not None
    assert second is not None
    assert first.keys() == second.keys() == begin.parameters.keys()
    moved = [key for key in first if not np.array_equal(first[key], begin.parameters[key])]
    assert len(moved) > len(first) / 2
    assert any(not np.array_equal(first[key], second[key]) for key in first)


@torch.no_grad()
def divergence(parameters: Any, seen: Example, place: int) -> float:
    """KL of the first draft for the token at a place, by definition."""
    network = build("hydra", CONFIG, {})
    embedding = torch.from_numpy(EMBEDDING)
    module = DraftModule(network, embedding, embedding, torch.Generator())
    module.load({key: torch.from_numpy(each) for key, each in parameters.items()})
    features = torch.from_numpy(seen.features)[None]
    drafted = module(features, torch.from_numpy(seen.tokens)[None])[0][0, place - 2]
    target = module.teacher(features)[0, place - 1]
    p, q = target.log_softmax(-1), drafted.log_softmax(-1)
    return float((p.exp() * (p - q)).sum())


def test_what_was_missed_is_learnt_before_all_else() -> None:
    """And what was not missed, which few texts repeat, much less."""
    begin, seen = trained("hydra"), example([20])
    learner = OnlineLearner(begin, SOURCE, rate=0.01)
    for _ in range(12):
        parameters = learner.learn([seen])
    missed, other = (
        divergence(parameters, seen, place) / divergence(begin.parameters, seen, place)
        for place in (20, 12)
    )
    assert missed < 0.5
    assert missed < other


def test_numbers_that_are_none_are_undone_and_forgotten() -> None:
    good, bad = example([10]), example([10])
    bad.features[12] = np.nan
    learner, calm = (OnlineLearner(trained("hydra"), SOURCE, rate=0.01) for _ in range(2))
    assert learner.learn([bad]) is None
    assert learner.learn([good, bad]) is None
    after, expected = learner.learn([good]), calm.learn([good])
    assert after is not None
    assert expected is not None
    for key, each in expected.items():
        assert np.array_equal(after[key], each), key


@settings(max_examples=60)
@given(seed=st.integers(0, 10_000))
def test_examples_hold_every_row_in_its_place(seed: int) -> None:
    """Rounds of all kinds against a plain list of what was committed and missed."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, 99, int(rng.integers(1, 90))).tolist()

    def rows(begin: int, count: int) -> Any:
        return np.arange(begin, begin + count, dtype=np.float32)[:, None]

    sequence = Generation.start(0, tokens, SamplingParams())
    trace, missed, cut = Trace(), [False] * len(tokens), []
    trace.read(sequence.tokens, rows(0, len(tokens) - 1))
    for _ in range(int(rng.integers(1, 60))):
        depth = int(rng.integers(0, 5))
        accepted = int(rng.integers(0, depth + 1))
        draft = trees.chain(rng.integers(0, 99, depth).tolist())
        verdict = Verdict(tuple(range(accepted)), 7)
        ended = rng.random() < 0.05
        run = [*draft.tokens[:accepted].tolist(), 7][: 1 if ended else None]
        noted = rows(len(sequence.tokens) - 1, accepted + 1)
        sequence.tokens += run
        wrong = accepted < depth and len(run) == accepted + 1
        missed += [False] * (len(run) - 1) + [wrong]
        assert trace.note(sequence, draft, verdict, noted) == wrong
        if rng.random() < 0.2 or trace.full:
            cut.append(trace.cut())
        if ended:
            break
    cut.append(trace.cut())
    found = np.zeros(len(sequence.tokens), dtype=int)
    for each in filter(None, cut):
        places = each.features[:, 0].astype(int)
        assert np.array_equal(np.diff(places), np.ones(len(places) - 1))
        assert each.tokens.tolist() == [sequence.tokens[i] for i in places]
        found[places] += each.missed
        behind = len(sequence.tokens) - 1
        assert places[-1] < behind  # the root has no features
        assert len(each.tokens) <= STRETCH_CONTEXT + STRETCH_ROWS + 5
    assert found.tolist() == [*missed[:-1], False]


def test_memory_is_bounded_and_the_newest_stay() -> None:
    kept = Examples(limit=3 * example([1]).size)
    generator = np.random.default_rng(0)
    assert kept.draw(generator) == []
    for seed in range(5):
        kept.add(example([1], seed=seed))
    newest = [each.tokens.tolist() for each in kept.draw(generator)]
    assert newest == [example([1], seed=seed).tokens.tolist() for seed in (4, 3, 2)]
    assert kept.draw(generator) == []
    kept.add(example([1], seed=9))
    new, old = kept.draw(generator)
    assert new.tokens.tolist() == example([1], seed=9).tokens.tolist()
    assert old.tokens.tolist() in newest


def test_of_a_flood_the_newest_are_learnt() -> None:
    kept = Examples(limit=1 << 30)
    generator = np.random.default_rng(0)
    sizes = [UPDATE_ROWS // 3, UPDATE_ROWS // 2, UPDATE_ROWS * 2]
    for rows in (*sizes, *sizes[:2]):
        kept.add(example([1], rows=rows))
    assert [len(each.tokens) for each in kept.draw(generator)] == [sizes[1], sizes[0]]
    kept.add(example([1], rows=sizes[2]))
    newest, *older = kept.draw(generator)
    assert len(newest.tokens) == sizes[2]
    assert len(older) == 1
