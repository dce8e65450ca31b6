"""The runs of a scaling study, and their results on disk, so that no run is done twice."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from paceline.bench.strict_json import dumps
from paceline.errors import InvalidOption
from paceline.models.whole_file import whole_file
from paceline.training.counts import short

_FORMAT = 1
"""Raised when the meaning of a result changes, so that older ones are not read."""


@dataclass(frozen=True, slots=True)
class Run:
    """A network trained on a number of tokens, with a learning-rate schedule of its own.

    Attributes:
        network: name and sizes, as given.
        kind: its name alone.
        depth: tokens of one draft.
        parameters: trained numbers.
        tokens: to train on, repeats counted.
        seed: of first weights and of the order of texts.
        settings: all that the result depends on, as plain values.
    """

    network: str
    kind: str
    depth: int
    parameters: int
    tokens: int
    seed: int
    settings: Mapping[str, Any]

    @property
    def stem(self) -> str:
        """Name of its files: readable, and another one for other settings."""
        told = json.dumps(self.settings, sort_keys=True).encode()
        digest = hashlib.sha256(told).hexdigest()[:12]
        return f"{self.kind}-{short(self.parameters)}-{short(self.tokens)}-{self.seed}-{digest}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run gave.

    Attributes:
        tokens: seen in training, repeats counted.
        steps: updates.
        seconds: of training, pauses left out.
        loss: on held-out texts.
        drafts: made on held-out texts, walked as decoding walks them.
        block_efficiency: there, tokens per forward.
        acceptance: there; at each depth, the share of drafts right above it that are right there.
    """

    tokens: int
    steps: int
    seconds: float
    loss: float
    drafts: int
    block_efficiency: float
    acceptance: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Point:
    """A run with its outcome."""

    run: Run
    outcome: Outcome


class Results:
    """A folder with a file for each finished run."""

    def __init__(self, folder: Path) -> None:
        """Open a folder; it is made if missing.

        Raises:
            InvalidOption: it cannot be made.
        """
        self._folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidOption(
                f"cannot make {folder} ({error.strerror or error}): choose another --out"
            ) from error

    def checkpoint(self, run: Run) -> Path:
        """Where a run that is not finished is kept."""
        return self._folder / f"{run.stem}.checkpoint"

    def read(self, run: Run) -> Outcome | None:
        """The outcome of a run; None if it is not finished.

        Raises:
            InvalidOption: its file is damaged, or of another run.
        """
        path = self._path(run)
        try:
            entry = json.loads(path.read_bytes())
            same = entry["format"] == _FORMAT and entry["settings"] == _plain(run.settings)
            outcome = _outcome(entry["outcome"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, LookupError) as error:
            raise InvalidOption(
                f"{path} is damaged or no result of a run ({error}): delete it, and the run is "
                "done again"
            ) from error
        if not same:
            raise InvalidOption(
                f"{path} is the result of another run: delete it, and this one is done again, or "
                "choose another --out"
            )
        return outcome

    def keep(self, run: Run, outcome: Outcome) -> None:
        """Write the outcome of a finished run, and drop its checkpoint.

        Raises:
            InvalidOption: it cannot be written; the checkpoint is still there.
        """
        entry = {"format": _FORMAT, "settings": run.settings, "outcome": asdict(outcome)}
        write_whole(self._path(run), (dumps(entry, indent=1) + "\n").encode())
        self.checkpoint(run).unlink(missing_ok=True)

    def _path(self, run: Run) -> Path:
        return self._folder / f"{run.stem}.json"


def write_whole(path: Path, content: bytes) -> None:
    """Write a file, all of it or nothing.

    Raises:
        InvalidOption: it cannot be written.
    """
    try:
        with whole_file(path) as part:
            part.write_bytes(content)
    except OSError as error:
        raise InvalidOption(
            f"cannot write {path} ({error.strerror or error}): free some space, and repeat the "
            "command to go on"
        ) from error


def _plain(settings: Mapping[str, Any]) -> Any:
    return json.loads(json.dumps(settings))


def _outcome(entry: Mapping[str, Any]) -> Outcome:
    """Raises TypeError, ValueError or LookupError unless every figure is there and finite."""
    found = Outcome(
        int(entry["tokens"]),
        int(entry["steps"]),
        float(entry["seconds"]),
        float(entry["loss"]),
        int(entry["drafts"]),
        float(entry["block_efficiency"]),
        tuple(float(each) for each in entry["acceptance"]),
    )
    figures = (found.tokens, found.seconds, found.loss, found.block_efficiency, *found.acceptance)
    if not found.acceptance or found.tokens < 1 or not all(isfinite(each) for each in figures):
        raise ValueError("figures are missing or impossible")
    return found
