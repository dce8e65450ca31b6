"""A file of JSON lines that a run goes on from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline.core.cache import write_atomically
from paceline.errors import InvalidOption
from paceline.measure.machine import dumps


class Kept:
    """Lines of a run below a header with its settings. Without a path nothing is kept."""

    def __init__(self, path: Path | None, about: Mapping[str, Any]) -> None:
        """Read what is there; InvalidOption if it is of other settings, or cannot be written."""
        self.entries: list[dict[str, Any]] = []
        self._path = path
        if path is None:
            return
        good = [dumps({"about": about})]
        try:
            found = path.read_text(encoding="utf-8").splitlines() if path.exists() else good
            if not found or found[0] != good[0]:
                raise InvalidOption(
                    f"{path} holds a bench with other settings: give those, or another --out"
                )
            for line in found[1:]:
                try:
                    self.entries.append(dict(json.loads(line)))
                except (ValueError, TypeError):
                    continue  # cut short by a crash
                good.append(line)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, "".join(line + "\n" for line in good))
        except OSError as error:
            raise InvalidOption(
                f"cannot write {path} ({error.strerror or error}): give another --out"
            ) from error

    def append(self, entry: Mapping[str, Any]) -> None:
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(dumps(entry) + "\n")
