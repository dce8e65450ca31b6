"""docs/cli.md is what the commands say of themselves."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests import reference


def test_the_page_is_up_to_date() -> None:
    written = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
    assert written == reference.page(), "run python -m tests.reference"


def test_check_tells_a_stale_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "PAGE", tmp_path / "cli.md")
    monkeypatch.setattr(sys, "argv", ["reference", "--check"])
    assert reference.main() == 1
    monkeypatch.setattr(sys, "argv", ["reference"])
    assert reference.main() == 0
    monkeypatch.setattr(sys, "argv", ["reference", "--check"])
    assert reference.main() == 0


def test_defaults_are_shown_as_they_are_typed() -> None:
    lines = reference.page().splitlines()
    for line in (
        "| `--seed` | `0` | Keys all randomness. |",
        "| `--json` |  | Print one JSON object. |",
        "    paceline train judge PROMPTS... [OPTIONS]",
    ):
        assert line in lines
