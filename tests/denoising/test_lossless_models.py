"""Lossless samplers on tiny random networks, whose cached keys and masks are real: the same texts
as one place a step, or as plain autoregressive decoding by the other decoder.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from tests.helpers.canvases import finish, start
from tests.helpers.decoding_loop import decode as autoregressive
from tests.helpers.tiny_model import named_tensors, tiny_config
from tests.runtimes import tiny_cpu

from paceline.core.types import Attention, CanvasParams, CanvasTraits, SamplingParams
from paceline.denoising.decoder import DenoisingDecoder
from paceline.drafters.base import NoDrafter
from paceline.engine.loop import AutoregressiveDecoder
from paceline.engine.stopping import StopRules
from paceline.policy.controller import Fixed
from paceline.registry.samplers import make_parts
from paceline.runtimes.torch.target import TorchTarget
from paceline.sampling.generation import Generation
from paceline.verifiers.matching import Coupled

MASK, LENGTH = 300, 12
PROMPTS = ([5, 9, 61, 7, 200], [17, 30, 4])
PARAMS: tuple[dict[str, Any], ...] = ({}, {"temperature": 0.8, "seed": 11})


def target(runtime: str, facts: CanvasTraits) -> Any:
    if runtime == "cpu":
        return tiny_cpu.target("fp32", tiny_cpu.config(denoises=facts), kv_precision="fp32")
    config = replace(tiny_config(), denoises=facts)
    return TorchTarget(config, named_tensors(config), precision="fp64")


def texts(made: Any, sampler: str, cache: str | None = None, **params: Any) -> list[list[int]]:
    """Decode both prompts together."""
    return [each.generated for each in decoded(made, sampler, cache, **params)]


def decoded(made: Any, sampler: str, cache: str | None = None, **params: Any) -> list[Generation]:
    facts = made.capabilities.denoises
    decoder = DenoisingDecoder(made, facts, StopRules((), 256), make_parts)
    options = CanvasParams(sampler, cache=cache)
    batch = [
        start(made, options, prompt, i, max_new_tokens=LENGTH, **params)
        for i, prompt in enumerate(PROMPTS)
    ]
    finish(decoder, batch)
    for each in batch:
        decoder.close(each)
    return batch


@pytest.mark.parametrize("runtime", ["cpu", "torch"])
@pytest.mark.parametrize(
    "facts",
    [
        CanvasTraits(MASK, "full"),
        CanvasTraits(MASK, "full", shifted=True),
        CanvasTraits(MASK, "block", 4),
        CanvasTraits(MASK, "block", 4, shifted=True),
        CanvasTraits(MASK, "block", 4, autoregressive=True),
    ],
    ids=str,
)
def test_freedave_has_the_rules_texts(runtime: str, facts: CanvasTraits) -> None:
    made, rules, saved = target(runtime, facts), ["counts", "threshold:tau=0.05"], 0
    if runtime == "cpu":
        rules += ["dream:steps=8", "genmol", "revise>counts:per_step=2", "credit>factor", "entropy"]
        rules += ["guided:top=4"] * facts.autoregressive
        rules += ["remask:rounds=2>counts"] * (facts.attention == "full")
    caches = ["none"] if facts.attention == "full" else ["exact"]
    if runtime == "cpu" and facts == CanvasTraits(MASK, "full"):
        caches += ["prefix", "dual:radius=1", "freecache:span=2", "window:width=6,active=3,cycle=3"]
    for rule, cache, params in product(rules, caches, PARAMS):
        if cache not in (caches[0], "dual:radius=1") and rule not in rules[:2]:
            continue
        if cache != "none" and "remask" in rule:
            continue
        alone = decoded(made, rule, cache, **params)
        ahead = decoded(made, f"freedave>{rule}", cache, **params)
        for one, other in zip(alone, ahead, strict=True):
            assert other.generated == one.generated, (rule, cache, params)
            assert other.stats.target_forwards <= one.stats.target_forwards, (rule, cache, params)
            saved += one.stats.target_forwards - other.stats.target_forwards
    assert saved > 0
    assert texts(made, "speculative>counts") == texts(made, "counts")


@pytest.mark.parametrize("runtime", ["cpu", "torch"])
@pytest.mark.parametrize("attention", ["full", "block", "order"])
@pytest.mark.parametrize("shifted", [False, True])
def test_self_verified_texts_are_autoregressive(
    runtime: str, attention: Attention, shifted: bool
) -> None:
    block = 4 if attention == "block" else None
    made = target(runtime, CanvasTraits(MASK, attention, block, shifted, autoregressive=True))
    plain = AutoregressiveDecoder(made, NoDrafter(), Coupled(), Fixed(0, 0), StopRules((), 256))
    for params in PARAMS:
        # The mask is no token of a text.
        given = SamplingParams(max_new_tokens=LENGTH, banned_tokens=(MASK,), **params)
        alone = [each.generated for each in autoregressive(plain, list(PROMPTS), given)]
        for sampler in ("tidar", "tidar:width=2,prune=0.01", "linear-spec", "lexical-units:tau=1"):
            assert texts(made, sampler, **params) == alone


@pytest.mark.parametrize("runtime", ["cpu", "torch"])
def test_any_subset_texts_are_sequential(runtime: str) -> None:
    made = target(runtime, CanvasTraits(MASK, "order"))
    pinned = {"forced_tokens": {2: 9, 7: 31}}
    for params in ({}, pinned):
        assert texts(made, "assd", **params) == texts(made, "assd:width=1", **params)
