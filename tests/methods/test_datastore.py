"""Retrieval: tries of what followed in an indexed text, by brute force; and how it is found."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers.drafter_context import context as drafter_context
from tests.helpers.steps import step_of

from paceline.core import tree as trees
from paceline.core.target import Output
from paceline.core.types import Budget, SamplingParams, TokenTree, Verdict
from paceline.drafters.base import DrafterContext
from paceline.drafters.candidates import evidence_rates, length_kind, spread_kind
from paceline.errors import InvalidOption
from paceline.methods.datastore.drafter import LONGEST, Datastore, SuffixArray, build
from paceline.proof.tabular import TabularModel, TabularTarget
from paceline.sampling.generation import Generation
from paceline.trees.candidates import FLOOR

Text = tuple[int, ...]

VOCABULARY = 6
RATES = evidence_rates(0.6).rates[0]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store")


def store(tokens: list[int], folder: Path) -> Datastore:
    build(np.array(tokens, np.int32), folder / "index", VOCABULARY, "words")
    return Datastore(SuffixArray(folder / "index"))


def start(tokens: list[int], id: int = 0) -> Generation:
    return Generation.start(id, tokens, SamplingParams())


def propose(drafter: Datastore, sequence: Generation, budget: Budget) -> TokenTree:
    [draft] = drafter.propose([sequence], [budget])
    return draft


def behind(tokens: list[int], context: Text) -> list[Text]:
    """What follows every occurrence of a context, to the end."""
    n = len(context)
    return [
        tuple(tokens[i + n :])
        for i in range(len(tokens) - n + 1)
        if tuple(tokens[i : i + n]) == context
    ]


def naive(tokens: list[int], text: Text, depth: int) -> dict[Text, float]:
    """Every path of the tries behind the longest match and the one half as long, with its score."""
    lengths = [n for n in range(1, min(LONGEST, len(text)) + 1) if behind(tokens, text[-n:])]
    longest = max(lengths, default=0)
    tries = [(n, behind(tokens, text[-n:])) for n in (longest, longest // 2) if n]
    scores: dict[Text, float] = {}
    todo: list[tuple[Text, float]] = [((), 1.0)]
    while todo:
        path, reach = todo.pop()
        left, found = 1.0, {}
        for length, texts in tries if len(path) < depth else []:
            n = len(path)
            times = Counter(t[n] for t in texts if t[:n] == path and len(t) > n)
            for token, count in sorted(times.items(), key=lambda f: (-f[1], f[0])):
                chance = left * RATES[length_kind(length + n), spread_kind(count, times.total())]
                if token not in found and chance * reach >= FLOOR:
                    found[token] = chance
                    left -= chance
        for token, chance in found.items():
            scores[*path, token] = reach * chance
            todo.append(((*path, token), reach * chance))
    return scores


@settings(max_examples=50)
@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=30),
    st.lists(st.integers(0, 4), min_size=1, max_size=20),
    st.integers(0, 12),
    st.integers(0, 4),
)
def test_the_draft_holds_the_most_probable_paths_of_the_retrieved_tries(
    folder: Path, tokens: list[int], prompt: list[int], nodes: int, depth: int
) -> None:
    drafter = store(tokens, folder)
    drafter.open(sequence := start(prompt))
    draft = propose(drafter, sequence, Budget(nodes, depth))
    expected = naive(tokens, tuple(prompt), depth)
    assert draft.scores is not None
    np.testing.assert_allclose(draft.scores, sorted(expected.values(), reverse=True)[:nodes])
    for node, score in enumerate(draft.scores.tolist()):
        text = tuple(draft.tokens[list(trees.path_to(draft, node))].tolist())
        assert score == pytest.approx(expected[text])


def test_continuations_are_weighed_by_how_often_they_followed(folder: Path) -> None:
    drafter = store([1, 2, 3, 1, 2, 4, 1, 2, 3, 0, 1, 2, 3], folder)
    drafter.open(sequence := start([5, 1, 2]))
    draft = propose(drafter, sequence, Budget(2, 1))
    assert draft.tokens.tolist() == [3, 4]
    assert draft.scores is not None
    first = RATES[length_kind(2), spread_kind(3, 4)]
    second = (1 - first) * RATES[length_kind(2), spread_kind(1, 4)]
    np.testing.assert_allclose(draft.scores, [first, second])


def test_the_longest_match_is_found_as_the_sequence_grows(folder: Path) -> None:
    """The search starts from the match before, which must not hide a longer one."""
    tokens = [0, 1, 2, 3, 4, 0, 1, 2, 5, 0, 1, 2, 3, 4, 5, 5]
    drafter = store(tokens, folder)
    drafter.open(sequence := start([5, 5, 5]))
    for token in [0, 1, 2, 3, 4, 5]:
        draft = propose(drafter, sequence, Budget(4, 4))
        sequence.tokens.append(token)
        drafter.observe(
            step_of([sequence], [draft], [Verdict((), token)], [Output(np.zeros((1, 6), "f4"))])
        )
        assert drafter._known[0][1] <= LONGEST
    assert propose(drafter, sequence, Budget(1, 1)).tokens.tolist() == [5]
    assert drafter._known[0] == (9, 7)  # 5 0 1 2 3 4 5


def test_a_frequent_context_is_sampled(folder: Path) -> None:
    """However often a context occurs, the work is bounded, and shares stay what they are."""
    drafter = store([1, 2] * 300 + [1, 3] * 100, folder)
    drafter.open(sequence := start([4, 1]))
    draft = propose(drafter, sequence, Budget(2, 1))
    assert draft.tokens.tolist() == [2, 3]
    assert len(drafter._spot(1, *drafter._index.range([1])).places) == 32


def context(vocabulary: int = VOCABULARY, **options: str) -> DrafterContext:
    target = TabularTarget(TabularModel(vocabulary, 1, seed=0).logits, vocabulary)
    return drafter_context(target, options=options)


def test_an_option_names_the_index(tmp_path: Path) -> None:
    store([1, 2, 3], tmp_path)
    index = str(tmp_path / "index")
    drafter = Datastore.create(context(index=index))
    drafter.open(sequence := start([1]))
    assert propose(drafter, sequence, Budget(2, 2)).tokens.tolist() == [2, 3]
    with pytest.raises(InvalidOption, match="another tokenizer"):
        Datastore.create(context(vocabulary=3, index=index))
    with pytest.raises(InvalidOption, match="absent is no index"):
        Datastore.create(context(index=str(tmp_path / "absent")))
    with pytest.raises(InvalidOption, match="paceline index FILE --out DIR"):
        Datastore.create(context())
