"""What an engine asks of a decoder: autoregressive, or one that fills canvases."""

from __future__ import annotations

from collections.abc import Sequence as List
from typing import ClassVar, NamedTuple, Protocol

from paceline.core.target import Target
from paceline.core.types import Denoising, FinishReason, SamplingParams
from paceline.engine.memory import Memory
from paceline.engine.prefill import Chunk
from paceline.engine.stopping import StopRules, TextWatch
from paceline.policy.cost import CostModel
from paceline.sampling.sequence import Sequence


class Commit(NamedTuple):
    """Tokens that one step added to a sequence (already extended), or its error.

    `sources` names per token its drafter, or None if the target chose it. `fills` are places of the
    answer that are not final, with the tokens that they hold now: mask tokens if they lost theirs.
    Without tokens a step of a canvas has only filled places behind one that is not filled yet.
    """

    sequence: Sequence
    tokens: tuple[int, ...] = ()
    sources: tuple[str | None, ...] = ()
    finish_reason: FinishReason | None = None
    error: Exception | None = None
    fills: tuple[tuple[int, int], ...] = ()


class Decoder(Protocol):
    """Decode a batch of sequences, step by step.

    Attributes:
        autoregressive: whether texts grow from left to right, so that drafts may come with them.
        stops: rules that end a text.
        memory: of the target, if it is paged.
    """

    autoregressive: ClassVar[bool]
    stops: StopRules
    memory: Memory | None

    @property
    def target(self) -> Target: ...

    @property
    def costs(self) -> CostModel | None:
        """Costs of forwards, if known."""
        ...

    @property
    def rule(self) -> str:
        """Name of what chooses tokens, for fingerprints of answers."""
        ...

    def isolate(self) -> None:
        """From now on report the error of a sequence in its commit."""
        ...

    def check(
        self, params: SamplingParams, denoising: Denoising | None, constrained: bool = False
    ) -> None:
        """Raise InvalidOption for requests that this decoder cannot serve."""
        ...

    def waiting(self, count: int) -> None:
        """Take note of the number of requests that wait."""
        ...

    def resume(self, sequence: Sequence, tokens: List[int]) -> None:
        """Take over the first tokens of an answer; the sequence has them already."""
        ...

    def admit(
        self,
        sequence: Sequence,
        watch: TextWatch | None = None,
        sibling: Sequence | None = None,
    ) -> None:
        """Open a sequence's cache. A `sibling` has read the same prompt."""
        ...

    def begin(self, sequence: Sequence) -> None:
        """Do what comes between prefill and the first step; `sequence.reading` ends."""
        ...

    def read(self, chunks: List[Chunk]) -> list[Commit]:
        """Prefill chunks of admitted sequences in a forward of their own; return errors only."""
        ...

    def step(
        self, sequences: List[Sequence], chunks: List[Chunk] = (), *, drafts: bool = True
    ) -> list[Commit]:
        """Decode one step, and prefill `chunks`; `drafts` False takes the plainest way.

        The caller must close sequences whose commit has a finish reason or an error. Errors of
        chunks stand last. An exception, of the forward as a whole, leaves all unchanged.
        """
        ...

    def close(self, sequence: Sequence) -> None:
        """Release a sequence; an unfinished one may be admitted again later and then continues."""
        ...
