"""What commands print: streamed text, dim remarks, strict JSON."""

from __future__ import annotations

import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

import typer

from paceline.engine.engine import Completion, Engine, Event
from paceline.measure.machine import dumps
from paceline.models.text import Tokenizer

# Ctrl-C between steps:


class Interrupt:
    """Whether the user has asked to stop."""

    def __init__(self) -> None:
        self.requested = False

    def __bool__(self) -> bool:
        return self.requested


@contextmanager
def interruptible() -> Iterator[Interrupt]:
    """Collect Ctrl-C instead of raising, so that a step is never torn apart.

    A second press raises KeyboardInterrupt: a long prefill must not hold the user up.
    """
    interrupt = Interrupt()
    if threading.current_thread() is not threading.main_thread():
        yield interrupt
        return

    def handle(_signal: int, _frame: FrameType | None) -> None:
        if interrupt.requested:
            raise KeyboardInterrupt
        interrupt.requested = True

    previous = signal.signal(signal.SIGINT, handle)
    try:
        yield interrupt
    finally:
        signal.signal(signal.SIGINT, previous)


def print_json(value: Any) -> None:
    """One JSON object on standard output."""
    typer.echo(dumps(value))


def write(text: str) -> None:
    """Text on standard output at once, escape codes and all."""
    sys.stdout.write(text)
    sys.stdout.flush()


def remark(text: str) -> None:
    """A dim line on standard error."""
    typer.echo(typer.style(text, dim=True), err=True)  # plain where it is no terminal


def follow(
    engine: Engine, request: int, interrupt: Interrupt, show: Callable[[Event], None]
) -> Completion:
    """Step until a request ends or the user interrupts; the completion, cancelled if need be."""
    while not interrupt:
        for event in engine.step():
            if event.request == request:
                show(event)
                if event.completion is not None:
                    return event.completion
    completion = engine.cancel(request)
    assert completion is not None
    return completion


def summary(engine: Engine, completion: Completion) -> str:
    """One line: how fast, and why."""
    stats = completion.stats
    parts = [f"{stats.committed_tokens} tokens at {stats.tokens_per_second:.1f} tokens/s"]
    if stats.target_forwards:
        forwards = f"{stats.block_efficiency:.2f} tokens per forward"
        costs = engine.decoder.controller.costs
        if costs is not None:
            rows = round(1 + stats.drafted_tokens / stats.target_forwards)
            forwards += f" at {costs.c(rows):.2f} times the cost of a plain one"
        parts.append(f"{forwards} ({stats.target_forwards} forwards)")
    if stats.first_token_seconds is not None:
        parts.append(f"first token after {stats.first_token_seconds:.2f} s")
    config = engine.config
    parts.append(" ".join(str(config.get(key)) for key in ("runtime", "precision", "drafter")))
    rule = engine.decoder.verifier
    if not rule.lossless:
        parts.append(f"lossy: verifier {rule.name}")
    if config.get("kv_lossy"):
        parts.append(f"lossy: key-value cache {config['kv_precision']}")
    return "; ".join(parts)


# Text in the colours of who drafted it.

_COLOURS = ("green", "cyan", "magenta", "yellow", "blue", "red")


class Painter:
    """Colours text that becomes final by the drafter of the token it came from.

    The engine may hold back characters (half characters, possible stop strings), so tokens are
    decoded here one by one into characters that wait until the engine has released as many.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Decode with the target's tokenizer."""
        self._decoder = tokenizer.stream()
        self._waiting: deque[tuple[str, str | None]] = deque()
        self._colours: dict[str, str] = {}

    def paint(self, text: str, tokens: Sequence[int], sources: Sequence[str | None]) -> str:
        """`text`, released after `tokens` from `sources` were committed, with ANSI colours."""
        for token, source in zip(tokens, sources, strict=True):
            if source is not None:
                self._colours.setdefault(source, _COLOURS[len(self._colours) % len(_COLOURS)])
            self._waiting.extend((char, source) for char in self._decoder.feed([token]))
        out = []
        run, owner = "", None
        for char in text:
            source = self._waiting.popleft()[1] if self._waiting else None
            if source != owner:
                out.append(self._style(run, owner))
                run, owner = "", source
            run += char
        return "".join([*out, self._style(run, owner)])

    def legend(self) -> str:
        """Which colour is whose."""
        drafted = [typer.style(name, fg=colour) for name, colour in self._colours.items()]
        return "drafted by " + ", ".join(drafted) if drafted else "nothing was drafted"

    def _style(self, text: str, source: str | None) -> str:
        if source is None or not text:
            return text
        return typer.style(text, fg=self._colours[source])
