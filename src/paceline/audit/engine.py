"""What an audit asks of an engine: continuations with speculation on and off, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

Token = int | str
"""A token id, or a token's text where an engine gives no ids."""

Prompt = str | tuple[int, ...]
"""Raw text, or token ids."""

END = -1
"""Fills up continuations that ended early."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A request for continuations of one prompt.

    Attributes:
        prompt: what to continue.
        speculation: with or without.
        temperature: 0 is greedy. Nothing else shapes the law: no truncation, no penalties.
        tokens: how many tokens to generate. End tokens are tokens like others; whether an engine
            goes on after one is its affair.
        seeds: one continuation is wanted for each, independent of the others.
    """

    prompt: Prompt
    speculation: bool
    temperature: float
    tokens: int
    seeds: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Timing:
    """A greedy answer and how long it took.

    Attributes:
        tokens: all of it.
        seconds: from the request to the last token.
        first_seconds: from the request to the first tokens.
        first_tokens: how many came then.
        timed: "own" clock of the engine, or "difference" to an answer of one token.
    """

    tokens: tuple[Token, ...]
    seconds: float
    first_seconds: float
    first_tokens: int = 1
    timed: str = "own"


class Tally:
    """How many tokens came with speculation, and how many of those a drafter had proposed.

    An audit of an engine that accepted nothing says nothing about its rule, so reports show it.
    """

    def __init__(self) -> None:
        """Nothing yet."""
        self._tokens = 0
        self._accepted: int | None = None

    def add(self, tokens: int, accepted: int | None) -> None:
        """Count an answer; None if the engine does not say how many tokens were drafted."""
        if accepted is not None:
            self._tokens += tokens
            self._accepted = (self._accepted or 0) + accepted

    def about(self) -> Mapping[str, str]:
        """A line for the report, or none if nothing is known."""
        if self._accepted is None:
            return {}
        return {"accepted drafts": f"{self._accepted} of {self._tokens} tokens"}


class AuditedEngine(Protocol):
    """An engine under audit."""

    def about(self) -> Mapping[str, str]:
        """Name, version and settings, for the report."""
        ...

    def prompt(self, text: str, chat: bool) -> Prompt:
        """`text` in the form that the engine is given it.

        Args:
            text: what to continue or, with `chat`, to answer.
            chat: put it into the model's chat template, where one is known.
        """
        ...

    def continuations(self, ask: Ask) -> list[tuple[Token, ...]]:
        """A continuation of at most `ask.tokens` tokens for each of `ask.seeds`.

        Raises:
            EngineFailed: the engine is gone, or its answer is none.
        """
        ...

    def law(self, prompt: Prompt, temperature: float) -> Mapping[Token, float] | None:
        """The engine's own law of the next token, without speculation; None if it gives none.

        Tokens may be missing; what is missing is then known by its sum alone.
        """
        ...

    def close(self) -> None:
        """Let the engine go."""
        ...


class CallableEngine:
    """An engine that is a Python function."""

    def __init__(
        self,
        answer: Callable[[Ask], Sequence[Sequence[Token]]],
        name: str = "callable",
        law: Callable[[Prompt, float], Mapping[Token, float]] | None = None,
        encode: Callable[[str], Prompt] = str,
    ) -> None:
        """Wrap a function from a request to a continuation per seed.

        Args:
            answer: the function.
            name: for the report.
            law: the law of the next token, if known.
            encode: makes prompts of texts.
        """
        self._answer = answer
        self._name = name
        self._encode = encode
        self._law = law

    def about(self) -> Mapping[str, str]:
        """The name that was given."""
        return {"engine": self._name}

    def prompt(self, text: str, chat: bool) -> Prompt:
        """As the function takes it."""
        return self._encode(text)

    def continuations(self, ask: Ask) -> list[tuple[Token, ...]]:
        """One call."""
        return [tuple(tokens) for tokens in self._answer(ask)]

    def law(self, prompt: Prompt, temperature: float) -> Mapping[Token, float] | None:
        """What the function for it says."""
        return None if self._law is None else self._law(prompt, temperature)

    def close(self) -> None:
        """Nothing to do."""
