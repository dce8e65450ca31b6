"""Interface of an engine under audit: continuations with speculation on and off."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

# Token id, or the token's text where an engine gives no ids.
Token = int | str

# Raw text, or token ids.
Prompt = str | tuple[int, ...]

# Padding of continuations that ended early.
END = -1


@dataclass(frozen=True, slots=True)
class SeededRequest:
    """Request for one independent continuation of a prompt per seed.

    No truncation, no penalties. End tokens are ordinary tokens; an engine may stop there.
    """

    prompt: Prompt
    speculation: bool
    temperature: float
    tokens: int
    seeds: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Timing:
    """A greedy answer and its time; `timed` by the engine's "own" clock, or by "difference".

    `first_seconds` is the time to the first tokens, `first_tokens` of them.
    """

    tokens: tuple[Token, ...]
    seconds: float
    first_seconds: float
    first_tokens: int = 1
    timed: str = "own"


class Tally:
    """Accepted tokens with speculation: an audit of an engine that accepts none tests nothing."""

    def __init__(self) -> None:
        self._tokens = 0
        self._accepted: int | None = None

    def add(self, tokens: int, accepted: int | None) -> None:
        if accepted is not None:
            self._tokens += tokens
            self._accepted = (self._accepted or 0) + accepted

    def about(self) -> Mapping[str, str]:
        if self._accepted is None:
            return {}
        return {"accepted drafts": f"{self._accepted} of {self._tokens} tokens"}


class AuditedEngine(Protocol):
    """An engine under audit."""

    def about(self) -> Mapping[str, str]: ...

    def prompt(self, text: str, chat: bool) -> Prompt:
        """Encode `text` for the engine; `chat` applies the chat template, where one is known."""
        ...

    def continuations(self, ask: SeededRequest) -> list[tuple[Token, ...]]:
        """Return a continuation of at most `ask.tokens` tokens per seed; raises EngineFailed."""
        ...

    def distribution(self, prompt: Prompt, temperature: float) -> Mapping[Token, float] | None:
        """Return the next-token distribution without speculation, maybe partial, or None."""
        ...

    def close(self) -> None: ...


class CallableEngine:
    """Wrap a Python function as an engine."""

    def __init__(
        self,
        answer: Callable[[SeededRequest], Sequence[Sequence[Token]]],
        name: str = "callable",
        distribution: Callable[[Prompt, float], Mapping[Token, float]] | None = None,
        encode: Callable[[str], Prompt] = str,
    ) -> None:
        self._answer = answer
        self._name = name
        self._encode = encode
        self._distribution = distribution

    def about(self) -> Mapping[str, str]:
        return {"engine": self._name}

    def prompt(self, text: str, chat: bool) -> Prompt:
        return self._encode(text)

    def continuations(self, ask: SeededRequest) -> list[tuple[Token, ...]]:
        return [tuple(tokens) for tokens in self._answer(ask)]

    def distribution(self, prompt: Prompt, temperature: float) -> Mapping[Token, float] | None:
        return None if self._distribution is None else self._distribution(prompt, temperature)

    def close(self) -> None: ...
