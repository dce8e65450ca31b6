"""Transcripts in files, window by window, so that a run that ended goes on.

A transcript that is not whole is NAME.part: a line that says of what it is, then one a window. Its
last line is written before the transcript is, which is then whole at once.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from paceline.audio.mel import RATE
from paceline.core.cache import append, open_lines, write_atomically
from paceline.errors import InvalidOption
from paceline.listening.captions import ENDS, Caption, whole

_ADVICE = "make room, and the same command goes on"


def places_of(files: Iterable[Path], folder: Path, form: str) -> dict[Path, Path]:
    """Return where each file's transcript is, and make the folder.

    Raises InvalidOption: two would be in the same place, something else than a file is there, or
    the folder cannot be made.
    """
    places: dict[Path, Path] = {}
    for file in files:
        name = "stdin" if str(file) == "-" else file.stem
        place = folder / f"{name}.{ENDS[form]}"
        other = next((each for each, known in places.items() if known == place), file)
        if other != file:
            raise InvalidOption(f"{other} and {file} would both be {place}: rename one")
        if place.exists() and not place.is_file():
            raise InvalidOption(f"{place} is no file: rename it, or give another folder")
        places[file] = place
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidOption(
            f"{folder} is no folder for transcripts ({error.strerror}): give another"
        ) from error
    return places


class KeptTranscript:
    """A transcript that grows, locked against other runs.

    Attributes:
        done: another run has ended meanwhile, and its transcript is whole: there is nothing to do.
        heard: samples of the sound that are written down.
    """

    def __init__(self, path: Path, form: str, about: Mapping[str, Any], length: int) -> None:
        """Open what an earlier run has of it, if any.

        Args:
            path: of the transcript when it is whole.
            form: one of `listening.captions.FORMATS`.
            about: what the transcript is a function of, as JSON has it.
            length: samples of the sound.

        Raises:
            InvalidOption: it cannot be written, or what is there is of something else.
        """
        self._path, self._form, self._about, self._length = path, form, about, length
        self._part = path.with_name(f"{path.name}.part")
        self._captions: list[Caption] = []
        self.heard = 0
        self._file, new = open_lines(self._part, self._read)
        self.done = path.exists()  # for sure, now that it is locked
        if self.done:
            self.close()
            if new:
                self._part.unlink(missing_ok=True)
        elif new:
            self._append(about)

    def add(self, heard: int, captions: list[Caption]) -> None:
        """Keep what a window said, up to so many samples; raises InvalidOption as at first."""
        self._append({"heard": heard, "captions": captions})
        self._captions += captions
        self.heard = heard

    def finish(self) -> None:
        """Write the transcript as it is asked for."""
        try:
            write_atomically(self._path, whole(self._form, self._captions))
        except OSError as error:
            raise self._unwritten(error) from error
        self.close()
        self._part.unlink(missing_ok=True)

    def close(self) -> None:
        """Let other runs have it, as far as it is."""
        self._file.close()

    def _append(self, line: Mapping[str, Any]) -> None:
        try:
            append(self._file, json.dumps(line).encode() + b"\n")
        except OSError as error:
            self.close()
            raise self._unwritten(error) from error

    def _unwritten(self, error: OSError) -> InvalidOption:
        return InvalidOption(f"{self._path} cannot be written ({error.strerror}): {_ADVICE}")

    def _read(self, lines: list[bytes]) -> bool:
        # Take over what they say; return whether there are none.
        try:
            if lines and json.loads(lines[0]) != self._about:
                raise InvalidOption(
                    f"{self._part} is of another sound, model or options: delete it, or give "
                    "another folder"
                )
            for line in lines[1:]:
                self._take(json.loads(line))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise InvalidOption(
                f"{self._part} holds something else than a transcript: delete it"
            ) from error
        return not lines

    def _take(self, window: Any) -> None:
        # ValueError, KeyError, TypeError: it is none, or half a character, which no file takes.
        before, self.heard = self.heard, window["heard"]
        captions = [Caption(*each) for each in window["captions"]]
        if type(self.heard) is not int or not before < self.heard <= self._length:
            raise ValueError(self.heard)
        last = (self._length + 1) / RATE  # times are rounded
        for begin, end, text in captions:
            if {type(begin), type(end)} != {float} or not 0 <= begin <= end <= last:
                raise ValueError(begin, end)
            str.encode(text)
        self._captions += captions
