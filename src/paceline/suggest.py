"""Suggestions: several short continuations by superposed decoding (`decode.superposed`). Lossy."""

from __future__ import annotations

from collections.abc import Sequence as List
from dataclasses import dataclass

from paceline.decode.superposed import NGrams, Superposing, superpose
from paceline.engine import Engine
from paceline.errors import InvalidOption, PromptError, RuntimeUnavailable


@dataclass(frozen=True, slots=True)
class Suggestion:
    """One continuation; `score` is the sum of its interpolated log-probabilities, in nats."""

    text: str
    token_ids: tuple[int, ...]
    score: float


@dataclass(frozen=True, slots=True)
class Suggestions:
    """Continuations, best first; `forwards` is one per token, for all of them together."""

    suggestions: tuple[Suggestion, ...]
    forwards: int
    lossless: bool = False


def suggest(
    engine: Engine,
    prompt: str,
    *,
    k: int = 3,
    tokens: int = 10,
    alpha: float | None = None,
    corpus: List[str] = (),
) -> Suggestions:
    """Continue a raw text in `k` ways by superposed decoding.

    Args:
        engine: on a runtime that accepts input embeddings ("torch"); its drafter is not used.
        alpha: weight of n-gram counts against the model, 0 to 1. Default: 0.3 with a corpus, else
            0. With 0 and `k` of 1 the result is greedy text.
        corpus: texts for the n-gram counts; the prompt itself if empty.

    Raises:
        InvalidOption: `k`, `tokens` or `alpha` is out of range.
        PromptError: the prompt is empty, or longer than the context with `tokens`.
        RuntimeUnavailable: the runtime accepts no embeddings.
    """
    target, tokenizer = engine.decoder.target, engine.tokenizer
    vocabulary, context = target.capabilities.vocab_size, target.capabilities.max_context
    if alpha is None:
        alpha = 0.3 if corpus else 0.0
    if not 1 <= k <= vocabulary:
        raise InvalidOption(f"k must be from 1 to {vocabulary} (the vocabulary), not {k}")
    if tokens < 1:
        raise InvalidOption(f"tokens must be 1 or more, not {tokens}")
    if not 0 <= alpha <= 1:
        raise InvalidOption(f"alpha must be from 0 (model alone) to 1, not {alpha}")
    if not isinstance(target, Superposing):
        raise RuntimeUnavailable(
            f"the {target.capabilities.runtime} runtime takes no embeddings as input: use torch"
        )
    ids = tokenizer.encode(prompt)
    if not ids:
        raise PromptError("the prompt is empty: give some text")
    if len(ids) + tokens > context:
        raise PromptError(
            f"the prompt has {len(ids)} tokens and the context holds {context}, of which {tokens} "
            "must stay free: shorten the prompt"
        )
    ngrams = None
    if alpha > 0:
        texts = [tokenizer.encode(text) for text in corpus] if corpus else [ids]
        ngrams = NGrams(texts)
    end = tokenizer.eos_token_ids
    drafts, forwards = superpose(target, ids, k, tokens, ngrams=ngrams, alpha=alpha, end=end)
    found = [Suggestion(tokenizer.decode(d.tokens), d.tokens, d.score) for d in drafts]
    return Suggestions(tuple(found), forwards)
