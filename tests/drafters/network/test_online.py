"""Drafters that learn while they serve: they get better, and never change a text."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from tests.helpers.drafter_context import context as drafter_context
from tests.helpers.steps import step_of
from tests.helpers.tiny_model import named_tensors, tiny_config

from paceline.core.types import Budget, Needs, SamplingParams
from paceline.drafters.base import Drafter, DrafterContext, NoDrafter
from paceline.drafters.network.build import LoadedNetwork
from paceline.drafters.network.drafter import TrainedDrafter
from paceline.drafters.network.online import Online
from paceline.engine.loop import AutoregressiveDecoder
from paceline.engine.stopping import StopRules
from paceline.errors import InvalidOption, RuntimeUnavailable
from paceline.lab.training.online import OnlineLearner
from paceline.methods.networks.draft_lm import DraftLMDrafter
from paceline.methods.networks.hydra import HydraDrafter
from paceline.networks.catalogue import build
from paceline.networks.runner import Chain, ContextUpdate
from paceline.networks.weights import Trained, load_network, save_network
from paceline.policy.controller import Fixed
from paceline.runtimes.torch.target import TorchTarget
from paceline.sampling.generation import Generation
from paceline.verifiers.matching import Coupled

CONFIG = replace(tiny_config(vocab_size=64), hidden_size=32, head_dim=8, ffn_size=48)
TENSORS = named_tensors(CONFIG)
MODEL = "fingerprint"
SOURCE: Any = SimpleNamespace(config=CONFIG, weights=lambda: TENSORS, fingerprint=MODEL)
GREEDY = SamplingParams(max_new_tokens=24)
SAMPLED = SamplingParams(max_new_tokens=24, temperature=1.0, seed=3)
PROMPTS = ([5, 9, 17], [11, 30, 4, 2, 8], [40, 41])


class Inline(Executor):
    """Runs at once, so that tests know when an update is done."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


@pytest.fixture(scope="module")
def target() -> TorchTarget:
    return TorchTarget(CONFIG, TENSORS)


def fresh(name: str = "hydra") -> Trained:
    """Weights that know nothing."""
    network = build(name, CONFIG, {"steps": "3"})
    rng = np.random.default_rng(0)
    parameters = {
        key: rng.normal(1.0 if len(shape) == 1 else 0.0, 0.1, shape).astype(np.float32)
        for key, shape in network.shapes().items()
    }
    return Trained(network, parameters, np.arange(64), {"model": MODEL})


def learning(
    target: TorchTarget, factory: type[TrainedDrafter] = HydraDrafter, every: int = 6
) -> TrainedDrafter:
    trained = fresh(factory.name)

    def ready(trained: Trained) -> LoadedNetwork:
        return LoadedNetwork(target.run_network(trained))

    drafter = factory(target.run_network(trained))
    learner = lambda: OnlineLearner(trained, SOURCE, rate=0.02)  # noqa: E731
    drafter.learn_by(Online(trained, learner, ready, every=every, background=Inline()))
    return drafter


def generate(target: TorchTarget, drafter: Drafter, params: SamplingParams) -> list[Generation]:
    """All prompts in one batch."""
    stops = StopRules((), CONFIG.max_context)
    decoder = AutoregressiveDecoder(target, drafter, Coupled(), Fixed(3, 3), stops)
    sequences = [Generation.start(i, prompt, params) for i, prompt in enumerate(PROMPTS)]
    for sequence in sequences:
        decoder.open(sequence)
    while active := [each for each in sequences if not each.finish_reason]:
        decoder.step(active)
    for sequence in sequences:
        decoder.close(sequence)
    return sequences


def accepted(sequences: list[Generation]) -> float:
    drafted = sum(each.stats.drafted_tokens for each in sequences)
    return sum(each.stats.accepted_tokens for each in sequences) / drafted


@pytest.mark.parametrize("factory", [HydraDrafter, DraftLMDrafter])
def test_acceptance_rises_and_texts_stay(
    factory: type[TrainedDrafter], target: TorchTarget
) -> None:
    """Of what is served again and again; a drafter that does not learn is as bad at the end."""
    plain = [[s.tokens for s in generate(target, NoDrafter(), p)] for p in (GREEDY, SAMPLED)]
    drafter = learning(target, factory)
    shares = []
    for round in range(14):
        params = (GREEDY, SAMPLED)[round % 4 == 3]
        found = generate(target, drafter, params)
        assert [each.tokens for each in found] == plain[round % 4 == 3]
        if params is GREEDY:
            shares.append(accepted(found))
    frozen = factory(target.run_network(fresh(factory.name)))
    begun = accepted(generate(target, frozen, GREEDY))
    assert 1 - shares[-1] < 0.6 * (1 - begun)
    assert accepted(generate(target, frozen, GREEDY)) == begun
    drafter.reset()
    assert accepted(generate(target, drafter, GREEDY)) == shares[0]


class Wrong(AssertionError):
    """A cache of one version in the hands of another."""


@dataclass(eq=False)
class Tagged:
    """A runner that drafts its own number, and knows its own caches alone."""

    number: int
    depth = 3

    def open(self) -> list[int]:
        return [self.number]

    def release(self, cache: list[int]) -> None:
        cache.clear()

    def draft(self, grown: list[ContextUpdate], depth: int) -> list[Chain]:
        if any(each.cache != [self.number] for each in grown):
            raise Wrong
        return (
            [Chain([self.number] * 3, [1.0] * 3, [0] * 3, [0.0] * 3) for _ in grown]
            if depth
            else []
        )


class Counting:
    """Learns nothing, but gives new weights each time."""

    def learn(self, examples: Any) -> dict[str, Any]:
        return {}


def versions(factory: type[TrainedDrafter]) -> tuple[TrainedDrafter, Callable[[], Any]]:
    """A drafter whose versions are tagged 1, 2, ..., and what makes an update happen."""
    made = [1]

    def ready(trained: Trained) -> LoadedNetwork:
        made.append(made[-1] + 1)
        return LoadedNetwork(Tagged(made[-1]))  # type: ignore[arg-type]

    drafter = factory(Tagged(1))  # type: ignore[arg-type]
    online = Online(fresh(), Counting, ready, every=1, background=Inline())
    drafter.learn_by(online)
    features = np.ones((1, 128), np.float32)

    def learn() -> None:
        teacher = Generation.start(99, [1, 2], GREEDY)
        online.read(teacher, features)
        for _ in range(2):
            teacher.tokens.append(3)
            outputs: Any = [SimpleNamespace(features=features)]
            draft: Any = SimpleNamespace(parents=np.array([-1]))
            verdict: Any = SimpleNamespace(path=())
            online.observe(step_of([teacher], [draft], [verdict], outputs))
        online.close(teacher)

    return drafter, learn


def begin(drafter: TrainedDrafter, id: int) -> Generation:
    sequence = Generation.start(id, [1, 2], GREEDY)
    drafter.open(sequence)
    drafter.read(sequence, np.ones((1, 128), np.float32))
    return sequence


def drafts(drafter: TrainedDrafter, *sequences: Generation) -> list[list[int]]:
    """What it drafts, again and again: contexts gain a row each time."""
    found = drafter.propose(list(sequences), [Budget(3, 3)] * len(sequences))
    for sequence in sequences:
        progress = drafter._progress[sequence.id]
        progress.tokens, progress.features = [7], [np.ones((1, 128), np.float32)]
    return [each.tokens.tolist() for each in found]


def test_a_sequence_drafts_with_one_version_and_two_are_in_use_at_most() -> None:
    drafter, learn = versions(HydraDrafter)
    first = begin(drafter, 0)
    assert drafts(drafter, first) == [[1, 1, 1]]
    learn()
    second = begin(drafter, 1)
    assert drafts(drafter, first, second, first) == [[1] * 3, [2] * 3, [1] * 3]
    learn()
    third = begin(drafter, 2)  # the first still drafts with the oldest
    assert drafts(drafter, third, first) == [[2] * 3, [1] * 3]
    drafter.close(first)
    drafter.close(second)
    learn()
    fourth = begin(drafter, 3)
    newest = drafts(drafter, fourth, third)
    assert newest[0][0] > 2
    assert newest == [newest[0], [2] * 3]


def test_a_drafter_that_changes_over_in_the_middle_is_caught() -> None:
    """Negative control."""

    class Hasty(TrainedDrafter):
        name = "hydra"

        def propose(self, sequences: Any, budgets: Any) -> Any:
            self._newest = self._online.newest() or self._newest  # type: ignore[union-attr]
            for each in self._progress.values():
                each.version = self._newest
            return super().propose(sequences, budgets)

    drafter, learn = versions(Hasty)
    first = begin(drafter, 0)
    assert drafts(drafter, first) == [[1, 1, 1]]
    learn()
    with pytest.raises(Wrong):
        drafts(drafter, first)


@pytest.mark.parametrize("fault", ["none", "raises"])
def test_an_update_that_fails_is_dropped_and_said_once(
    fault: str, target: TorchTarget, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken:
        def learn(self, examples: Any) -> None:
            if fault == "raises":
                raise MemoryError("no room")

    trained = fresh()
    drafter = HydraDrafter(target.run_network(trained))
    online = Online(trained, Broken, lambda _: 1 / 0, every=2, background=Inline())
    drafter.learn_by(online)
    expected = [each.tokens for each in generate(target, NoDrafter(), GREEDY)]
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert [each.tokens for each in generate(target, drafter, GREEDY)] == expected
    assert online.updates == 0
    assert len(caplog.messages) == 1
    assert ("no room" if fault == "raises" else "set a lower rate") in caplog.text


def context(target: TorchTarget, **options: str) -> DrafterContext:
    learner = lambda: OnlineLearner  # noqa: E731
    return drafter_context(target, source=SOURCE, learner=learner, options=options)


def test_what_was_learnt_is_kept_beside_the_weights_and_taken_up(
    target: TorchTarget, tmp_path: Path
) -> None:
    path = tmp_path / "mine.safetensors"
    save_network(path, fresh())
    content = path.read_bytes()
    options = {"weights": str(path), "online": "4", "rate": "0.02"}
    drafter = HydraDrafter.create(context(target, **options))
    assert drafter.needs == Needs(features=True, recent=128)
    begun = accepted(generate(target, drafter, GREEDY))
    assert drafter._online is not None
    for _ in range(100):  # how much is learnt in a round hangs on when threads run
        generate(target, drafter, GREEDY)
        if (job := drafter._online._job) is not None:
            job.result()
        if drafter._online.updates >= 12:
            break
    assert drafter._online.updates >= 12
    del drafter  # what it learnt is written now, as at the end of a process
    assert path.read_bytes() == content
    learnt = load_network(tmp_path / "mine.online.safetensors")
    assert learnt.metadata["model"] == MODEL
    again = HydraDrafter.create(context(target, **options))
    assert accepted(generate(target, again, GREEDY)) > begun + 0.1
    save_network(path, replace(fresh(), metadata={"model": MODEL, "tokens": "9"}))
    with pytest.raises(InvalidOption, match=r"was learnt from other weights than .*mine"):
        HydraDrafter.create(context(target, **options))
    plain = HydraDrafter.create(context(target, weights=str(path)))
    assert accepted(generate(target, plain, GREEDY)) == pytest.approx(begun, abs=0.05)


def test_a_disk_that_is_full_is_said_and_nothing_else(
    target: TorchTarget, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "mine.safetensors"
    save_network(path, fresh())
    (tmp_path / "file").touch()
    options = {"weights": str(path), "online": "2", "save": str(tmp_path / "file" / "no")}
    drafter = HydraDrafter.create(context(target, **options))
    generate(target, drafter, GREEDY)
    with caplog.at_level(logging.WARNING):
        drafter._online._job.result()  # type: ignore[union-attr]
        drafter._online._file.save()  # type: ignore[union-attr]
    assert "what the drafter learnt is not saved" in caplog.text


def test_bad_options_are_named(target: TorchTarget, tmp_path: Path) -> None:
    path = tmp_path / "mine.safetensors"
    save_network(path, fresh())

    def refused(message: str, **options: str) -> None:
        with pytest.raises((InvalidOption, RuntimeUnavailable), match=message) as caught:
            HydraDrafter.create(context(target, weights=str(path), **options))
        assert "\n" not in str(caught.value)

    refused("option rate goes with online=ROUNDS", rate="0.1")
    refused("option save goes with online=ROUNDS", save="x", online="0")
    refused("online must be 0", online="-1")
    refused("online .* must be a whole number", online="often")
    refused("rate must be between 0 and 1", online="9", rate="2")
    refused("save would write over the weights", online="9", save=str(path))
    refused("has no option 'onlin'", onlin="9")
    served = drafter_context(target, source=SOURCE, options={"weights": str(path), "online": "9"})
    with pytest.raises(RuntimeUnavailable, match="for a target, not for its draft model"):
        HydraDrafter.create(served)
