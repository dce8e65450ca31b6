"""Decode canvases of table denoisers, for the tests of samplers and decoders."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import exp
from typing import Any

import numpy as np
from tests.runtimes import tiny_cpu

from paceline.core.types import (
    Attention,
    CanvasParams,
    CanvasTraits,
    IntArray,
    ProbArray,
    SamplingParams,
)
from paceline.denoising.canvas import Canvas
from paceline.denoising.decoder import DenoisingDecoder
from paceline.denoising.process import View
from paceline.engine.stopping import StopRules
from paceline.proof.table_denoiser import TableDenoiser
from paceline.registry.samplers import make_parts
from paceline.runtimes.cpu.target import CpuTarget
from paceline.sampling.generation import Generation
from paceline.sampling.randomness import KeyedRandomness


def decoder_of(target: TableDenoiser) -> DenoisingDecoder:
    limit = target.capabilities.max_context
    return DenoisingDecoder(target, target.facts, StopRules((target.end,), limit), make_parts)  # type: ignore[arg-type]


def start(
    target: TableDenoiser,
    options: CanvasParams,
    prompt: Sequence[int] = (),
    id: int = 0,
    **params: Any,
) -> Generation:
    if "max_new_tokens" not in params:
        params["max_new_tokens"] = target.joint.ndim
    given = list(prompt) or [0] * target.begin
    return Generation.start(id, given, SamplingParams(**params), denoising=options)


def decode(target: TableDenoiser, sampler: str, **params: Any) -> Generation:
    """Decode a text of the joint's length; `block`, `cache`, `ending` as in `CanvasParams`."""
    names = "block", "cache", "ending", "steps"
    options = CanvasParams(sampler, **{k: params.pop(k) for k in names if k in params})
    decoder, sequence = decoder_of(target), start(target, options, **params)
    decoder.check(sequence.params, options)
    finish(decoder, [sequence])
    return sequence


def finish(decoder: DenoisingDecoder, sequences: Sequence[Generation]) -> None:
    """Step until all have ended."""
    for each in sequences:
        if each.cache is None:
            decoder.admit(each)
    while left := [each for each in sequences if each.finish_reason is None]:
        decoder.step(left)


def likelihood(sequence: Generation) -> float:
    """Probability of a sampled text under its sampler, from the trace."""
    return exp(sum(fill.logprob for fill in sequence.work.process.canvas.trace))


def enumerated(target: TableDenoiser, sampler: str) -> dict[tuple[int, ...], float]:
    """The sampler's distribution: the trajectory is a function of the text, so each text is forced.

    Greedy picks are replaced by the text's own tokens through a bias that no distribution sees.
    """
    distribution = {}
    for text in product(range(target.symbols), repeat=target.joint.ndim):
        decoder = decoder_of(target)
        sequence = start(target, CanvasParams(sampler), temperature=1.0)
        decoder.admit(sequence)
        context = sequence.work.process.context
        picks = np.asarray((0,) * target.begin + text)
        context.distributions.picks = lambda probs, places, sibling=0, picks=picks: picks[places]
        finish(decoder, [sequence])
        assert tuple(sequence.generated) == text
        distribution[text] = likelihood(sequence)
    return distribution


def view_of(probs: ProbArray, places: Sequence[int] = (), seed: int = 0, step: int = 0) -> View:
    """A view of masked places on a canvas, with these distributions, float64 `[places, symbols]`.

    Places that are not given hold symbol 0. The mask is symbol -1.
    """
    at = np.asarray(places or range(len(probs)), dtype=np.int64)
    tokens = [-1 if place in at else 0 for place in range(int(at[-1]) + 1)]
    block = range(len(tokens))
    canvas = Canvas(-1, tokens, 0, len(tokens), block, block, step=step)
    with np.errstate(divide="ignore"):
        scores = np.log(probs)

    def drawn(scores: ProbArray, places: IntArray) -> View:
        found = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
        picks = found.argmax(axis=1)
        return View(canvas, places, scores, found, picks, KeyedRandomness(seed), redraw=drawn)

    return drawn(scores, at)


def random_laws(places: int, symbols: int, seed: int, sharpness: float = 2.0) -> ProbArray:
    weights = np.exp(sharpness * np.random.default_rng(seed).normal(size=(places, symbols)))
    probs: ProbArray = weights / weights.sum(axis=1, keepdims=True)
    return probs


PROMPT = (5, 9, 17, 23, 9)


def network(attention: Attention, block: int | None = None, **facts: bool) -> CpuTarget:
    """A tiny random denoiser whose mask is token 3, on the CPU runtime."""
    denoises = CanvasTraits(3, attention, block, **facts)
    made: CpuTarget = tiny_cpu.target("fp32", tiny_cpu.config(denoises=denoises, max_context=96))
    return made


def decode_text(
    target: CpuTarget, options: CanvasParams, prompt: Sequence[int] = PROMPT, **params: Any
) -> Generation:
    """Decode 12 tokens, or `max_new_tokens`, by a network; return the sequence."""
    facts = target.capabilities.denoises
    assert facts is not None
    decoder = DenoisingDecoder(target, facts, StopRules((), 96), make_parts)
    params.setdefault("max_new_tokens", 12)
    sequence = Generation.start(0, list(prompt), SamplingParams(**params), denoising=options)
    decoder.check(sequence.params, options)
    finish(decoder, [sequence])
    target.release(sequence.cache)
    return sequence
