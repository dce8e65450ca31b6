"""Chains of a trained network: argmax tokens, or for sampled requests the winners under the
target's Gumbel noise, since they agree more often.
"""

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

# Temperature that tokens are drawn at, beside the request's. A network that knows less than the
# target spreads its distribution wider.
_SHARPER = 0.9


def chains(
    drafted: List[Chain],
    wanted: List[Budget],
    lines: List[ChainChances],
    *,
    source: str,
    stop: float = 0.0,
    rivals: bool = True,
) -> list[tuple[TokenTree, Chain]]:
    """Build a draft per sequence, as deep as its budget and chain allow; return both.

    Args:
        drafted: the network's chains.
        wanted: a budget for each.
        lines: acceptance statistics of each.
        source: name of the drafter.
        stop: a chain ends before the first token whose acceptance probability is below this.
        rivals: whether remaining nodes go to runner-up tokens beside the chain's, as leaves:
            the network has computed these already.
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
    # The chain stands first, so that no cache row has to be moved to retain it.
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
    """Return the Gumbel noise of the `depth` positions after the root; None for greedy requests."""
    temperature = sequence.params.temperature
    if not temperature:
        return None
    begin, randomness = len(sequence.tokens), sequence.randomness
    draws = (Draw(place, Purpose.NOISE) for place in range(begin, begin + depth))
    return Noise(b"".join([randomness.noise(draw).key for draw in draws]), _SHARPER * temperature)
