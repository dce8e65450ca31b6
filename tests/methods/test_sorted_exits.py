"""S2D: exits chosen before the draw, segments filled late, and drafts that change no text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
from tests.helpers.decoding_loop import decode_all
from tests.helpers.drafter_context import context as drafter_context
from tests.proof.joints import joint_of_steps
from tests.runtimes import tiny_cpu

from paceline.core import tree as trees
from paceline.core.target import Rows
from paceline.core.types import Budget, DraftSampling, SamplingParams, TokenTree
from paceline.drafters.base import Drafter, NoDrafter
from paceline.drafters.draft_model import DraftModel
from paceline.engine.loop import AutoregressiveDecoder
from paceline.engine.stopping import StopRules
from paceline.errors import InvalidOption, RuntimeUnavailable
from paceline.methods.layers.chains import top_probability
from paceline.methods.layers.sorted_exits import SortedExits, SortedModel
from paceline.methods.layers.tables import LAYERS, LayeredTable
from paceline.policy.controller import Fixed
from paceline.proof.compare import max_error, target_joint
from paceline.proof.tabular import TabularModel, TabularTarget, processed
from paceline.runtimes.cpu.target import CpuTarget
from paceline.sampling.generation import Generation
from paceline.trees.deterministic import SharedNoise
from paceline.trees.drawn import Iid
from paceline.verifiers.base import Verifier
from paceline.verifiers.block import Block as BlockRule
from paceline.verifiers.matching import Coupled
from paceline.verifiers.rejection import Rejection

WHOLE, FIRST, SECOND, THIRD = (TabularModel(2, 4, seed, 1.5) for seed in (31, 32, 33, 34))
CONFIG = tiny_cpu.config(vocab_size=96, layers=4, max_context=160)
WEIGHTS = tiny_cpu.weights(CONFIG)
DRAFT = tiny_cpu.config(vocab_size=96, layers=3, max_context=160)
EXITS = (1, 2, 3)


def table(cls: type[SortedExits] = SortedExits) -> SortedExits:
    model = LayeredTable(THIRD.logits, [FIRST.logits, SECOND.logits], 2)
    return cls(cast(Any, model), LAYERS, 2, Iid([1]), confidence=0.7)


def error(make: Callable[[], Drafter], rule: Verifier, params: SamplingParams) -> float:
    joint = joint_of_steps(WHOLE.logits, 2, rule, make, (0,), params, Budget(2, 2))
    truth = target_joint(processed(WHOLE.logits, params, (0,)), (0,), params.max_new_tokens)
    return max_error(joint, truth)


@pytest.mark.parametrize("rule", [Rejection(), BlockRule()], ids=lambda rule: rule.name)
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1, max_new_tokens=5),
        SamplingParams(temperature=0.7, top_p=0.9, max_new_tokens=4),
        SamplingParams(temperature=1.3, presence_penalty=0.5, max_new_tokens=4),
    ],
    ids=["plain", "top-p", "penalties"],
)
def test_the_loop_is_exact(rule: Verifier, params: SamplingParams) -> None:
    made: list[SortedExits] = []

    def make() -> Drafter:
        made.append(table())
        return made[-1]

    assert error(make, rule, params) < 1e-12
    taken = np.sum([each.model.taken for each in made], axis=0)
    assert np.count_nonzero(taken) >= 2


class LooksFirst(SortedExits):
    """Drops a token after it was drawn, because of what it is."""

    def propose(self, sequences: Any, budgets: Any) -> list[TokenTree]:
        return [
            trees.chain([each.tokens[0]], self.name, DraftSampling("iid", {-1: rows_of(each)[-1]}))
            if len(each) == 2 and each.tokens[1]
            else each
            for each in super().propose(sequences, budgets)
        ]


def rows_of(draft: TokenTree) -> dict[int, Any]:
    assert draft.sampling is not None
    return dict(draft.sampling.rows)


def test_a_choice_after_the_draw_is_found() -> None:
    """Negative control."""
    params = SamplingParams(temperature=1, max_new_tokens=4)
    assert error(lambda: table(LooksFirst), Rejection(), params) > 1e-3


# Tiny models:


def cpu(shape: Any = DRAFT) -> CpuTarget:
    made: CpuTarget = tiny_cpu.target("fp32", shape)
    return made


def torch(shape: Any = DRAFT) -> Any:
    return pytest.importorskip("paceline.runtimes.torch.target").TorchTarget(
        shape, tiny_cpu.weights(shape), precision="fp64"
    )


def by_hand(model: Any, tokens: list[int], confidence: float) -> tuple[np.ndarray, int]:
    """The row and the exit of a text, all of whose other rows are whole."""
    cache = model.open()
    model.prefill(cache, tokens[:-1])
    for exit in EXITS:
        [found] = model.forward([Rows.draft(cache, tokens[-1:])], tuple(range(exit)))
        row = found.logits[-1].copy()
        if top_probability(row) >= confidence:
            break
    model.release(cache)
    return row, exit


def median(model: Any) -> float:
    """A confidence that half of the first exits have."""
    rng = np.random.default_rng(3)
    texts = [rng.integers(0, 96, 9).tolist() for _ in range(15)]
    return float(np.median([top_probability(by_hand(model, each, 0.0)[0]) for each in texts]))


class Turned(SortedModel):
    """Goes on from states in another order."""

    def _run(self, caches: Any, segment: int) -> Any:
        for each in (self._filled[id(cache)] for cache in caches):
            if segment:
                each.states[segment - 1].reverse()
        return super()._run(caches, segment)


@pytest.mark.parametrize("kind", [SortedModel, Turned])
def test_segments_filled_late_are_those_of_the_text_bit_for_bit(kind: type[SortedModel]) -> None:
    """In batches, after truncations; `Turned` is the negative control."""
    inner, rng = cpu(), np.random.default_rng(0)
    confidence = median(inner)
    model = kind(inner, EXITS, confidence)
    texts = [rng.integers(0, 96, count).tolist() for count in (3, 40, 8)]
    caches = [model.open() for _ in texts]
    for cache, text in zip(caches, texts, strict=True):
        model.prefill(cache, text[:-1])
    pending = [text[-1:] for text in texts]
    equal, exits = [], set()
    for step in range(30):
        some = [at for at in range(3) if (step + at) % 4]
        outputs = model.forward([Rows.draft(caches[at], pending[at]) for at in some])
        for at, output in zip(some, outputs, strict=True):
            row, exit = by_hand(inner, texts[at], confidence)
            equal.append(np.array_equal(output.logits[0], row))
            exits.add(exit)
            if step % 7 == 5:
                texts[at] = texts[at][:-2]
                model.truncate(caches[at], len(texts[at]))
            pending[at] = rng.integers(0, 96, 1 + step % 2).tolist()
            texts[at] += pending[at]
    assert exits == set(EXITS)
    assert all(equal) is (kind is SortedModel)
    for cache in caches:
        model.release(cache)
    assert not model._filled


def test_a_failure_half_way_is_made_good() -> None:
    """The next call has the rows that the failed one would have had."""
    inner = cpu()
    model = SortedModel(inner, EXITS, 1.0)
    text = [3, 5, 7, 9]
    cache = model.open()
    model.prefill(cache, text[:-1])
    run = inner.forward
    for failing in range(1, 4):
        calls = iter(range(1, 9))

        def broken(*given: Any) -> Any:
            if next(calls) == failing:  # noqa: B023
                raise MemoryError
            return run(*given)

        inner.forward = broken  # type: ignore[method-assign]
        with pytest.raises(MemoryError):
            model.forward([Rows.draft(cache, text[-1:])])
        inner.forward = run  # type: ignore[method-assign]
        if cache.length == len(text):
            model.truncate(cache, len(text) - 1)
        [found] = model.forward([Rows.draft(cache, text[cache.length :])])
        assert np.array_equal(found.logits[0], by_hand(inner, text, 1.0)[0])
        text.append(11)


def drafts(made: Drafter, budget: int = 6) -> list[int]:
    sequence = Generation.start(0, [5, 6, 7, 8, 1, 2], SamplingParams())
    [draft] = made.propose([sequence], [Budget(budget, budget)])
    tokens: list[int] = draft.tokens.tolist()
    return tokens


def test_the_ends_are_the_whole_model_and_the_cut_one() -> None:
    noise = SharedNoise([1])
    whole = SortedExits(cast(Any, cpu()), 3, 96, noise, confidence=1.0)
    assert drafts(whole) == drafts(DraftModel(cpu(), 96, noise))
    assert whole.model.taken == [0, 0, 6]
    first = SortedExits(cast(Any, cpu()), 3, 96, noise, confidence=0.0)
    shape = replace(DRAFT, layers=1)
    cut = CpuTarget(shape, tiny_cpu.weights(DRAFT), "fp32", kv_tokens=2048)
    assert drafts(first) == drafts(DraftModel(cut, 96, noise)) != drafts(whole)
    assert first.model.taken == [6, 0, 0]
    assert SortedExits(cast(Any, cpu()), 3, 96, noise, spacing=2).exits == (2, 3)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("runtime", [cpu, torch])
def test_the_text_is_that_of_plain_decoding(
    runtime: Callable[..., Any], temperature: float
) -> None:
    """The target is the draft model with a layer more or less, so that some drafts are right."""
    params = SamplingParams(temperature, max_new_tokens=40, seed=5, ignore_eos=True)
    target, model = runtime(), runtime()
    made = SortedExits(model, 3, 96, SharedNoise([1]), confidence=median(model))
    texts = []
    for drafter in (NoDrafter(), made):
        rules = StopRules((), 160)
        decoder = AutoregressiveDecoder(target, drafter, Coupled(), Fixed(4, 4), rules)
        prompts = [[5, 6, 7, 8], list(range(40)), [9, 9, 3]]
        done = decode_all(decoder, [Generation.start(i, p, params) for i, p in enumerate(prompts)])
        texts.append([each.generated for each in done])
    assert texts[0] == texts[1]
    assert sum(each.stats.accepted_tokens for each in done) > 0
    assert all(made.model.taken)
    assert not made.model._filled


def create(model: Any, **options: str) -> SortedExits:
    capabilities = cpu(CONFIG).capabilities
    return SortedExits.create(drafter_context(capabilities, lambda: model, options=options))


def test_options() -> None:
    assert create(cpu(), confidence="0.5", spacing="3", recent="9").exits == (3,)
    with pytest.raises(InvalidOption, match="spacing must be from 1 to 3, not 4"):
        create(cpu(), spacing="4")
    with pytest.raises(InvalidOption, match="confidence must be from 0 to 1"):
        create(cpu(), confidence="2")
    with pytest.raises(InvalidOption, match="has no option 'layers'"):
        create(cpu(), layers="2")
    with pytest.raises(RuntimeUnavailable, match="runs layers of the draft model alone"):
        create(TabularTarget(WHOLE.logits, 96))
