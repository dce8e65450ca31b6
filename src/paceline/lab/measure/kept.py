"""Measurements of a run in a file of JSON lines, which a later run goes on from."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

from paceline.core.cache import append, open_lines, write_atomically
from paceline.errors import InvalidOption
from paceline.lab.measure.machine import dumps

T = TypeVar("T")


class Kept(Generic[T]):
    """Entries below the settings they were made with, and results in files beside them.

    Without a path nothing is kept. Until it is closed no other run writes the file.
    """

    def __init__(
        self, path: Path | None, settings: Mapping[str, Any], read: Callable[[dict[str, Any]], T]
    ) -> None:
        """Take over the entries that `read` makes something of, or make the file.

        InvalidOption: it is of other settings, is no such file, or cannot be written.
        """
        self.entries: list[T] = []
        self._file = None
        if path is None:
            return
        self._path, self._read = path, read
        self._settings = json.loads(dumps(settings))
        with self._writing():
            if not path.exists():
                write_atomically(path, dumps({"settings": settings}) + "\n")
            self._file, self.entries = open_lines(path, self._known)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def append(self, *entries: Mapping[str, Any]) -> None:
        """Append entries; InvalidOption if the disk refuses."""
        if self._file is not None:
            with self._writing():
                append(self._file, "".join(dumps(each) + "\n" for each in entries).encode())

    def finish(self, results: Mapping[str, Any], text: str, page: str) -> None:
        """Write results.json, results.md and report.html; InvalidOption as for `append`."""
        figures = dumps(results, indent=1) + "\n"
        files = {"results.json": figures, "results.md": text, "report.html": page}
        with self._writing():
            for name, content in files.items():
                write_atomically(self._path.with_name(name), content)

    def _known(self, lines: list[bytes]) -> list[T]:
        try:
            earlier, now = json.loads(lines[0])["settings"], self._settings
            different = sorted(k for k in now.keys() | earlier if now.get(k) != earlier.get(k))
        except (IndexError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidOption(
                f"{self._path} is not a bench's: give another --out or remove it"
            ) from error
        if different:
            raise InvalidOption(
                f"{self._path.parent} holds a bench with other settings ({', '.join(different)}): "
                "give another --out, or the same settings to resume"
            )
        found = []
        for line in lines[1:]:
            with suppress(ValueError, KeyError, TypeError, AttributeError):  # of a crash
                found.append(self._read(json.loads(line)))
        return found

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise InvalidOption(
                f"cannot write to {self._path.parent} ({error.strerror or error}): give another "
                "--out"
            ) from error
