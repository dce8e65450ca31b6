"""`paceline transcribe`: speech to text."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import asdict
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from paceline.audio.mel import RATE
from paceline.cli import options as o
from paceline.cli.output import (
    end,
    interruptible,
    left_to_itself,
    one_line,
    progress_bar,
    remark,
    telling,
    told_late,
    write,
)
from paceline.errors import InvalidOption
from paceline.listening.captions import FORMATS, HEADS, Caption
from paceline.registry.options import Options

if TYPE_CHECKING:
    from rich.progress import Progress

    from paceline.core.types import LogitArray
    from paceline.listening.live import LiveMethod
    from paceline.listening.windows import Listening

_SILENCE = "Weights of Silero VAD; else those of the package silero-vad, if it is installed."
_LIVE = "Captions while standard input comes; grey words may change, blue ones were drafted."
_RATE = (
    f"Of raw sound for --live, 16-bit numbers of one channel, {RATE} unless given; WAV tells its "
    "own."
)
_FILES = (
    "WAV; flac, ogg, mp3, opus by the extra audio; m4a, mp4, webm by av; up to 12 h each; - is "
    "standard input, which is read to its end before a word is written, but for --live."
)
_WAITS = "standard input is read to its end first: for sound that goes on and on give --live"
_LATE = 5.0  # seconds until that is said


def transcribe(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help=_FILES)],
    *,
    asked: Annotated[Options, o.Takes("model", *o.COMPUTE, "adapter", "drafter", drafter="none")],
    language: Annotated[str | None, "Its code; default: that of the first window."] = None,
    translate: Annotated[bool, "To English."] = False,
    seed: o.Seed = 0,
    form: Annotated[str, typer.Option("--format", help=f"{', '.join(FORMATS)}.")] = "text",
    out: Annotated[Path | None, typer.Option(help="Folder; what it has is kept.")] = None,
    silence: Annotated[Path | None, typer.Option(help=_SILENCE)] = None,
    no_silence: Annotated[bool, typer.Option("--no-silence", help="Hear silence, too.")] = False,
    live: Annotated[bool, typer.Option("--live", help=_LIVE)] = False,
    live_by: o.LiveBy = None,
    rate: Annotated[int | None, typer.Option(min=1000, max=768_000, help=_RATE)] = None,
) -> None:
    """Write down speech, as it becomes final.

    Several files need `--out`. Ctrl-C ends behind a window, a kill loses that one alone; the same
    command goes on. The exit code is 1 if some of several files were not written down.
    """
    from paceline.audio.silence import silero_file
    from paceline.listening.transcripts import places_of
    from paceline.listening.windows import Listening

    if form not in FORMATS:
        raise InvalidOption(f"--format {form} is unknown: use {', '.join(FORMATS)}")
    if silence is not None and no_silence:
        raise InvalidOption("--silence and --no-silence contradict each other: give one")
    finds = None if no_silence else silence or silero_file()
    if live and (len(files) > 1 or str(files[0]) != "-" or out is not None):
        raise InvalidOption("--live writes down standard input: give - alone, and no --out")
    if live and form not in ("text", "json"):
        raise InvalidOption(f"--format {form} needs times, and --live has none: use text or json")
    if live_by is not None and (not live or silence is not None or translate):
        raise InvalidOption("--live-by needs --live: leave out --silence and --translate")
    if rate is not None and not live:
        raise InvalidOption("--rate needs --live: files tell their own")
    load = partial(_Writer, asked, Listening(language, translate, seed=seed), finds)
    if live:
        from paceline.cli.live_captions import follow_sound, live_method, own_captions

        method: LiveMethod | None = None
        if live_by is not None:
            if (own := own_captions(live_by, asked, language)) is not None:
                end(follow_sound(own, rate or RATE, form), kept=False)
                return
            method = live_method(live_by, asked)
            if not language:
                raise InvalidOption(f"--live-by {live_by} needs --language: name it")
        end(load().follow(rate or RATE, form, method), kept=False)
        return
    if out is not None:
        _Folder(load, form, out).fill(places_of(files, out, form))
        return
    if len(files) > 1:
        raise InvalidOption("several files are several transcripts: give a folder with --out")
    sound = _read(files[0])  # before the model, which takes longer
    writer, number = load(), 0
    write(HEADS.get(form, ""))
    for _, captions in writer.windows(sound, 0):
        for each in captions:
            number += 1
            write(FORMATS[form](number, *each))


def _read(file: Path) -> LogitArray:
    from paceline.audio.read import TooLong, read_sound

    if str(file) != "-":
        return left_to_itself(partial(read_sound, file))
    try:
        with told_late(_WAITS, _LATE):
            return left_to_itself(partial(read_sound, file))
    except TooLong as error:
        raise TooLong(f"{error}, or give --live, which writes it down as it comes") from error


class _Folder:
    # Transcripts of files. An error of one of several does not lose the others.

    def __init__(self, load: Callable[[], _Writer], form: str, out: Path) -> None:
        self._load, self._form, self._out = load, form, out
        self._alone = False
        self._before = self._done = self._failed = 0
        self._seconds = 0.0  # of sound

    def fill(self, places: Mapping[Path, Path]) -> None:
        left = [file for file, place in places.items() if not place.exists()]
        self._alone, self._before = len(places) == 1, len(places) - len(left)
        start = perf_counter()
        figures = "{task.completed:.0f}/{task.total:.0f} s"
        with progress_bar(figures) as bar:
            ended = self._ended({file: places[file] for file in left}, bar)
        remark(
            f"{self._out}: {self._done} of {len(places) - self._before} written down, "
            f"{self._failed} with an error, {self._before} before; {self._seconds:.0f} s of sound "
            f"in {perf_counter() - start:.0f} s"
        )
        end(ended)
        if self._failed:
            raise typer.Exit(1)

    def _ended(self, places: Mapping[Path, Path], bar: Progress) -> bool:
        # Whether Ctrl-C did not come before. It tears no window, unless it comes again.
        from rich.markup import escape

        writer = None
        try:
            for file, place in places.items():
                try:
                    sound = _read(file)
                except InvalidOption as error:
                    self._fail(error)
                    continue
                writer = writer or self._load()
                task = bar.add_task(escape(one_line(file.name)), total=len(sound) / RATE)
                with interruptible() as stop:
                    try:
                        for at in self._keep(place, sound, writer):
                            bar.update(task, completed=at / RATE)
                            if stop:
                                return False
                    except InvalidOption as error:
                        self._fail(error)
                if stop:
                    return False
        except KeyboardInterrupt:
            return False
        return True

    def _keep(self, place: Path, sound: LogitArray, writer: _Writer) -> Iterator[int]:
        # Yields samples that are heard.
        from paceline.listening.transcripts import KeptTranscript

        about = writer.about(sound)
        with closing(KeptTranscript(place, self._form, about, len(sound))) as transcript:
            if transcript.done:
                self._before += 1
                return
            for at, captions in writer.windows(sound, transcript.heard):
                self._seconds += (at - transcript.heard) / RATE
                transcript.add(at, captions)
                yield at
            transcript.finish()
            self._done += 1

    def _fail(self, error: InvalidOption) -> None:
        if self._alone:
            raise error
        self._failed += 1
        remark(f"error: {error}")


class _Writer:
    # A model, and how it is to write sounds down.

    def __init__(self, asked: Options, wanted: Listening, finds: Path | None) -> None:
        from paceline.audio.silence import SpeechFinder
        from paceline.listening.windows import Listener

        self._finder = None if finds is None else SpeechFinder(finds)
        with telling(asked.model):
            engine, source = o.load(asked)
        if source.config.encoder is None:
            raise InvalidOption(f"{source.name} hears nothing: give a Whisper with --model")
        self._listener, self._wanted = Listener(engine, source.path), wanted
        self._listener.begin(np.zeros(0, np.float32), wanted)  # can it?
        self._decode, self._model = engine.tokenizer.decode, source.fingerprint
        self._silence = None if finds is None else hashlib.sha256(finds.read_bytes()).hexdigest()

    def about(self, sound: LogitArray) -> dict[str, Any]:
        # What a transcript is a function of.
        digest = hashlib.sha256(sound.tobytes()).hexdigest()
        return {
            "sound": digest,
            "model": self._model,
            "silence": self._silence,
            **asdict(self._wanted),
        }

    def follow(self, rate: int, form: str, method: LiveMethod | None) -> bool:
        # Live captions; whether the sound came to its end.
        from paceline.cli.live_captions import follow_sound
        from paceline.listening.live import Live

        listener, wanted = self._listener, self._wanted
        if method is None:
            return follow_sound(Live(listener, wanted, finder=self._finder), rate, form)
        return follow_sound(method(listener, wanted), rate, form)

    def windows(self, sound: LogitArray, begin: int) -> Iterator[tuple[int, list[Caption]]]:
        spoken = None if self._finder is None else self._finder.speech(sound)
        transcript = self._listener.begin(sound, self._wanted, begin, spoken)
        for heard, found in self._listener.windows(transcript):
            yield heard, [Caption(at, to, self._decode(said).strip()) for at, to, said in found]
