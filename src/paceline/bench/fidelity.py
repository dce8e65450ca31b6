"""How far a faster precision of a model is from its full precision: KL, agreement, perplexity."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from paceline import tree as trees
from paceline.target import Pass, Target
from paceline.text import Tokenizer
from paceline.types import LogitArray, ProbArray

PROMPTS = (
    "Describe a quiet harbour town on a winter morning.",
    "What makes bread rise, and why does kneading help?",
    "Write a Python function that counts the vowels in a string.",
    "A train covers 180 km in two and a half hours. What is its average speed? Explain.",
    "Summarise in one sentence: The old bridge was closed in spring because its cables had "
    "rusted. Repairs took eight months, and ferries carried people across the river meanwhile.",
    "Name three inventions of the nineteenth century and say what each of them changed.",
    "Rewrite politely: Send me the report today or I will be angry.",
    "How do vaccines protect people who were not vaccinated?",
)
"""Short prompts of several kinds; the reference model continues each of them."""


@dataclass(frozen=True, slots=True)
class Fidelity:
    """A model against its reference, on the reference's own greedy text.

    Attributes:
        tokens: number of tokens compared.
        kl: mean KL(reference || model) per token, in nats.
        top1_agreement: share of tokens at which both find the same token likeliest.
        perplexity: of the model on the text.
        reference_perplexity: of the reference on the text.
    """

    tokens: int
    kl: float
    top1_agreement: float
    perplexity: float
    reference_perplexity: float

    def as_dict(self) -> dict[str, float | int]:
        """The figures by name."""
        return asdict(self)


def fidelity(
    reference: Target,
    model: Target,
    tokenizer: Tokenizer,
    prompts: Sequence[str] = PROMPTS,
    new_tokens: int = 64,
) -> Fidelity:
    """Compare two targets that share a tokenizer, teacher-forced on the reference's greedy text.

    Args:
        reference: the model at full precision.
        model: the one to judge.
        tokenizer: of both.
        prompts: user turns.
        new_tokens: length of each continuation; it ends early at an end token.
    """
    if tokenizer.chat_template is None:
        contexts = [tokenizer.encode(prompt) for prompt in prompts]
    else:
        contexts = [tokenizer.chat([{"role": "user", "content": p}]) for p in prompts]
    texts = _continue(reference, contexts, new_tokens, tokenizer.eos_token_ids)
    count, kl, agree, loss, reference_loss = 0, 0.0, 0, 0.0, 0.0
    for context, text in zip(contexts, texts, strict=True):
        p, q = (_logprobs(target, context, text) for target in (reference, model))
        rows = np.arange(len(text))
        count += len(text)
        kl += float((np.exp(p) * (p - q)).sum())
        agree += int((p.argmax(axis=1) == q.argmax(axis=1)).sum())
        loss -= float(q[rows, text].sum())
        reference_loss -= float(p[rows, text].sum())
    return Fidelity(
        count, kl / count, agree / count, math.exp(loss / count), math.exp(reference_loss / count)
    )


def _continue(
    target: Target, contexts: Sequence[Sequence[int]], length: int, ends: Sequence[int]
) -> list[list[int]]:
    """Greedy continuations, decoded together."""
    texts: list[list[int]] = [[] for _ in contexts]
    caches = [target.open() for _ in contexts]
    try:
        for cache, context in zip(caches, contexts, strict=True):
            target.prefill(cache, context[:-1])
        running = list(range(len(contexts)))
        while running:
            roots = [(texts[i] or contexts[i])[-1] for i in running]
            outputs = target.forward(
                [Pass(caches[i], [root]) for i, root in zip(running, roots, strict=True)]
            )
            for i, output in zip(running, outputs, strict=True):
                texts[i].append(int(output.logits[0].argmax()))
                target.keep(caches[i], 1, ())
            running = [i for i in running if len(texts[i]) < length and texts[i][-1] not in ends]
    finally:
        for cache in caches:
            target.release(cache)
    return texts


def _logprobs(target: Target, context: Sequence[int], text: Sequence[int]) -> ProbArray:
    """float64 `[len(text), vocabulary]`: log-law of each token of `text`, from one chain pass."""
    cache = target.open()
    try:
        target.prefill(cache, context[:-1])
        draft = trees.chain(text[:-1])
        logits: LogitArray = target.forward([Pass(cache, context[-1:], draft)])[0].logits
        x = logits.astype(np.float64)
    finally:
        target.release(cache)
    x -= x.max(axis=1, keepdims=True)
    out: ProbArray = x - np.log(np.exp(x).sum(axis=1, keepdims=True))
    return out
