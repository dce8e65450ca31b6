"""Logits to next-token distribution at any tree node: penalties, temperature, truncation.

`processors` has what presets of other engines name beyond that.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from paceline.core.constraint import ConstraintState, ReadsLogits
from paceline.core.target import Output
from paceline.core.tree import node_name
from paceline.core.types import (
    ROOT,
    BoolArray,
    Distribution,
    IntArray,
    LogitArray,
    ProbArray,
    SamplingParams,
    TokenLogprob,
    TokenTree,
    Verdict,
)
from paceline.errors import BadLogits, InvalidOption, PacelineError
from paceline.native.sampling import Race
from paceline.sampling.distributions import one_hot
from paceline.sampling.gumbel import GumbelNoise, block_maxima, gumbel_argmax, gumbel_race
from paceline.sampling.processors import Breakers, State, dry_penalties, listed, narrowed
from paceline.sampling.randomness import Draw, Purpose, Randomness


def top_k_ids(values: LogitArray | ProbArray, k: int) -> IntArray:
    """Return the ids of the k largest of `[n]` values, largest first, ties to the lower id."""
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


# From here on no logit is far below the peak.
_HOT = 1e30


def _nucleus(
    logits: LogitArray | ProbArray, peak: float, temperature: float, top_p: float
) -> IntArray:
    # Top-p set, ascending. Likely entries are sorted first, all only if those do not reach `top_p`.
    goal = top_p * float(np.exp(_scaled(logits, peak, temperature)).sum())
    for floor in (-5.0, -10.0, -np.inf) if temperature < _HOT else (-np.inf,):
        inside = np.flatnonzero(logits >= peak + floor * temperature)
        likely = logits[inside]
        order = np.argsort(-likely, kind="stable")  # ties to the lower id
        reached = np.cumsum(np.exp(_scaled(likely[order], peak, temperature))).tolist()
        if reached[-1] >= goal:
            break
    return np.sort(inside[order[: bisect_left(reached, goal) + 1]])


def adjusted(
    logits: LogitArray, params: SamplingParams, prompt: IntArray, output: Counter[int]
) -> ProbArray:
    """Return float64 logits after penalties, biases and bans; `output` counts tokens."""
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
    if params.allowed_tokens:
        allowed = list(params.allowed_tokens)
        kept = x[allowed]
        x[:] = -np.inf
        x[allowed] = kept
    return x


def truncated(
    logits: LogitArray | ProbArray, params: SamplingParams, exclude: bool = False, mu: float = 0.0
) -> tuple[IntArray | None, ProbArray]:
    """Return ascending ids after top-k, top-p, min-p, or None for all, and their log weights.

    Other samplers read `exclude` and `mu`, see `narrowed`.
    """
    size = len(logits)
    peak = peak_of(logits)
    if params.preset:
        return narrowed(logits, params, exclude, mu)
    temperature = params.temperature
    ids: IntArray | None = None
    if 0 < params.top_k < size:
        ids = np.flatnonzero(logits >= logits[top_k_ids(logits, params.top_k)[-1]])
        logits = logits[ids]
    if params.top_p < 1:
        keep = _nucleus(logits, peak, temperature, params.top_p)
        ids, logits = keep if ids is None else ids[keep], logits[keep]
    x = _scaled(logits, peak, temperature)
    if params.min_p > 0:
        with np.errstate(divide="ignore"):
            keep = np.flatnonzero(x >= np.log(params.min_p))
        ids, x = keep if ids is None else ids[keep], x[keep]
    return ids, x


def _softmax(logits: ProbArray, ids: IntArray | None, size: int) -> Distribution:
    np.exp(logits, out=logits)
    logits /= logits.sum()
    return Distribution(logits, ids, size)


def _scaled(logits: LogitArray | ProbArray, peak: float, temperature: float) -> ProbArray:
    # Subtract the peak before dividing: low temperatures would overflow.
    x: ProbArray = logits.astype(np.float64)
    x -= peak
    if temperature != 1:
        with np.errstate(over="ignore"):
            x /= temperature
    return x


def peak_of(x: LogitArray | ProbArray) -> float:
    """Return the largest logit; BadLogits if there is none, or a NaN."""
    peak = float(x.max())
    if not math.isfinite(peak):
        raise BadLogits(
            "the logits hold NaN or infinity: the model or its weights are broken"
            if math.isnan(peak) or peak > 0
            else "every token is banned or has probability 0: relax banned tokens, biases or the "
            "constraint"
        )
    return peak


def _argmax(x: LogitArray | ProbArray) -> int:
    # A NaN counts as the largest entry; `peak_of` then raises.
    token = int(x.argmax())
    if not math.isfinite(x[token]):
        peak_of(x)
    return token


class Sampler:
    """Next-token distribution of a request, given logits and the path inside a draft.

    Tokens that `constraint` forbids after the path are banned. Where it allows end tokens alone,
    `min_tokens` does not ban them. `mu` is mirostat's state after the committed tokens.
    """

    def __init__(
        self,
        params: SamplingParams,
        prompt: Sequence[int],
        constraint: ConstraintState | None = None,
        ends: Sequence[int] = (),
        randomness: Randomness | None = None,
        breakers: Breakers | None = None,
    ) -> None:
        """Bind a request.

        `ends` are the model's end tokens, if they count; `randomness` draws for XTC, `breakers`
        are the tokens of `dry_sequence_breakers`.
        """
        params = listed(params)
        self.params = params
        self.mu = 2 * params.mirostat_tau
        self._randomness = randomness
        self._breakers = breakers or {}
        self._dry = params.dry_multiplier > 0 and params.dry_penalty_last_n != 0
        self._windowed = params.repeat_last_n >= 0
        self._first = len(prompt)
        self._text = array("q", prompt if self._dry or self._windowed else ())
        self.constraint = constraint
        self._reads = constraint if isinstance(constraint, ReadsLogits) else None
        self._ends = sorted({*ends, *params.stop_token_ids})
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
            and not params.allowed_tokens
            and not params.min_tokens
            and not self._dry
        )
        truncated = params.top_k > 0 or params.top_p < 1 or params.min_p > 0 or params.preset
        self._whole = not params.greedy and not truncated
        self._race = None if params.greedy or params.preset else Race(params)
        self._argmax_ids = (
            params.greedy and self._plain and not params.forced_tokens and constraint is None
        )

    def commit(self, tokens: Sequence[int]) -> None:
        if self.constraint is not None:
            self.constraint.commit(tokens)
        if not self._plain:
            self._output.update(tokens)
            if self._dry or self._windowed:
                self._text.extend(tokens)
        self._generated += len(tokens)

    def distribution(
        self, logits: LogitArray, path: Sequence[int] = (), *, soft: bool = False, mu: State = None
    ) -> Distribution:
        """Return the distribution of the token after the committed ones and the drafted `path`.

        `logits` is float32 `[vocabulary]` at the end of the path. `soft` uses temperature 1 for a
        greedy request. `mu` is mirostat's state there; a drafter, which has no logits of the
        target, leaves out what the path changes of it. Raises BadLogits if logits hold NaN, or
        nothing finite, and InvalidOption if the constraint forbids a forced token.
        """
        params = self._soft if soft else self.params
        size = len(logits)
        forced = self._forced(path)
        if forced is not None:
            return one_hot(forced, size)
        x = self._adjusted(logits, path)
        if params.greedy:
            return one_hot(_argmax(x), size)
        ids, scaled = self._truncated(x, path, mu, params)
        return _softmax(scaled, ids, size)

    def after(self, mu: float, drawn_from: Distribution, token: int) -> float:
        """Return mirostat's state after a `token` that was drawn in state `mu`."""
        p, params = drawn_from.prob(token), self.params  # through a token without p no text goes
        return mu - params.mirostat_eta * (-math.log2(p) - params.mirostat_tau) if p > 0 else mu

    def _truncated(
        self, x: LogitArray | ProbArray, path: Sequence[int], mu: State, params: SamplingParams
    ) -> tuple[IntArray | None, ProbArray]:
        exclude = False
        if params.xtc_probability > 0:
            if self._randomness is None:
                raise ValueError("XTC draws: give the sampler its randomness")
            draw = Draw(self._first + self._generated + len(path), Purpose.EXCLUDE)
            exclude = self._randomness.bernoulli(params.xtc_probability, draw)
        return truncated(x, params, exclude, self.mu if mu is None else mu)

    def proposal(
        self, logits: LogitArray, path: Sequence[int] = (), *, soft: bool = False
    ) -> Distribution:
        """Return `distribution` of a drafter's logits; BadLogits if they hold NaN.

        A guess may lead to where constraint and bans leave nothing. The text need not get there,
        so that is no error of a draft.
        """
        try:
            return self.distribution(logits, path, soft=soft)
        except PacelineError:
            if self.constraint is None:
                raise
            return one_hot(_argmax(logits), len(logits))

    @property
    def greedy_argmax(self) -> bool:
        """True if the next token is always the argmax of the raw logits."""
        return self._argmax_ids

    def sample(
        self,
        logits: LogitArray,
        path: Sequence[int],
        position: int,
        draws: Randomness,
        mu: State = None,
    ) -> int:
        """Return the Gumbel-max token at an absolute position, without computing a distribution."""
        forced = self._forced(path)
        if forced is not None:
            return forced
        x = self._adjusted(logits, path)
        if self.params.greedy:
            return _argmax(x)
        noise = draws.noise(Draw(position, Purpose.NOISE))
        token = None if self._race is None else self._race.sample(x, noise.key)
        return self._searched(x, noise, path, mu) if token is None else token

    def _searched(
        self, logits: LogitArray | ProbArray, noise: GumbelNoise, path: Sequence[int], mu: State
    ) -> int:
        # In numpy, what the native race cannot decide.
        if self._whole:
            maxima = block_maxima(logits)
            peak, temperature = peak_of(maxima), self.params.temperature
            return gumbel_race(
                logits, maxima, lambda values: _scaled(values, peak, temperature), noise
            )[0]
        ids, scaled = self._truncated(logits, path, mu, self.params)
        return gumbel_argmax(np.arange(len(scaled)) if ids is None else ids, scaled, noise)

    def _forced(self, path: Sequence[int]) -> int | None:
        token = self.params.forced_tokens.get(self._generated + len(path))
        if token is None or self.constraint is None or self.constraint.mask(path)[token]:
            return token
        raise InvalidOption(
            f"forced_tokens wants token {token} at {self._generated + len(path)}, where the "
            "constraint forbids it: leave out one of the two"
        )

    def _adjusted(self, logits: LogitArray, path: Sequence[int]) -> LogitArray | ProbArray:
        x: LogitArray | ProbArray = logits
        mask = None if self.constraint is None else self.constraint.mask(path)
        if not self._plain:
            prompt, output = self._said(path)
            x = adjusted(logits, self.params, prompt, output)
            if self._dry:
                text = self._recent(path, self.params.dry_penalty_last_n)
                tokens, penalties = dry_penalties(text, self.params, self._breakers)
                x[tokens] -= penalties
            if self._generated + len(path) < self.params.min_tokens and not self._must_end(mask):
                x[self._ends] = -np.inf
        if mask is not None:
            x = np.where(mask, x, x.dtype.type(-np.inf))
        return x if self._reads is None else self._reads.read(x)

    def _said(self, path: Sequence[int]) -> tuple[IntArray, Counter[int]]:
        # Ids of the prompt, and counts of the output, that penalties look at.
        if not self._windowed:
            return self._prompt, self._output + Counter(path) if path else self._output
        text = self._recent(path, self.params.repeat_last_n)
        old = max(0, len(text) - self._generated - len(path))
        return np.unique(text[:old]), Counter(text[old:].tolist())

    def _recent(self, path: Sequence[int], count: int) -> IntArray:
        # The last `count` tokens of prompt, output and path; -1 for all.
        text = self._text[:] if count < 0 else self._text[max(0, len(self._text) - count) :]
        text.extend(path)
        whole: IntArray = np.frombuffer(text, np.int64)
        return whole if count < 0 else whole[max(0, len(whole) - count) :]

    def _must_end(self, mask: BoolArray | None) -> bool:
        return mask is not None and np.count_nonzero(mask) == np.count_nonzero(mask[self._ends])


class TreeDistributions:
    """Lazy distributions of the target at the root and nodes of one draft.

    `position` is that of the first drafted token, `rule` the verifier's name for messages.
    """

    def __init__(
        self, sampler: Sampler, draft: TokenTree, output: Output, position: int, rule: str
    ) -> None:
        self.position = position
        self._sampler = sampler
        self._draft = draft
        self._output = output
        self._argmax_ids = output.argmax if sampler.greedy_argmax else ()
        self._rule = rule
        self._known: dict[tuple[int, bool], Distribution] = {}
        self._stateful = sampler.params.mirostat > 0
        self._states = {ROOT: sampler.mu}
        self._paths: dict[int, tuple[int, ...]] = {ROOT: ()}

    def distribution(self, node: int) -> Distribution:
        """Return the distribution after `node` (`ROOT` for the root); raises BadLogits."""
        return self._distribution(node, soft=False)

    def soft(self, node: int) -> Distribution:
        """Return `distribution`, at temperature 1 if the request is greedy."""
        return self._distribution(node, soft=True)

    def sample(self, node: int, position: int, randomness: Randomness) -> int:
        """Return the Gumbel-max token at `node` for `position`; BadLogits as `distribution`."""
        if self._argmax_ids and self._argmax_ids[node + 1] >= 0:
            return self._argmax_ids[node + 1]
        row, path = self._output.logits[node + 1], self._path(node)
        try:
            return self._sampler.sample(row, path, position, randomness, self._state(node))
        except BadLogits as error:
            raise self._blamed(node, error) from None

    def settle(self, verdict: Verdict) -> None:
        """Take over mirostat's state behind the tokens of a verdict."""
        if self._stateful:
            node = verdict.path[-1] if verdict.path else ROOT
            self._sampler.mu = self._after(node, verdict.next_token)

    def _after(self, node: int, token: int) -> float:
        return self._sampler.after(self._state(node), self.distribution(node), token)

    def _state(self, node: int) -> float:
        # Each node has its own, of the distributions and tokens on its path.
        if self._stateful and node not in self._states:
            above, token = int(self._draft.parents[node]), int(self._draft.tokens[node])
            self._states[node] = self._after(above, token)
        return self._states[node if self._stateful else ROOT]

    def _distribution(self, node: int, soft: bool) -> Distribution:
        known = self._known.get((node, soft))
        if known is None:
            row, path = self._output.logits[node + 1], self._path(node)
            try:
                known = self._sampler.distribution(row, path, soft=soft, mu=self._state(node))
            except BadLogits as error:
                raise self._blamed(node, error) from None
            self._known[node, soft] = known
        return known

    def _path(self, node: int) -> tuple[int, ...]:
        # Cached: verifiers walk down, so the parent's path is mostly known.
        path = self._paths.get(node)
        if path is None:
            above = self._path(int(self._draft.parents[node]))
            path = self._paths[node] = (*above, int(self._draft.tokens[node]))
        return path

    def _blamed(self, node: int, error: BadLogits) -> BadLogits:
        return BadLogits(f"verifier '{self._rule}' at {node_name(node)}: {error}")

    def hidden(self, node: int) -> LogitArray:
        """Return float32 `[hidden_size]`, the target's final hidden state at `node`."""
        if self._output.hidden is None:
            raise ValueError(f"verifier '{self._rule}' reads hidden states but does not need them")
        row: LogitArray = self._output.hidden[node + 1]
        return row


def logprobs(logits: LogitArray, token: int, top: int) -> TokenLogprob:
    """Return the log-softmax of a raw logits row at `token` and its `top` most likely tokens."""
    x = logits.astype(np.float64)
    peak = x.max()
    total = peak + np.log(np.exp(x - peak).sum())
    best = top_k_ids(x, min(top, len(x))) if top else ()
    return TokenLogprob(
        token, float(x[token] - total), tuple((int(i), float(x[i] - total)) for i in best)
    )
