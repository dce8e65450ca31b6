"""benchmarks/README.md names every script, and every script that it names exists."""

from __future__ import annotations

import re
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "benchmarks"
PAGE = (FOLDER / "README.md").read_text(encoding="utf-8")


def test_every_script_is_named_and_exists() -> None:
    named = {name.rsplit("/")[-1] for name in re.findall(r"`([\w/]+\.py)`", PAGE)}
    there = {path.name for path in FOLDER.rglob("*.py")}
    drivers = {name for name in there if name.endswith("_peer.py")}
    assert named - {"NAME_peer.py"} == there - drivers - {"__main__.py", "make.py"}
    for command in re.findall(r"python (benchmarks/[\w/]+\.py)", PAGE):
        assert (FOLDER.parent / command).exists()
