"""Merged drafts: valid trees, learned trust in sources, and two published ways to merge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers.steps import step_of

from paceline.core import tree as trees
from paceline.core.expressions import Way
from paceline.core.target import Output
from paceline.core.types import (
    ROOT,
    Budget,
    Distribution,
    SamplingParams,
    SamplingScheme,
    TokenTree,
    Verdict,
)
from paceline.drafters.base import Drafter
from paceline.drafters.combine.base import MOST_PARTS
from paceline.drafters.combine.merged import _LEVELS, Blended, Blender, Merged, _scores
from paceline.drafters.recycling import Recycling
from paceline.errors import InvalidOption
from paceline.policy.acceptance import HitRates
from paceline.sampling.generation import Generation, VerifiedDraft
from paceline.trees.candidates import CandidateTree, Offer

BUDGET = Budget(6, 4)


class Says(Drafter):
    """Drafts what it is told, if that fits the budget."""

    name: ClassVar[str] = "says"

    def __init__(self, name: str, draft: TokenTree = trees.EMPTY) -> None:
        self.name = name  # type: ignore[misc]  # several in one test
        self.draft = draft
        self.seen: list[str] = []

    def open(self, sequence: Generation) -> None:
        self.seen.append("open")

    def propose(
        self, sequences: Sequence[Generation], budgets: Sequence[Budget]
    ) -> list[TokenTree]:
        named = replace(self.draft, source=self.name)
        return [trees.limit(named, budget.nodes, budget.depth) for budget in budgets]

    def observe(self, step: Sequence[VerifiedDraft]) -> None:
        self.seen.append(f"observe {step[0].draft.tokens.tolist()}")

    def close(self, sequence: Generation) -> None:
        self.seen.append("close")

    def reset(self) -> None:
        self.seen.append("reset")


def scored(tokens: list[int], parents: list[int], scores: list[float]) -> TokenTree:
    return TokenTree(np.array(tokens), np.array(parents), scores=np.array(scores))


def start(tokens: list[int], id: int = 0) -> Generation:
    return Generation.start(id, tokens, SamplingParams())


def step(drafter: Drafter, sequence: Generation, truth: list[int]) -> TokenTree:
    """Propose, and commit `truth` as if it had been accepted."""
    [draft] = drafter.propose([sequence], [BUDGET])
    sequence.tokens += truth
    output = Output(np.zeros((1 + len(draft), 4), np.float32))
    drafter.observe(step_of([sequence], [draft], [Verdict((), truth[-1])], [output]))
    return draft


def root_chance(draft: TokenTree, token: int) -> float:
    """Score of a token under the root."""
    assert draft.scores is not None
    [node] = np.flatnonzero((draft.tokens == token) & (draft.parents == ROOT))
    return float(draft.scores[node])


@st.composite
def random_drafts(draw: st.DrawFn) -> TokenTree:
    size = draw(st.integers(0, 8))
    tokens, parents, scores, used = [], [], [], set()
    for node in range(size):
        parent = draw(st.integers(ROOT, node - 1)) if node else ROOT
        token = draw(st.integers(0, 3))
        if (parent, token) in used or parent >= len(tokens):
            continue
        used.add((parent, token))
        above = 1.0 if parent == ROOT else scores[parent]
        tokens.append(token)
        parents.append(parent)
        scores.append(above * draw(st.floats(0.05, 0.95)))
    order = np.arange(len(tokens))
    draft = scored(tokens, parents, scores) if tokens else trees.EMPTY
    return trees.take(draft, order)


@given(
    st.lists(random_drafts(), min_size=2, max_size=3),
    st.sampled_from(["blend", "graft", "fuse"]),
    st.integers(0, 7),
    st.integers(0, 4),
)
@settings(max_examples=150)
def test_merged_drafts_are_trees_within_the_budget(
    drafts: list[TokenTree], way: Way, nodes: int, depth: int
) -> None:
    parts = [Says(str(index), draft) for index, draft in enumerate(drafts)]
    merged = Merged(parts, way=way)
    merged.open(sequence := start([1, 2]))
    [draft] = merged.propose([sequence], [Budget(nodes if depth else 0, depth)])
    trees.validate(draft)
    assert len(draft) <= nodes
    assert trees.depths(draft).max(initial=0) <= depth
    pairs = list(zip(draft.parents.tolist(), draft.tokens.tolist(), strict=True))
    assert len(set(pairs)) == len(pairs)  # no two siblings with one token
    paths = {tuple(d.tokens[list(trees.path_to(d, n))]) for d in drafts for n in range(len(d))}
    for node in range(len(draft)):
        path = tuple(draft.tokens[list(trees.path_to(draft, node))])
        assert path in paths
        mine = drafts[int(draft.origin(node))] if draft.origins else None
        if mine is not None:
            own = {tuple(mine.tokens[list(trees.path_to(mine, n))]) for n in range(len(mine))}
            assert path in own
    if draft.scores is not None:
        for node, parent in enumerate(draft.parents.tolist()):
            assert draft.scores[node] <= (1 if parent == ROOT else draft.scores[parent]) + 1e-12


_ABSENT = -2


def blended(blender: Blender, drafts: Sequence[TokenTree], budget: Budget) -> Blended:
    """The reference of `Blender.blend`."""
    readers = [_Reader(draft) for draft in drafts]

    def offers(place: tuple[int, ...], reach: float) -> Sequence[Offer]:
        return _offers(blender, readers, place)

    def follow(place: tuple[int, ...], token: int) -> tuple[int, ...]:
        return tuple(reader.child(node, token) for reader, node in zip(readers, place, strict=True))

    root = (ROOT,) * len(drafts)
    guess = CandidateTree.grow(root, budget, offers, follow)
    places: list[tuple[int, ...]] = []
    for parent, token in zip(guess.parents, guess.tokens, strict=True):
        places.append(follow(root if parent == ROOT else places[parent], token))
    return guess, [_first(place) for place in places]


def _offers(
    blender: Blender, readers: Sequence[_Reader], place: tuple[int, ...]
) -> Sequence[Offer]:
    found: dict[int, tuple[float, int]] = {}
    for index, (reader, node) in enumerate(zip(readers, place, strict=True)):
        for token, chance in reader.offers(node):
            miss, sources = found.get(token, (1.0, 0))
            found[token] = (miss * (1 - chance), sources | 1 << index)
    left = 1.0
    out: list[Offer] = []
    for token, (miss, sources) in sorted(found.items(), key=_best):
        level = min(int((1 - miss) * _LEVELS), _LEVELS - 1)
        chance = left * blender.rates.table[sources][level]
        left -= chance
        out.append((token, chance, (sources, level)))
    return out


class _Reader:
    def __init__(self, draft: TokenTree) -> None:
        self._nodes: dict[tuple[int, int], int] = {}
        self._offers: dict[int, list[tuple[int, float]]] = {}
        scores = _scores(draft)
        pairs = zip(draft.parents.tolist(), draft.tokens.tolist(), strict=True)
        for node, (parent, token) in enumerate(pairs):
            self._nodes[parent, token] = node
            above = 1.0 if parent == ROOT else scores[parent]
            chance = scores[node] / above if above else 0.0
            self._offers.setdefault(parent, []).append((token, chance))

    def offers(self, node: int) -> Sequence[tuple[int, float]]:
        return self._offers.get(node, ())

    def child(self, node: int, token: int) -> int:
        return self._nodes.get((node, token), _ABSENT)


def _first(place: tuple[int, ...]) -> int:
    return next(index for index, node in enumerate(place) if node != _ABSENT)


def _best(item: tuple[int, tuple[float, int]]) -> float:
    return item[1][0]


@given(
    st.lists(random_drafts(), min_size=2, max_size=4),
    st.integers(0, 12),
    st.integers(0, 4),
    st.integers(0, 99),
    st.booleans(),
)
@settings(max_examples=150)
def test_drafts_are_blended_alike_in_python_and_in_c(
    drafts: list[TokenTree], nodes: int, depth: int, seed: int, scored: bool
) -> None:
    blender = Blender(len(drafts))
    for cell in np.random.default_rng(seed).integers(len(blender.rates.cells), size=40).tolist():
        blender.rates.count(cell, cell % 3 == 0)
    if not scored:
        drafts[0] = replace(drafts[0], scores=None)
    budget = Budget(nodes, depth)
    plain, plain_sources = blended(blender, drafts, budget)
    native, native_sources = blender.blend(drafts, budget)
    assert native_sources == plain_sources
    assert native.tokens == plain.tokens
    assert native.parents == plain.parents
    assert native.scores == plain.scores  # to the last bit
    learned = []
    for guess in (plain, native):
        rates = HitRates(blender.rates.rates)
        guess.learn([*guess.tokens[:1], 1, 2], rates)
        learned.append(rates.table)
    assert learned[0] == learned[1]


def test_a_source_that_is_wrong_loses_its_say() -> None:
    right, wrong = Says("right", scored([1], [ROOT], [0.5])), Says("wrong")
    wrong.draft = scored([2], [ROOT], [0.55])
    merged = Merged([wrong, right])
    merged.open(sequence := start([0]))
    assert merged.propose([sequence], [BUDGET])[0].tokens[0] == 2  # it claims a little more
    for _ in range(30):
        step(merged, sequence, [1])
    [draft] = merged.propose([sequence], [BUDGET])
    assert draft.tokens[0] == 1
    assert root_chance(draft, 1) > 0.7
    assert root_chance(draft, 2) < 0.2
    merged.reset()
    assert wrong.seen[-1] == right.seen[-1] == "reset"
    assert merged.propose([sequence], [BUDGET])[0].tokens[0] == 2


def test_sources_that_agree_count_for_more_than_either() -> None:
    both = scored([1, 2], [ROOT, ROOT], [0.4, 0.35])
    merged = Merged([Says("a", both), Says("b", scored([2], [ROOT], [0.35]))])
    merged.open(sequence := start([0]))
    [draft] = merged.propose([sequence], [BUDGET])
    assert draft.tokens.tolist() == [2, 1]
    assert root_chance(draft, 2) > 0.5
    assert [draft.origin(node) for node in range(2)] == ["a", "a"]


def test_what_agreement_is_worth_is_learned() -> None:
    """Two copies of one source are no better than one."""
    copy = scored([1], [ROOT], [0.5])
    merged = Merged([Says("a", copy), Says("b", copy)])
    merged.open(sequence := start([0]))
    for trial in range(400):
        step(merged, sequence, [1 if trial % 2 else 3])
    assert root_chance(merged.propose([sequence], [BUDGET])[0], 1) == pytest.approx(0.5, abs=0.06)


def test_all_parts_follow_the_sequence() -> None:
    parts = [Says("a", trees.chain([1])), Says("b", trees.chain([2]))]
    merged = Merged(parts)
    merged.open(sequence := start([0]))
    draft = step(merged, sequence, [1])
    merged.close(sequence)
    for part in parts:
        assert part.seen == ["open", f"observe {draft.tokens.tolist()}", "close"]


def test_graft_keeps_the_sure_part_of_the_first_and_fills_with_the_second() -> None:
    first = scored([1, 2, 3], [ROOT, 0, 1], [0.9, 0.5, 0.1])
    second = scored([1, 7, 8], [ROOT, 0, 1], [0.3, 0.2, 0.1])
    merged = Merged([Says("a", first), Says("b", second)], way="graft", floor=0.4)
    merged.open(sequence := start([0]))
    [draft] = merged.propose([sequence], [Budget(3, 4)])
    assert draft.tokens.tolist() == [1, 2, 7]
    assert draft.parents.tolist() == [ROOT, 0, 0]
    assert draft.origins == ("a", "a", "b")
    assert draft.scores is not None
    np.testing.assert_allclose(draft.scores, [0.9, 0.5, 0.2])


class Finds(Says):
    """Says a draft at the root, and has a token behind each known one."""

    def __init__(self, name: str, draft: TokenTree, known: dict[int, TokenTree]) -> None:
        super().__init__(name, draft)
        self.known = known

    def after(self, root: int, budget: Budget) -> TokenTree:
        return trees.limit(self.known.get(root, trees.EMPTY), budget.nodes, budget.depth)


def test_graft_retrieves_behind_the_leaves_that_it_keeps() -> None:
    first = scored([1, 2, 3], [ROOT, 0, ROOT], [0.9, 0.5, 0.4])
    known = {2: scored([5, 6], [ROOT, 0], [0.8, 0.6]), 3: scored([7], [ROOT], [0.5])}
    known[1] = scored([9], [ROOT], [1.0])  # no leaf: what the first drafted stands there
    second = Finds("b", scored([8], [ROOT], [0.3]), known)
    merged = Merged([Says("a", first), second], way="graft", floor=0.2)
    merged.open(sequence := start([0]))

    def grafted(nodes: int, depth: int = 4) -> list[tuple[int, ...]]:
        [draft] = merged.propose([sequence], [Budget(nodes, depth)])
        return [
            tuple(draft.tokens[list(trees.path_to(draft, node))].tolist())
            for node in range(3, len(draft))
        ]

    # By score: 0.5 x 0.8, then the root's 0.3 and 0.5 x 0.6, then 0.4 x 0.5.
    assert grafted(4) == [(1, 2, 5)]
    assert set(grafted(6)) == {(1, 2, 5), (8,), (1, 2, 5, 6)}
    assert (3, 7) in grafted(7)
    assert set(grafted(7, depth=2)) == {(8,), (3, 7)}
    plain = Merged(
        [Says("a", first), Says("b", scored([8], [ROOT], [0.3]))], way="graft", floor=0.2
    )
    plain.open(sequence)
    [draft] = plain.propose([sequence], [Budget(7, 4)])
    assert draft.tokens.tolist() == [1, 2, 3, 8], "one that finds nothing behind drafted tokens"


def test_recycling_finds_what_follows_any_token() -> None:
    recycling = Recycling(10)
    recycling.open(sequence := start([1, 2, 3, 4]))
    [draft] = recycling.propose([sequence], [BUDGET])
    assert not len(draft)
    assert recycling.after(2, BUDGET).tokens.tolist() == [3, 4]
    assert not len(recycling.after(7, BUDGET))


def test_fuse_takes_of_others_only_what_begins_as_the_first_does() -> None:
    first = scored([1, 2], [ROOT, ROOT], [0.6, 0.3])
    second = scored([2, 4, 9, 5], [ROOT, 0, ROOT, 2], [0.5, 0.4, 0.4, 0.3])
    merged = Merged([Says("a", first), Says("b", second)], way="fuse")
    merged.open(sequence := start([0]))
    [draft] = merged.propose([sequence], [BUDGET])
    assert draft.tokens.tolist() == [1, 2, 4]
    assert draft.parents.tolist() == [ROOT, ROOT, 1]


def test_fuse_prunes_by_the_first_drafters_distribution_and_ranks_by_both() -> None:
    """Control: by its own scores alone, 4 would come before 3, and 3 before 2."""
    q = Distribution(np.array([0.5, 0.2, 0.25, 0.05]), np.array([1, 2, 3, 4]), 10)
    first = replace(scored([1], [ROOT], [0.5]), first=q)
    second = scored([4, 2, 3, 7, 8], [ROOT, ROOT, ROOT, 1, 2], [0.9, 0.5, 0.6, 0.4, 0.5])
    parts = [Says("a", first), Says("b", second)]

    def fused(top: int, nodes: int = 6) -> list[int]:
        merged = Merged(parts, way="fuse", top=top)
        merged.open(sequence := start([0]))
        [draft] = merged.propose([sequence], [Budget(nodes, 4)])
        return draft.tokens.tolist()

    assert fused(4) == [1, 3, 8, 2, 7, 4]
    assert fused(3) == [1, 3, 8, 2, 7]
    assert fused(1) == [1]
    assert fused(4, nodes=3) == [1, 3, 2]  # with three nodes nothing is retrieved below them


def test_fuse_leaves_room_for_what_is_retrieved() -> None:
    asked: list[Budget] = []

    class Asked(Says):
        def propose(self, sequences: Any, budgets: Any) -> list[TokenTree]:
            asked.extend(budgets)
            return super().propose(sequences, budgets)

    for found in (trees.chain([1]), trees.chain(range(8)), trees.EMPTY):
        merged = Merged([Asked("a", trees.chain([1])), Says("b", found)], way="fuse")
        merged.open(sequence := start([0]))
        merged.propose([sequence], [Budget(8, 8)])
    assert [budget.nodes for budget in asked] == [7, 4, 8]


def test_merging_keeps_the_higher_score_and_none_where_one_has_none() -> None:
    low, high = scored([1], [ROOT], [0.2]), scored([1, 2], [ROOT, 0], [0.7, 0.4])
    both = trees.merge(low, high)
    assert both.scores is not None
    np.testing.assert_allclose(both.scores, [0.7, 0.4])
    assert trees.merge(low, trees.chain([1, 2])).scores is None


class Draws(Says):
    kind: SamplingScheme | None = "iid"


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ([Says("a")], "combine 2 to"),
        ([Says("a")] * (MOST_PARTS + 1), "combine 2 to"),
        ([Says("a"), Draws("b")], "drafter 'b' draws"),
    ],
)
def test_what_cannot_be_merged_is_refused(parts: list[Drafter], says: str) -> None:
    with pytest.raises(InvalidOption, match=says):
        Merged(parts)
    with pytest.raises(InvalidOption, match="floor must be in"):
        Merged([Says("a"), Says("b")], floor=1.5)
