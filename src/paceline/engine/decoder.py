"""The shell of every decoder: admission, text watches, what a commit changes, and errors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar, NamedTuple

from paceline.core.target import Target
from paceline.core.types import CanvasParams, FinishReason, SamplingParams, TokenLogprob
from paceline.engine.memory import memory_of
from paceline.engine.prefill import Chunk
from paceline.engine.stopping import StopRules, TextWatch
from paceline.policy.cost import CostModel
from paceline.sampling.generation import Generation


class Commit(NamedTuple):
    """Tokens that one step added to a sequence (already extended), or its error.

    `sources` names per token its drafter, or None if the target chose it. `fills` are places of the
    answer that are not final, with the tokens that they hold now: mask tokens if they lost theirs.
    Without tokens a step of a canvas has only filled places behind one that is not filled yet.
    """

    sequence: Generation
    tokens: tuple[int, ...] = ()
    sources: tuple[str | None, ...] = ()
    finish_reason: FinishReason | None = None
    error: Exception | None = None
    fills: tuple[tuple[int, int], ...] = ()


class Decoder(ABC):
    """Decode a batch of sequences, step by step.

    Attributes:
        autoregressive: whether texts grow from left to right, so that drafts may come with them.
        target: the model.
        stops: rules that end a text.
        memory: of the target, if it is paged.
        strict: raise the error of a sequence; else it is in its commit.
    """

    autoregressive: ClassVar[bool]

    def __init__(self, target: Target, stops: StopRules) -> None:
        self.target = target
        self.stops = stops
        self.memory = memory_of(target)
        self.strict = True
        self._watches: dict[int, TextWatch] = {}

    @property
    @abstractmethod
    def rule(self) -> str:
        """Name of what chooses tokens, for fingerprints of answers."""

    @property
    def costs(self) -> CostModel | None:
        """Costs of forwards, if known."""
        return None

    def isolate(self) -> None:
        """From now on report the error of a sequence in its commit."""
        self.strict = False

    @abstractmethod
    def check(
        self, params: SamplingParams, denoising: CanvasParams | None, constrained: bool = False
    ) -> None:
        """Raise InvalidOption for requests that this decoder cannot serve."""

    def waiting(self, count: int) -> None:
        """Take note of the number of requests that wait."""

    def resume(self, sequence: Generation, tokens: Sequence[int]) -> None:
        """Take over the first tokens of an answer; the sequence has them already."""

    def admit(
        self,
        sequence: Generation,
        watch: TextWatch | None = None,
        sibling: Generation | None = None,
    ) -> None:
        """Open a sequence's cache. Prefill its tokens in chunks before `begin`.

        A `sibling` has read the same prompt, and shares what it has cached of it.
        """
        self._open(sequence, sibling)
        if watch is not None:
            self._watches[sequence.id] = watch

    def begin(self, sequence: Generation) -> None:
        """Do what comes between prefill and the first step; `sequence.reading` ends."""
        sequence.reading = False

    def read(self, chunks: Sequence[Chunk]) -> list[Commit]:
        """Prefill chunks of admitted sequences in a forward of their own; return errors only."""
        return []

    @abstractmethod
    def step(
        self, sequences: Sequence[Generation], chunks: Sequence[Chunk] = (), *, drafts: bool = True
    ) -> list[Commit]:
        """Decode one step, and prefill `chunks`; `drafts` False takes the plainest way.

        The caller must close sequences whose commit has a finish reason or an error. Errors of
        chunks stand last. An exception, of the forward as a whole, leaves all unchanged.
        """

    def close(self, sequence: Generation) -> None:
        """Release a sequence; an unfinished one may be admitted again later and then continues."""
        self._watches.pop(sequence.id, None)
        self._release(sequence)

    def reset(self) -> None:
        """Forget what was learned from earlier sequences."""

    def notes(self) -> list[str]:
        """Return lines on which drafters drafted, and why, where there are several."""
        return []

    @abstractmethod
    def _open(self, sequence: Generation, sibling: Generation | None) -> None: ...

    @abstractmethod
    def _release(self, sequence: Generation) -> None: ...

    def _extend(
        self,
        sequence: Generation,
        run: Sequence[int],
        sources: Sequence[str | None],
        logprob: Callable[[int], TokenLogprob],
        *,
        last: bool = False,
    ) -> Commit:
        # Extend a sequence by a run, as far as stop rules let it: `last` ends it in any case.
        # `logprob` is that of a token of the run, called if it is asked for.
        kept, reason = self.stops.cut(sequence, run, self._watches.get(sequence.id))
        if last:
            reason = reason or "length"
        tokens, sources = run[:kept], sources[:kept]
        if sequence.params.logprobs is not None:
            sequence.logprobs += map(logprob, range(kept))
        sequence.tokens += tokens
        sequence.sources += sources
        sequence.finish_reason = reason
        sequence.stats.committed_tokens += kept
        return Commit(sequence, tuple(tokens), tuple(sources), reason)

    def _failed(self, sequence: Generation, error: Exception) -> Commit:
        # The error ends this sequence alone.
        if self.strict:
            raise error
        return Commit(sequence, error=error)
