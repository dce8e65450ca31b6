"""A drafter that is spared batches: what it hears, and how it drafts behind them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.drafters.network.test_trained import CONFIG, PROMPTS, TARGETS, random_weights, small
from tests.helpers.steps import step_of

from paceline.core import tree as trees
from paceline.core.target import Output, Rows
from paceline.core.types import Budget, Needs, SamplingParams, TokenTree, Verdict
from paceline.drafters.base import Drafter, NoDrafter
from paceline.drafters.combine.fallback import FallbackDrafter
from paceline.drafters.network.drafter import EagleDrafter, TrainedDrafter
from paceline.engine.loop import AutoregressiveDecoder
from paceline.engine.prefill import Chunk
from paceline.engine.stopping import StopRules
from paceline.methods.networks.draft_lm import DraftLMDrafter
from paceline.methods.networks.hydra import HydraDrafter
from paceline.methods.networks.longspec import LongSpecDrafter
from paceline.methods.prompt_lookup import PromptLookup
from paceline.policy.controller import Fixed
from paceline.sampling.generation import Generation, VerifiedDraft
from paceline.verifiers.matching import Coupled

GREEDY = SamplingParams(max_new_tokens=24)
SAMPLED = replace(GREEDY, temperature=1.0, seed=3)


class Notes(Drafter):
    """Notes what it hears; its drafts are its rows."""

    name = "notes"
    tolerates_gaps = True
    needs = Needs(features=True, recent=4)

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def open(self, sequence: Generation) -> None:
        self.calls.append(("open", sequence.id))

    def read(self, sequence: Generation, features: Any) -> None:
        self.calls.append(("read", sequence.id, features[:, 0].tolist()))

    def propose(
        self, sequences: Sequence[Generation], budgets: Sequence[Budget]
    ) -> list[TokenTree]:
        self.calls.append(("propose", *(each.id for each in sequences)))
        return [trees.chain([7, 7])] * len(sequences)

    def observe(self, step: Sequence[VerifiedDraft]) -> None:
        self.calls.append(("observe", *(each.sequence.id for each in step)))

    def close(self, sequence: Generation) -> None:
        self.calls.append(("close", sequence.id))

    def heard(self) -> list[tuple[Any, ...]]:
        """Since it was last asked."""
        calls, self.calls = self.calls, []
        return calls


def step(drafter: Drafter, sequences: Sequence[Generation]) -> list[TokenTree]:
    """Propose and observe; of each draft of two nodes the second alone is accepted."""
    drafts = drafter.propose(sequences, [Budget(2, 2)] * len(sequences))
    rows = np.array([[1.0], [2.0], [3.0]], dtype=np.float32)
    features = rows if drafter.needs_of(sequences).features else None
    outputs = [Output(np.zeros((3, 8), dtype=np.float32), features=features)] * len(sequences)
    verdicts = [Verdict((1,) if len(draft) else (), 5) for draft in drafts]
    drafter.observe(step_of(sequences, drafts, verdicts, outputs))
    return drafts


def beside_none(drafter: Drafter) -> FallbackDrafter:
    """Ask it at every step of one sequence: what takes no time always pays."""
    return FallbackDrafter([NoDrafter(), drafter], clock=lambda: 0.0)


def test_batches_are_not_heard_of_and_the_last_sequence_goes_on() -> None:
    notes = Notes()
    alone = beside_none(notes)
    one, two = (Generation.start(id, [1, 2, 3], GREEDY) for id in (1, 2))
    for each in (one, two):
        alone.open(each)
        alone.read(each, np.zeros((2, 1), dtype=np.float32))
    assert [len(draft) for draft in step(alone, [one])] == [2]
    expected = [("open", 1), ("read", 1, [0, 0]), ("open", 2), ("read", 2, [0, 0])]
    assert notes.heard() == [*expected, ("propose", 1), ("observe", 1)]
    for _ in range(3):
        assert [len(draft) for draft in step(alone, [one, two])] == [0, 0]
    assert notes.heard() == []
    alone.close(two)
    assert [len(draft) for draft in step(alone, [one])] == [0]  # it does not know the root
    assert notes.heard() == [("close", 2), ("observe", 1)]
    assert [len(draft) for draft in step(alone, [one])] == [2]
    alone.close(one)
    assert notes.heard() == [("propose", 1), ("observe", 1), ("close", 1)]


def test_who_bears_gaps() -> None:
    """Not who wants all rows, nor who learns from them."""
    runner: Any = None
    learner: Any = object()
    assert HydraDrafter(runner).tolerates_gaps
    learning = HydraDrafter(runner)
    learning.learn_by(learner)
    for drafter in (learning, LongSpecDrafter(runner), DraftLMDrafter(runner), PromptLookup()):
        assert not drafter.tolerates_gaps


class Watched:
    """A target, and which passes of its forwards wanted features."""

    def __init__(self, target: Any) -> None:
        self._target = target
        self.wanted: list[list[bool]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def forward(self, passes: Sequence[Rows]) -> list[Output]:
        self.wanted.append([each.features for each in passes])
        return self._target.forward(passes)  # type: ignore[no-any-return]


def shrinking(
    target: Any,
    drafter: Drafter,
    params: SamplingParams = GREEDY,
    prompts: Sequence[list[int]] = PROMPTS,
) -> tuple[list[Generation], list[int]]:
    """A batch of which one sequence is left halfway, and the batch of every step."""
    stops = StopRules((), target.capabilities.max_context)
    decoder = AutoregressiveDecoder(target, drafter, Coupled(), Fixed(2, 2), stops)
    short = replace(params, max_new_tokens=8)
    sequences = [
        Generation.start(i, prompt, short if i else params) for i, prompt in enumerate(prompts)
    ]
    for sequence in sequences:
        decoder.open(sequence)
    sizes = []
    while active := [each for each in sequences if not each.finish_reason]:
        sizes.append(len(active))
        decoder.step(active)
        for sequence in active:
            if sequence.finish_reason:
                decoder.close(sequence)
    return sequences, sizes


class Shadowed(Drafter):
    """Beside it runs another network, that begins with the rows that this one should have."""

    name = "shadowed"
    tolerates_gaps = True

    def __init__(self, drafter: Drafter, shadow: Drafter) -> None:
        self.needs = drafter.needs
        self.drafter, self.shadow = drafter, shadow
        self.tokens: list[int] = []
        self.rows: list[Any] = []
        self.compared = 0

    def open(self, sequence: Generation) -> None:
        self.drafter.open(sequence)

    def unread(self, sequence: Generation) -> int:
        return self.drafter.unread(sequence)

    def read(self, sequence: Generation, features: Any) -> None:
        self.drafter.read(sequence, features)
        if not sequence.id:
            self.rows = [features]
            self.tokens = sequence.tokens[1:]

    def propose(
        self, sequences: Sequence[Generation], budgets: Sequence[Budget]
    ) -> list[TokenTree]:
        [alone] = sequences
        drafts = self.drafter.propose(sequences, budgets)
        begun = replace(alone, id=-1, tokens=[0, *self.tokens])
        self.shadow.open(begun)
        self.shadow.read(begun, np.concatenate(self.rows))
        [expected] = self.shadow.propose([begun], budgets)
        self.shadow.close(begun)
        assert drafts[0].tokens.tolist() == expected.tokens.tolist()
        self.compared += len(expected) > 0
        return drafts

    def observe(self, step: Sequence[VerifiedDraft]) -> None:
        [(alone, _, verdict, output)] = step
        self.drafter.observe(step)
        rows = [0, *(node + 1 for node in verdict.path)]
        assert output.features is not None
        self.rows.append(output.features[rows])
        self.tokens = self.tokens + alone.tokens[-len(rows) :]

    def close(self, sequence: Generation) -> None:
        self.drafter.close(sequence)


@pytest.mark.parametrize("runtime", TARGETS)
@pytest.mark.parametrize("factory", [HydraDrafter, EagleDrafter])
def test_behind_a_gap_a_network_drafts_as_if_there_was_none(
    factory: type[TrainedDrafter], runtime: str
) -> None:
    """Nothing but rows is missing: as one drafts that reads the rows before and behind at once."""
    target = TARGETS[runtime]()
    trained = random_weights(small(factory.name))
    networks = [factory(target.run_network(trained)) for _ in range(2)]
    for network in networks:  # noise is named by positions, which differ here
        network.gumbel_coupled = False
    for params in (GREEDY, SAMPLED):
        drafter = Shadowed(*networks)
        found, sizes = shrinking(target, beside_none(drafter), params)
        expected, _ = shrinking(target, NoDrafter(), params)
        assert [each.tokens for each in found] == [each.tokens for each in expected]
        assert drafter.compared > 5
        assert max(sizes) == len(PROMPTS)
    assert not networks[0]._progress


def test_other_rows_give_other_drafts() -> None:
    """Negative control: without the rows before the batch, the comparison fails."""

    class Forgets(Shadowed):
        def read(self, sequence: Generation, features: Any) -> None:
            super().read(sequence, features)
            if not sequence.id:
                self.rows, self.tokens = [features[:0]], []

    target = TARGETS["torch"]()
    trained = random_weights(small("eagle"))
    drafter = Forgets(*(EagleDrafter(target.run_network(trained)) for _ in range(2)))
    with pytest.raises(AssertionError):
        shrinking(target, beside_none(drafter))


def test_batches_compute_no_features_and_the_last_sequence_is_drafted_for() -> None:
    target = Watched(TARGETS["torch"]())
    network = HydraDrafter(target.run_network(random_weights(small("hydra"))))
    drafter = FallbackDrafter([NoDrafter(), network])
    found, sizes = shrinking(target, drafter)
    assert [any(wanted) for wanted in target.wanted] == [size == 1 for size in sizes]
    assert found[0].stats.drafted_tokens > 0
    assert not any(each.stats.drafted_tokens for each in found[1:])
    assert not network._progress


def test_prompts_read_beside_a_batch_give_their_features() -> None:
    target = Watched(TARGETS["torch"]())
    network = HydraDrafter(target.run_network(random_weights(small("hydra"))))
    stops = StopRules((), CONFIG.max_context)
    drafter = FallbackDrafter([PromptLookup(), network])
    decoder = AutoregressiveDecoder(target, drafter, Coupled(), Fixed(2, 2), stops)  # type: ignore[arg-type]
    one, two, late = (Generation.start(i, PROMPTS[i], GREEDY) for i in (0, 1, 2))
    decoder.open(one)
    decoder.open(two)
    decoder.admit(late)
    decoder.step([one, two], [Chunk(late, len(late.tokens) - 1)])
    assert target.wanted[-1] == [False, False, True]
    decoder.begin(late)
    assert len(network._progress[late.id].tokens) == len(late.tokens) - 1


def test_a_network_that_learns_hears_of_batches() -> None:
    pytest.importorskip("torch")
    from tests.drafters.network import test_online as online

    plain = online.TorchTarget(online.CONFIG, online.TENSORS)
    target = Watched(plain)
    network = online.learning(plain, every=3)
    expected, _ = shrinking(plain, NoDrafter(), prompts=online.PROMPTS)
    for _ in range(3):
        drafter = FallbackDrafter([PromptLookup(), network])
        found, _ = shrinking(target, drafter, prompts=online.PROMPTS)
        assert [each.tokens for each in found] == [each.tokens for each in expected]
    assert all(map(all, target.wanted))
    assert network._online.updates > 0
