"""Result pages are generated from valid JSON, and a changed figure is noticed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from paceline.errors import InvalidOption
from paceline.lab.measure import results as results_pages
from paceline.lab.measure.results import (
    TOPICS,
    dump,
    expected,
    fill,
    load,
    main,
    record,
    render,
    stale,
)
from paceline.registry.samplers import make_plan, make_sampler

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "docs" / "results"
NAMES = sorted(path.stem for path in (FOLDER / "data").glob("*.json"))


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    shutil.copytree(FOLDER, tmp_path / "docs" / "results")
    (tmp_path / "README.md").write_text("<!-- results:peers -->\n<!-- /results -->\n")
    assert main(["--root", str(tmp_path)]) == 0
    return tmp_path


def made(tmp_path: Path, **changes: Any) -> dict[str, Any]:
    values = {"title": "A table", "topic": "peers", "command": "x", "columns": ["a", "b"]}
    record(tmp_path / "made.json", **{**values, "rows": [["x|y", 1.5], [None, 2.25]], **changes})
    loaded: dict[str, Any] = json.loads((tmp_path / "made.json").read_text())
    return loaded


def test_pages_and_blocks_are_current() -> None:
    assert stale(FOLDER, [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]) == []


@pytest.mark.parametrize("name", NAMES)
def test_every_result_is_valid_and_in_canonical_form(name: str) -> None:
    result = load(FOLDER / "data")[name]
    assert (FOLDER / "data" / f"{name}.json").read_text() == dump(result)


def test_every_result_is_in_the_overview_and_on_one_page() -> None:
    pages = render(FOLDER / "data")
    assert len(pages) == len({each["topic"] for each in load(FOLDER / "data").values()}) + 1
    for name, result in load(FOLDER / "data").items():
        assert f"[{result['title']}]" in pages["index.md"]
        assert f"\n`{name}`, " in pages[f"{result['topic']}.md"]
        assert sum(f"\n`{name}`, " in page for page in pages.values()) == 1


def test_a_changed_figure_is_noticed(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check", "--root", str(copied)]) == 0
    path = copied / "docs" / "results" / "data" / "peers.json"
    path.write_text(path.read_text().replace("464", "465"))
    assert main(["--check", "--root", str(copied)]) == 1
    said = capsys.readouterr().out
    assert all(name in said for name in ("README.md", "index.md", "peers.md"))
    assert "agents.md" not in said
    main(["--root", str(copied)])
    assert "| 465 |" in (copied / "README.md").read_text()


def test_a_page_without_results_is_noticed(copied: Path) -> None:
    (copied / "docs" / "results" / "old.md").write_text("# Old\n")
    assert stale(copied / "docs" / "results", []) == [copied / "docs" / "results" / "old.md"]


def test_unknown_and_broken_blocks_are_errors(copied: Path) -> None:
    (copied / "README.md").write_text("<!-- results:nothing -->\n<!-- /results -->\n")
    with pytest.raises(InvalidOption, match=r"README\.md: no result named nothing"):
        expected(copied / "docs" / "results", [copied / "README.md"])
    for text in ("<!-- results:peers -->\n", "<!-- results:a b -->\n<!-- /results -->\n"):
        with pytest.raises(InvalidOption, match="not closed"):
            fill(text, load(FOLDER / "data"))


def test_text_around_blocks_stays(tmp_path: Path) -> None:
    result = made(tmp_path)
    text = "before\n<!-- results:one -->\nold\n<!-- /results -->\nafter\n"
    table = "| a | b |\n|---|---|\n| x\\|y | 1.50 |\n|  | 2.25 |\n"
    filled = f"before\n<!-- results:one -->\n{table}<!-- /results -->\nafter\n"
    assert fill(text, {"one": result}) == filled
    assert fill(filled, {"one": result}) == filled


def test_record_fills_in_where_and_when(tmp_path: Path) -> None:
    result = made(tmp_path, note="Why.", figures={"most": 2.25})
    assert result["date"].count("-") == 2
    assert "cores" in result["machine"]
    assert load(tmp_path) == {"made": result}
    assert "Why." in render(tmp_path)["peers.md"]
    assert "most 2.25" in render(tmp_path)["index.md"]


def test_record_without_git_has_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert made(tmp_path)["commit"] is None


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"topic": "weather"}, "unknown topic"),
        ({"rows": [["x"]]}, "as long as the columns"),
        ({"rows": []}, "as long as the columns"),
        ({"rows": [["x", float("nan")]]}, "finite"),
        ({"rows": [["x", ["y"]]]}, "a cell"),
        ({"columns": ["a", 1]}, "column is not text"),
        ({"figures": dict.fromkeys("abcde", 1)}, "more than four"),
    ],
)
def test_malformed_results_are_refused(tmp_path: Path, changes: Any, fault: str) -> None:
    with pytest.raises(InvalidOption, match=fault):
        made(tmp_path, **changes)
    assert not (tmp_path / "made.json").exists()


def test_malformed_files_are_refused(tmp_path: Path) -> None:
    result = made(tmp_path)
    for broken, fault in (
        ("{", "not JSON"),
        (dump({**result, "extra": 1}), "may have"),
        (dump({**result, "date": "yesterday"}), "not ISO"),
    ):
        (tmp_path / "made.json").write_text(broken)
        with pytest.raises(InvalidOption, match=fault):
            load(tmp_path)


def test_samplers_in_the_tables_are_those_of_today() -> None:
    """Lines of methods know themselves what has changed: `paceline.lab.measure.systems`."""
    seen = 0
    for result in load(FOLDER / "data").values():
        if "sampler" not in result["columns"]:
            continue
        for row in result["rows"]:
            sampler, *parts = str(row[result["columns"].index("sampler")]).split(", ")
            if sampler != "autoregressive":
                make_sampler(sampler)
                seen += 1
            for part in parts:
                if part.startswith("cache "):
                    make_plan(part.removeprefix("cache "))
    assert seen > 60


def test_topics_are_few() -> None:
    assert len(TOPICS) <= 14
    assert results_pages.MAX_FIGURES == 4
