"""Shared by tests of drafters: the loop over a batch, to its end."""

from __future__ import annotations

from collections.abc import Iterable

from paceline.core.types import SamplingParams
from paceline.engine.loop import AutoregressiveDecoder
from paceline.sampling.generation import Generation


def decode_all(decoder: AutoregressiveDecoder, sequences: Iterable[Generation]) -> list[Generation]:
    """Decode sequences together until each has ended; those that end are closed."""
    every = list(sequences)
    for sequence in every:
        decoder.open(sequence)
    running = every
    while running:
        for commit in decoder.step(running):
            if commit.finish_reason:
                decoder.close(commit.sequence)
        running = [each for each in running if each.finish_reason is None]
    return every


def decode(
    decoder: AutoregressiveDecoder, prompts: list[list[int]], params: SamplingParams
) -> list[Generation]:
    """Decode prompts together with the same parameters."""
    return decode_all(
        decoder, (Generation.start(i, each, params) for i, each in enumerate(prompts))
    )
