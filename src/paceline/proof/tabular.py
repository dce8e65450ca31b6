"""Tabular language models: small enough to enumerate, complete enough to run the engine on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from paceline.core.constraint import Constraint
from paceline.core.target import Layer, Output, Rows
from paceline.core.tree import path_to
from paceline.core.types import (
    ROOT,
    Capabilities,
    Distribution,
    LogitArray,
    SamplingParams,
    TokenTree,
)
from paceline.errors import OutOfMemory
from paceline.proof.oracle import ScriptedRandomness
from paceline.sampling.distributions import from_dense, gumbel_max
from paceline.sampling.randomness import Draw, Randomness
from paceline.sampling.sampler import Sampler

# From a context (prompt and output) to the distribution of the next token.
DistributionOf = Callable[[tuple[int, ...]], Distribution]

# From a context to float32 `[vocabulary]` logits.
LogitsOf = Callable[[tuple[int, ...]], LogitArray]


class TabularModel:
    """Language model with a random but fixed distribution for every context of `depth` tokens.

    `sharpness` is the standard deviation of the logits; 0 makes every distribution uniform.
    """

    def __init__(self, vocabulary: int, depth: int, seed: int, sharpness: float = 1.0) -> None:
        self.vocabulary = vocabulary
        self._depth = depth
        self._seed = seed
        self._sharpness = sharpness
        self._rows: dict[tuple[int, ...], LogitArray] = {}

    def logits(self, context: tuple[int, ...]) -> LogitArray:
        key = context[len(context) - min(self._depth, len(context)) :]
        row = self._rows.get(key)
        if row is None:
            generator = np.random.default_rng([self._seed, len(key), *key])
            row = (self._sharpness * generator.normal(size=self.vocabulary)).astype(np.float32)
            self._rows[key] = row
        return row

    def distribution(self, context: tuple[int, ...]) -> Distribution:
        weights = np.exp(self.logits(context).astype(np.float64))
        return Distribution(weights / weights.sum(), None, self.vocabulary)


def processed(
    logits: LogitsOf,
    params: SamplingParams,
    prompt: Sequence[int],
    constraint: Constraint | None = None,
) -> DistributionOf:
    """Return the target's distribution: logits through the shipped `Sampler`, cached.

    Under XTC it is the mixture over its draw; not together with mirostat, which then depends on it.
    """
    held = None if constraint is None else constraint.start()
    ways = [Sampler(params, prompt, held, randomness=_Coin(way)) for way in (False, True)]
    share = params.xtc_probability

    @cache
    def state(context: tuple[int, ...]) -> float:
        if len(context) <= len(prompt):
            return ways[0].mu
        above = context[:-1]
        return ways[0].after(state(above), distribution(above), context[-1])

    @cache
    def distribution(context: tuple[int, ...]) -> Distribution:
        mu = state(context) if params.mirostat else None
        row, path = logits(context), context[len(prompt) :]
        first, second = (way.distribution(row, path, mu=mu) for way in ways)
        if not share:
            return first
        return from_dense((1 - share) * first.dense() + share * second.dense())

    return distribution


class _Coin(ScriptedRandomness):
    # Says the same to every question of yes or no.

    def __init__(self, says: bool) -> None:
        super().__init__()
        self._says = says

    def bernoulli(self, probability: float, draw: Draw) -> bool:
        return self._says


class TabularDistributions:
    """`TargetDistributions` of a table; `soft` is the distribution at temperature 1, if another."""

    def __init__(
        self,
        distribution: DistributionOf,
        context: tuple[int, ...],
        draft: TokenTree,
        soft: DistributionOf | None = None,
    ) -> None:
        self._distribution = distribution
        self._soft = soft or distribution
        self._context = context
        self._draft = draft

    @property
    def position(self) -> int:
        return len(self._context)

    def distribution(self, node: int) -> Distribution:
        return self._distribution(self._at(node))

    def sample(self, node: int, position: int, randomness: Randomness) -> int:
        return gumbel_max(self.distribution(node), position, randomness)

    def soft(self, node: int) -> Distribution:
        return self._soft(self._at(node))

    def hidden(self, node: int) -> LogitArray:
        raise ValueError("a table has no hidden states")

    def _at(self, node: int) -> tuple[int, ...]:
        path = self._draft.tokens[list(path_to(self._draft, node))]
        return (*self._context, *path.tolist())


@dataclass(eq=False)
class TabularCache:
    """Cached tokens, and the last forward over them until it is retained."""

    tokens: list[int] = field(default_factory=list)
    forwarded: tuple[tuple[int, ...], TokenTree | None] | None = None
    released: bool = False

    @property
    def length(self) -> int:
        return len(self.tokens)


class TabularTarget:
    """`Target` over a table that checks its calls.

    Misuse raises ValueError: a released cache, a path not in the last draft, more tokens retained
    than given. Logits of the previous forward become NaN, as the contract allows.
    """

    def __init__(self, logits: LogitsOf, vocabulary: int, max_context: int = 4096) -> None:
        self._logits = logits
        self._given: list[Output] = []
        self._capabilities = Capabilities(
            runtime="tabular",
            device="cpu",
            precision="fp32",
            vocab_size=vocabulary,
            max_context=max_context,
            hidden_size=0,
            hidden_states=False,
            bit_exact=True,
        )

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    def warm_up(self) -> None:
        # Nothing to do.
        ...

    def open(self) -> TabularCache:
        return TabularCache()

    def prefill(self, cache: TabularCache, tokens: Sequence[int], features: bool = False) -> None:
        self._check(cache)
        self._append(cache, tokens)

    def forward(self, rows: Sequence[Rows], layers: Sequence[Layer] | None = None) -> list[Output]:
        for output in self._given:
            output.logits.fill(np.nan)
        if len({id(each.cache) for each in rows}) < len(rows):
            raise ValueError("a cache stands twice in one forward")
        self._given = [self._output(each) for each in rows]
        return list(self._given)

    def keep(self, cache: TabularCache, num_new: int, path: Sequence[int]) -> None:
        self._check(cache)
        if cache.forwarded is None:
            raise ValueError("keep without a forward")
        tokens, draft = cache.forwarded
        if num_new > len(tokens) or (path and num_new < len(tokens)):
            raise ValueError(f"{num_new} of {len(tokens)} new tokens cannot be kept")
        above = ROOT
        for node in path:
            if draft is None or int(draft.parents[node]) != above:
                raise ValueError(f"{tuple(path)} is no path of the draft")
            above = node
        drafted = [] if draft is None else draft.tokens[list(path)].tolist()
        self._append(cache, [*tokens[:num_new], *drafted])

    def truncate(self, cache: TabularCache, length: int, hold: bool = False) -> None:
        self._check(cache)
        if not 0 <= length <= cache.length:
            raise ValueError(f"a cache of {cache.length} tokens cannot be cut to {length}")
        del cache.tokens[length:]
        cache.forwarded = None

    def fork(self, cache: TabularCache) -> TabularCache:
        self._check(cache)
        return TabularCache(list(cache.tokens))

    def release(self, cache: TabularCache) -> None:
        self._check(cache)
        cache.released = True

    def _check(self, cache: TabularCache) -> None:
        if cache.released:
            raise ValueError("the cache was released")

    def _append(self, cache: TabularCache, tokens: Sequence[int]) -> None:
        if cache.length + len(tokens) > self._capabilities.max_context:
            raise OutOfMemory(
                f"the table holds contexts of {self._capabilities.max_context} tokens: use a "
                "shorter prompt or fewer new tokens"
            )
        cache.tokens += tokens
        cache.forwarded = None

    def _output(self, rows: Rows) -> Output:
        self._check(rows.cache)
        if not rows.num_new:
            raise ValueError("a table needs at least one new token")
        if rows.hidden:
            raise ValueError("a table has no hidden states")
        new_tokens, draft = tuple(rows.tokens[: rows.num_new]), rows.tree
        rows.cache.forwarded = new_tokens, draft
        context = (*rows.cache.tokens, *new_tokens)
        logits = [self._logits(context)]
        if draft is not None:
            for node in range(len(draft)):
                path = draft.tokens[list(path_to(draft, node))]
                logits.append(self._logits((*context, *path.tolist())))
        return Output(np.stack(logits))
