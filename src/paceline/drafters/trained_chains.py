"""Chains that a trained network drafts: its likeliest tokens, or for sampled requests the winners
under the noise that the target will draw with, since they agree oftener."""

from __future__ import annotations

from collections.abc import Sequence as List
from dataclasses import replace

import numpy as np

from paceline import tree as trees
from paceline.networks.runner import Grown, Noise, Runner
from paceline.randomness import Draw, Purpose
from paceline.sequence import Sequence
from paceline.types import TokenTree

_SHARPER = 0.75
"""Temperature that tokens are drawn at, beside the request's. A network that knows less than the
target spreads its law wider; between 0.6 and 0.9 most tokens agree."""


def chains(
    runner: Runner,
    grown: List[Grown],
    wanted: List[int],
    stop: float,
) -> list[TokenTree]:
    """One chain for each sequence, of at most so many tokens.

    Args:
        runner: the network.
        grown: what contexts have gained.
        wanted: most tokens for each.
        stop: a chain ends before the first token whose chance is below this.

    Raises:
        OutOfMemory: the network's own cache is full.
    """
    drafts = []
    drafted = runner.draft(grown, min(max(wanted), runner.depth))
    for chain, most in zip(drafted, wanted, strict=True):
        tokens, chances = chain.tokens[:most], chain.chances[:most]
        if stop:
            kept = int(np.append(chances < stop, True).argmax())
            tokens, chances = tokens[:kept], chances[:kept]
        drafts.append(trees.chain(tokens, scores=chances.cumprod()))
    return drafts


def with_noise(grown: Grown, sequence: Sequence, depth: int) -> Grown:
    """The same with what the tokens behind the root will be drawn with; not for greedy requests."""
    temperature = sequence.params.temperature
    if not temperature:
        return grown
    begin, randomness = len(sequence.tokens), sequence.randomness
    draws = (Draw(place, Purpose.NOISE) for place in range(begin, begin + depth))
    keys = b"".join(randomness.noise(draw).key for draw in draws)
    return replace(grown, noise=Noise(keys, _SHARPER * temperature))
