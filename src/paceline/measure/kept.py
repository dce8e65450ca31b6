"""A file of JSON lines that a run goes on from."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, TypeVar

from paceline.core.cache import write_atomically
from paceline.errors import InvalidOption
from paceline.measure.machine import dumps

T = TypeVar("T")


class Kept(Generic[T]):
    """Entries of a run below a header with its settings. Without a path nothing is kept."""

    def __init__(
        self,
        path: Path | None,
        settings: Mapping[str, Any],
        parse: Callable[[dict[str, Any]], T],
    ) -> None:
        """Read what is there. Lines that `parse` does not take were cut by a crash, and go.

        Raises:
            InvalidOption: the file is of other settings, is none of a run, or cannot be written.
        """
        self.entries: list[T] = []
        self._path = path
        if path is None:
            return
        good = [dumps({"settings": settings})]
        with writing(path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.exists():
                first, *lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
                self._compare(path, first, json.loads(good[0])["settings"])
                for line in lines:
                    try:
                        self.entries.append(parse(json.loads(line)))
                    except (ValueError, LookupError, TypeError, AttributeError):
                        continue
                    good.append(line)
            write_atomically(path, "".join(line + "\n" for line in good))

    def append(self, *entries: Mapping[str, Any]) -> None:
        """Append entries; InvalidOption if the disk refuses."""
        if self._path is not None:
            with writing(self._path.parent), self._path.open("a", encoding="utf-8") as file:
                file.write("".join(dumps(entry) + "\n" for entry in entries))

    @staticmethod
    def _compare(path: Path, header: str, settings: dict[str, Any]) -> None:
        try:
            earlier = json.loads(header)["settings"]
            different = [k for k in settings.keys() | earlier if settings.get(k) != earlier.get(k)]
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise InvalidOption(
                f"{path} is not a bench's: give another --out or remove it"
            ) from error
        if different:
            raise InvalidOption(
                f"{path.parent} holds a bench with other settings "
                f"({', '.join(sorted(different))}): give another --out, or the same settings to "
                "resume"
            )


@contextmanager
def writing(directory: Path) -> Iterator[None]:
    """Raise InvalidOption for what the system says of a directory."""
    try:
        yield
    except OSError as error:
        raise InvalidOption(
            f"cannot write to {directory} ({error.strerror or error}): give another --out"
        ) from error
