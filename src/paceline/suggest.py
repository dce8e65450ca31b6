"""Suggestions: several short continuations of a text for the price of one (lossy)."""

from __future__ import annotations

from collections.abc import Sequence as List
from dataclasses import dataclass

from paceline.decode.superposed import NGrams, Superposing, superpose
from paceline.engine import Engine
from paceline.errors import InvalidOption, PromptError, RuntimeUnavailable


@dataclass(frozen=True, slots=True)
class Suggestion:
    """One continuation.

    Attributes:
        text: of the continuation.
        token_ids: its tokens.
        score: sum of its interpolated log-probabilities, in nats.
    """

    text: str
    token_ids: tuple[int, ...]
    score: float


@dataclass(frozen=True, slots=True)
class Suggestions:
    """What `suggest` returns.

    Attributes:
        suggestions: best first.
        forwards: of the target: one per token, however many suggestions there are.
        lossless: never.
    """

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
    """Continue a text in several ways by superposed decoding.

    Args:
        engine: on a runtime that takes embeddings as input ("torch"); its drafter is not used.
        prompt: the text so far, taken as it is, without a chat template.
        k: how many suggestions.
        tokens: length of each in tokens.
        alpha: weight of n-gram counts against the model, from 0 to 1. With 0 and `k` of 1 the
            suggestion is greedy text. Default: 0.3 with a corpus, 0 without.
        corpus: texts that n-grams are counted in; without them, the prompt itself.

    Raises:
        InvalidOption: `k`, `tokens` or `alpha` is out of range.
        PromptError: the prompt is empty, or with `tokens` longer than the context.
        RuntimeUnavailable: the runtime takes no embeddings.
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
