"""What all drafters share that learn statistics: budgets, scores, batches, memory, exactness."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers.decoding_loop import decode_all
from tests.helpers.steps import step_of

from paceline.core import tree as trees
from paceline.core.target import Output
from paceline.core.types import ROOT, Budget, SamplingParams, TokenTree, Verdict
from paceline.drafters.base import Drafter, NoDrafter
from paceline.engine.loop import AutoregressiveDecoder
from paceline.engine.stopping import StopRules
from paceline.methods.cacheback import Cacheback
from paceline.methods.lookahead import Lookahead
from paceline.methods.statistics.aded import Aded
from paceline.methods.statistics.stand import Stand
from paceline.policy.controller import Fixed
from paceline.proof.tabular import TabularModel, TabularTarget
from paceline.sampling.generation import Generation
from paceline.verifiers.matching import Coupled

VOCABULARY = 12

MAKE: dict[str, Callable[[], Drafter]] = {
    "aded": Aded,
    "cacheback": Cacheback,
    "lookahead": Lookahead,
    "lookahead-jacobi": lambda: Lookahead(length=2, columns=3),
    "lookahead-long": lambda: Lookahead(length=5, columns=2),
    "stand": lambda: Stand(VOCABULARY),
}
RANKED = {"aded", "cacheback", "stand"}
"""Those whose nodes stand in the order of their scores."""


def start(tokens: list[int], id: int = 0) -> Generation:
    return Generation.start(id, tokens, SamplingParams())


def commit(
    drafter: Drafter, sequence: Generation, draft: TokenTree, new: list[int], seed: int = 0
) -> None:
    """What the decoder does after a step; random laws, but for what is most likely at the root."""
    sequence.tokens += new
    generator = np.random.default_rng(seed)
    logits = (3 * generator.normal(size=(1 + len(draft), VOCABULARY))).astype(np.float32)
    logits[0, new[0]] = 20.0
    drafter.observe(step_of([sequence], [draft], [Verdict((), new[-1])], [Output(logits)]))


def propose(drafter: Drafter, sequence: Generation, budget: Budget) -> TokenTree:
    [draft] = drafter.propose([sequence], [budget])
    return draft


PROMPTS = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=25), min_size=1, max_size=2)
RUNS = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4), max_size=5)


@pytest.mark.parametrize("name", MAKE)
@settings(max_examples=15)
@given(PROMPTS, RUNS, st.data())
def test_drafts_are_sound_trees_within_their_budget(
    name: str, prompts: list[list[int]], runs: list[list[int]], data: st.DataObject
) -> None:
    drafter = MAKE[name]()
    for id, prompt in enumerate(prompts):
        drafter.open(sequence := start(prompt, id))
        for seed, run in enumerate(runs):
            budget = Budget(data.draw(st.integers(0, 16)), data.draw(st.integers(0, 9)))
            draft = propose(drafter, sequence, budget)
            trees.validate(draft)
            assert len(draft) <= budget.nodes
            assert trees.depths(draft).max(initial=0) <= budget.depth
            assert draft.sampling is None
            assert draft.source == drafter.name
            assert draft.scores is not None
            assert draft.scores.shape == draft.tokens.shape
            assert np.all((draft.scores > 0) & (draft.scores <= 1))
            inner = draft.parents != ROOT
            assert np.all(draft.scores[inner] <= draft.scores[draft.parents[inner]])
            siblings = list(zip(draft.parents.tolist(), draft.tokens.tolist(), strict=True))
            assert len(set(siblings)) == len(draft)
            if name in RANKED:
                assert np.all(np.diff(draft.scores) <= 0)
                for below in trees.children(draft).values():
                    assert draft.scores[below].sum() <= 1 + 1e-9
            pruned = trees.limit(draft, data.draw(st.integers(0, 16)), 9)  # as a controller may
            commit(drafter, sequence, pruned, run, seed)
        drafter.close(sequence)
        drafter.close(sequence)  # closing twice is harmless
    assert not drafter._guesses  # type: ignore[attr-defined]  # no state of closed sequences


@pytest.mark.parametrize("name", sorted(RANKED))
def test_a_smaller_budget_gives_the_head_of_a_larger_draft(name: str) -> None:
    drafter = MAKE[name]()
    sequence = start([0, 1, 2, 0, 1, 1, 2, 0, 0, 1, 2, 1, 0, 1])
    drafter.open(sequence)
    commit(drafter, sequence, propose(drafter, sequence, Budget(1, 1)), [2, 0, 1])
    whole = propose(drafter, sequence, Budget(14, 6))
    assert len(whole) >= 6
    for size in range(len(whole) + 1):
        draft = propose(drafter, sequence, Budget(size, 6))
        np.testing.assert_array_equal(draft.tokens, whole.tokens[:size])
        np.testing.assert_array_equal(draft.parents, whole.parents[:size])


@pytest.mark.parametrize("name", MAKE)
def test_a_batch_is_drafted_like_its_sequences_alone(name: str) -> None:
    """Before anything is shared through what was learned, and whatever the order."""
    prompts = [[0, 1, 2, 0, 1, 2, 0], [5, 4, 5, 4, 4, 5], [6, 7, 6, 8, 6, 7, 6, 8]]
    budgets = [Budget(9, 4), Budget(2, 2), Budget(5, 5)]
    together = [start(p, i) for i, p in enumerate(prompts)]
    batch = MAKE[name]()
    for sequence in together:
        batch.open(sequence)
    order = [2, 0, 1]
    drafts = batch.propose([together[i] for i in order], [budgets[i] for i in order])
    for i, draft in zip(order, drafts, strict=True):
        alone = MAKE[name]()
        alone.open(fresh := start(prompts[i]))
        expected = propose(alone, fresh, budgets[i])
        np.testing.assert_array_equal(draft.tokens, expected.tokens)
        np.testing.assert_array_equal(draft.parents, expected.parents)
        assert len(draft)


@pytest.mark.parametrize("name", MAKE)
def test_what_was_learned_outlives_sequences_until_reset(name: str) -> None:
    drafter = MAKE[name]()

    def drafted() -> TokenTree:
        drafter.open(sequence := start([7, 8], id=9))
        draft = propose(drafter, sequence, Budget(6, 6))
        drafter.close(sequence)
        return draft

    before = drafted()
    drafter.open(sequence := start([5]))
    for token in (7, 8, 9, 10, 11, 5):
        commit(drafter, sequence, propose(drafter, sequence, Budget(1, 1)), [token])
    drafter.close(sequence)
    learned = drafted()
    assert 9 in learned.tokens
    assert 9 not in before.tokens
    drafter.reset()
    np.testing.assert_array_equal(drafted().tokens, before.tokens)


def believed(drafter: Drafter, hits: list[bool]) -> float:
    """Score of a first guess after rounds in which the same guess came true, or did not."""
    for i, hit in enumerate([*hits, True]):
        new = 7 * i  # tokens never seen before
        drafter.open(sequence := start([new + t for t in (1, 2, 3, 4, 5, 6, 1, 2)]))
        draft = propose(drafter, sequence, Budget(1, 1))
        assert draft.tokens.tolist() == [new + 3]
        assert draft.scores is not None
        sequence.tokens.append(new + 3 if hit else new)
        drafter._settle(sequence)  # type: ignore[attr-defined]  # learn of the hit and no more
        drafter.close(sequence)
    return float(draft.scores[0])


@pytest.mark.parametrize("name", MAKE)
def test_hit_rates_are_learned_and_reset(name: str) -> None:
    drafter = MAKE[name]()
    fresh = believed(drafter, [])
    drafter.reset()
    assert believed(drafter, [True] * 30) > fresh
    drafter.reset()
    assert believed(drafter, [False] * 30) < fresh
    drafter.reset()
    assert believed(drafter, []) == fresh


MODEL = TabularModel(VOCABULARY, 1, seed=5, sharpness=2.0)


def decode(
    drafter: Drafter, params: list[SamplingParams], nodes: int
) -> tuple[list[list[int]], int]:
    """Outputs of a ragged batch, and how many of their tokens were drafted."""
    target = TabularTarget(MODEL.logits, VOCABULARY)
    decoder = AutoregressiveDecoder(target, drafter, Coupled(), Fixed(nodes, 6), StopRules((), 500))
    sequences = decode_all(decoder, (Generation.start(i, [i, 3], p) for i, p in enumerate(params)))
    return [s.generated for s in sequences], sum(s.stats.accepted_tokens for s in sequences)


@pytest.mark.parametrize("name", MAKE)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_loop_commits_the_tokens_of_plain_decoding(name: str, temperature: float) -> None:
    params = [
        SamplingParams(temperature, seed=s, max_new_tokens=40 + s, presence_penalty=0.1)
        for s in range(3)
    ]
    expected, none = decode(NoDrafter(), params, 1)
    assert none == 0
    drafter = MAKE[name]()
    for nodes in (1, 5, 16):  # each with what was learned before
        tokens, drafted = decode(drafter, params, nodes)
        assert tokens == expected
        assert drafted > 5
