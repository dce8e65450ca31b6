"""SuffixDecoding as published, against counts of all substrings."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers.steps import step_of

from paceline.core import tree as trees
from paceline.core.target import NO_STATE, Output
from paceline.core.types import Budget, SamplingParams, TokenTree, Verdict
from paceline.errors import InvalidOption
from paceline.methods.suffix_tree import DEPTH, Mode, SuffixTree, SuffixTrees
from paceline.sampling.generation import Generation

Text = list[int]
TEXT = st.lists(st.integers(0, 2), max_size=24)
TEXTS = st.lists(TEXT, min_size=1, max_size=4)
DEPTHS = st.sampled_from([1, 2, 3, 5, DEPTH])
FEWER = settings(max_examples=80)
UNREAD = Output(NO_STATE)


def counts(texts: list[Text], depth: int) -> Counter[tuple[int, ...]]:
    return Counter(
        tuple(text[begin:end])
        for text in texts
        for begin in range(len(text))
        for end in range(begin + 1, min(len(text), begin + depth) + 1)
    )


def built(texts: list[Text], depth: int) -> SuffixTree:
    tree = SuffixTree(depth)
    for text in texts:
        tree.begin()
        for token in text:
            tree.extend([token])
    return tree


@FEWER
@given(TEXTS, DEPTHS, TEXT)
def test_counts_are_those_of_all_substrings(texts: list[Text], depth: int, probe: Text) -> None:
    tree, known = built(texts, depth), counts(texts, depth)
    for path, count in known.items():
        assert tree.count(path) == count
    assert tree.count(probe[:depth] or [9]) == known[tuple(probe[:depth])]
    assert tree.count([9]) == 0


@FEWER
@given(TEXTS, st.integers(0, 3), DEPTHS, TEXT)
def test_a_text_that_is_removed_leaves_the_others(
    texts: list[Text], gone: int, depth: int, later: Text
) -> None:
    tree = built(texts, depth)
    left = list(texts)
    tree.remove(left.pop(gone % len(texts)))
    tree.begin()
    tree.extend(later)
    known = counts([*left, later], depth)
    for path in counts([*texts, later], depth):
        assert tree.count(path) == known[path]


def published(
    known: Counter[tuple[int, ...]], text: Text, nodes: int, depth: int, mode: Mode, alpha: float
) -> Fraction:
    """The best score of a draft, from the formulas of the paper, without regard to ties."""
    best = Fraction(0)
    for length in range(1, min(len(text), DEPTH - 1) + 1):
        match, found = tuple(text[-length:]), Fraction(0)
        open_paths = {(): Fraction(1)}
        reachable: list[tuple[Fraction, tuple[int, ...]]] = []
        taken = 0
        while open_paths and taken < min(nodes, int(alpha * length)):
            for path, reach in open_paths.items():
                if len(path) < min(depth, DEPTH - length):
                    after = {t: known[(*match, *path, t)] for t in range(3)}
                    total = sum(after.values())
                    shares = sorted(((Fraction(c, total), t) for t, c in after.items() if c))
                    for share, token in shares[-1:] if mode == "path" else shares:
                        if reach * share >= Fraction(1, 10):
                            reachable.append((reach * share, (*path, token)))
            open_paths = {}
            if reachable:
                reach, path = max(reachable)
                reachable.remove((reach, path))
                found += reach
                taken += 1
                open_paths = {path: reach}
        best = max(best, found)
    return best


@pytest.mark.parametrize("mode", ["tree", "path"])
@FEWER
@given(TEXTS, TEXT, st.integers(1, 12), st.integers(1, 8), st.sampled_from([1.0, 2.0, 4.0]))
def test_drafts_have_the_best_score_of_all_lengths_and_both_trees(
    mode: Mode, earlier: list[Text], text: Text, nodes: int, depth: int, alpha: float
) -> None:
    drafter = SuffixTrees(mode, alpha)
    for number, output in enumerate(earlier):
        run(drafter, number, [2], output)
    text = [0, *text]
    [draft] = propose(drafter, text, Budget(nodes, depth))
    assert draft.scores is not None
    score = float(draft.scores.sum())
    assert len(draft) <= nodes
    assert max([*map(len, trees.leaf_paths(draft))], default=0) <= depth
    known = [counts([text], DEPTH), counts(earlier, DEPTH)]
    if mode == "tree":
        best = max(published(each, text, nodes, depth, mode, alpha) for each in known)
        assert score == pytest.approx(float(best))
    else:  # which of equally frequent tokens is followed is not said
        assert trees.is_chain(draft)
        widest = max(published(each, text, nodes, depth, "tree", alpha) for each in known)
        assert score <= float(widest) + 1e-9
    shares(draft, text, known)


def shares(draft: TokenTree, text: Text, known: list[Counter[tuple[int, ...]]]) -> None:
    """Every score is the product of shares after some match in one of the trees."""
    paths: list[tuple[int, ...]] = []
    for token, parent in zip(draft.tokens.tolist(), draft.parents.tolist(), strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), token))

    def score(
        tree: Counter[tuple[int, ...]], match: tuple[int, ...], path: tuple[int, ...]
    ) -> float:
        reach = 1.0
        for end in range(len(path)):
            above = (*match, *path[:end])
            total = sum(tree[(*above, t)] for t in range(3))
            reach *= tree[(*above, path[end])] / total if total else 0.0
        return reach

    assert draft.scores is not None
    fits = [
        all(
            score(tree, tuple(text[-length:]), path) == pytest.approx(found)
            for path, found in zip(paths, draft.scores.tolist(), strict=True)
        )
        for tree in known
        for length in range(1, len(text) + 1)
    ]
    assert any(fits)


def propose(drafter: SuffixTrees, tokens: Text, budget: Budget) -> list[TokenTree]:
    sequence = Generation.start(99, tokens, SamplingParams())
    drafter.open(sequence)
    found = drafter.propose([sequence], [budget])
    drafter._own.clear()
    return found


def run(drafter: SuffixTrees, number: int, prompt: Text, output: Text) -> None:
    sequence = Generation.start(number, prompt, SamplingParams())
    drafter.open(sequence)
    for token in output:
        sequence.tokens.append(token)
        drafter.observe(step_of([sequence], [trees.EMPTY], [Verdict((), token)], [UNREAD]))
    drafter.close(sequence)


def test_a_longer_match_allows_a_longer_draft() -> None:
    def size(text: Text, alpha: float = 1.0) -> int:
        return len(propose(SuffixTrees("tree", alpha), text, Budget(20, 20))[0])

    text = [*range(10, 30)]
    assert size([*text, 12]) == 1
    assert size([*text, 12, 13, 14]) == 3
    assert size([*text, 12, 13, 14], alpha=2.0) == 6
    assert size([*text, 12], alpha=0.5) == 0
    # Match and continuation together have 64 tokens.
    long = [*range(200)]
    draft = propose(SuffixTrees("tree", 4.0), [*long, *range(50)], Budget(99, 99))[0]
    assert len(draft) == DEPTH - 13  # 13 tokens allow 52, of which 51 are in the tree


def test_the_eldest_outputs_are_forgotten() -> None:
    drafter = SuffixTrees(capacity=6)
    for number, output in enumerate([[1, 2, 3], [4, 5], [6, 7, 8, 9]]):
        run(drafter, number, [0], output)
    assert drafter.earlier.count([1, 2]) == 0
    assert drafter.earlier.count([4, 5]) == drafter.earlier.count([6, 7, 8, 9]) == 1
    run(drafter, 9, [0], [*range(20)])  # the end of what is too long
    assert drafter.earlier.count([13]) == 0
    assert drafter.earlier.count([14, 15, 16, 17, 18, 19]) == 1
    assert drafter.earlier.count([4]) == 0


def test_a_prompt_is_no_output() -> None:
    drafter = SuffixTrees()
    run(drafter, 0, [1, 2, 3], [4, 5])
    assert drafter.earlier.count([3]) == 0
    assert drafter.earlier.count([4, 5]) == 1
    drafter.reset()
    assert drafter.earlier.count([4]) == 0


def test_wrong_options_are_refused() -> None:
    with pytest.raises(InvalidOption, match="use tree or path"):
        SuffixTrees("blend")  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="alpha must be above 0"):
        SuffixTrees(alpha=0)
