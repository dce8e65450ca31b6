"""Parallel prompt decoding: what is asked, what is read, and that no token changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.helpers import tiny_model as tiny
from tests.helpers.drafter_context import context as drafter_context
from tests.helpers.sampled_drafts import Sampled
from tests.helpers.steps import step_of
from tests.runtimes import tiny_cpu

from paceline.core import tree as trees
from paceline.core.target import Output
from paceline.core.types import ROOT, Budget, LogitArray, SamplingParams, TokenTree, Verdict
from paceline.drafters.base import Drafter, DrafterContext, NoDrafter
from paceline.drafters.resources import Resources
from paceline.engine.loop import AutoregressiveDecoder
from paceline.engine.stopping import StopRules
from paceline.errors import InvalidOption, RuntimeUnavailable
from paceline.methods.ppd.drafter import PPD
from paceline.methods.ppd.prompt_tokens import PromptTokens, save_prompt_tokens
from paceline.methods.top_gap import TopGap
from paceline.policy.controller import Fixed
from paceline.policy.cost import CostModel
from paceline.proof.tabular import (
    LogitsOf,
    TabularDistributions,
    TabularModel,
    TabularTarget,
    processed,
)
from paceline.registry.assembly import make_drafter
from paceline.sampling.generation import Generation
from paceline.verifiers.base import Verifier
from paceline.verifiers.matching import Coupled, Greedy, SampleMatch

VOCABULARY = 40
MODEL = TabularModel(VOCABULARY, 2, seed=4, sharpness=2.5)
ACCURACIES = np.array([[0.7, 0.1, 0.05], [0.6, 0.1, 0.05], [0.5, 0.1, 0.05]])
GREEDY = SamplingParams(max_new_tokens=40)
SAMPLED = SamplingParams(temperature=0.9, seed=3, max_new_tokens=40)


def knowing(logits: LogitsOf) -> LogitsOf:
    """A model whose prompt tokens stand for the most likely tokens, so that they guess well."""

    def of(context: tuple[int, ...]) -> LogitArray:
        known: list[int] = []
        for token in context:
            argmax = int(logits(tuple(known)).argmax()) if token >= VOCABULARY else token
            known.append(argmax)
        return logits(tuple(known))

    return of


def decode(
    target: Any, drafter: Drafter, params: SamplingParams, nodes: int, verifier: Verifier
) -> list[Generation]:
    """Two texts side by side."""
    decoder = AutoregressiveDecoder(
        target, drafter, verifier, Fixed(nodes, nodes), StopRules((), 4096)
    )
    sequences = [Generation.start(i, [5, 6, 7 + i], params) for i in range(2)]
    for sequence in sequences:
        decoder.open(sequence)
    while running := [s for s in sequences if s.finish_reason is None]:
        decoder.step(running)
    return sequences


@pytest.mark.parametrize("nodes", [1, 4, 11, 24])
@pytest.mark.parametrize(
    ("params", "verifier"), [(GREEDY, Greedy()), (GREEDY, Coupled()), (SAMPLED, Coupled())]
)
def test_texts_are_those_of_plain_decoding(
    params: SamplingParams, verifier: Verifier, nodes: int
) -> None:
    plain = decode(TabularTarget(MODEL.logits, VOCABULARY), NoDrafter(), params, 1, verifier)
    for logits in (knowing(MODEL.logits), lambda context: MODEL.logits(context[-1:])):
        target = TabularTarget(logits, VOCABULARY)
        drafter = PPD(ACCURACIES, VOCABULARY)
        if logits.__name__ == "<lambda>":  # prompt tokens that guess badly
            plain = decode(target, NoDrafter(), params, 1, verifier)
        drafted = decode(target, drafter, params, nodes, verifier)
        assert [s.tokens for s in drafted] == [s.tokens for s in plain]


def test_right_guesses_are_accepted_down_to_the_last_prompt_token() -> None:
    """With a model that guesses perfectly every step but the first commits all it can."""
    target = TabularTarget(knowing(MODEL.logits), VOCABULARY)
    drafter = PPD(np.array([[0.99], [0.98], [0.97]]), VOCABULARY)
    sequences = decode(target, drafter, SamplingParams(max_new_tokens=41), 12, Greedy())
    for sequence in sequences:
        assert sequence.stats.target_forwards == 11  # 1, then 4 each


def test_wrong_rows_are_not_accepted() -> None:
    """A model whose prompt tokens stand for the wrong tokens drafts almost nothing that holds."""

    def confused(context: tuple[int, ...]) -> LogitArray:
        return MODEL.logits(tuple(token % VOCABULARY for token in context))

    good = decode(TabularTarget(knowing(MODEL.logits), VOCABULARY), *_parts(), 12, Greedy())
    bad = decode(TabularTarget(confused, VOCABULARY), *_parts(), 12, Greedy())
    assert bad[0].stats.target_forwards > 1.3 * good[0].stats.target_forwards


def _parts() -> tuple[Drafter, SamplingParams]:
    return PPD(ACCURACIES, VOCABULARY), GREEDY


def asked(drafter: PPD, rows: int = 3) -> Generation:
    """A sequence whose accepted node had so many prompt tokens behind it."""
    sequence = Generation.start(9, [1, 2, 3], SamplingParams())
    draft = trees.chain([VOCABULARY + index for index in range(rows)])
    logits = np.random.default_rng(0).normal(size=(1 + rows, VOCABULARY)).astype(np.float32)
    drafter.observe(step_of([sequence], [draft], [Verdict((), 4)], [Output(logits)]))
    return sequence


@pytest.mark.parametrize("rows", range(4))
@pytest.mark.parametrize("depth", range(6))
def test_drafts_fit_budgets_and_no_token_stands_behind_a_prompt_token(
    rows: int, depth: int
) -> None:
    for nodes in range(20):
        drafter = PPD(ACCURACIES, VOCABULARY)
        [draft] = drafter.propose([asked(drafter, rows)], [Budget(nodes, depth)])
        trees.validate(draft)
        assert len(draft) <= nodes
        assert trees.depths(draft).max(initial=0) <= depth
        assert draft.scores is not None or not len(draft)
        for node, (token, parent) in enumerate(zip(draft.tokens, draft.parents, strict=True)):
            above = 1.0 if parent == ROOT else draft.scores[parent]
            assert 0 <= draft.scores[node] <= above
            asks = parent != ROOT and draft.tokens[parent] >= VOCABULARY
            if token < VOCABULARY:
                assert not asks
                assert trees.depths(draft)[node] <= rows
            else:
                assert token == (draft.tokens[parent] + 1 if asks else VOCABULARY)
        if nodes >= 8 and depth >= 4:
            assert (draft.tokens >= VOCABULARY).any()
            assert (draft.tokens < VOCABULARY).any() == (rows > 0)


def test_candidates_are_the_most_probable_tokens_of_the_accepted_nodes_prompt_tokens() -> None:
    drafter = PPD(ACCURACIES, VOCABULARY)
    sequence = Generation.start(0, [1, 2, 3], SamplingParams())
    # Root: one prompt token. Node 0: two. Node 0 is accepted.
    draft = TokenTree(
        np.array([8, VOCABULARY, VOCABULARY, VOCABULARY + 1]), np.array([ROOT, ROOT, 0, 2])
    )
    logits = np.random.default_rng(1).normal(size=(5, VOCABULARY)).astype(np.float32)
    drafter.observe(step_of([sequence], [draft], [Verdict((0,), 9)], [Output(logits)]))
    [proposed] = drafter.propose([sequence], [Budget(12, 8)])
    below = trees.children(proposed)
    first = [int(t) for t in proposed.tokens[below[ROOT]] if t < VOCABULARY]
    assert first == np.argsort(-logits[3])[: len(first)].tolist()
    second = [int(t) for t in proposed.tokens[below[below[ROOT][0]]] if t < VOCABULARY]
    assert second == np.argsort(-logits[4])[: len(second)].tolist()
    assert len(first) > 1
    assert second
    # A controller that cut the second prompt token leaves one to read.
    drafter.observe(
        step_of(
            [sequence], [trees.take(draft, np.arange(3))], [Verdict((0,), 9)], [Output(logits[:4])]
        )
    )
    [proposed] = drafter.propose([sequence], [Budget(12, 8)])
    assert trees.depths(proposed)[proposed.tokens < VOCABULARY].max() == 1
    drafter.close(sequence)
    [proposed] = drafter.propose([sequence], [Budget(12, 8)])
    assert (proposed.tokens >= VOCABULARY).all()


def test_dear_rows_are_not_spent() -> None:
    sizes = []
    for price in (0.0, 0.05, 2.0):
        costs = CostModel([1, 4, 8, 12], [1.0 + n * price for n in (0, 3, 7, 11)])
        drafter = PPD(ACCURACIES, VOCABULARY, lambda costs=costs: costs)  # type: ignore[misc]
        [draft] = drafter.propose([asked(drafter)], [Budget(11, 11)])
        sizes.append(len(draft))
    assert sizes[0] > sizes[1] > sizes[2] == 0


@pytest.mark.parametrize("verifier", [Greedy(), Coupled(), SampleMatch()])
@pytest.mark.parametrize("seed", range(5))
def test_lossless_rules_do_not_know_prompt_tokens(verifier: Verifier, seed: int) -> None:
    drafter = PPD(ACCURACIES, VOCABULARY)
    [draft] = drafter.propose([asked(drafter)], [Budget(20, 20)])
    shown = trees.take(draft, np.flatnonzero(draft.tokens < VOCABULARY))
    assert len(shown) < len(draft)
    params = SAMPLED if seed else GREEDY
    distribution = processed(MODEL.logits, params, [seed])
    verdicts = [
        verifier.verify(each, TabularDistributions(distribution, (seed,), each), Sampled(seed))
        for each in (draft, shown)
    ]
    assert verdicts[0].next_token == verdicts[1].next_token < VOCABULARY
    accepted = [
        each.tokens[list(verdict.path)].tolist()
        for each, verdict in zip((draft, shown), verdicts, strict=True)
    ]
    assert accepted[0] == accepted[1]


def test_a_lossy_rule_takes_prompt_tokens_for_tokens() -> None:
    """Which is why the drafter is not made for one."""
    drafter = PPD(ACCURACIES, VOCABULARY)
    [draft] = drafter.propose([asked(drafter)], [Budget(20, 20)])
    distribution = processed(MODEL.logits, SAMPLED, [0])
    with pytest.raises(IndexError):
        TopGap().verify(draft, TabularDistributions(distribution, (0,), draft), Sampled(0))


@pytest.fixture
def context(tmp_path: Path) -> DrafterContext:
    """For a target whose prompt tokens are in a file."""
    rows = np.ones((3, 8), np.float32)
    save_prompt_tokens(
        tmp_path / "ppd.safetensors", PromptTokens(rows, ACCURACIES, {"model": "0123"})
    )
    target: Any = TabularTarget(MODEL.logits, VOCABULARY)
    target._capabilities = replace(target.capabilities, hidden_size=8)
    target.add_embeddings = lambda rows: VOCABULARY + len(rows)
    options = {"weights": str(tmp_path / "ppd.safetensors")}
    return drafter_context(target, model="0123", embeddings=True, options=options)


def another(context: DrafterContext) -> Resources:
    return drafter_context(context.target, model="4567").resources


def test_it_is_made_from_a_file(context: DrafterContext) -> None:
    drafter = PPD.create(context)
    [draft] = drafter.propose([Generation.start(0, [1], GREEDY)], [Budget(8, 8)])
    assert draft.tokens.tolist() == [VOCABULARY + 3, VOCABULARY + 4, VOCABULARY + 5][: len(draft)]
    assert len(draft)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda c: replace(c, embeddings=False), RuntimeUnavailable, "hold no token"),
        (
            lambda c: replace(c, resources=another(c)),
            InvalidOption,
            "another model",
        ),
        (lambda c: replace(c, options={"weights": "no"}), InvalidOption, "there is no file no"),
        (lambda c: replace(c, options={"wheels": "2"}), InvalidOption, "wheels"),
        (lambda c: replace(c, options={"aware": "maybe"}), InvalidOption, "aware=true or false"),
    ],
)
def test_what_cannot_be_made_says_why(
    context: DrafterContext,
    change: Callable[[DrafterContext], DrafterContext],
    error: type[Exception],
    message: str,
) -> None:
    with pytest.raises(error, match=message):
        PPD.create(change(context))


@pytest.mark.parametrize("sign", ["+", "|"])
def test_it_works_alone(context: DrafterContext, sign: str) -> None:
    text = f"ppd:weights={context.options['weights']}"
    assert make_drafter(text, context).name == "ppd"
    with pytest.raises(RuntimeUnavailable, match="no other drafter"):
        make_drafter(f"{text}{sign}prompt-lookup", context)


def tiny_target(runtime: str) -> Any:
    """A random model, on the CPU runtime at int8, on torch at fp64."""
    if runtime == "cpu":
        return tiny_cpu.target("int8")
    from paceline.runtimes.torch.target import TorchTarget

    config = tiny.tiny_config()
    return TorchTarget(config, tiny.named_tensors(config), precision="fp64")


@pytest.mark.parametrize("params", [GREEDY, SAMPLED])
@pytest.mark.parametrize("runtime", ["cpu", "torch"])
def test_tokens_on_a_runtime_are_those_of_plain_decoding(
    runtime: str, params: SamplingParams
) -> None:
    target = tiny_target(runtime)
    plain = decode(target, NoDrafter(), params, 1, Coupled())
    width = target.capabilities.hidden_size
    rows = np.random.default_rng(0).standard_normal((3, width)).astype(np.float32)
    drafter = PPD(ACCURACIES, target.add_embeddings(rows))
    drafted = decode(target, drafter, params, 11, Coupled())
    assert [s.tokens for s in drafted] == [s.tokens for s in plain]
    assert drafted[0].stats.drafted_tokens > 100
