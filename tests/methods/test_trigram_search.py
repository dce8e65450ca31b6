"""ADED as published: the table against counting, the search against a search over plain paths."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers.drafter_context import context as drafter_context

from paceline.core import tree as trees
from paceline.core.types import Budget, SamplingParams, TokenTree
from paceline.errors import InvalidOption
from paceline.methods.datastore.drafter import build
from paceline.methods.trigram_search import Trigrams, TrigramSearch, search
from paceline.proof.tabular import TabularModel, TabularTarget
from paceline.sampling.generation import Generation

Text = list[int]
TEXT = st.lists(st.integers(0, 3), max_size=60)
FEWER = settings(max_examples=60)


def table(text: Text) -> Trigrams:
    return Trigrams(np.array(text, np.int32))


@FEWER
@given(st.lists(st.integers(0, 20), max_size=200), st.integers(0, 2))
def test_the_table_has_the_shares_of_the_twelve_best_successors(text: Text, common: int) -> None:
    text = [common if token % 2 else token for token in text]  # so that some pair has many
    counts: dict[tuple[int, int], Counter[int]] = defaultdict(Counter)
    for first, second, token in zip(text, text[1:], text[2:], strict=False):
        counts[first, second][token] += 1
    known = table(text)
    for pair, after in counts.items():
        best = sorted(after, key=lambda token: (-after[token], token))[:12]
        weights = known.after(pair)
        assert [*weights] == best
        assert weights == pytest.approx({t: after[t] / after.total() for t in best})
    assert known.after((20, 99)) == {}


@FEWER
@given(TEXT, st.lists(TEXT, max_size=4))
def test_the_last_sixteen_tokens_gain_weight(corpus: Text, texts: list[Text]) -> None:
    known, expected = table(corpus), defaultdict[tuple[int, ...], float](float)
    fresh = table(corpus)
    for text in texts:
        known.adapt(text)
        end = text[-16:]
        for begin in range(len(end) - 2):
            first, second, token = end[begin : begin + 3]
            expected[first, second, token] += 0.04
    for (first, second, token), gained in expected.items():
        weight = fresh.after((first, second)).get(token, 0.0) + gained
        assert known.after((first, second))[token] == pytest.approx(weight)


def test_weights_end_at_three() -> None:
    known = table([1, 2, 3])
    for _ in range(100):
        known.adapt([1, 2, 3, 1, 2, 4])
    assert known.after((1, 2)) == pytest.approx({3: 3.0, 4: 3.0})


def plain_search(
    known: Trigrams, pair: tuple[int, int], trials: int, random: Random
) -> Counter[tuple[int, ...]]:
    """Visits of the same search over paths in dictionaries, from the description of the paper."""
    visits: Counter[tuple[int, ...]] = Counter()
    gains: defaultdict[tuple[int, ...], float] = defaultdict(float)
    opened: set[tuple[int, ...]] = set()

    def weights(path: tuple[int, ...]) -> dict[int, float]:
        a, b = (*pair, *path)[-2:]
        return known.after((a, b))

    def value(path: tuple[int, ...]) -> float:
        if not visits[path]:
            return math.inf
        above = visits[path[:-1]]
        bonus = 32 + math.log((above + 9) / 8)
        prior = weights(path[:-1])[path[-1]]
        mean = gains[path] / visits[path]
        return mean + bonus * prior * math.sqrt(above) / (1 + visits[path])

    for _ in range(trials):
        path: tuple[int, ...] = ()
        while path in opened and weights(path) and len(path) < 3:
            path = max([(*path, token) for token in weights(path)], key=value)
        if len(path) < 3:
            opened.add(path)
            path = (*path, *[*weights(path)][:1])
        whole = path
        while len(whole) < 3 and weights(whole):
            after = weights(whole)
            whole = (*whole, random.choices([*after], [*after.values()])[0])
        gain = 1 + sum(weights(whole[:end])[whole[end]] for end in range(len(whole)))
        for end in range(len(path) + 1):
            visits[path[:end]] += 1
            gains[path[:end]] += gain
    return visits


@FEWER
@given(TEXT, st.integers(0, 3), st.integers(0, 3), st.integers(1, 150), st.integers(0, 9))
def test_the_search_is_that_of_the_description(
    corpus: Text, first: int, second: int, trials: int, seed: int
) -> None:
    known = table(corpus)
    known.adapt(corpus)
    found = search(known, (first, second), trials, Random(seed))
    visits = plain_search(known, (first, second), trials, Random(seed))
    assert visits.pop(()) == trials
    counts = [visits[tuple(path)] for path in found]
    assert counts == sorted(filter(None, visits.values()), reverse=True)[:24]


def test_trials_go_to_likely_paths_and_rollouts_are_random() -> None:
    known = table([*([1, 2, 3, 4, 5, 6] * 9), *([1, 2, 7, 8] * 3)])
    found = search(known, (1, 2), 150, Random(0))
    assert found[0] == [3]
    assert [3, 4] in found
    assert [7] in found
    # A rollout follows shares: the mean gain of one trial is the expectation over its tokens.
    known = table([1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 3, 5, 1, 2, 3, 5])
    drawn: list[float] = []

    class Noted(Random):
        def choices(self, population, weights=None, **_):  # type: ignore[no-untyped-def,override]
            [token] = super().choices(population, weights)
            drawn.append(token == 5)
            return [token]

    random = Noted(1)
    for _ in range(800):
        search(known, (1, 2), 1, random)
    assert len(drawn) == 1600  # two tokens behind the first, of which the second is certain
    assert np.mean(drawn[::2]) == pytest.approx(0.75, abs=0.05)


def draft(drafter: TrigramSearch, text: Text, nodes: int = 64) -> TokenTree:
    sequence = Generation.start(0, text, SamplingParams())
    drafter.open(sequence)
    [found] = drafter.propose([sequence], [Budget(nodes, 8)])
    return found


def test_the_draft_has_the_visited_paths_and_their_best_successors() -> None:
    corpus = np.random.default_rng(1).integers(0, 4, 400).astype(np.int32)
    text = [3, 1, 2, 0, 1, 2, 1]
    found = draft(TrigramSearch(corpus), text)
    known = Trigrams(corpus)
    known.adapt(text)
    expected: set[tuple[int, ...]] = set()
    for path in search(known, (2, 1), 150, Random(f"0 {text}")):
        a, b = (2, 1, *path)[-2:]
        weights = known.after((a, b))
        whole = (*path, max(weights, key=weights.__getitem__))
        expected |= {whole[:end] for end in range(1, len(whole) + 1)}
    paths: list[tuple[int, ...]] = []
    for token, parent in zip(found.tokens.tolist(), found.parents.tolist(), strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
    assert set(paths) == expected
    assert len(expected) <= 64
    trees.validate(found)
    assert max(map(len, paths)) == 4
    assert found.scores is not None
    assert np.all(np.diff(found.scores) <= 0)
    few = draft(TrigramSearch(corpus), text, 5)
    assert few.tokens.tolist() == found.tokens.tolist()[:5]


def test_drafts_follow_the_text_without_a_corpus() -> None:
    drafter = TrigramSearch(trials=30)
    assert draft(drafter, [1, 2, 3, 4, 1, 2]).tokens.tolist()[:2] == [3, 4]
    assert len(draft(drafter, [9])) == 0
    assert drafter.table.after((1, 2)) == pytest.approx({3: 0.04})
    drafter.reset()
    assert drafter.table.after((1, 2)) == {}


def test_the_corpus_comes_from_an_index(tmp_path: Path) -> None:
    target = TabularTarget(TabularModel(8, 2, seed=3).logits, 8).capabilities
    build(np.array([1, 2, 3] * 9, np.int32), tmp_path / "index", 8, "words")

    def make(**options: str) -> TrigramSearch:
        return TrigramSearch.create(drafter_context(target, options=options))

    made = make(index=str(tmp_path / "index"), trials="20")
    assert draft(made, [5, 1, 2]).tokens.tolist()[0] == 3
    assert len(draft(make(), [5, 1, 2], 9)) == 0
    with pytest.raises(InvalidOption, match="no option 'corpus'"):
        make(corpus="x")
    with pytest.raises(InvalidOption, match="trials must be from 1"):
        make(trials="0")
    build(np.array([1, 2, 3] * 9, np.int32), tmp_path / "large", 9, "words")
    with pytest.raises(InvalidOption, match="another tokenizer"):
        make(index=str(tmp_path / "large"))
