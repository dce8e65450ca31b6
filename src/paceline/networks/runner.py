"""The contract of a drafter network that is ready to run on some runtime."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from paceline.networks.base import Network
from paceline.networks.ctc import collapse
from paceline.types import IntArray, LogitArray


class Noise(NamedTuple):
    """What the target's tokens will be drawn with, for drafts that are to agree with them.

    Attributes:
        keys: 16 bytes per position (`noise.TokenNoise.key`), from that behind the root on.
        temperature: of the law that is drawn from, above 0.
    """

    keys: bytes
    temperature: float


@dataclass(frozen=True, slots=True)
class Grown:
    """What a sequence's context has gained since its last draft.

    Attributes:
        cache: the sequence's, from `Runner.open`.
        features: float32 `[rows, 4 * width]` of the new positions, at least one; no width if the
            network reads none.
        tokens: int64 `[rows]`, what follows each; the last is the root.
        target: the target's cache of the sequence, for networks that read it; it holds all rows.
        least: a chain may end behind the first token at which the chance that all of it stands is
            below this. Runners may draft on: what is behind costs time alone.
        noise: of the positions of a chain, for sampled requests: its tokens are then those that win
            under the noise. Runners that have none to add draft the likeliest, as without.
    """

    cache: Any
    features: LogitArray
    tokens: Sequence[int]
    target: Any = None
    noise: Noise | None = None
    least: float = 0.0

    def parts(self, size: int) -> list[Grown]:
        """The same in parts of at most `size` rows, oldest first."""
        return [
            replace(
                self,
                features=self.features[at : at + size],
                tokens=self.tokens[at : at + size],
            )
            for at in range(0, len(self.tokens), size)
        ]


class Chain(NamedTuple):
    """What a network drafts.

    Attributes:
        tokens: the most likely one at each depth, or the winner under its noise.
        chances: the network's probability of each; under noise, by a softmax over what tokens score
            with it, which says better whether the target will agree.
        rivals: the second likeliest at each depth.
        rival_chances: their probabilities; 0 where there is no token.
    """

    tokens: Sequence[int]
    chances: Sequence[float]
    rivals: Sequence[int]
    rival_chances: Sequence[float]


@dataclass(frozen=True, slots=True, eq=False)
class Branch:
    """A place in a draft, whole steps behind the last context row.

    Attributes:
        cache: of its sequence.
        above: the branch one step before; None behind the context row itself.
        tokens: `[width]` token ids, drafted between the two; empty where there is no other.
        state: the network's, in the runner's own form.
        logits: float32 `[width, draft vocabulary]` of the next step.
    """

    cache: Any
    above: Branch | None
    tokens: Sequence[int]
    state: Any
    logits: LogitArray


class Runner(Protocol):
    """Runs a network for any number of sequences."""

    @property
    def depth(self) -> int:
        """Most tokens of a draft."""
        ...

    def open(self) -> Any:
        """A new, empty cache of context rows."""
        ...

    def release(self, cache: Any) -> None:
        """Give a cache's memory back."""
        ...

    def draft(self, grown: Sequence[Grown], depth: int) -> list[Chain]:
        """Take in context rows and draft behind the last of each sequence.

        Args:
            grown: one per sequence.
            depth: most tokens wanted; 0 only takes in.

        Returns:
            One chain per sequence, of at most `depth` tokens; none if that is 0.

        Raises:
            OutOfMemory: the network's own cache is full.
        """
        ...

    def start(self, grown: Sequence[Grown]) -> list[Branch]:
        """Take in context rows and return the root of a tree behind the last of each sequence.

        Args:
            grown: one per sequence.

        Raises:
            OutOfMemory: the network's own cache is full.
        """
        ...

    def advance(self, asked: Sequence[tuple[Branch, Sequence[int]]]) -> list[Branch]:
        """One step on from branches, which may be of different depths.

        So a network's step must be the same at every depth, as all of the catalogue are. Branches
        hold until their sequence's next `draft` or `start`.

        Args:
            asked: branches, those of a sequence together, and the `[width]` tokens of their step.

        Raises:
            OutOfMemory: the network's own cache is full.
        """
        ...

    def hidden(self, branch: Branch) -> LogitArray:
        """A branch's state as numbers, float32 `[slots, ...]`."""
        ...


@runtime_checkable
class EarlyRunner(Runner, Protocol):
    """One that drafts while its caller does other things."""

    def begin(self, grown: Grown, depth: int) -> None:
        """Begin what `draft` does, for one sequence, and return.

        Raises:
            OutOfMemory: the network's own cache is full; nothing has begun.
        """
        ...

    def finish(self) -> Chain:
        """What was begun; wait for it. Anything else may be asked for before, and waits for it."""
        ...


class Tail:
    """The newest tokens of a context, for networks that read windows; token 0 stands before it."""

    def __init__(self, network: Network) -> None:
        """An empty context."""
        self._window = max(network.window, 1)
        self._tokens = [0] * (self._window - 1)

    def windows(self, tokens: Sequence[int]) -> IntArray:
        """int64 `[rows, window]`: new tokens, and before each those that it followed."""
        known = np.array([*self._tokens, *tokens], dtype=np.int64)
        return np.lib.stride_tricks.sliding_window_view(known, self._window)

    def extend(self, tokens: Sequence[int]) -> None:
        """The context has grown."""
        known = [*self._tokens, *tokens]
        self._tokens = known[len(known) - self._window + 1 :]


def chains(
    network: Network, tokens: npt.NDArray[Any], chances: npt.NDArray[Any], depth: int
) -> list[Chain]:
    """Drafts of at most `depth` tokens from what all steps say, `[sequences, slots, 2]` each: of
    the likeliest and of the second likeliest.

    Where slots may stay blank, -1 stands for that, and nothing for the second likeliest: it would
    say what a slot may hold, not what a depth may.
    """
    out = []
    # Lists: there are few numbers, and this runs at every step.
    for said, sure in zip(tokens.tolist(), chances.tolist(), strict=True):
        if network.blank:
            places = collapse([first for first, _ in said], -1)
            said, sure = [said[at] for at in places], [(sure[at][0], 0.0) for at in places]
        first, second = ([pair[at] for pair in said[:depth]] for at in (0, 1))
        chance, rival_chance = ([pair[at] for pair in sure[:depth]] for at in (0, 1))
        out.append(Chain(first, chance, second, rival_chance))
    return out
