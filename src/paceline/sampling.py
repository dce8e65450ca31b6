"""From logits to the law of the next token: pure functions, exact at every node of a draft."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from paceline.errors import BadLogits
from paceline.law import one_hot
from paceline.target import Output
from paceline.tree import node_name, path_to
from paceline.types import (
    IntArray,
    Law,
    LogitArray,
    ProbArray,
    SamplingParams,
    TokenLogprob,
    TokenTree,
)


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
    """Positions of the smallest set of most likely entries whose mass reaches `top_p`.

    Only entries that may belong to it are sorted: first the likely ones, all if those do not do.
    """
    weights = np.exp(logits - logits.max())
    goal = top_p * weights.sum()
    for floor in (1e-2, 1e-4, 0.0):
        inside = np.flatnonzero(weights >= floor)
        order = inside[np.argsort(-weights[inside], kind="stable")]  # ties to the lower id
        mass = np.cumsum(weights[order])
        if mass[-1] >= goal:
            break
    return order[: int(np.searchsorted(mass, goal)) + 1]


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
    """Temperature, top-k, top-p, min-p and softmax over float64 `[vocabulary]` logits, in place."""
    size = len(x)
    x -= _peak(x)
    with np.errstate(over="ignore"):  # the peak is taken out first, so only -inf can come of it
        x /= params.temperature
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
            narrow(np.flatnonzero(x >= np.log(params.min_p)))
    np.exp(x, out=x)
    x /= x.sum()
    return Law(x, ids, size)


def _peak(x: LogitArray | ProbArray) -> float:
    """The largest entry.

    Raises:
        BadLogits: an entry is NaN, or none is finite.
    """
    peak = float(x.max())
    if not math.isfinite(peak):
        raise BadLogits(
            "the logits hold NaN or infinity: the model or its weights are broken"
            if math.isnan(peak) or peak > 0
            else "every token is banned or has probability 0: relax banned tokens or biases"
        )
    return peak


def _argmax(x: LogitArray | ProbArray) -> int:
    """The most likely token; BadLogits like `_peak`. A NaN counts as the largest entry."""
    token = int(x.argmax())
    _peak(x[token : token + 1])
    return token


class Sampler:
    """The law of a request's next token, given logits and the path inside a draft."""

    def __init__(self, params: SamplingParams, prompt: Sequence[int]) -> None:
        """Bind `params` to a prompt; `commit` tells of every token that follows."""
        self.params = params
        self._soft = replace(params, temperature=1.0) if params.greedy else params
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

    def law(self, logits: LogitArray, path: Sequence[int] = (), *, soft: bool = False) -> Law:
        """The law of the token after the committed ones and `path`.

        Args:
            logits: float32 `[vocabulary]` of the target at the end of the path.
            path: drafted tokens between the root and that position.
            soft: take a greedy request's law at temperature 1.
        """
        params = self._soft if soft else self.params
        size = len(logits)
        forced = params.forced_tokens.get(self._generated + len(path))
        if forced is not None:
            return one_hot(forced, size)
        if params.greedy and self._plain:
            return one_hot(_argmax(logits), size)
        output = self._output
        if path:
            output = output + Counter(path)
        x = (
            logits.astype(np.float64)
            if self._plain
            else _adjust(logits, params, self._prompt, output)
        )
        if params.greedy:
            return one_hot(_argmax(x), size)
        return _truncate(x, params)


class NodeLaws:
    """The target's law at the root and at every node of one draft, computed when first asked.

    Verifiers look only at nodes on the path that they walk, so rejected branches cost nothing.
    """

    def __init__(
        self,
        sampler: Sampler,
        draft: TokenTree,
        output: Output,
        position: int,
        rule: str,
    ) -> None:
        """Bind the rows of a forward.

        Args:
            sampler: the sequence's sampler.
            draft: the verified draft.
            output: of the target for `draft`.
            position: absolute position of the first drafted token.
            rule: name of the verifier that asks, for messages.
        """
        self.position = position
        self._sampler = sampler
        self._draft = draft
        self._output = output
        self._rule = rule
        self._known: dict[tuple[int, bool], Law] = {}

    def law(self, node: int) -> Law:
        """Law of the token after `node` (`ROOT` for the root).

        Raises:
            BadLogits: the node's logits hold NaN, or nothing finite.
        """
        return self._law(node, soft=False)

    def soft(self, node: int) -> Law:
        """As `law`, but at temperature 1 where the request is greedy."""
        return self._law(node, soft=True)

    def _law(self, node: int, soft: bool) -> Law:
        known = self._known.get((node, soft))
        if known is None:
            path = self._draft.tokens[list(path_to(self._draft, node))].tolist()
            try:
                known = self._sampler.law(self._output.logits[node + 1], path, soft=soft)
            except BadLogits as error:
                where = node_name(node)
                raise BadLogits(f"verifier '{self._rule}' at {where}: {error}") from None
            self._known[node, soft] = known
        return known

    def hidden(self, node: int) -> LogitArray:
        """float32 `[hidden_size]`, the target's final hidden state at `node`."""
        if self._output.hidden is None:
            raise ValueError(f"verifier '{self._rule}' reads hidden states but does not need them")
        row: LogitArray = self._output.hidden[node + 1]
        return row


def logprobs(logits: LogitArray, token: int, top: int) -> TokenLogprob:
    """Log-softmax of a raw logits row at `token` and at its `top` most likely tokens."""
    x = logits.astype(np.float64)
    peak = x.max()
    total = peak + np.log(np.exp(x - peak).sum())
    best = top_k_ids(x, min(top, len(x))) if top else ()
    return TokenLogprob(
        token, float(x[token] - total), tuple((int(i), float(x[i] - total)) for i in best)
    )
