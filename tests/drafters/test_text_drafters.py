"""What all drafters share that search texts: budgets, scores, batches, memory, exactness."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers.steps import step_of

from paceline.core import tree as trees
from paceline.core.target import Output
from paceline.core.types import ROOT, Budget, SamplingParams, TokenTree, Verdict
from paceline.drafters.base import Drafter, NoDrafter
from paceline.drafters.suffix.history import HistoryDrafter, SuffixAutomaton
from paceline.engine.loop import AutoregressiveDecoder
from paceline.engine.stopping import StopRules
from paceline.methods.datastore.drafter import Datastore, SuffixArray, build
from paceline.methods.input_guided import InputGuided
from paceline.methods.suffix_decoding import SuffixDecoding
from paceline.policy.controller import Fixed
from paceline.proof.tabular import TabularModel, TabularTarget
from paceline.sampling.generation import Generation
from paceline.verifiers.matching import Coupled

VOCABULARY = 12
CORPUS = np.random.default_rng(2).integers(0, 3, 60).tolist()

Make = Callable[[Path], Drafter]


def datastore(folder: Path, tokens: list[int] = CORPUS) -> Datastore:
    if not (folder / "index").exists():
        build(np.array(tokens, np.int32), folder / "index", VOCABULARY, "words")
    return Datastore(SuffixArray(folder / "index"))


MAKE: dict[str, Make] = {
    "automaton": lambda _: SuffixAutomaton(),
    "automaton-corpus": lambda _: SuffixAutomaton(corpus=[CORPUS]),
    "path": lambda _: SuffixDecoding("path"),
    "tree": lambda _: SuffixDecoding("tree"),
    "blend": lambda _: SuffixDecoding("blend"),
    "datastore": datastore,
    "input-guided": lambda _: InputGuided(),
}
CHAINS = {"automaton", "automaton-corpus", "path", "input-guided"}
REMEMBER = {"automaton", "automaton-corpus", "path", "tree", "blend"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store")


def start(tokens: list[int], id: int = 0) -> Generation:
    return Generation.start(id, tokens, SamplingParams())


def commit(drafter: Drafter, sequence: Generation, draft: TokenTree, new: list[int]) -> None:
    """What the decoder does after a step; these drafters look at committed tokens alone."""
    sequence.tokens += new
    output = Output(np.zeros((1 + len(draft), VOCABULARY), np.float32))
    drafter.observe(step_of([sequence], [draft], [Verdict((), new[-1])], [output]))


RUNS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4), max_size=6)


@pytest.mark.parametrize("name", MAKE)
@settings(max_examples=25)
@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=25), max_size=3), RUNS, st.data())
def test_drafts_are_sound_trees_within_their_budget(
    name: str, folder: Path, prompts: list[list[int]], runs: list[list[int]], data: st.DataObject
) -> None:
    drafter = MAKE[name](folder)
    for id, prompt in enumerate(prompts):
        drafter.open(sequence := start(prompt, id))
        for run in runs:
            budget = Budget(data.draw(st.integers(0, 14)), data.draw(st.integers(0, 9)))
            [draft] = drafter.propose([sequence], [budget])
            trees.validate(draft)
            assert len(draft) <= budget.nodes
            assert trees.depths(draft).max(initial=0) <= budget.depth
            assert draft.sampling is None
            assert draft.source == drafter.name
            assert draft.scores is not None
            assert draft.scores.shape == draft.tokens.shape
            assert np.all((draft.scores > 0) & (draft.scores <= 1))
            assert np.all(np.diff(draft.scores) <= 0)  # so any head of the draft is a tree
            inner = draft.parents != ROOT
            assert np.all(draft.scores[inner] <= draft.scores[draft.parents[inner]])
            siblings = list(zip(draft.parents.tolist(), draft.tokens.tolist(), strict=True))
            assert len(set(siblings)) == len(draft)
            for below in trees.children(draft).values():
                assert draft.scores[below].sum() <= 1 + 1e-9
            assert name not in CHAINS or trees.is_chain(draft)
            commit(drafter, sequence, draft, run)
        drafter.close(sequence)
    drafter.close(start([1], 99))  # never opened: harmless


@pytest.mark.parametrize("name", MAKE)
def test_a_smaller_budget_gives_the_head_of_a_larger_draft(name: str, folder: Path) -> None:
    drafter = MAKE[name](folder)
    sequence = start([0, 1, 2, 0, 1, 1, 2, 0, 0, 1, 2, 1, 0, 1])
    drafter.open(sequence)
    commit(drafter, sequence, drafter.propose([sequence], [Budget(0, 0)])[0], [2, 0, 1])
    whole = drafter.propose([sequence], [Budget(12, 6)])[0]
    assert len(whole) >= 3
    for size in range(len(whole) + 1):
        [draft] = drafter.propose([sequence], [Budget(size, 6)])
        np.testing.assert_array_equal(draft.tokens, whole.tokens[:size])
        np.testing.assert_array_equal(draft.parents, whole.parents[:size])


@pytest.mark.parametrize("name", MAKE)
def test_sequences_do_not_mix(name: str, folder: Path) -> None:
    prompts = [[0, 1, 2, 0, 1, 2, 0], [1, 1, 0, 1, 1, 0, 1, 1], [2, 0, 2, 1, 2, 0, 2, 1]]
    runs = [[1, 2], [0, 1], [2, 0]]
    budgets = [Budget(8, 4)] * 3
    batch = MAKE[name](folder)
    together = [start(p, i) for i, p in enumerate(prompts)]
    for sequence in together:
        batch.open(sequence)
    drafts = batch.propose(together, budgets)
    for sequence, run in zip(together, runs, strict=True):
        sequence.tokens += run
    nothing = Output(np.zeros((1, 3), np.float32))
    batch.observe(step_of(together, drafts, [Verdict((), 0)] * 3, [nothing] * 3))
    # Leave one, change the order: what is proposed follows the sequence, not its place.
    batch.close(together[1])
    remaining = [together[2], together[0]]
    later = batch.propose(remaining, budgets[:2])
    for sequence, draft in zip(remaining, later, strict=True):
        alone = MAKE[name](folder)
        alone.open(fresh := start(prompts[sequence.id]))
        [first] = alone.propose([fresh], budgets[:1])
        np.testing.assert_array_equal(first.tokens, drafts[sequence.id].tokens)
        commit(alone, fresh, first, runs[sequence.id])
        [second] = alone.propose([fresh], budgets[:1])
        assert set(draft.tokens.tolist()) >= set(second.tokens[:1].tolist())


def draft_of(drafter: Drafter, tokens: list[int]) -> tuple[list[int], list[float]]:
    drafter.open(sequence := start(tokens, id=50))
    [draft] = drafter.propose([sequence], [Budget(6, 6)])
    drafter.close(sequence)
    assert draft.scores is not None
    return draft.tokens.tolist(), draft.scores.tolist()


def speak(drafter: Drafter, prompt: list[int], output: list[int], id: int = 0) -> None:
    """A sequence that is opened, committed token by token, and closed."""
    drafter.open(sequence := start(prompt, id))
    for token in output:
        commit(drafter, sequence, drafter.propose([sequence], [Budget(6, 6)])[0], [token])
    drafter.close(sequence)


@pytest.mark.parametrize("name", MAKE)
def test_what_ended_sequences_said_is_remembered_until_reset(name: str, folder: Path) -> None:
    drafter = MAKE[name](folder)
    before = draft_of(drafter, [7, 8])
    assert before == ([], [])
    drafter.reset()
    speak(drafter, [5], [7, 8, 9, 10, 11])
    tokens, _ = draft_of(drafter, [6, 7, 8])
    assert (tokens == [9, 10, 11]) == (name in REMEMBER)
    drafter.reset()
    assert draft_of(drafter, [7, 8]) == ([], [])


def believed(drafter: Drafter, hits: list[bool]) -> float:
    """Score of a first guess after rounds in which the same guess came true, or did not."""
    prompt = [*CORPUS[:10], *CORPUS[:9]]
    if drafter.name == "input-guided":
        prompt = [3, CORPUS[9], 4, 5, 6]  # a unique anchor
    for id, hit in enumerate([*hits, True]):
        drafter.open(sequence := start(prompt, id))
        # The output must have begun for drafters that follow it alone.
        commit(drafter, sequence, drafter.propose([sequence], [Budget(6, 6)])[0], [CORPUS[9]])
        [draft] = drafter.propose([sequence], [Budget(6, 6)])
        assert draft.scores is not None
        commit(drafter, sequence, draft, draft.tokens[:1].tolist() if hit else [11])
        drafter.close(sequence)
        if isinstance(drafter, HistoryDrafter):
            drafter.history.clear()  # what is remembered aside
    return float(draft.scores[0])


@pytest.mark.parametrize("name", MAKE)
def test_hit_rates_are_learned_and_reset(name: str, folder: Path) -> None:
    drafter = MAKE[name](folder)
    fresh = believed(drafter, [])
    drafter.reset()
    assert believed(drafter, [True] * 30) > fresh
    drafter.reset()
    assert believed(drafter, [False] * 30) < fresh
    drafter.reset()
    assert believed(drafter, []) == fresh


MODEL = TabularModel(VOCABULARY, 1, seed=5, sharpness=2.0)


def decode(
    drafter: Drafter, prompts: list[list[int]], params: list[SamplingParams], nodes: int
) -> tuple[list[list[int]], int]:
    """Outputs of a ragged batch, and how many of their tokens were drafted."""
    target = TabularTarget(MODEL.logits, VOCABULARY)
    decoder = AutoregressiveDecoder(target, drafter, Coupled(), Fixed(nodes, 6), StopRules((), 500))
    running = sequences = [
        Generation.start(i, p, s) for i, (p, s) in enumerate(zip(prompts, params, strict=True))
    ]
    for sequence in sequences:
        decoder.open(sequence)
    forwards = 0
    while running:
        forwards += len(running)
        for step in decoder.step(running):
            if step.finish_reason:
                decoder.close(step.sequence)
        running = [s for s in running if s.finish_reason is None]
    assert forwards <= sum(len(s.generated) for s in sequences)  # never an extra pass
    return [s.generated for s in sequences], sum(s.stats.accepted_tokens for s in sequences)


@pytest.mark.parametrize("name", MAKE)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_loop_commits_the_tokens_of_plain_decoding(
    name: str, temperature: float, tmp_path: Path
) -> None:
    params = [SamplingParams(temperature, seed=s, max_new_tokens=40 + s) for s in range(3)]
    greedy = [SamplingParams(max_new_tokens=30)] * 3
    texts, _ = decode(NoDrafter(), [[i, 3] for i in range(3)], greedy, 1)
    # Something to copy: the text to where its loop closes.
    prompts = [[i, 3, *dict.fromkeys(text), i, 3] for i, text in enumerate(texts)]
    expected, none = decode(NoDrafter(), prompts, params, 1)
    assert none == 0
    if name == "datastore":
        drafter: Drafter = datastore(tmp_path, [token for text in prompts for token in text])
    else:
        drafter = MAKE[name](tmp_path)
    for nodes in (1, 5, 5):  # the last one with what was remembered
        tokens, drafted = decode(drafter, prompts, params, nodes)
        assert tokens == expected
        assert drafted > (0 if name == "input-guided" else 10)
