"""Chains that a trained network drafts: its likeliest tokens, or for sampled requests the winners
under the noise that the target will draw with, since they agree oftener."""

from __future__ import annotations

from collections.abc import Sequence as List
from itertools import accumulate
from operator import mul

import numpy as np

from paceline.drafters.chain_chances import ChainChances
from paceline.networks.runner import Chain, Noise
from paceline.randomness import Draw, Purpose
from paceline.sequence import Sequence
from paceline.types import ROOT, Budget, TokenTree

_SHARPER = 0.9
"""Temperature that tokens are drawn at, beside the request's. A network that knows less than the
target spreads its law wider; between 0.85 and 1 most tokens agree."""


def chains(
    drafted: List[Chain],
    wanted: List[Budget],
    lines: List[ChainChances],
    *,
    source: str,
    stop: float = 0.0,
    rivals: bool = True,
) -> list[tuple[TokenTree, Chain]]:
    """A draft for each sequence, as deep as its budget and its chain allow, and the chain.

    Args:
        drafted: what the network says.
        wanted: a budget for each.
        lines: how often its tokens stand.
        source: name of the drafter.
        stop: a chain ends before the first token whose chance is below this.
        rivals: whether room that the chain leaves is for the second likeliest tokens beside its
            own, as leaves: for these the network has computed everything already.
    """
    out = []
    for chain, budget, line in zip(drafted, wanted, lines, strict=True):
        depth = min(budget.nodes, budget.depth, len(chain.tokens))
        if stop:
            doubtful = (at for at in range(depth) if chain.chances[at] < stop)
            depth = next(doubtful, depth)
        room = budget.nodes - depth if rivals else 0
        chances = line.of(chain.chances[:depth])
        out.append((_draft(chain, chances, room, source), chain))
    return out


def _draft(chain: Chain, chances: List[float], room: int, source: str) -> TokenTree:
    """So much of a chain as chances say, and behind it the likeliest rivals there is room for.

    The chain stands first, so that nothing has to be moved to keep it.
    """
    depth = len(chances)
    scores = list(accumulate(chances, mul))
    tokens, parents = list(chain.tokens[:depth]), list(range(ROOT, depth - 1))
    if room > 0:
        above = [1.0, *scores]
        # What a network says of rivals is what they keep, but for what the chain's own leave.
        beside = [above[at] * min(chain.rival_chances[at], 1 - chances[at]) for at in range(depth)]
        likely = sorted(range(depth), key=beside.__getitem__, reverse=True)[:room]
        for at in sorted(likely):
            if beside[at] > 0:
                tokens.append(chain.rivals[at])
                parents.append(at - 1)
                scores.append(beside[at])
    return TokenTree(
        np.array(tokens, dtype=np.int64),
        np.array(parents, dtype=np.int64),
        source=source,
        scores=np.array(scores),
    )


def noise_behind(sequence: Sequence, depth: int) -> Noise | None:
    """What the tokens behind the root will be drawn with; None for greedy requests."""
    temperature = sequence.params.temperature
    if not temperature:
        return None
    begin, randomness = len(sequence.tokens), sequence.randomness
    draws = (Draw(place, Purpose.NOISE) for place in range(begin, begin + depth))
    return Noise(b"".join([randomness.noise(draw).key for draw in draws]), _SHARPER * temperature)
