"""Superposed decoding (Shen et al., NeurIPS 2024, arXiv:2405.18400): k drafts per forward. Lossy.

The input is the sum of the drafts' last token embeddings, weighted by their probabilities. N-gram
models separate the drafts, here by stupid back-off (Brants et al. 2007) instead of fixed weights.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Protocol, runtime_checkable

import numpy as np
import typer

from paceline.cli import options as o
from paceline.core.cache import read_text
from paceline.core.options import within
from paceline.core.target import Rows, Target
from paceline.core.types import LogitArray, ProbArray, described
from paceline.drafters.suffix.automaton import ROOT_STATE, Automaton
from paceline.engine.engine import Engine
from paceline.errors import PromptError, RuntimeUnavailable
from paceline.registry.options import Options

# Cost in nats of a continuation that no n-gram contains.
MISS = 200.0

# Continuations at most: each step looks at the square of them.
MOST = 64

_BACK_OFF = math.log(0.4)

# State of the n-gram automaton, and how many tokens of the text it covers.
Context = tuple[int, int]


@runtime_checkable
class Superposing(Protocol):
    """A target that accepts weighted sums of token embeddings as input."""

    def forward_superposed(
        self, cache: Any, tokens: Sequence[int], weights: Sequence[float]
    ) -> LogitArray:
        """Append one position to a cache; return float32 `[vocabulary]` logits after it."""
        ...


class NGrams:
    """N-gram counts of texts, for contexts of 1 to `depth` tokens."""

    def __init__(self, texts: Iterable[Sequence[int]], depth: int = 5) -> None:
        self._texts = Automaton(depth)
        for text in texts:
            self._texts.begin()
            self._texts.extend(text)

    def context(self, tokens: Sequence[int]) -> Context:
        """Return the longest known context at the end of `tokens`."""
        context = (ROOT_STATE, 0)
        for token in tokens[-self._texts.depth :]:
            context = self.follow(context, token)
        return context

    def follow(self, context: Context, token: int) -> Context:
        return self._texts.follow(*context, token)

    def logprob(self, context: Context, token: int) -> float:
        """Return the stupid back-off log score of `token`, factor 0.4; `-MISS` if unseen."""
        texts, (state, _), discount = self._texts, context, 0.0
        while state != ROOT_STATE:
            after = texts.step(state, token)
            if after:
                return discount + math.log(texts.count[after] / texts.followed(state))
            state, _ = texts.back_off(state)
            discount += _BACK_OFF
        return -MISS


@dataclass(frozen=True, slots=True)
class Draft:
    """One continuation; `score` is the sum of interpolated log-probabilities, in nats."""

    tokens: tuple[int, ...]
    score: float
    context: Context
    ended: bool = False


@described(
    "lossy: several continuations from one pass per token",
    requires="paceline suggest; runtime torch",
    paper="after Superposed Decoding, Shen et al. 2024, arXiv:2405.18400",
)
def superpose(
    target: Target,
    prompt: Sequence[int],
    k: int,
    tokens: int,
    *,
    ngrams: NGrams | None = None,
    alpha: float = 0.0,
    end: Sequence[int] = (),
) -> tuple[list[Draft], int]:
    """Return the `k` best continuations by superposed decoding, and the number of forwards.

    `prompt` has at least one token, and fits the context with `tokens`. `alpha` weights `ngrams`,
    from 0 (target alone) to 1; it must be 0 without `ngrams`.
    """
    assert isinstance(target, Superposing)
    start = ngrams.context(prompt) if ngrams else (ROOT_STATE, 0)
    drafts, forwards = [Draft((), 0.0, start)], 0
    cache = target.open()
    try:
        target.prefill(cache, prompt[:-1])
        while forwards < tokens and not all(draft.ended for draft in drafts):
            if forwards:
                live = [draft for draft in drafts if not draft.ended]
                last = [draft.tokens[-1] for draft in live]
                logits = target.forward_superposed(cache, last, weights(live).tolist())
            else:
                [output] = target.forward([Rows.draft(cache, prompt[-1:])])
                target.keep(cache, 1, ())
                logits = output.logits[0]
            forwards += 1
            drafts = _extend(drafts, logits, k, ngrams, alpha, frozenset(end))
    finally:
        target.release(cache)
    return drafts, forwards


def weights(drafts: Sequence[Draft]) -> ProbArray:
    """Return the drafts' probabilities, normalised, float64."""
    scores = np.array([draft.score for draft in drafts])
    shares = np.exp(scores - scores.max())
    normalised: ProbArray = shares / shares.sum()
    return normalised


def _extend(
    drafts: Sequence[Draft],
    logits: LogitArray,
    k: int,
    ngrams: NGrams | None,
    alpha: float,
    end: frozenset[int],
) -> list[Draft]:
    exact = logits.astype(np.float64)
    logprobs = exact - exact.max()
    logprobs -= np.log(np.exp(logprobs).sum())
    argmax = np.argsort(-logprobs, kind="stable")[:k].tolist()
    out = []
    for draft in drafts:
        if draft.ended:
            out.append(draft)
            continue
        for token in argmax:
            gain = float(logprobs[token])
            context = draft.context
            if ngrams is not None:
                gain = (1 - alpha) * gain + alpha * ngrams.logprob(context, token)
                context = ngrams.follow(context, token)
            out.append(Draft((*draft.tokens, token), draft.score + gain, context, token in end))
    return sorted(out, key=lambda draft: -draft.score)[:k]


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
    corpus: Sequence[str] = (),
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
    target: Target = engine.decoder.target
    tokenizer = engine.tokenizer
    vocabulary, context = target.capabilities.vocab_size, target.capabilities.max_context
    if alpha is None:
        alpha = 0.3 if corpus else 0.0
    within("k", k, 1, min(vocabulary, MOST))
    within("tokens", tokens, 1, context)
    within("alpha", alpha, 0, 1, "0 for the model alone")
    if not isinstance(target, Superposing):
        raise RuntimeUnavailable(
            f"the {target.capabilities.runtime} runtime takes no embeddings as input: use torch"
        )
    ids = tokenizer.prompt(prompt, raw=True) if prompt else []
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


def command(
    prompt: Annotated[str, typer.Argument(help="The text so far, taken as it is.")],
    *,
    k: Annotated[int, typer.Option("--k", help="How many suggestions.")] = 3,
    tokens: Annotated[int, "Length of each in tokens."] = 10,
    alpha: Annotated[
        float | None, "Weight of n-gram counts, 0 to 1. Default: 0.3 with --corpus, 0 without."
    ] = None,
    corpus: Annotated[
        Path | None, "Text file that n-grams are counted in. Default: the prompt itself."
    ] = None,
    asked: Annotated[Options, o.Takes("model", *o.COMPUTE, "max_context", runtime="torch")],
    as_json: o.AsJson = False,
) -> None:
    """Continue a text in several ways with one pass per token (superposed decoding).

    Lossy: all suggestions share their passes, so each is only close to what the model would write
    by itself.
    """
    asked.check()
    texts = [] if corpus is None else [_read(corpus)]

    from paceline.cli.output import print_json, remark
    from paceline.registry import loading

    loaded = loading.load_model(asked)
    engine = loading.make_engine(loaded, drafter="none", max_batch=1)
    found = suggest(engine, prompt, k=k, tokens=tokens, alpha=alpha, corpus=texts)
    if as_json:
        print_json(asdict(found))
        return
    for each in found.suggestions:
        typer.echo(f"{each.score:8.2f}  {each.text!r}")
    remark(f"{found.forwards} forwards for {len(found.suggestions)} suggestions; lossy")


def _read(path: Path) -> str:
    """The corpus; PromptError if it is unreadable or empty."""
    text = read_text(path, f"cannot read {path}", "give a text file as --corpus", PromptError)
    if not text.strip():
        raise PromptError(f"{path} is empty: give a text file as --corpus")
    return text
