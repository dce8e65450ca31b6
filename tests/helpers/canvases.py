"""Decode canvases of table denoisers, for the tests of samplers and decoders."""

from __future__ import annotations

from collections.abc import Sequence as List
from typing import Any

from paceline.core.types import Denoising, SamplingParams
from paceline.denoising.decoder import DenoisingDecoder
from paceline.engine.stopping import StopRules
from paceline.proof.table_denoiser import TableDenoiser
from paceline.registry.samplers import RegisteredParts
from paceline.sampling.sequence import Sequence


def decoder_of(target: TableDenoiser) -> DenoisingDecoder:
    limit = target.capabilities.max_context
    return DenoisingDecoder(
        target, target.facts, StopRules((target.end,), limit), RegisteredParts()
    )  # type: ignore[arg-type]


def start(
    target: TableDenoiser, options: Denoising, prompt: List[int] = (), id: int = 0, **params: Any
) -> Sequence:
    if "max_new_tokens" not in params:
        params["max_new_tokens"] = target.joint.ndim
    given = list(prompt) or [0] * target.begin
    return Sequence.start(id, given, SamplingParams(**params), denoising=options)


def decode(target: TableDenoiser, sampler: str, **params: Any) -> Sequence:
    """Decode a text of the joint's length; `block`, `cache`, `ending` are those of `Denoising`."""
    names = "block", "cache", "ending", "steps"
    options = Denoising(sampler, **{k: params.pop(k) for k in names if k in params})
    decoder, sequence = decoder_of(target), start(target, options, **params)
    decoder.check(sequence.params, options)
    finish(decoder, [sequence])
    return sequence


def finish(decoder: DenoisingDecoder, sequences: List[Sequence]) -> None:
    """Step until all have ended."""
    for each in sequences:
        if each.cache is None:
            decoder.admit(each)
    while left := [each for each in sequences if each.finish_reason is None]:
        decoder.step(left)
