"""Decisions of every controller are predictable: enumerated over several rounds, with its memory.

The whole decode loop runs over all outcomes of its draws, a fresh controller each time, which
carries what it learned from round to round. Time is a stand-in that depends on what was drafted and
accepted, so that controllers that watch the clock decide by history too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from paceline.core import tree as trees
from paceline.core.types import (
    ROOT,
    Budget,
    DraftSampling,
    ProbArray,
    SamplingParams,
    Speculation,
    TokenTree,
)
from paceline.drafters.base import Drafter, NoDrafter
from paceline.drafters.combine.bandit import Choose
from paceline.engine.loop import AutoregressiveDecoder
from paceline.engine.stopping import StopRules
from paceline.methods.adaptive import Adaptive
from paceline.methods.bandit import Bandit
from paceline.methods.confidence import Confidence
from paceline.policy.controller import Controller, Fixed
from paceline.policy.cost import CostModel
from paceline.policy.cost_model import CostModelController
from paceline.proof.cases import FunctionDrafter, Propose, grown, likely_chain, sampled_chain
from paceline.proof.compare import max_error, target_joint
from paceline.proof.oracle import Joint, ScriptedRandomness, enumerate_distribution
from paceline.proof.tabular import DistributionOf, TabularModel, TabularTarget, processed
from paceline.sampling.generation import Generation, VerifiedDraft
from paceline.sampling.gumbel import GumbelNoise
from paceline.sampling.randomness import Draw, KeyedRandomness, Purpose, Randomness
from paceline.trees.deterministic import SharedNoise
from paceline.trees.drawn import Branching
from paceline.verifiers.base import Verifier
from paceline.verifiers.block import Block
from paceline.verifiers.matching import Coupled, SampleMatch
from paceline.verifiers.recursive import RecursiveDistinct
from paceline.verifiers.rejection import Rejection

EXACT = 1e-12
PROMPT = (0,)
PARAMS = SamplingParams(temperature=1.0, top_p=0.95, max_new_tokens=4)
Seen = dict[int, set[tuple[int, ...]]]
"""By round, what was decided in any of the runs."""


def model(vocabulary: int) -> TabularModel:
    return TabularModel(vocabulary, 3, seed=7, sharpness=1.0)


@cache
def law_of_drafts(vocabulary: int) -> DistributionOf:
    return processed(TabularModel(vocabulary, 3, 8, 1.0).logits, PARAMS, PROMPT)


class Timed(Controller):
    """Another controller under a clock of its own, noting what it decides."""

    name = "timed"

    def __init__(self, inner: Controller, seen: Seen) -> None:
        self._inner = inner
        self._seen = seen
        self._round = 0

    def budgets(self, sequences: Sequence[Generation]) -> list[Budget]:
        budgets = self._inner.budgets(sequences)
        self._round += 1
        self._seen.setdefault(self._round, set()).add((budgets[0].nodes, budgets[0].depth))
        return budgets

    def select(
        self, sequences: Sequence[Generation], drafts: Sequence[TokenTree]
    ) -> list[TokenTree]:
        return self._inner.select(sequences, drafts)

    def observe(
        self, step: Sequence[VerifiedDraft], draft_seconds: float, forward_seconds: float
    ) -> None:
        rows = sum(1 + len(each.draft) for each in step)
        accepted = sum(len(each.verdict.path) for each in step)
        parity = sum(each.sequence.tokens[-1] for each in step) % 2
        self._inner.observe(step, 0.02 * rows, 1 + 0.3 * rows - 0.1 * accepted + parity)

    def close(self, sequence: Generation) -> None:
        self._inner.close(sequence)


def by_history(seen: Seen) -> bool:
    """Whether the same round was decided in different ways."""
    return any(len(decisions) > 1 for decisions in seen.values())


def costs() -> CostModel:
    return CostModel((1, 2, 3, 4), [1.0, 1.05, 1.27, 2.5])


CONTROLLERS: dict[str, Callable[[], Controller]] = {
    "fixed": lambda: Fixed(3, 2),
    "confidence": lambda: Confidence(0.4, nodes=3, depth=2),
    "adaptive": lambda: Adaptive(least=1, nodes=3, depth=3),
    "adaptive-quick": lambda: Adaptive(memory=0.0, rise=1, least=1, nodes=4, depth=3),
    "bandit": lambda: Bandit(keep=1, nodes=2, depth=2),
    "bandit-wide": lambda: Bandit(keep=1, seed=2, nodes=3, depth=2),
    "cost-model": lambda: CostModelController(costs(), nodes=3, depth=2),
}


def chain(vocabulary: int) -> Propose:
    return sampled_chain(law_of_drafts(vocabulary))


def bush(vocabulary: int) -> Propose:
    return grown(Branching([2, 1]), law_of_drafts(vocabulary))


def likely(vocabulary: int) -> Propose:
    """A deterministic tree whose scores are the draft distribution's chances."""
    distribution = law_of_drafts(vocabulary)

    def propose(context: tuple[int, ...], randomness: Randomness, budget: Budget) -> TokenTree:
        tokens: list[int] = []
        parents: list[int] = []
        scores: list[float] = []
        places = [(ROOT, context, 1.0)]
        for _ in range(budget.depth):
            below = []
            for parent, before, reach in places:
                p = distribution(before)
                for index, chance in enumerate(p.probs.tolist()):
                    below.append((len(tokens), (*before, p.token(index)), reach * chance))
                    tokens.append(p.token(index))
                    parents.append(parent)
                    scores.append(reach * chance)
            places = below
        draft = TokenTree(
            np.array(tokens, np.int64), np.array(parents, np.int64), scores=np.array(scores)
        )
        return trees.limit(draft, budget.nodes, budget.depth)

    return propose


RULES: dict[str, tuple[Verifier, Callable[[int], Propose]]] = {
    "rejection": (Rejection(), chain),
    "block": (Block(), chain),
    "recursive-distinct": (RecursiveDistinct(), bush),
    "sample-match": (SampleMatch(), likely),
}


class Apart:
    """The draws of one sequence of a batch, under names of its own."""

    def __init__(self, randomness: Randomness, sequence: int) -> None:
        self._randomness = randomness
        self._offset = 1000 * sequence

    def choice(self, weights: ProbArray, draw: Draw) -> int:
        return self._randomness.choice(weights, self._named(draw))

    def bernoulli(self, probability: float, draw: Draw) -> bool:
        return self._randomness.bernoulli(probability, self._named(draw))

    def uniform(self, size: int, draw: Draw) -> ProbArray:
        return self._randomness.uniform(size, self._named(draw))

    def noise(self, draw: Draw) -> GumbelNoise:
        return self._randomness.noise(self._named(draw))

    def _named(self, draw: Draw) -> Draw:
        return draw._replace(sibling=draw.sibling + self._offset)


def loop(
    vocabulary: int,
    verifier: Verifier,
    make_drafter: Callable[[], Drafter],
    make_controller: Callable[[], Controller],
    params: SamplingParams = PARAMS,
    speculations: Sequence[Speculation] = (Speculation(),),
) -> Callable[[Randomness], tuple[int, ...]]:
    """The decode loop on a batch, one sequence per entry of `speculations`; outputs in a row."""

    def run(randomness: Randomness) -> tuple[int, ...]:
        target = TabularTarget(model(vocabulary).logits, vocabulary)
        decoder = AutoregressiveDecoder(
            target, make_drafter(), verifier, make_controller(), StopRules((), 4096)
        )
        sequences = [
            Generation.start(id, PROMPT, params, speculation=each)
            for id, each in enumerate(speculations)
        ]
        for sequence in sequences:
            sequence.randomness = Apart(randomness, sequence.id)
            decoder.open(sequence)
        running = sequences
        while running:
            for commit in decoder.step(running):
                if commit.finish_reason is not None:
                    decoder.close(commit.sequence)
            running = [sequence for sequence in running if sequence.finish_reason is None]
        return tuple(token for sequence in sequences for token in sequence.generated)

    return run


def truth(vocabulary: int, params: SamplingParams = PARAMS) -> Joint:
    distribution = processed(model(vocabulary).logits, params, PROMPT)
    return target_joint(distribution, PROMPT, params.max_new_tokens)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", CONTROLLERS)
def test_every_controller_keeps_the_law(name: str, rule: str) -> None:
    verifier, drafts = RULES[rule]
    seen: Seen = {}
    for vocabulary, tokens in ((2, 5), (3, 3)):
        params = replace(PARAMS, max_new_tokens=tokens)
        run = loop(
            vocabulary,
            verifier,
            lambda: FunctionDrafter(drafts(vocabulary)),  # noqa: B023 (called within the turn)
            lambda: Timed(CONTROLLERS[name](), seen),
            params,
        )
        assert max_error(enumerate_distribution(run), truth(vocabulary, params)) < EXACT
    prunes = rule == "sample-match" and name in ("confidence", "cost-model")  # budgets stay
    assert by_history(seen) == (name != "fixed" and not prunes)


@pytest.mark.parametrize("rule", ["rejection", "recursive-distinct"])
@pytest.mark.parametrize("name", ["adaptive-quick", "bandit", "confidence"])
def test_sequences_of_a_batch_stay_independent(name: str, rule: str) -> None:
    """What one sequence accepts decides about the other's draft, and yet says nothing of it."""
    verifier, drafts = RULES[rule]
    seen: Seen = {}
    params = replace(PARAMS, max_new_tokens=2)
    run = loop(
        2,
        verifier,
        lambda: FunctionDrafter(drafts(2)),
        lambda: Timed(CONTROLLERS[name](), seen),
        params,
        [Speculation(), Speculation(nodes=1)],
    )
    single = truth(2, params)
    both = {(*a, *b): p * q for a, p in single.items() for b, q in single.items()}
    assert max_error(enumerate_distribution(run), both) < EXACT


class Turns(Choose):
    """Notes whose turn it was, and takes its time by what was accepted."""

    def __init__(self, parts: Sequence[Drafter], seen: Seen) -> None:
        super().__init__(parts, clock=lambda: self._now)
        self._seen = seen
        self._round = self._now = 0

    def propose(
        self, sequences: Sequence[Generation], budgets: Sequence[Budget]
    ) -> list[TokenTree]:
        out = super().propose(sequences, budgets)
        self._round += 1
        self._seen.setdefault(self._round, set()).add(tuple(self._chosen.values()))
        return out

    def observe(self, step: Sequence[VerifiedDraft]) -> None:
        self._now += 1 + len(step[0].draft) + step[0].sequence.tokens[-1]
        super().observe(step)


def test_drafters_by_turns_keep_the_law() -> None:
    """Two drafters with laws of their own, and none; the target's own law is one of the two."""
    own = processed(model(2).logits, PARAMS, PROMPT)
    parts: dict[str, tuple[Verifier, Propose, Propose]] = {
        "rejection": (Rejection(), chain(2), sampled_chain(own)),
        "block": (Block(), chain(2), sampled_chain(own)),
        "recursive-distinct": (RecursiveDistinct(), bush(2), grown(Branching([1, 2]), own)),
        "sample-match": (SampleMatch(), likely(2), likely_chain(own)),
    }
    for name, (verifier, *drafts) in parts.items():
        seen: Seen = {}

        def make(drafts: Sequence[Propose] = drafts, seen: Seen = seen) -> Drafter:
            return Turns([*map(FunctionDrafter, drafts), NoDrafter()], seen)

        params = replace(PARAMS, max_new_tokens=5)
        run = loop(2, verifier, make, lambda: Fixed(1, 1), params)
        assert max_error(enumerate_distribution(run), truth(2, params)) < EXACT, name
        assert by_history(seen), name


@pytest.mark.parametrize("name", CONTROLLERS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_coupled_emits_the_tokens_of_plain_decoding(name: str, temperature: float) -> None:
    """Seed for seed, in a batch that mixes requests with drafts, with few and with none."""
    params = replace(PARAMS, temperature=temperature, max_new_tokens=30)
    mixed = [Speculation(), Speculation(nodes=1), Speculation(enabled=False), Speculation(depth=2)]
    drafts = grown(SharedNoise([2, 1]), law_of_drafts(3))
    for seed in range(3):
        seen: Seen = {}
        randomness = KeyedRandomness(seed)
        plain = loop(3, Coupled(), NoDrafter, lambda: Fixed(1, 1), params, mixed)
        drafted = loop(
            3,
            Coupled(),
            lambda: FunctionDrafter(drafts),
            lambda: Timed(CONTROLLERS[name](), seen),  # noqa: B023 (called within the turn)
            params,
            mixed,
        )
        assert drafted(randomness) == plain(randomness)


class Meddler(Fixed):
    """Wrong: stops a drawn chain before the first token that its drafter thought unlikely."""

    def select(
        self, sequences: Sequence[Generation], drafts: Sequence[TokenTree]
    ) -> list[TokenTree]:
        return [self._cut(draft) for draft in drafts]

    def _cut(self, draft: TokenTree) -> TokenTree:
        if draft.sampling is None:
            return draft
        rows = draft.sampling.rows
        chances = [rows[node - 1].prob(token) for node, token in enumerate(draft.tokens.tolist())]
        kept = next((node for node, chance in enumerate(chances) if chance < 0.5), len(draft))
        distribution = DraftSampling(
            "iid", {node: row for node, row in rows.items() if node < kept - 1}
        )
        return trees.chain(draft.tokens[:kept].tolist(), sampling=distribution if kept else None)


class Pruner(Fixed):
    """The same by the tool for deterministic drafts."""

    def select(
        self, sequences: Sequence[Generation], drafts: Sequence[TokenTree]
    ) -> list[TokenTree]:
        return [trees.take(draft, np.arange(len(draft) - 1)) for draft in drafts]


class Clairvoyant(Fixed):
    """Wrong: sets the budget ahead, but by the token that will be drawn."""

    def budgets(self, sequences: Sequence[Generation]) -> list[Budget]:
        return [self._by_the_future(sequence) for sequence in sequences]

    def _by_the_future(self, sequence: Generation) -> Budget:
        q = law_of_drafts(2)(tuple(sequence.tokens))
        position = len(sequence.tokens)
        draw = Draw(position, Purpose.DRAFT, 0, position - 1)
        likely = q.token(sequence.randomness.choice(q.probs, draw)) == q.argmax()
        return Budget(2, 2) if likely else Budget(0, 0)


@pytest.mark.parametrize("verifier", [Rejection(), Block()], ids=lambda verifier: verifier.name)
@pytest.mark.parametrize("wrong", [Meddler, Clairvoyant])
def test_a_controller_that_looks_at_the_tokens_is_caught(
    wrong: type[Fixed], verifier: Verifier
) -> None:
    run = loop(2, verifier, lambda: FunctionDrafter(chain(2)), lambda: wrong(2, 2))
    assert max_error(enumerate_distribution(run), truth(2)) > 1e-2


def test_rules_that_read_no_draft_law_do_not_mind() -> None:
    """So the controls above are wrong for the reason they are meant to be."""
    run = loop(2, SampleMatch(), lambda: FunctionDrafter(likely(2)), lambda: Pruner(2, 2))
    assert max_error(enumerate_distribution(run), truth(2)) < EXACT


def test_pruning_a_drawn_draft_is_refused() -> None:
    run = loop(2, Rejection(), lambda: FunctionDrafter(chain(2)), lambda: Pruner(2, 2))
    with pytest.raises(ValueError, match="cannot be pruned"):
        run(ScriptedRandomness())
