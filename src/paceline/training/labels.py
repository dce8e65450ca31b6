"""Labels that the target makes itself, by going on from a mismatch and from its own token.

A model of this size solves too few problems for graders of answers to tell two tokens apart, so
both utilities are the target's own. They say what the target would have written, not what is true.

*Judge*: how much likelihood accepting costs. The token and the target's greedy continuation of it,
in mean log-probability per token, against the same for the target's own token. A token is
acceptable if that falls by at most a margin.

*Pivot*: how far accepting leads away. Of several sampled continuations (the same draws for both
tokens), the share of tokens that also stand in the target's own greedy text, counted with
multiplicity. A token is pivotal if the share falls by more than a margin.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from paceline.target import Cache, Target
from paceline.training.continuations import Beginning, continue_all, greedy, sampled
from paceline.training.mismatches import Mismatch

Kind = Literal["judge", "pivot"]


@dataclass(frozen=True, slots=True)
class Text:
    """A prompt and the target's greedy answer, cached.

    Attributes:
        cache: holds all tokens but the last.
        tokens: prompt and answer.
        prompt_length: how many of them are the prompt.
        logprobs: of every answer token under the target, in nats.
        ends: tokens that end a text.
    """

    cache: Cache
    tokens: Sequence[int]
    prompt_length: int
    logprobs: Sequence[float]
    ends: Sequence[int]


@dataclass(frozen=True, slots=True)
class Rollouts:
    """How the target goes on.

    Attributes:
        ahead: tokens behind the one in question.
        samples: sampled continuations per token, for pivots.
        temperature: of the samples.
        top_k: of the samples.
        seed: of the samples.
    """

    ahead: int = 12
    samples: int = 2
    temperature: float = 0.7
    top_k: int = 40
    seed: int = 0


def losses(
    kind: Kind, target: Target, text: Text, found: Sequence[Mismatch], rollouts: Rollouts
) -> list[float]:
    """How much accepting each mismatch costs: nats per token (judge), or a share (pivot)."""
    if kind == "judge":
        return _likelihood_lost(target, text, found, rollouts)
    return _agreement_lost(target, text, found, rollouts)


def _likelihood_lost(
    target: Target, text: Text, found: Sequence[Mismatch], rollouts: Rollouts
) -> list[float]:
    beginnings = [Beginning(each.position, each.token, greedy) for each in found]
    continued = continue_all(target, text.cache, beginnings, rollouts.ahead, text.ends)
    out = []
    for each, after in zip(found, continued, strict=True):
        start = each.position - text.prompt_length
        own = text.logprobs[start : start + 1 + rollouts.ahead]
        theirs = [each.logprob, *after.logprobs]
        out.append(sum(own) / len(own) - sum(theirs) / len(theirs))
    return out


def _agreement_lost(
    target: Target, text: Text, found: Sequence[Mismatch], rollouts: Rollouts
) -> list[float]:
    # The target's own token is rolled out once per position, however many mismatches are there.
    tokens = list(dict.fromkeys((e.position, t) for e in found for t in (e.own, e.token)))
    shares = dict.fromkeys(tokens, 0.0)
    for stream in range(rollouts.samples):
        choose = sampled(rollouts.temperature, rollouts.top_k, rollouts.seed, stream)
        beginnings = [Beginning(position, token, choose) for position, token in tokens]
        continued = continue_all(target, text.cache, beginnings, rollouts.ahead, text.ends)
        for (position, token), after in zip(tokens, continued, strict=True):
            reference = text.tokens[position + 1 : position + 1 + rollouts.ahead]
            common = (Counter(after.tokens) & Counter(reference)).total()
            shares[position, token] += common / len(reference) / rollouts.samples
    return [shares[e.position, e.own] - shares[e.position, e.token] for e in found]
