"""Constraints are exact for every verifier and way of drafting; plausible mistakes are caught."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
from tests.helpers.words import Words, WordState

from paceline.core import tree as trees
from paceline.core.types import (
    BoolArray,
    Budget,
    DraftSampling,
    SamplingParams,
    TokenTree,
    Verdict,
)
from paceline.errors import InvalidOption
from paceline.proof.cases import DRAFT_LAWS, PROMPT, Case, Draftable, FunctionDrafter, Grid, Propose
from paceline.proof.compare import (
    EXACT,
    Finding,
    drafter_loop,
    examine,
    max_error,
    target_joint,
)
from paceline.proof.inside import GRID
from paceline.proof.oracle import enumerate_distribution
from paceline.proof.tabular import DistributionOf, TabularModel, processed
from paceline.registry import table as registry
from paceline.sampling.randomness import Randomness
from paceline.verifiers.base import TargetDistributions, Verifier
from paceline.verifiers.matching import Greedy, SampleMatch
from paceline.verifiers.rejection import Rejection

# Tokens 0 and 1, and 2 that ends. After (0, 1) only 0 may come; after (1, 1) only the end.
WORDS = Words([(0,), (0, 1, 0), (1, 1), (1, 0, 1)], 3)
LOSSLESS = [
    name
    for name in registry.names("verifier")
    if registry.find("verifier", name).guarantee.startswith("lossless")
]
VISIBLE = 1e-3


def rule(name: str) -> Verifier:
    verifier: Verifier = registry.find("verifier", name).load()()
    return verifier


def unmasked(drafts: Draftable) -> Draftable:
    """The same drafts from rows that know nothing of the constraint."""

    def build(masked: DistributionOf, vocabulary: int, width: int) -> Propose:
        model = TabularModel(vocabulary, 4, 77, 1.5)
        assert drafts.build is not None
        return drafts.build(model.distribution, vocabulary, width)

    return replace(drafts, build=build)


@pytest.mark.parametrize("temperature", [1.0, 0.0])
@pytest.mark.parametrize("name", LOSSLESS)
def test_every_verifier_and_way_of_drafting_is_exact(name: str, temperature: float) -> None:
    verifier = rule(name)
    if verifier.greedy_only and temperature:
        pytest.skip("holds at temperature 0 alone")
    found = 0
    for drafts in DRAFT_LAWS:
        if drafts.build is None or not drafts.fits(verifier):
            continue
        for each in (drafts, unmasked(drafts)):
            for loop in (False, True):
                case = Case(3, 2, 1 if drafts.shape == "chain" else 2, temperature, 1.0, loop)
                grid: Grid = replace(GRID, max_runs=4000, noise_samplings=((1.0, 1.0),), seeds=120)
                exact = verifier.gumbel_coupled
                finding = examine(verifier, each, case, grid, exact, constraint=WORDS)
                if isinstance(finding, Finding):
                    assert finding.exact, f"{drafts.name}, {case}: {finding}"
                    found += 1
    assert found >= 2


P = TabularModel(3, 4, 5, 1.0)
SAMPLED = SamplingParams(temperature=1.0, max_new_tokens=3)


def error(verifier: Verifier, propose: Propose, constraint: Words, truth: Words = WORDS) -> float:
    """Largest error of the loop's distribution under a constraint, against the true one."""
    run = drafter_loop(
        P.logits,
        3,
        verifier,
        lambda: FunctionDrafter(propose),
        PROMPT,
        SAMPLED,
        Budget(2, 2),
        constraint=constraint,
    )
    exact = target_joint(processed(P.logits, SAMPLED, PROMPT, truth), PROMPT, 3)
    return max_error(enumerate_distribution(run), exact)


def nothing(context: tuple[int, ...], randomness: Randomness, budget: Budget) -> TokenTree:
    return trees.EMPTY


def fixed(context: tuple[int, ...], randomness: Randomness, budget: Budget) -> TokenTree:
    return trees.limit(trees.chain([0, 1]), budget.nodes, budget.depth)


def drawn(context: tuple[int, ...], randomness: Randomness, budget: Budget) -> TokenTree:
    [law] = [each for each in DRAFT_LAWS if each.name == "iid chain"]
    assert law.build is not None
    return law.build(TabularModel(3, 4, 6, 1.0).distribution, 3, 1)(context, randomness, budget)


def cut(context: tuple[int, ...], randomness: Randomness, budget: Budget) -> TokenTree:
    """Drawn drafts without what the constraint forbids: a rejection that is not made."""
    draft = drawn(context, randomness, budget)
    state = WORDS.start()
    state.commit(context[len(PROMPT) :])
    kept = state.valid(draft.tokens.tolist())
    if not kept or draft.sampling is None:
        return trees.EMPTY
    rows = {parent: row for parent, row in draft.sampling.rows.items() if parent < kept - 1}
    return trees.chain(draft.tokens[:kept], "cut", DraftSampling("iid", rows))


def test_drawn_drafts_must_not_be_cut() -> None:
    assert error(Rejection(), drawn, WORDS) < EXACT
    assert error(Rejection(), cut, WORDS) > VISIBLE


class _Pathless(WordState):
    def mask(self, path: Sequence[int] = ()) -> BoolArray:
        return super().mask()


class PathlessWords(Words):
    """The mask of the root at every node."""

    def start(self) -> WordState:
        return _Pathless(self)


def test_the_mask_is_that_of_the_path() -> None:
    assert error(SampleMatch(), fixed, WORDS) < EXACT
    with pytest.raises(InvalidOption, match="begins no word"):
        error(SampleMatch(), fixed, PathlessWords(WORDS.words, 3))
    # Where it gives words all the same, it gives them too often.
    words = [(0, 0, 0), (0, 1, 0), (0, 0, 1), (0, 1, 1)]
    assert error(SampleMatch(), fixed, Words(words, 3), Words(words, 3)) < EXACT
    assert error(SampleMatch(), fixed, PathlessWords(words, 3), Words(words, 3)) > VISIBLE


class Inserts(SampleMatch):
    """Takes a forced run without asking the target."""

    name: ClassVar[str] = "inserts"

    def verify(
        self, draft: TokenTree, target: TargetDistributions, randomness: Randomness
    ) -> Verdict:
        if not len(draft) or draft.origin(0) != "grammar":
            return super().verify(draft, target, randomness)
        last = len(draft) - 1
        return Verdict(tuple(range(len(draft))), target.distribution(last).argmax())


def test_forced_runs_are_drafts_and_not_text() -> None:
    """Where a text may be spelled in two ways, the target decides which."""
    words = Words([(0, 1), (1,)], 3, forced={(): (0, 1)})
    assert error(SampleMatch(), nothing, words, words) < EXACT
    assert error(Inserts(), nothing, words, words) > VISIBLE


def test_greedy_texts_are_the_same_with_any_draft() -> None:
    texts = set()
    for propose in (nothing, fixed):
        run = drafter_loop(
            P.logits,
            3,
            Greedy(),
            lambda p=propose: FunctionDrafter(p),
            PROMPT,
            SamplingParams(max_new_tokens=3),
            Budget(2, 2),
            constraint=WORDS,
        )
        texts |= set(enumerate_distribution(run))
    assert len(texts) == 1


@pytest.mark.parametrize("propose", [nothing, fixed, drawn])
def test_texts_end_early_only_where_the_constraint_lets_nothing_follow(propose: Propose) -> None:
    """With `min_tokens` 3 the word (0,) is not said, and (1, 1) is."""
    end, least = 2, 3
    params = replace(SAMPLED, stop_token_ids=(end,), min_tokens=least, max_new_tokens=4)
    law: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(4):  # written down anew, without the sampler
        longer: dict[tuple[int, ...], float] = {}
        for text, mass in law.items():
            if end in text:
                longer[text] = longer.get(text, 0) + mass
                continue
            may = WORDS.follows(text)
            may = may - {end} or may if len(text) < least else may
            row = np.exp(P.logits((*PROMPT, *text)).astype(np.float64))
            for token in may:
                longer[*text, token] = mass * row[token] / row[list(may)].sum()
        law = longer
    verifier = SampleMatch() if propose is not drawn else Rejection()
    run = drafter_loop(
        P.logits,
        3,
        verifier,
        lambda: FunctionDrafter(propose),
        PROMPT,
        params,
        Budget(2, 2),
        constraint=WORDS,
    )
    found = enumerate_distribution(run)
    assert set(law) == {(0, 1, 0, end), (1, 1, end), (1, 0, 1, end)}
    assert max_error(found, law) < EXACT
