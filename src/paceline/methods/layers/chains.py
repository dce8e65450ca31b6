"""Chains drafted by some of the target's layers over the sequence's own cache.

Drafted rows stand behind the prefix while a chain grows, and are taken back before verification.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from operator import mul
from typing import ClassVar, NamedTuple, Self, TypeVar

import numpy as np

from paceline.core import tree as trees
from paceline.core.options import arguments
from paceline.core.target import NO_LOGITS, Layer, Output, Rows, Target
from paceline.core.types import (
    ROOT,
    Budget,
    Distribution,
    DraftSampling,
    IntArray,
    LogitArray,
    TokenTree,
)
from paceline.drafters.base import Drafter, DrafterContext, check_layers
from paceline.errors import InvalidOption, PacelineError
from paceline.sampling.generation import Generation
from paceline.sampling.randomness import Draw, Purpose


@dataclass(eq=False, slots=True)
class GrowingChain:
    """A draft under way.

    Attributes:
        limit: most tokens.
        begin: cached tokens before the root.
        rows: draft distributions, where draws need them.
        chances: the layers' probability of each token's argmax.
        states: by row, root first: after the layers that drafted.
    """

    sequence: Generation
    limit: int
    begin: int
    tokens: list[int] = field(default_factory=list)
    rows: list[Distribution] = field(default_factory=list)
    chances: list[float] = field(default_factory=list)
    states: list[LogitArray] = field(default_factory=list)
    done: bool = False

    @property
    def last(self) -> int:
        return self.tokens[-1] if self.tokens else self.sequence.root

    @property
    def open(self) -> bool:
        return not self.done and len(self.tokens) < self.limit


class SelfDrafter(Drafter):
    """Draft chains token by token; a subclass chooses the layers and when to stop.

    With verifiers of deterministic drafts a token is the one that the target would draw from these
    logits; others get draws with their rows.
    """

    def __init__(self, target: Target, layers: int, needs_q: bool = False) -> None:
        """Bind the target, of so many layers; `needs_q` draws for p/q rules."""
        self._target = target
        self._count = layers
        self.kind = "iid" if needs_q else None

    @classmethod
    def create(cls, context: DrafterContext) -> Self:
        """Build for the target; raises InvalidOption, or RuntimeUnavailable without its layers."""
        given = ("target", "layers", "needs_q")
        chosen = arguments(cls, "drafter", context.options, *given)
        return cls(*cls._parts(context), **chosen)

    @classmethod
    def _parts(cls, context: DrafterContext) -> tuple[Target, int, bool]:
        # First arguments of the constructor.
        check_layers(cls.name, "runs some of the target's layers", context.target)
        if context.needs_q and "iid" not in context.accepts:
            raise InvalidOption(f"drafter '{cls.name}' draws chains: use verifier 'rejection'")
        loaded = context.resources.loaded
        return loaded.target, loaded.source.config.layers, context.needs_q

    @abstractmethod
    def _layers(self, sequence: Generation) -> tuple[Layer, ...]:
        """Return the layers that draft."""

    @abstractmethod
    def _stops(self, chain: GrowingChain, chance: float) -> bool:
        """Return whether the next token is the last, by the argmax's probability: before the draw.

        A doubtful token is drafted: its layers have been run.
        """

    def _limit(self, sequence: Generation, most: int) -> int:
        # Length of the next chain, from the past alone.
        return most

    def _logits(
        self, chains: Sequence[GrowingChain], found: Sequence[Output]
    ) -> Sequence[LogitArray]:
        return [each.logits[-1] for each in found]

    def _finish(self, chains: Sequence[GrowingChain]) -> None:
        """Do what is left before the drafted rows are taken back."""

    def propose(
        self, sequences: Sequence[Generation], budgets: Sequence[Budget]
    ) -> list[TokenTree]:
        chains = []
        for sequence, budget in zip(sequences, budgets, strict=True):
            most = self._limit(sequence, min(budget.nodes, budget.depth))
            chains.append(GrowingChain(sequence, most, sequence.cache.length))
        try:
            while live := [each for each in chains if each.open]:
                for layers, group in grouped(live, lambda each: self._layers(each.sequence)):
                    self._advance(group, layers)
            self._finish(chains)
        finally:
            for each in chains:
                self._target.truncate(each.sequence.cache, each.begin, hold=True)
        return [self._draft(each) for each in chains]

    # Whether the subclass's own head gives the logits.
    _own_head: ClassVar[bool] = False

    def _advance(self, chains: Sequence[GrowingChain], layers: tuple[Layer, ...]) -> None:
        for each, logits in zip(chains, self._run(chains, layers, not self._own_head), strict=True):
            chance = top_probability(logits)
            each.done = self._stops(each, chance)
            try:
                token = self._token(each, logits)
            except PacelineError:  # the guess leads to where nothing may follow
                each.done = True
                continue
            each.tokens.append(token)
            each.chances.append(chance)

    def _run(
        self, chains: Sequence[GrowingChain], layers: tuple[Layer, ...], logits: bool
    ) -> Sequence[LogitArray]:
        # Runs the newest row of each chain and adds it to the cache.
        found = self._run_newest(chains, layers, None if logits else NO_LOGITS)
        for each in chains:
            self._target.keep(each.sequence.cache, 1, ())
        return self._logits(chains, found)

    def _run_newest(
        self, chains: Sequence[GrowingChain], layers: tuple[Layer, ...], wanted: IntArray | None
    ) -> list[Output]:
        rows = [Rows.draft(each.sequence.cache, [each.last], wanted=wanted) for each in chains]
        found = self._target.forward(rows, layers)
        for each, output in zip(chains, found, strict=True):
            each.states.append(output.state[-1].copy())
        return found

    def _token(self, chain: GrowingChain, logits: LogitArray) -> int:
        sequence, path = chain.sequence, chain.tokens
        first = len(sequence.tokens)
        if self.kind is None:
            position = first + len(path)
            return sequence.sampler.sample(logits, path, position, sequence.randomness)
        q = sequence.sampler.proposal(logits, path)
        chain.rows.append(q)
        draw = Draw(first + len(path), Purpose.DRAFT, 0, first - 1)
        return q.token(sequence.randomness.choice(q.probs, draw))

    def _draft(self, chain: GrowingChain) -> TokenTree:
        if not chain.tokens:
            return trees.EMPTY
        if self.kind is not None:
            rows = dict(enumerate(chain.rows, ROOT))
            return trees.chain(chain.tokens, self.name, DraftSampling("iid", rows))
        scores = np.fromiter(accumulate(chain.chances, mul), np.float64)
        return replace(trees.chain(chain.tokens, self.name), scores=scores)


class Begun(NamedTuple):
    """Rows of a sequence that the first layers have been run for: root and drafted tokens."""

    tokens: tuple[int, ...]
    states: LogitArray
    exit: int


class ExitDrafter(SelfDrafter):
    """Draft with the first layers; verification goes on from their states with the others."""

    def __init__(self, target: Target, layers: int, needs_q: bool = False) -> None:
        super().__init__(target, layers, needs_q)
        self._begun: dict[int, Begun] = {}  # by the cache's identity, until the next draft

    @abstractmethod
    def _exit(self, sequence: Generation) -> int:
        """Return how many layers draft."""

    def _layers(self, sequence: Generation) -> tuple[Layer, ...]:
        return tuple(range(self._exit(sequence)))

    def propose(
        self, sequences: Sequence[Generation], budgets: Sequence[Budget]
    ) -> list[TokenTree]:
        for each in sequences:
            self._begun.pop(id(each.cache), None)
        return super().propose(sequences, budgets)

    def close(self, sequence: Generation) -> None:
        self._begun.pop(id(sequence.cache), None)

    def _finish(self, chains: Sequence[GrowingChain]) -> None:
        # A chain that its length ended has not run its last token, which verification will need.
        drafted = [each for each in chains if each.tokens]
        short = [each for each in drafted if len(each.states) == len(each.tokens)]
        for layers, group in grouped(short, lambda each: self._layers(each.sequence)):
            self._run_newest(group, layers, NO_LOGITS)
        for each in drafted:
            tokens = each.sequence.root, *each.tokens
            begun = Begun(tokens, np.stack(each.states), self._exit(each.sequence))
            self._begun[id(each.sequence.cache)] = begun

    def forward(self, target: Target, rows: Sequence[Rows]) -> list[Output]:
        going = {at: begun for at, each in enumerate(rows) if (begun := self._fits(each))}
        out: dict[int, Output] = {}
        for exit, places in grouped(going, lambda at: going[at].exit):
            resumed = [replace(rows[at], inputs=going[at].states[: len(rows[at])]) for at in places]
            found = self._go_on(resumed, exit)
            out |= {at: Output(each.copy()) for at, each in zip(places, found, strict=True)}
        rest = [at for at in range(len(rows)) if at not in out]
        if rest:
            others = target.forward([rows[at] for at in rest])
            out |= dict(zip(rest, others, strict=True))
        return [out[at] for at in range(len(rows))]

    def _go_on(self, rows: Sequence[Rows], exit: int) -> Sequence[LogitArray]:
        found = self._target.forward(rows, tuple(range(exit, self._count)))
        return [each.logits for each in found]

    def _fits(self, each: Rows) -> Begun | None:
        # The controller, or a constraint, may have made another draft of it.
        begun = self._begun.get(id(each.cache))
        if begun is None or each.hidden or each.features or not each.tree:
            return None
        tokens = tuple(each.tokens)
        same = trees.is_chain(each.tree) and tokens == begun.tokens[: len(tokens)]
        return begun if same and each.num_new == 1 else None


def top_probability(logits: LogitArray) -> float:
    """Return the softmax probability of the argmax."""
    return min(1.0, float(1 / np.exp(logits - logits.max()).sum()))


Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)


def grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> list[tuple[Key, list[Item]]]:
    """Return items by their key, in the order of the first of each."""
    out: dict[Key, list[Item]] = defaultdict(list)
    for each in items:
        out[key(each)].append(each)
    return list(out.items())
