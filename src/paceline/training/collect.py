"""From prompts to labelled mismatches: decode, record, choose some, roll out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paceline.engine import Engine
from paceline.training.labels import Kind, Rollouts, Text, losses
from paceline.training.mismatches import Mismatch, Recorder
from paceline.types import LogitArray, ProbArray


@dataclass(frozen=True, slots=True)
class Labelled:
    """The mismatches of one prompt.

    Attributes:
        features: float32 `[n, 4 + hidden_size]`.
        losses: float64 `[n]`, what accepting each would cost.
    """

    features: LogitArray
    losses: ProbArray


def collect(
    engine: Engine,
    kind: Kind,
    prompt: str,
    *,
    new_tokens: int,
    per_prompt: int,
    rollouts: Rollouts,
    seed: int,
) -> Labelled:
    """Label up to `per_prompt` mismatches of one prompt's greedy answer.

    Args:
        engine: has a drafter that drafts; its verifier is replaced while this runs.
        kind: which loss.
        prompt: a user turn.
        new_tokens: length of the answer; mismatches come from all of it but the last
            `rollouts.ahead` tokens.
        per_prompt: most mismatches to label.
        rollouts: how losses are found.
        seed: chooses among the mismatches.
    """
    decoder, tokenizer = engine.decoder, engine.tokenizer
    asked = [{"role": "user", "content": prompt}]
    ids = tokenizer.chat(asked) if tokenizer.chat_template else tokenizer.encode(prompt)
    recorder, rule = Recorder(), decoder.verifier
    decoder.verifier = recorder
    try:
        answer = engine.generate(ids, max_new_tokens=new_tokens, logprobs=0)
    finally:
        decoder.verifier = rule
    length = len(ids)
    last = length + len(answer.token_ids) - rollouts.ahead
    chosen = _choose([each for each in recorder.found if each.position < last], per_prompt, seed)
    target = decoder.target
    if not chosen:
        width = 4 + target.capabilities.hidden_size
        return Labelled(np.zeros((0, width), np.float32), np.zeros(0))
    tokens = [*ids, *answer.token_ids]
    cache = target.open()
    try:
        target.prefill(cache, tokens[:-1])
        written = [each.logprob for each in answer.logprobs]
        text = Text(cache, tokens, length, written, tokenizer.eos_token_ids)
        found = losses(kind, target, text, chosen, rollouts)
    finally:
        target.release(cache)
    return Labelled(np.stack([each.features for each in chosen]), np.array(found))


def _choose(found: Sequence[Mismatch], count: int, seed: int) -> list[Mismatch]:
    """Some of them, at random but the same ones for a seed, in order of position."""
    picks = np.random.default_rng(seed).permutation(len(found))[:count]
    return [found[i] for i in sorted(picks.tolist())]
