"""Models that are tables: small enough to know exactly, complete enough to run the engine on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from paceline.errors import OutOfMemory
from paceline.law import gumbel_max
from paceline.randomness import Randomness
from paceline.sampling import Sampler
from paceline.target import Output, Pass
from paceline.tree import path_to
from paceline.types import ROOT, Capabilities, Law, LogitArray, SamplingParams, TokenTree

LawOf = Callable[[tuple[int, ...]], Law]
"""From a context (prompt and output) to the law of the next token."""

LogitsOf = Callable[[tuple[int, ...]], LogitArray]
"""From a context to float32 `[vocabulary]` logits."""


class TabularModel:
    """A language model with a random but fixed law for every context of `depth` tokens."""

    def __init__(self, vocabulary: int, depth: int, seed: int, sharpness: float = 1.0) -> None:
        """Fix the table.

        Args:
            vocabulary: number of tokens.
            depth: how many last tokens the law depends on; 0 makes tokens independent.
            seed: chooses the table.
            sharpness: standard deviation of the logits; 0 makes every law uniform.
        """
        self.vocabulary = vocabulary
        self._depth = depth
        self._seed = seed
        self._sharpness = sharpness
        self._rows: dict[tuple[int, ...], LogitArray] = {}

    def logits(self, context: tuple[int, ...]) -> LogitArray:
        """float32 `[vocabulary]`."""
        key = context[len(context) - min(self._depth, len(context)) :]
        row = self._rows.get(key)
        if row is None:
            generator = np.random.default_rng([self._seed, len(key), *key])
            row = (self._sharpness * generator.normal(size=self.vocabulary)).astype(np.float32)
            self._rows[key] = row
        return row

    def law(self, context: tuple[int, ...]) -> Law:
        """The softmax of `logits`, in float64."""
        weights = np.exp(self.logits(context).astype(np.float64))
        return Law(weights / weights.sum(), None, self.vocabulary)


def processed(logits: LogitsOf, params: SamplingParams, prompt: Sequence[int]) -> LawOf:
    """The law that plain decoding samples from: logits through the shipped `Sampler`.

    Laws are remembered per context, because enumeration asks for the same ones again and again.
    """

    @cache
    def law(context: tuple[int, ...]) -> Law:
        sampler = Sampler(params, prompt)
        sampler.commit(context[len(prompt) :])
        return sampler.law(logits(context))

    return law


class TabularLaws:
    """The laws of a table at the root and the nodes of a draft, as verifiers take them."""

    def __init__(
        self, law: LawOf, context: tuple[int, ...], draft: TokenTree, soft: LawOf | None = None
    ) -> None:
        """Bind a draft that continues `context`; `soft` is the law at temperature 1, if another."""
        self._law = law
        self._soft = soft or law
        self._context = context
        self._draft = draft

    @property
    def position(self) -> int:
        """Absolute position of the first drafted token."""
        return len(self._context)

    def law(self, node: int) -> Law:
        """Law of the token after `node` (`ROOT` for the root)."""
        return self._law(self._at(node))

    def winner(self, node: int, position: int, randomness: Randomness) -> int:
        """The token that wins by the law at `node`."""
        return gumbel_max(self.law(node), position, randomness)

    def soft(self, node: int) -> Law:
        """As `law`, at temperature 1."""
        return self._soft(self._at(node))

    def hidden(self, node: int) -> LogitArray:
        """Raise ValueError: a table has no hidden states."""
        raise ValueError("a table has no hidden states")

    def _at(self, node: int) -> tuple[int, ...]:
        path = self._draft.tokens[list(path_to(self._draft, node))]
        return (*self._context, *path.tolist())


@dataclass(eq=False)
class TabularCache:
    """The cached tokens themselves, and the last forward over them until it is kept."""

    tokens: list[int] = field(default_factory=list)
    forwarded: tuple[tuple[int, ...], TokenTree | None] | None = None
    released: bool = False

    @property
    def length(self) -> int:
        """Number of cached tokens."""
        return len(self.tokens)


class TabularTarget:
    """A `Target` whose logits come from a table, and which checks how it is called.

    Misuse that a real runtime might survive raises ValueError here: a released cache, a kept path
    that is not a path of the last draft, more tokens kept than were given. Logits of the previous
    forward are overwritten with NaN, as the contract allows.
    """

    def __init__(self, logits: LogitsOf, vocabulary: int, max_context: int = 4096) -> None:
        """Wrap a table, for example `TabularModel.logits`.

        Args:
            logits: the table.
            vocabulary: number of tokens.
            max_context: longest sequence in tokens; the cache holds no more.
        """
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
            layout="exact",
        )

    @property
    def capabilities(self) -> Capabilities:
        """Bit-exact, trees, no hidden states."""
        return self._capabilities

    def warm_up(self) -> None:
        """Nothing is left to do after loading."""

    def open(self) -> TabularCache:
        """A new, empty cache."""
        return TabularCache()

    def prefill(self, cache: TabularCache, tokens: Sequence[int], features: bool = False) -> None:
        """Append `tokens`; OutOfMemory beyond the longest context."""
        self._check(cache)
        self._append(cache, tokens)

    def forward(self, passes: Sequence[Pass], rows: int = 0) -> list[Output]:
        """Look the rows of every pass up."""
        for output in self._given:
            output.logits.fill(np.nan)
        if len({id(each.cache) for each in passes}) < len(passes):
            raise ValueError("a cache stands twice in one forward")
        self._given = [self._row(each) for each in passes]
        return list(self._given)

    def keep(self, cache: TabularCache, pending: int, path: Sequence[int]) -> None:
        """Append the first `pending` tokens of the last forward and the tokens of `path`."""
        self._check(cache)
        if cache.forwarded is None:
            raise ValueError("keep without a forward")
        tokens, draft = cache.forwarded
        if pending > len(tokens) or (path and pending < len(tokens)):
            raise ValueError(f"{pending} of {len(tokens)} pending tokens cannot be kept")
        above = ROOT
        for node in path:
            if draft is None or int(draft.parents[node]) != above:
                raise ValueError(f"{tuple(path)} is no path of the draft")
            above = node
        drafted = [] if draft is None else draft.tokens[list(path)].tolist()
        self._append(cache, [*tokens[:pending], *drafted])

    def truncate(self, cache: TabularCache, length: int) -> None:
        """Forget all cached tokens from position `length` on."""
        self._check(cache)
        if not 0 <= length <= cache.length:
            raise ValueError(f"a cache of {cache.length} tokens cannot be cut to {length}")
        del cache.tokens[length:]
        cache.forwarded = None

    def fork(self, cache: TabularCache) -> TabularCache:
        """An independent copy."""
        self._check(cache)
        return TabularCache(list(cache.tokens))

    def release(self, cache: TabularCache) -> None:
        """Mark the cache as gone."""
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

    def _row(self, each: Pass) -> Output:
        self._check(each.cache)
        if not each.pending:
            raise ValueError("a pass needs at least one pending token")
        if each.hidden:
            raise ValueError("a table has no hidden states")
        each.cache.forwarded = (tuple(each.pending), each.draft)
        context = (*each.cache.tokens, *each.pending)
        rows = [self._logits(context)]
        if each.draft is not None:
            for node in range(len(each.draft)):
                path = each.draft.tokens[list(path_to(each.draft, node))]
                rows.append(self._logits((*context, *path.tolist())))
        return Output(np.stack(rows))
