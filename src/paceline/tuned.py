"""What `paceline tune` chose for a model on a machine, as `drafter="auto"` reads it.

Greedy and sampled decoding (temperature above 0) have a choice each.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from paceline import registry
from paceline.errors import InvalidOption
from paceline.models.cache import cache_dir, unwritable, write_atomically
from paceline.naming import check_drafter
from paceline.options import split_options
from paceline.version import __version__

Kind = Literal["greedy", "sampled"]

KINDS: tuple[Kind, ...] = get_args(Kind)
"""Kinds of decoding that have a choice of their own."""

_FORMAT = 2
"""Raised when the meaning of a choice changes, so that older ones are not read."""

_PLACE = ("model", "runtime", "device", "precision", "layout", "machine")
"""What a choice holds for. The longest context is left out: it does not move the best sizes."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """What is chosen: the arguments of `paceline.load` that set how drafts are made.

    Attributes:
        drafter: as users write it.
        controller: as users write it.
        nodes: draft size in tokens, a limit for some controllers; None leaves it to them.
        depth: draft depth, likewise.
    """

    drafter: str
    controller: str = "auto"
    nodes: int | None = None
    depth: int | None = None

    @property
    def name(self) -> str:
        """Short text that tells configurations apart: drafter, controller, nodes x depth."""
        if self.controller == "auto":
            return self.drafter
        size = "" if self.nodes is None else f" {self.nodes}x{self.depth}"
        return f"{self.drafter}, {self.controller}{size}"


@dataclass(frozen=True, slots=True)
class Choice:
    """A configuration, and the measurements behind it as plain values."""

    configuration: Configuration
    evidence: Mapping[str, Any]


def path_of(place: Mapping[str, object]) -> Path:
    """The file of the choices for a place (`Loaded.place`)."""
    name = "-".join(str(place[field]).replace("/", "_") for field in _PLACE)
    return cache_dir() / "tuned" / f"{name}.json"


def read(place: Mapping[str, object]) -> dict[Kind, Choice]:
    """The saved choices of the kinds that were tuned.

    A file that is damaged, foreign or of another version is set aside with a warning.
    """
    path = path_of(place)
    try:
        return _checked(json.loads(path.read_text(encoding="utf-8")), place)
    except FileNotFoundError:
        return {}
    except (
        *(OSError, ValueError, TypeError, KeyError, AttributeError),
        *(RecursionError, InvalidOption),
    ) as error:
        set_aside(path, str(error))
        return {}


def write(place: Mapping[str, object], kind: Kind, choice: Choice) -> Path:
    """Save a choice in place of an earlier one of its kind, and return the file.

    Raises:
        ModelError: the cache cannot be written.
    """
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
    """Rename a file that cannot be used to `*.bad`, and say so in one line on standard error."""
    reason = " ".join(reason.split())[:200]
    with suppress(OSError):  # of no use, but no harm either, where it stands
        path.replace(path.with_name(f"{path.name}.bad"))
    print(
        f"paceline: warning: {path} is set aside as *.bad ({reason}): run paceline tune again",
        file=sys.stderr,
    )


def _origin(place: Mapping[str, object]) -> dict[str, Any]:
    """What tells a choice from those of other versions and places."""
    held = {field: str(place[field]) for field in _PLACE}
    return {"format": _FORMAT, "version": __version__, "place": held}


def _checked(content: Any, place: Mapping[str, object]) -> dict[Kind, Choice]:
    """The choices in a file; an error of some kind if the file is not what `write` made here."""
    digest = content.pop("digest") if isinstance(content, dict) else None
    if digest is None or digest != _digest(content):
        raise ValueError("it is damaged or no tuned choice")
    for key, value in _origin(place).items():
        if content[key] != value:
            what = "for another model or machine" if key == "place" else "by another version"
            raise ValueError(f"it was saved {what}")
    return {kind: _choice(found) for kind in KINDS if (found := content["choices"].get(kind))}


def _choice(content: Mapping[str, Any]) -> Choice:
    configuration = Configuration(**content["configuration"])
    check_drafter(configuration.drafter)  # a plugin may be gone by now
    controller = split_options(configuration.controller, "controller")[0]
    if controller != "auto":
        registry.find("controller", controller)
    return Choice(configuration, content["evidence"])


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
