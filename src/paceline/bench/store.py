"""The directory of a bench: raw lines as prompts finish, results at the end, resumption."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from paceline.bench.run import Record
from paceline.bench.strict_json import dumps
from paceline.errors import InvalidOption
from paceline.models.cache import write_atomically

_RAW = "prompts.jsonl"
_RESUMED = "resumed_after"


class Store:
    """`prompts.jsonl`: the settings on the first line, then a record per finished prompt, and a
    line wherever the bench was taken up again."""

    def __init__(self, directory: Path, settings: Mapping[str, Any]) -> None:
        """Open a directory, new or left by a run with the same settings.

        Raises:
            InvalidOption: the directory cannot be written, or holds a run with other settings.
        """
        self._path = directory / _RAW
        self._directory = directory
        self.records: list[Record] = []
        """Prompts that an earlier run finished, in the order of that run."""
        self.resumed_after: list[int] = []
        """How many prompts were finished each time that the bench was taken up again."""
        self._appended = False
        plain = json.loads(dumps(settings))
        with _writing(directory):
            directory.mkdir(parents=True, exist_ok=True)
            good = self._read(plain)
            # A line cut short by a crash is dropped here, and its prompt is decoded again.
            write_atomically(self._path, "".join(line + "\n" for line in good))

    def append(self, records: Sequence[Record]) -> None:
        """Keep records that were just finished; InvalidOption if the disk refuses."""
        lines = [dumps(record.as_dict()) for record in records]
        if self.records and not self._appended:
            self.resumed_after.append(len(self.records))
            lines.insert(0, dumps({_RESUMED: len(self.records)}))
        self._appended = True
        with _writing(self._directory), self._path.open("a", encoding="utf-8") as file:
            file.write("".join(line + "\n" for line in lines))

    def finish(self, files: Mapping[str, str]) -> None:
        """Write texts by name of file, each whole or not at all; InvalidOption as for `append`."""
        with _writing(self._directory):
            for name, text in files.items():
                write_atomically(self._directory / name, text)

    def _read(self, settings: Mapping[str, Any]) -> list[str]:
        """Lines to keep; fills `records`."""
        header = dumps({"settings": settings})
        if not self._path.exists():
            return [header]
        lines = self._path.read_text(encoding="utf-8").split("\n")
        try:
            earlier = json.loads(lines[0])["settings"]
            different = sorted(
                key for key in settings.keys() | earlier if settings.get(key) != earlier.get(key)
            )
        except (IndexError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidOption(
                f"{self._path} is not a bench's: give another --out or remove it"
            ) from error
        if different:
            raise InvalidOption(
                f"{self._directory} holds a bench with other settings ({', '.join(different)}): "
                "give another --out, or the same settings to resume"
            )
        good = [header]
        for line in lines[1:]:
            try:
                entry = json.loads(line)
                if _RESUMED in entry:
                    self.resumed_after.append(int(entry[_RESUMED]))
                else:
                    self.records.append(Record.from_dict(entry))
            except (ValueError, KeyError, TypeError, AttributeError):
                continue
            good.append(line)
        return good


@contextmanager
def _writing(directory: Path) -> Iterator[None]:
    """Turn errors of the file system into one line."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise InvalidOption(
            f"cannot write to {directory} ({reason}): give another --out"
        ) from error
