"""Saved choices of `paceline tune` per model and machine, for greedy and for sampled decoding."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from paceline.core.cache import cache_dir, unwritable, write_atomically
from paceline.errors import InvalidOption
from paceline.registry import table as registry
from paceline.version import __version__

Kind = Literal["greedy", "sampled"]

TEMPERATURE_KINDS: tuple[Kind, ...] = get_args(Kind)

# Raised when the meaning of a choice changes; older files are then ignored.
_FORMAT = 2

# Key of a choice.
_PLACE = ("model", "runtime", "device", "precision", "machine")


@dataclass(frozen=True, slots=True)
class Configuration:
    """Arguments of `paceline.load` that set drafting; None leaves sizes to the controller."""

    drafter: str
    controller: str = "auto"
    nodes: int | None = None
    depth: int | None = None

    @property
    def name(self) -> str:
        if self.controller == "auto":
            return self.drafter
        size = "" if self.nodes is None else f" {self.nodes}x{self.depth}"
        return f"{self.drafter}, {self.controller}{size}"


@dataclass(frozen=True, slots=True)
class TunedChoice:
    configuration: Configuration
    evidence: Mapping[str, Any]


def path_of(place: Mapping[str, object]) -> Path:
    """Return the file of the choices for a place (`Loaded.place`)."""
    name = "-".join(str(place[field]).replace("/", "_") for field in _PLACE)
    return cache_dir() / "tuned" / f"{name}.json"


def read(place: Mapping[str, object]) -> dict[Kind, TunedChoice]:
    """Return the saved choices by kind; a file that does not fit is set aside with a warning."""
    path = path_of(place)
    try:
        return _checked(json.loads(path.read_text(encoding="utf-8")), place)
    except FileNotFoundError:
        return {}
    except (
        OSError,
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        RecursionError,
        InvalidOption,
    ) as error:
        set_aside(path, str(error))
        return {}


def write(place: Mapping[str, object], kind: Kind, choice: TunedChoice) -> Path:
    """Save a choice and return its file; ModelError if the cache cannot be written."""
    path = path_of(place)
    choices = {each: asdict(known) for each, known in {**read(place), kind: choice}.items()}
    content = {**_origin(place), "choices": choices}
    text = json.dumps({**content, "digest": _digest(content)}, indent=1)
    try:
        write_atomically(path, text + "\n")
    except OSError as error:
        raise unwritable(path, error) from error
    return path


def set_aside(path: Path, reason: str) -> None:
    """Rename an unusable file to `*.bad`, with one line on standard error."""
    reason = " ".join(reason.split())[:200]
    with suppress(OSError):  # of no use, but no harm either, where it stands
        path.replace(path.with_name(f"{path.name}.bad"))
    print(
        f"paceline: warning: {path} is set aside as *.bad ({reason}): run paceline tune again",
        file=sys.stderr,
    )


def _origin(place: Mapping[str, object]) -> dict[str, Any]:
    held = {field: str(place[field]) for field in _PLACE}
    return {"format": _FORMAT, "version": __version__, "place": held}


def _checked(content: Any, place: Mapping[str, object]) -> dict[Kind, TunedChoice]:
    digest = content.pop("digest") if isinstance(content, dict) else None
    if digest is None or digest != _digest(content):
        raise ValueError("it is damaged or no tuned choice")
    for key, value in _origin(place).items():
        if content[key] != value:
            what = "for another model or machine" if key == "place" else "by another version"
            raise ValueError(f"it was saved {what}")
    return {
        kind: _choice(found)
        for kind in TEMPERATURE_KINDS
        if (found := content["choices"].get(kind))
    }


def _choice(content: Mapping[str, Any]) -> TunedChoice:
    configuration = Configuration(**content["configuration"])
    registry.read("drafter", configuration.drafter)  # a plugin may be gone by now
    if configuration.controller != "auto":
        registry.read("controller", configuration.controller)
    return TunedChoice(configuration, content["evidence"])


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
