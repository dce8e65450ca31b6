"""SuffixDecoding against counts of all substrings: which paths are drafted, and their scores."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers.steps import step_of

from paceline.core import tree as trees
from paceline.core.target import Output
from paceline.core.types import Budget, SamplingParams, TokenTree, Verdict
from paceline.drafters.candidates import evidence_rates, length_kind, spread_kind
from paceline.errors import InvalidOption
from paceline.methods.suffix_decoding import SuffixDecoding
from paceline.sampling.generation import Generation
from paceline.trees.candidates import FLOOR

Text = tuple[int, ...]

RATES = evidence_rates(1.0, 0.6).rates
DEPTH = 32
"""Longest context."""


@dataclass
class Source:
    """Texts, and all that can be counted in them, slowly."""

    index: int
    texts: list[Text]

    def count(self, context: Text) -> int:
        n = len(context)
        return sum(t[i : i + n] == context for t in self.texts for i in range(len(t) - n + 1))

    def followed(self, context: Text) -> int:
        at_end = bool(self.texts) and self.texts[-1][-len(context) :] == context
        return self.count(context) - at_end

    def followers(self, context: Text) -> list[tuple[int, int]]:
        """Four most frequent, latest first among equals."""
        n = len(context)
        seen = [t[i + n] for t in self.texts for i in range(len(t) - n) if t[i : i + n] == context]
        latest = {token: place for place, token in enumerate(seen)}
        times = Counter(seen)
        return sorted(times.items(), key=lambda f: (-f[1], -latest[f[0]]))[:4]

    def contexts(self, text: Text, before: bool) -> list[Text]:
        """Suffixes of a text that occur (before its end, for one's own), longest first, one for
        each set of places."""
        found: list[Text] = []
        for n in range(min(DEPTH, len(text)), 0, -1):
            times = self.count(text[-n:])
            if times > before and (not found or times > self.count(found[-1])):
                found.append(text[-n:])
        return found


Level = tuple[Source, Text, list[tuple[int, int]]]


def chances(levels: list[Level], reach: float) -> dict[int, float]:
    """What may come next by contexts in the order given."""
    left, found = 1.0, {}
    for source, context, followers in levels:
        rates = RATES[source.index, length_kind(len(context))]
        for token, times in followers:
            if left * reach < FLOOR:
                return found
            if token not in found:
                chance = left * rates[spread_kind(times, source.followed(context))]
                if chance * reach >= FLOOR:
                    found[token] = float(chance)
                    left -= chance
    return found


def blended(sources: list[Source], text: Text, path: Text, reach: float) -> dict[int, float]:
    """Two lengths of context per source, longer ones first; the history as far as it goes along."""
    levels: list[Level] = []
    for source in sources:
        prefixes = [text + path[:n] for n in range(len(path))]
        if source.index == 1 and not all(source.contexts(p, before=False) for p in prefixes):
            continue
        contexts = source.contexts(text + path, before=source.index == 0 and not path)
        known = [(source, c, source.followers(c)) for c in contexts]
        levels += [level for level in known if level[2]][:2]
    levels.sort(key=lambda level: -len(level[1]))
    return chances(levels, reach)


def paths(sources: list[Source], text: Text, depth: int) -> dict[Text, float]:
    """Every path that a blend may draft, with its score."""
    scores: dict[Text, float] = {}
    todo: list[tuple[Text, float]] = [((), 1.0)]
    while todo:
        path, reach = todo.pop()
        if len(path) < depth:
            for token, chance in blended(sources, text, path, reach).items():
                scores[*path, token] = reach * chance
                todo.append(((*path, token), reach * chance))
    return scores


def one_context(source: Source, context: Text, budget: Budget, width: int) -> list[float]:
    """Scores of the best nodes that follow one context, best first."""
    scores: list[float] = []
    todo: list[tuple[Text, float]] = [((), 1.0)]
    while todo:
        path, reach = todo.pop()
        # Contexts are cut to their last tokens, as they are where they are counted.
        here = (*context, *path)[-DEPTH:]
        if len(path) < budget.depth:
            level = (source, here, source.followers(here)[:width])
            for token, chance in chances([level], reach).items():
                scores.append(reach * chance)
                todo.append(((*path, token), reach * chance))
    return sorted(scores, reverse=True)[: budget.nodes]


def start(tokens: list[int], id: int = 0) -> Generation:
    return Generation.start(id, tokens, SamplingParams())


def propose(drafter: SuffixDecoding, sequence: Generation, budget: Budget) -> TokenTree:
    [draft] = drafter.propose([sequence], [budget])
    return draft


def told(mode: str, outputs: list[list[int]]) -> tuple[SuffixDecoding, list[Text]]:
    """A drafter after some sequences ended, and the texts that its history holds."""
    drafter = SuffixDecoding(mode)  # type: ignore[arg-type]  # from the list of modes
    for id, output in enumerate(outputs):
        drafter.open(ended := start([9], id))
        ended.tokens += output
        drafter.close(ended)
    return drafter, [(9, *output) for output in outputs]


OUTPUTS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=10), max_size=3)
PROMPT = st.lists(st.integers(0, 2), min_size=1, max_size=20)


@settings(max_examples=50)
@given(OUTPUTS, PROMPT, st.integers(0, 12), st.integers(0, 3))
def test_a_blend_drafts_the_most_probable_paths(
    outputs: list[list[int]], prompt: list[int], nodes: int, depth: int
) -> None:
    drafter, texts = told("blend", outputs)
    drafter.open(sequence := start(prompt, 50))
    draft = propose(drafter, sequence, Budget(nodes, depth))
    expected = paths([Source(0, [tuple(prompt)]), Source(1, texts)], tuple(prompt), depth)
    assert draft.scores is not None
    np.testing.assert_allclose(draft.scores, sorted(expected.values(), reverse=True)[:nodes])
    for node, score in enumerate(draft.scores.tolist()):
        text = tuple(draft.tokens[list(trees.path_to(draft, node))].tolist())
        assert score == pytest.approx(expected[text])


@settings(max_examples=50)
@given(st.sampled_from(["path", "tree"]), OUTPUTS, PROMPT, st.integers(0, 9), st.integers(0, 5))
def test_the_context_with_the_highest_score_is_drafted(
    mode: str, outputs: list[list[int]], prompt: list[int], nodes: int, depth: int
) -> None:
    drafter, texts = told(mode, outputs)
    drafter.open(sequence := start(prompt, 50))
    budget = Budget(nodes, depth)
    draft = propose(drafter, sequence, budget)
    own, history = Source(0, [tuple(prompt)]), Source(1, texts)
    scores = [
        one_context(source, context, budget, 1 if mode == "path" else 4)
        for source in (own, history)
        for context in source.contexts(tuple(prompt), before=source is own)[:8]
    ]
    best = max(scores, key=sum, default=[])
    assert draft.scores is not None
    assert draft.scores.sum() == pytest.approx(sum(best))
    assert mode == "tree" or trees.is_chain(draft)


def test_frequent_continuations_come_before_rare_ones() -> None:
    drafter = SuffixDecoding()
    drafter.open(sequence := start([1, 2, 1, 3, 1, 2, 4, 1, 2, 5, 1]))
    draft = propose(drafter, sequence, Budget(3, 1))
    assert draft.tokens.tolist() == [2, 3]
    assert draft.scores is not None
    assert draft.scores[0] > 2 * draft.scores[1]


def test_both_sources_draft_into_one_tree() -> None:
    drafter, _ = told("blend", [[7, 1, 2, 3]])
    drafter.open(sequence := start([1, 2, 4, 5, 1, 2], 50))
    draft = propose(drafter, sequence, Budget(2, 1))
    assert draft.tokens.tolist() == [4, 3]  # the own text first, as lengths are equal
    drafter.open(sequence := start([2, 4, 5, 7, 1, 2], 51))
    assert propose(drafter, sequence, Budget(1, 1)).tokens.tolist() == [3]  # a longer match


def test_the_beginning_of_an_output_is_found_by_the_end_of_its_prompt() -> None:
    drafter = SuffixDecoding()
    drafter.open(first := start([4, 8, 8, 5, 6]))
    first.tokens += [1, 2, 3]
    drafter.close(first)
    drafter.open(second := start([7, 7, 5, 6], 1))
    assert propose(drafter, second, Budget(3, 3)).tokens.tolist() == [1, 2, 3]


def test_ended_sequences_are_taken_in_a_little_per_step() -> None:
    """A long output must not hold up those that go on."""
    drafter = SuffixDecoding()
    drafter.open(running := start([1], 0))
    drafter.open(ended := start([2], 1))
    ended.tokens += list(range(100, 140))
    drafter.close(ended)
    sizes = []
    for token in range(3, 12):
        draft = propose(drafter, running, Budget(4, 4))
        running.tokens.append(token)
        drafter.observe(
            step_of([running], [draft], [Verdict((), token)], [Output(np.zeros((1, 4), "f4"))])
        )
        sizes.append(len(drafter.history.texts.log) - 1)
    assert sizes == [0, 8, 16, 24, 32, 40, 41, 41, 41]


def test_a_new_sequence_waits_for_nothing() -> None:
    drafter, _ = told("blend", [list(range(100, 140))])
    drafter.open(sequence := start([137, 138], 50))
    assert propose(drafter, sequence, Budget(1, 1)).tokens.tolist() == [139]


def test_what_was_learned_can_be_saved_and_restored(tmp_path: Path) -> None:
    drafter, _ = told("blend", [[1, 2, 3, 4]])
    drafter.history.save(tmp_path / "history.npz", 50)
    other = SuffixDecoding()
    assert other.history.restore(tmp_path / "history.npz", 50) is None
    other.open(sequence := start([1, 2]))
    assert propose(other, sequence, Budget(2, 2)).tokens.tolist() == [3, 4]


def test_running_sequences_survive_a_change_of_history(tmp_path: Path) -> None:
    drafter, _ = told("blend", [[1, 2, 3, 4]])
    drafter.open(sequence := start([1, 2], 50))
    drafter.history.save(tmp_path / "history.npz", 50)
    drafter.history.clear()
    assert len(propose(drafter, sequence, Budget(2, 2))) == 0
    drafter.history.restore(tmp_path / "history.npz", 50)
    assert propose(drafter, sequence, Budget(2, 2)).tokens.tolist() == [3, 4]


def test_an_unknown_mode_is_named() -> None:
    with pytest.raises(InvalidOption, match="'forest' is unknown: use path, tree or blend"):
        SuffixDecoding("forest")  # type: ignore[arg-type]  # on purpose
