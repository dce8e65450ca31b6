"""From logits to the law of the next token: pure functions, exact at every node of a draft."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paceline.types import IntArray, LogitArray, ProbArray, SamplingParams, TokenLogprob, TokenTree


@dataclass(frozen=True, slots=True)
class Law:
    """A distribution over the vocabulary, kept on its support.

    Attributes:
        probs: float64 `[k]`, summing to one.
        ids: int64 `[k]` ascending token ids of the support, or None when it is the whole
            vocabulary (`k == size`).
        size: width of the vocabulary.
    """

    probs: ProbArray
    ids: IntArray | None
    size: int

    def token(self, index: int) -> int:
        """Token id at `index` of the support."""
        return index if self.ids is None else int(self.ids[index])

    def prob(self, token: int) -> float:
        """Probability of `token`."""
        if self.ids is None:
            return float(self.probs[token])
        index = int(np.searchsorted(self.ids, token))
        hit = index < len(self.ids) and self.ids[index] == token
        return float(self.probs[index]) if hit else 0.0

    def dense(self) -> ProbArray:
        """float64 `[size]` with zeros outside the support."""
        if self.ids is None:
            return self.probs
        out = np.zeros(self.size)
        out[self.ids] = self.probs
        return out

    def argmax(self) -> int:
        """The most likely token; the lowest id among equals."""
        return self.token(int(self.probs.argmax()))


def one_hot(token: int, size: int) -> Law:
    """The law that is certain of `token`."""
    return Law(np.ones(1), np.array([token], dtype=np.int64), size)


def top_k_ids(values: LogitArray | ProbArray, k: int) -> IntArray:
    """Ids of the k largest entries of `[n]` values, largest first, ties to the lower id.

    The k largest all lie in the k blocks with the largest maxima (ties aside, which only widen the
    choice), and a block maximum is far cheaper than a partition of a whole vocabulary.
    """
    n = len(values)
    width = 256
    if n <= width * k or n % width:
        candidates = np.arange(n)
    else:
        blocks = values.reshape(-1, width)
        maxima = blocks.max(axis=1)
        bound = np.partition(maxima, len(maxima) - k)[len(maxima) - k]
        rows = np.flatnonzero(maxima >= bound)
        candidates = (rows[:, None] * width + np.arange(width)).ravel()
    chosen = values[candidates]
    if len(chosen) > 4 * k:
        bound = np.partition(chosen, len(chosen) - k)[len(chosen) - k]
        inside = np.flatnonzero(chosen >= bound)
        candidates, chosen = candidates[inside], chosen[inside]
    order = np.lexsort((candidates, -chosen))[:k]
    result: IntArray = candidates[order].astype(np.int64)
    return result


def _nucleus(logits: ProbArray, top_p: float) -> IntArray:
    """Positions of the smallest set of most likely entries whose mass reaches `top_p`."""
    weights = np.exp(logits - logits.max())
    goal = top_p * weights.sum()
    k = min(256, len(weights))
    while True:
        order = top_k_ids(weights, k)
        mass = np.cumsum(weights[order])
        if mass[-1] >= goal or k == len(weights):
            return order[: int(np.searchsorted(mass, goal)) + 1]
        k = min(k * 8, len(weights))


def _adjust(
    logits: LogitArray, params: SamplingParams, prompt: IntArray, output: Counter[int]
) -> ProbArray:
    """Penalties, bias and bans, as float64 `[vocabulary]`."""
    x = logits.astype(np.float64)
    seen = np.fromiter(output.keys(), np.int64, len(output))
    if params.repetition_penalty != 1:
        ids = np.union1d(prompt, seen)
        scale = np.where(x[ids] > 0, 1 / params.repetition_penalty, params.repetition_penalty)
        x[ids] *= scale
    if len(seen) and (params.presence_penalty or params.frequency_penalty):
        counts = np.fromiter(output.values(), np.float64, len(output))
        x[seen] -= params.presence_penalty + params.frequency_penalty * counts
    for token, bias in params.logit_bias.items():
        x[token] += bias
    if params.banned_tokens:
        x[list(params.banned_tokens)] = -np.inf
    return x


def _truncate(x: ProbArray, params: SamplingParams) -> Law:
    """Temperature, top-k, top-p, min-p and softmax over float64 `[vocabulary]` logits."""
    size = len(x)
    with np.errstate(over="ignore"):  # the peak is taken out first, so only -inf can come of it
        x = (x - x.max()) / params.temperature
    ids: IntArray | None = None

    def narrow(keep: IntArray) -> None:
        nonlocal x, ids
        keep = np.sort(keep)
        ids = keep if ids is None else ids[keep]
        x = x[keep]

    if 0 < params.top_k < size:
        narrow(np.flatnonzero(x >= x[top_k_ids(x, params.top_k)[-1]]))
    if params.top_p < 1:
        narrow(_nucleus(x, params.top_p))
    if params.min_p > 0:
        with np.errstate(divide="ignore"):
            narrow(np.flatnonzero(x >= x.max() + np.log(params.min_p)))
    weights = np.exp(x - x.max())
    return Law(weights / weights.sum(), ids, size)


class Sampler:
    """The law of a request's next token, given logits and the path inside a draft."""

    def __init__(self, params: SamplingParams, prompt: Sequence[int]) -> None:
        """Bind `params` to a prompt; `commit` tells of every token that follows."""
        self.params = params
        self._prompt = np.unique(np.asarray(prompt, dtype=np.int64))
        self._output: Counter[int] = Counter()
        self._generated = 0
        self._plain = (
            params.repetition_penalty == 1
            and params.presence_penalty == 0
            and params.frequency_penalty == 0
            and not params.logit_bias
            and not params.banned_tokens
        )

    def commit(self, tokens: Sequence[int]) -> None:
        """Append generated tokens to the context of penalties."""
        self._output.update(tokens)
        self._generated += len(tokens)

    def law(self, logits: LogitArray, path: Sequence[int] = ()) -> Law:
        """The law of the token after the committed ones and `path`.

        Args:
            logits: float32 `[vocabulary]` of the target at the end of the path.
            path: drafted tokens between the root and that position.
        """
        params = self.params
        size = len(logits)
        forced = params.forced_tokens.get(self._generated + len(path))
        if forced is not None:
            return one_hot(forced, size)
        if params.greedy and self._plain:
            return one_hot(int(logits.argmax()), size)
        output = self._output
        if path:
            output = output + Counter(path)
        x = (
            logits.astype(np.float64)
            if self._plain
            else _adjust(logits, params, self._prompt, output)
        )
        if params.greedy:
            return one_hot(int(x.argmax()), size)
        return _truncate(x, params)


class NodeLaws:
    """The target's law at the root and at every node of one draft, computed when first asked.

    Verifiers look only at nodes on the path that they walk, so rejected branches cost nothing.
    """

    def __init__(
        self, sampler: Sampler, draft: TokenTree, logits: LogitArray, position: int
    ) -> None:
        """Bind the rows of a forward.

        Args:
            sampler: the sequence's sampler.
            draft: the verified draft.
            logits: float32 `[1 + nodes, vocabulary]`, root first.
            position: absolute position of the first drafted token.
        """
        self.position = position
        self._sampler = sampler
        self._draft = draft
        self._logits = logits
        self._known: dict[int, Law] = {}

    def law(self, node: int) -> Law:
        """Law of the token after `node` (`ROOT` for the root)."""
        known = self._known.get(node)
        if known is None:
            path: list[int] = []
            above = node
            while above >= 0:
                path.append(int(self._draft.tokens[above]))
                above = int(self._draft.parents[above])
            known = self._sampler.law(self._logits[node + 1], path[::-1])
            self._known[node] = known
        return known


def logprobs(logits: LogitArray, token: int, top: int) -> TokenLogprob:
    """Log-softmax of a raw logits row at `token` and at its `top` most likely tokens."""
    x = logits.astype(np.float64)
    peak = x.max()
    total = peak + np.log(np.exp(x - peak).sum())
    best = top_k_ids(x, min(top, len(x))) if top else ()
    return TokenLogprob(
        token, float(x[token] - total), tuple((int(i), float(x[i] - total)) for i in best)
    )
