"""Runner protocol: a drafter network on a runtime, with its chains and tree branches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from paceline.core.target import Target
from paceline.core.types import LogitArray
from paceline.networks.base import Network
from paceline.networks.weights import Trained


class Noise(NamedTuple):
    """Gumbel noise of the target's tokens, for drafts coupled to them.

    `keys` has 16 bytes per position (`gumbel.GumbelNoise.key`), from the one after the root on.
    """

    keys: bytes
    temperature: float


@dataclass(frozen=True, slots=True)
class ContextUpdate:
    """New context of a sequence since its last draft.

    Attributes:
        features: float32 `[rows, 4 * width]` of the new positions; no width if not read.
        tokens: int64 `[rows]`, the token after each, at least one; the last is the root.
        target: the target's KV cache of the sequence, for networks that read it.
        least: a chain may (not must) end after the first token at which its acceptance
            probability is below this.
        noise: for sampled requests: the chain's tokens are then the argmax under the noise.
            Runners without noise ignore it.
    """

    cache: Any
    features: LogitArray
    tokens: Sequence[int]
    target: Any = None
    noise: Noise | None = None
    least: float = 0.0

    def parts(self, size: int) -> list[ContextUpdate]:
        """Split into parts of at most `size` rows, oldest first."""
        return [
            replace(
                self, features=self.features[at : at + size], tokens=self.tokens[at : at + size]
            )
            for at in range(0, len(self.tokens), size)
        ]


class Chain(NamedTuple):
    """A drafted chain: the argmax at each depth (under the noise if given), and the runner-up.

    `chances` are the network's probabilities; under noise, a softmax of the noisy scores, which
    estimates acceptance better. `runner_up_probs` is 0 where there is no token.
    """

    tokens: Sequence[int]
    chances: Sequence[float]
    runner_ups: Sequence[int]
    runner_up_probs: Sequence[float]


@dataclass(frozen=True, slots=True, eq=False)
class Branch:
    """A node of a draft, whole steps after the last context row.

    Attributes:
        above: the branch one step before; None after the context row itself.
        tokens: `[width]` token ids drafted between the two; empty if `above` is None.
        logits: float32 `[width, draft vocabulary]` of the next step.
    """

    cache: Any
    above: Branch | None
    tokens: Sequence[int]
    state: Any
    logits: LogitArray

    @property
    def step(self) -> int:
        """Steps above it."""
        return 0 if self.above is None else self.above.step + 1


# Branches, and the tokens of the step that each takes.
Asked: TypeAlias = Sequence[tuple[Branch, Sequence[int]]]


def by_steps(
    network: Network, asked: Asked, advance: Callable[[Asked, int], list[Branch]]
) -> list[Branch]:
    """Advance branches in one call, or in one for each step where steps are not alike."""
    if network.alike:
        return advance(asked, 1)
    made: dict[int, Branch] = {}
    for step in {branch.step for branch, _ in asked}:
        some = [at for at, (branch, _) in enumerate(asked) if branch.step == step]
        made |= zip(some, advance([asked[at] for at in some], step + 1), strict=True)
    return [made[at] for at in range(len(asked))]


class Runner(Protocol):
    """Runs a network for any number of sequences."""

    @property
    def depth(self) -> int: ...

    def open(self) -> Any:
        """Return a new, empty KV cache of context rows."""
        ...

    def release(self, cache: Any) -> None: ...

    def draft(self, context_update: Sequence[ContextUpdate], depth: int) -> list[Chain]:
        """Encode context rows and draft after the last of each sequence; `depth` 0 only encodes.

        Return one chain per sequence, of at most `depth` tokens. Raises OutOfMemory if the
        network's own KV cache is full.
        """
        ...

    def start(self, context_update: Sequence[ContextUpdate]) -> list[Branch]:
        """Encode context rows and return a tree root per sequence; raises as `draft`."""
        ...

    def advance(self, asked: Sequence[tuple[Branch, Sequence[int]]]) -> list[Branch]:
        """Advance branches of any depths by one step.

        Takes branches, those of a sequence together, with the `[width]` tokens of their step. They
        are valid until their sequence's next `draft` or `start`. Raises OutOfMemory as `draft`.
        """
        ...

    def hidden(self, branch: Branch) -> LogitArray:
        """Return a branch's state, float32 `[slots, ...]`."""
        ...

    def digest(self, rows: LogitArray) -> LogitArray:
        """Return float32 `[numbers]`, `Network.digest` of float32 `[rows, width]`."""
        ...


class NetworkTarget(Target, Protocol):
    """A target of `Capabilities.networks`."""

    def run_network(self, trained: Trained) -> Runner:
        """Return a warm runner of a drafter network beside the target's weights."""
        ...

    def read_boundaries(self, boundaries: Sequence[int]) -> list[int]:
        """Let features have the states at these boundaries from now on, behind what they have.

        Return the place of each among the parts of `Output.features`.
        """
        ...


class Tail:
    """Newest rows of a context, for networks that read rows again."""

    def __init__(self, network: Network) -> None:
        self._overlap = network.overlap
        self._read: list[ContextUpdate] = []

    def again(self, update: ContextUpdate) -> tuple[ContextUpdate, int]:
        """Return the update behind the rows that are read again, and their number."""
        if not self._read:
            return update, 0
        [old] = self._read
        features = np.concatenate([old.features, update.features])
        return replace(update, features=features, tokens=[*old.tokens, *update.tokens]), len(
            old.tokens
        )

    def extend(self, update: ContextUpdate) -> None:
        """Note what `again` returned, which is in the cache now."""
        if self._overlap:
            newest = slice(-self._overlap, None)
            features, tokens = update.features[newest].copy(), update.tokens[newest]
            self._read = [ContextUpdate(None, features, tokens)]


def chains(tokens: npt.NDArray[Any], chances: npt.NDArray[Any], depth: int) -> list[Chain]:
    """Build drafts from the argmax and runner-up of each slot, `[sequences, slots, 2]` each."""
    out = []
    # Lists: there are few numbers, and this runs at every step.
    for said, sure in zip(tokens.tolist(), chances.tolist(), strict=True):
        first, second = ([pair[at] for pair in said[:depth]] for at in (0, 1))
        chance, runner_up_prob = ([pair[at] for pair in sure[:depth]] for at in (0, 1))
        out.append(Chain(first, chance, second, runner_up_prob))
    return out
