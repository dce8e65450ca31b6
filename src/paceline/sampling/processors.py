"""Samplers that presets of other engines name, with llama.cpp's numbers.

DRY (p-e-w, 2024), locally typical sampling (Meister et al. 2023), XTC (p-e-w, 2024), top-n-sigma
(Tang et al. 2024), dynamic temperature (kalomaze, 2023), mirostat (Basu et al. 2021). All are
functions of a text, its logits and keyed draws, so they hold at every node of a draft.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from paceline.core.types import SAMPLERS, IntArray, LogitArray, ProbArray, SamplingParams

# Sequence breakers by their first token: what must follow it. Nothing, where it holds a whole one.
Breakers = Mapping[int, tuple[tuple[int, ...], ...]]
# Of mirostat; None for that after the committed tokens.
State = float | None

# Exponent beyond which llama.cpp's float32 overflows, times the logarithm of the base.
_MOST_LOG = 88.7228391
_ZIPF = 100  # candidates from which mirostat 1 estimates the exponent of Zipf's law
_COLDEST = 1e-30  # leaves the most likely token alone

# Letters of llama.cpp's --sampling-seq.
_LETTERS = dict(zip("edtskypmx", SAMPLERS, strict=True))


def sampler_names(given: str | Sequence[str]) -> tuple[str, ...]:
    """Return names of samplers: a list, names parted by ; or commas, or llama.cpp's letters."""
    if isinstance(given, str):
        given = [*given] if set(given) <= set(_LETTERS) else re.split(r"[;,]", given)
    names = [_LETTERS.get(each.strip(), each.strip()) for each in given]
    return tuple("typ_p" if name == "typical_p" else name for name in names if name)


def dry_penalties(
    text: IntArray, params: SamplingParams, breakers: Breakers
) -> tuple[list[int], ProbArray]:
    """Return tokens that would go on repeating the end of `text`, and what DRY takes off them.

    `text` is int64, the tokens that DRY looks at. A token behind an earlier copy of the last n
    tokens costs multiplier * base ** (n - allowed length); the copy may reach no breaker.
    """
    size, allowed = len(text), params.dry_allowed_length
    most = _unbroken(text, breakers) if breakers else size
    longest: dict[int, int] = {}
    if size > allowed and most >= allowed:
        if params.dry_base > 1.000001:
            most = min(most, allowed + int(_MOST_LOG / math.log(params.dry_base)))
        ends, length = np.arange(size - 1), 0
        while len(ends):
            if length >= allowed:
                longest.update(dict.fromkeys(text[ends + 1].tolist(), length))
            if length == most:
                break
            ends = ends[ends >= length]
            ends = ends[text[ends - length] == text[size - 1 - length]]
            length += 1
    tokens = [token for token in longest if () not in breakers.get(token, ())]
    exponents = np.array([longest[token] - allowed for token in tokens], np.float64)
    return tokens, params.dry_multiplier * params.dry_base**exponents


def _unbroken(text: IntArray, breakers: Breakers) -> int:
    # Tokens behind the last breaker; of several that begin with one token, behind the longest.
    tokens = text.tolist()
    for behind, token in enumerate(reversed(tokens)):
        begin = len(tokens) - behind
        fits = [
            len(tail)
            for tail in breakers.get(token, ())
            if len(tail) <= behind and (*tokens[begin : begin + len(tail)],) == tail
        ]
        if fits:
            return behind - max(fits)
    return len(tokens)


def listed(params: SamplingParams) -> SamplingParams:
    """Return `params` where penalties, DRY and temperature are off unless `samplers` lists them."""
    off: dict[str, float] = {}
    if params.samplers:
        if "penalties" not in params.samplers:
            off |= {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
        if "dry" not in params.samplers:
            off["dry_multiplier"] = 0.0
        if "temperature" not in params.samplers and not params.greedy:
            off |= {"temperature": 1.0, "dynatemp_range": 0.0}
    return replace(params, **off) if off else params  # type: ignore[arg-type]  # floats all


def narrowed(
    logits: LogitArray | ProbArray, params: SamplingParams, exclude: bool, mu: float
) -> tuple[IntArray, ProbArray]:
    """Return ascending ids that stay after all samplers, and their log weights.

    `exclude` is XTC's draw for this position, `mu` mirostat's state. At least one token stays.
    """
    ids = np.arange(len(logits))
    x: ProbArray = logits.astype(np.float64)
    x -= x.max()
    for name in params.samplers or SAMPLERS:
        if name == "temperature":
            x = _heated(x, params)
        elif name == "top_n_sigma" and params.top_n_sigma > 0:
            least = -params.top_n_sigma * float(x[x > -np.inf].std())
            x = np.where(x >= least, x, -np.inf)  # still counted by a dynamic temperature
        elif name in _CUTS and (name != "xtc" or exclude):
            keep = _CUTS[name](x, params)
            ids, x = ids[keep], x[keep]
            x = x - x.max()
    if params.mirostat:
        kept = _mirostat(x, params.mirostat, mu, len(logits))
        ids, x = ids[kept], x[kept]
    possible = x > -np.inf
    return ids[possible], x[possible]


def _probabilities(x: ProbArray) -> ProbArray:
    weights: ProbArray = np.exp(x - x.max())
    weights /= weights.sum()
    return weights


def _ranked(x: ProbArray) -> IntArray:
    return np.argsort(-x, kind="stable")  # ties to the lower id


def _heated(x: ProbArray, params: SamplingParams) -> ProbArray:
    temperature, spread = params.temperature, params.dynatemp_range
    if spread and len(x) > 1:
        share = _entropy(_probabilities(x)) / math.log(len(x))
        low = max(0.0, temperature - spread)
        temperature = low + (temperature + spread - low) * share**params.dynatemp_exponent
    with np.errstate(over="ignore"):
        heated: ProbArray = x / max(temperature, _COLDEST)
    return heated


def _entropy(p: ProbArray) -> float:
    seen = p[p > 0]
    return max(0.0, -float(seen @ np.log(seen)))


def _top_k(x: ProbArray, params: SamplingParams) -> IntArray:
    k = params.top_k
    return np.flatnonzero(x >= (np.partition(x, -k)[-k] if 0 < k < len(x) else -np.inf))


def _typical(x: ProbArray, params: SamplingParams) -> IntArray:
    if params.typical_p == 1:
        return np.arange(len(x))
    p = _probabilities(x)
    with np.errstate(divide="ignore"):
        order = np.argsort(np.abs(-np.log(p) - _entropy(p)), kind="stable")
    return _first(order, p, params.typical_p)


def _top_p(x: ProbArray, params: SamplingParams) -> IntArray:
    if params.top_p == 1:
        return np.arange(len(x))
    return _first(_ranked(x), _probabilities(x), params.top_p)


def _first(order: IntArray, p: ProbArray, mass: float) -> IntArray:
    count = int(np.searchsorted(np.cumsum(p[order]), mass)) + 1
    return np.sort(order[:count])


def _min_p(x: ProbArray, params: SamplingParams) -> IntArray:
    return np.flatnonzero(x >= (math.log(params.min_p) if params.min_p else -np.inf))


def _xtc(x: ProbArray, params: SamplingParams) -> IntArray:
    # All tokens above the threshold go but the least likely of them.
    least = max(params.xtc_threshold, 5e-324)  # impossible tokens are none of them
    above = int(np.count_nonzero(_probabilities(x) >= least))
    return np.sort(_ranked(x)[max(0, above - 1) :])


def _mirostat(x: ProbArray, version: int, mu: float, vocabulary: int) -> IntArray:
    order = _ranked(x)
    if version == 2:
        with np.errstate(divide="ignore"):
            count = int(np.count_nonzero(-np.log2(_probabilities(x)) <= mu))
        return np.sort(order[: max(1, count)])
    top = x[order[:_ZIPF]]
    gaps = -np.diff(top[top > -np.inf])
    if not len(gaps):
        return order[:1]
    ranks = np.log1p(1 / np.arange(1, len(gaps) + 1))
    zipf = float(ranks @ gaps) / float(ranks @ ranks)
    # k = (e 2^mu / (1 - vocabulary^-e)) ^ (1 / zipf), with its limit at e = 0, in logarithms.
    e, size = zipf - 1, math.log(vocabulary)
    ratio = 1 / size if abs(e) < 1e-9 else e / -math.expm1(max(-700.0, min(700.0, -e * size)))
    log_k = (mu * math.log(2) + math.log(ratio)) / max(zipf, 1e-9)
    count = len(x) if log_k > size else int(math.exp(max(0.0, log_k)))
    return np.sort(order[: max(1, count)])


_CUTS: Mapping[str, Callable[[ProbArray, SamplingParams], IntArray]] = {
    "top_k": _top_k,
    "typ_p": _typical,
    "top_p": _top_p,
    "min_p": _min_p,
    "xtc": _xtc,
}
