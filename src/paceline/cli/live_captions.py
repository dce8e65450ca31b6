"""Captions of standard input while it comes, for `paceline transcribe` with `--live`."""

from __future__ import annotations

import queue
import shutil
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import typer

from paceline.audio.mel import RATE
from paceline.cli.output import interruptible, print_json, remark, write
from paceline.core.processor import usable_threads
from paceline.errors import InvalidOption
from paceline.listening.live import AHEAD, LiveCaption, LiveCaptions, LiveMethod
from paceline.registry.options import Options
from paceline.registry.table import find

if TYPE_CHECKING:
    from paceline.core.types import LogitArray

_LATE = 0.1  # seconds between looks for what has come


def live_method(name: str, asked: Options) -> LiveMethod:
    """Return what begins captions of a Whisper by what `--live-by` names.

    InvalidOption: there is none, or the adapter that it needs is missing.
    """
    found: LiveMethod | None = getattr(find("stream", name).load(), "live", None)
    if found is None:
        raise InvalidOption(f"--live-by {name} hears with no Whisper: use careless-whisper")
    if not asked.adapter:
        raise InvalidOption(
            f"--live-by {name} needs its adapter: make one of this model by paceline train causal, "
            "and give --adapter FOLDER"
        )
    return found


def own_captions(name: str, asked: Options, language: str | None) -> LiveCaptions | None:
    """Return captions by the own network of what `--live-by` names; None if it has none.

    InvalidOption: it does not take all of the options. ModelError: `--model` has no such network.
    """
    make = getattr(find("stream", name).load(), "live_from", None)
    if make is None:
        return None
    if language or asked != Options(model=asked.model, threads=asked.threads, drafter="none"):
        raise InvalidOption(
            f"--live-by {name} takes its weights as --model, and --threads: leave out the others"
        )
    captions: LiveCaptions = make(Path(asked.model), usable_threads(asked.threads))
    return captions


def follow_sound(live: LiveCaptions, rate: int, form: str) -> bool:
    """Write captions until the sound ends; return whether it did so before Ctrl-C.

    Ctrl-C ends the sound, and so does a fault in it: what was heard is written down. Raises as
    `audio.read.live_sound`.
    """
    screen: _Screen = _SCREENS[form if form == "json" else _where()]()
    late = 0.0
    with interruptible() as stop:
        source = _Microphone(rate)
        try:
            while True:
                ended = source.wait(live)
                if stop and not ended:
                    ended = source.leave(live)
                if ended:
                    live.end()
                caption = live.step(lambda: source.take(live))
                if caption is not None:
                    late = max(late, caption.lag)
                    screen.show(caption)
                elif ended:
                    break
        finally:
            live.let_go()
            screen.end()
    if source.fault is not None:
        raise source.fault
    remark(
        f"{source.seconds:.0f} s of sound, at most {late:.1f} s behind; "
        f"{live.tokens / max(1, live.forwards):.2f} tokens per forward"
    )
    return not stop


def _where() -> str:
    return "terminal" if sys.stdout.isatty() else "text"


class _Microphone:
    # Standard input, which a thread reads: captions must not wait for it, nor it for them.

    def __init__(self, rate: int) -> None:
        if sys.stdin is None:
            raise InvalidOption("standard input is closed: pipe sound into the command")
        if sys.stdin.isatty():
            raise InvalidOption("standard input is a terminal: pipe sound into the command")
        self.seconds = 0.0
        self.fault: BaseException | None = None  # that has ended it
        self._parts: queue.Queue[LogitArray | BaseException | None] = queue.Queue(100)
        self._ended = False
        # A daemon: what never comes must not hold the command up.
        threading.Thread(target=self._read, args=(rate,), daemon=True).start()

    def wait(self, live: LiveCaptions) -> bool:
        """Give what has come, or comes soon, to the captions; return whether it was the last."""
        if not self._ended and live.waiting < AHEAD:
            try:
                self._give(self._parts.get(timeout=_LATE), live)
            except queue.Empty:
                return False
            self.take(live)
        return self._ended

    def take(self, live: LiveCaptions) -> None:
        while not self._ended and live.waiting < AHEAD and not self._parts.empty():
            self._give(self._parts.get(), live)

    def leave(self, live: LiveCaptions) -> bool:
        """End with what has come; return True."""
        self.take(live)
        self._ended = True
        return True

    def _give(self, part: LogitArray | BaseException | None, live: LiveCaptions) -> None:
        if part is None or isinstance(part, BaseException):
            self.fault, self._ended = part, True
        else:
            self.seconds += len(part) / RATE
            live.push(part)

    def _read(self, rate: int) -> None:
        from paceline.audio.read import live_sound, standard_input

        try:
            for part in live_sound(standard_input(), rate):
                self._parts.put(part)
            self._parts.put(None)
        except BaseException as error:
            self._parts.put(error)


class _Screen(Protocol):
    def show(self, caption: LiveCaption) -> None: ...

    def end(self) -> None: ...


class _Lines:
    # Words as they become final, a line a step.

    def show(self, caption: LiveCaption) -> None:
        if caption.final:
            write(" ".join(caption.final) + "\n")

    def end(self) -> None: ...


class _JsonLines:
    def show(self, caption: LiveCaption) -> None:
        final, draft = " ".join(caption.final), " ".join(caption.draft)
        print_json({"final": final, "draft": draft, "lag": round(caption.lag, 3)})

    def end(self) -> None: ...


class _Terminal:
    # Final words in plain lines; in the last one, which is drawn anew, those behind them are grey,
    # or blue where the last caption has drafted them, and the lag follows.

    def __init__(self) -> None:
        self._line = ""

    def show(self, caption: LiveCaption) -> None:
        wide = shutil.get_terminal_size().columns - 1
        out = "\r\x1b[2K"
        for word in caption.final:
            if self._line and len(self._line) + 1 + len(word) > wide:
                out, self._line = f"{out}{self._line}\n", ""
            self._line = f"{self._line} {word}".lstrip()
        lag = f" ({caption.lag:.1f} s behind)"
        room = wide - len(self._line) - len(lag)
        kept: list[str] = []
        for word, drafted in zip(caption.draft, caption.drafted, strict=True):
            room -= len(word) + 1
            if room < 0:
                break
            kept.append(typer.style(f" {word}", fg="blue" if drafted else None, dim=not drafted))
        write(out + self._line + "".join(kept) + typer.style(lag, dim=True))

    def end(self) -> None:
        write(f"\r\x1b[2K{self._line}\n" if self._line else "\r\x1b[2K")


_SCREENS: dict[str, type[_Screen]] = {"text": _Lines, "json": _JsonLines, "terminal": _Terminal}
