"""Printing: streamed text, remarks, JSON, progress bars, and reports as lines of text."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from paceline.lab.measure.machine import dumps

if TYPE_CHECKING:
    from rich.progress import Progress

    from paceline.engine.engine import Completion, Engine, Event
    from paceline.models.text import Tokenizer

T = TypeVar("T")

_SOON = 0.1  # seconds until a press is seen where waits cannot be interrupted


class Interrupt:
    """True once the user has pressed Ctrl-C."""

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


def left_to_itself(work: Callable[[], T]) -> T:
    """Return what work does, on a thread of its own: Ctrl-C does not wait for it.

    Nor is it raised within, where libraries in C would take it for the end of a file.
    """
    found: list[T] = []
    faults: list[BaseException] = []

    def run() -> None:
        try:
            found.append(work())
        except BaseException as error:
            faults.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(_SOON)
    for each in faults:
        raise each
    return found[0]


def print_json(value: Any) -> None:
    """Print one JSON object on standard output."""
    typer.echo(dumps(value))


def write(text: str) -> None:
    """Write text to standard output at once, escape codes and all."""
    sys.stdout.write(text)
    sys.stdout.flush()


def one_line(text: str) -> str:
    """Return text without line ends and codes of terminals, which names of files may have."""
    line = " ".join(text.split())
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in line)


def remark(text: str) -> None:
    """Print a dim line on standard error."""
    with suppress(OSError):  # what was asked for is worth more than a remark
        typer.echo(typer.style(one_line(text), dim=True), err=True)  # plain beside a terminal


def follow(
    engine: Engine, request: int, interrupt: Interrupt, show: Callable[[Event], None]
) -> Completion:
    """Step until a request ends, or cancel it when the user interrupts.

    Raises its error, and leaves nothing in flight.
    """
    try:
        while not interrupt:
            for event in engine.checked_step():
                show(event)
                if event.completion is not None:
                    return event.completion
    except BaseException:
        engine.cancel(request)
        raise
    completion = engine.cancel(request)
    assert completion is not None
    return completion


def summary(engine: Engine, completion: Completion) -> str:
    """Say in one line how fast a completion was, and why."""
    stats = completion.stats
    parts = [f"{stats.committed_tokens} tokens at {stats.tokens_per_second:.1f} tokens/s"]
    if stats.target_forwards:
        forwards = f"{stats.block_efficiency:.2f} tokens per forward"
        costs = engine.decoder.costs
        if costs is not None:
            rows = round(1 + stats.drafted_tokens / stats.target_forwards)
            forwards += f" at {costs.c(rows):.2f} times the cost of a plain one"
        parts.append(f"{forwards} ({stats.target_forwards} forwards)")
    if stats.first_token_seconds is not None:
        parts.append(f"first token after {stats.first_token_seconds:.2f} s")
    if stats.position_evaluations:
        parts.append(f"{stats.position_evaluations} positions evaluated")
    config = engine.config
    how = "sampler" if "sampler" in config else "drafter"
    parts.append(" ".join(str(config.get(key)) for key in ("runtime", "precision", how)))
    parts += engine.decoder.notes()
    rule = getattr(engine.decoder, "verifier", None)
    if rule is not None and not rule.lossless:
        parts.append(f"lossy: verifier {rule.name}")
    return "; ".join(parts)


@contextmanager
def told_late(text: str, seconds: float = 1.0) -> Iterator[None]:
    """Print a `remark` about what is done once it has taken so long."""
    timer = threading.Timer(seconds, lambda: remark(text))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def telling(model: str) -> Iterator[None]:
    """Say on standard error what is done while a model is loaded, where it takes over a second."""
    log = logging.getLogger("paceline")
    level = log.level
    log.setLevel(logging.INFO)
    try:
        with told_late(f"loading {model}"):
            yield
    finally:
        log.setLevel(level)


@contextmanager
def remarked() -> Iterator[None]:
    """Make what the package logs remarks."""
    log, handler = logging.getLogger("paceline"), _Remarks()
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


class _Remarks(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        remark(record.getMessage())


class CanvasSteps:
    """The canvas of a request as it fills: one line a step, or one line that changes."""

    def __init__(self, engine: Engine, *, live: bool) -> None:
        """Show the steps if `live`, on a terminal in place; keep them in any case."""
        self.steps: list[list[dict[str, Any]]] = []
        self._tokenizer = engine.tokenizer
        facts = engine.decoder.target.capabilities.denoises
        self._mask = None if facts is None else facts.mask
        self._places: list[str] = []
        self._live = live
        self._still = live and not sys.stdout.isatty()

    def show(self, event: Event) -> None:
        fills = []
        for at, token in event.fills:
            text = None
            if token != self._mask:
                text = self._tokenizer.decode([token], skip_special=False)
            self._places += ["_"] * (at + 1 - len(self._places))
            self._places[at] = "_" if text is None else text
            fills.append({"at": at, "token_id": token, "text": text})
        if not fills:
            return
        self.steps.append(fills)
        line = "|".join(self._places).replace("\n", "\\n")
        if self._still:
            write(f"{len(self.steps):4} {line}\n")
        elif self._live:
            write(f"\r\x1b[2K{line[: os.get_terminal_size().columns - 1]}")

    def end(self) -> None:
        """Clear the line that changed."""
        if self._live and not self._still:
            write("\r\x1b[2K")


_COLOURS = ("green", "cyan", "magenta", "yellow", "blue", "red")


class SourceColours:
    """Colours text that becomes final by the drafter of the token it came from.

    The engine may hold back characters (half characters, possible stop strings), so tokens are
    decoded here one by one into characters that wait until the engine has released as many.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._decoder = tokenizer.stream()
        self._waiting: deque[tuple[str, str | None]] = deque()
        self._colours: dict[str, str] = {}

    def paint(self, text: str, tokens: Sequence[int], sources: Sequence[str | None]) -> str:
        """Colour `text`, released after `tokens` from `sources` were committed."""
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
        """Name the drafter of each colour."""
        drafted = [typer.style(name, fg=colour) for name, colour in self._colours.items()]
        return "drafted by " + ", ".join(drafted) if drafted else "nothing was drafted"

    def _style(self, text: str, source: str | None) -> str:
        if source is None or not text:
            return text
        return typer.style(text, fg=self._colours[source])


class Screen:
    """The text of a request on standard output as it becomes final, in colours where asked."""

    def __init__(self, colours: SourceColours | None = None) -> None:
        self._colours = colours
        self._shown = 0

    def show(self, event: Event) -> None:
        self._shown += len(event.text)
        if self._colours is not None:
            write(self._colours.paint(event.text, event.token_ids, event.sources))
        elif event.text:
            write(event.text)

    def end(self, text: str) -> None:
        """Write what is missing of the whole text, and say whose the colours are."""
        write(text[self._shown :] + "\n")
        if self._colours is not None:
            typer.echo(self._colours.legend(), err=True, color=True)


@contextmanager
def progress_bar(
    figures: str = "{task.percentage:>3.0f}%", shown: bool = True
) -> Iterator[Progress]:
    """Open progress bars on standard error, if that is a terminal.

    `figures`, after the bar, is a format of rich's `task`.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TimeRemainingColumn

    columns = ("{task.description}", BarColumn(), figures, TimeRemainingColumn())
    hidden = not (shown and sys.stderr.isatty())
    with Progress(*columns, console=Console(stderr=True), disable=hidden) as bar:
        yield bar


def report(figures: Mapping[str, Any], line: str, *, as_json: bool, finished: bool = True) -> None:
    """Print the figures of a run, or a line for people; exit 130 if it was interrupted."""
    if as_json:
        print_json(figures)
    else:
        typer.echo(line)
    end(finished)


def end(finished: bool, kept: bool = True) -> None:
    """Exit 130 after Ctrl-C, and say that the same command goes on where something was kept."""
    if not finished:
        if kept:
            remark("interrupted: the same command goes on")
        raise typer.Exit(130)
