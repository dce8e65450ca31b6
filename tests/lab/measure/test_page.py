"""The HTML page of a bench: whole, self-contained, escaped, honest about what is missing."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import pytest

from paceline.core.metrics import GenerationStats
from paceline.lab.measure import report
from paceline.lab.measure.page import HINT
from paceline.lab.measure.report import page
from paceline.lab.measure.run import Record, Run

VOID = {"meta", "br", "hr", "img", "link", "input"}
NASTY = 'a<b>&"$x_1$"</td><script>alert(1)</script>'
FIGURES = 4


class Page(HTMLParser):
    """Checks that elements nest, and collects attributes, titles, text and SVGs."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data.strip())


def run(tokens: int, forwards: int, drafted: int, draft: float) -> Run:
    accepted = tokens - forwards
    stats = GenerationStats(
        target_forwards=forwards,
        committed_tokens=tokens,
        drafted_tokens=drafted,
        accepted_tokens=accepted,
        drafted_by_depth=[forwards, forwards // 2] if drafted else [],
        accepted_by_depth=[accepted, accepted // 4] if drafted else [],
        draft_seconds=draft,
        forward_seconds=forwards / 10,
    )
    return Run([[1, 2]], stats)


def results(categories: tuple[str, ...] = ("qa", "math"), **changes: Any) -> dict[str, Any]:
    """Of a baseline, a lossless method and a lossy one."""
    records = [
        Record(
            number,
            str(number),
            category,
            {
                "none": run(100, 100, 0, 0.0),
                "recycling": run(100, 60 + number, 300, 0.5),
                "wild": run(100, 50, 400, 0.1),
            },
        )
        for number, category in enumerate(categories)
    ]
    rows = report.rows(records, {"none": True, "recycling": True, "wild": False})
    return {
        "c_n": {1: 1.0, 4: 1.1, 8: 1.4, 16: 2.2},
        "rows": rows,
        "settings": {
            "model": "tiny & <small>",
            "runtime": "cpu",
            "precision": "int8",
            "drafters": ["none", "recycling", "wild"],
            "seed": 7,
            "fingerprint": "not shown",
            "cold": False,
        },
        "machine": {"cpu": "A <fast> one", "cores": 2},
        "noise_floor": {"chain": 0.0, "tree": 0.0},
        "fidelity": None,
        "resumed_after": [],
        "remarks": report.remarks(rows),
        "complete": True,
        **changes,
    }


@pytest.fixture
def plotting() -> None:
    pytest.importorskip("matplotlib")


@pytest.mark.usefixtures("plotting")
def test_the_page_is_whole_and_names_every_method() -> None:
    made = Page(page(results()))
    assert made.tags.count("svg") == FIGURES
    for method in ("none", "recycling", "wild"):
        assert method in made.text
    assert made.text.count("recycling") == FIGURES + 3  # legends, and a row for each category
    assert made.text.count("wild (lossy)") == FIGURES
    assert any(text.startswith("wild: lossy") for text in made.text)
    assert "tiny & <small>" in " ".join(made.text)
    assert "not shown" not in " ".join(made.text)
    assert made.tags.count("td") == len(report.titles()) * len(results()["rows"])


@pytest.mark.usefixtures("plotting")
def test_nothing_is_fetched_and_nothing_runs() -> None:
    text = page(results((NASTY,)))
    made = Page(text)
    assert "script" not in made.tags
    assert not {"img", "link", "iframe", "object", "image"} & set(made.tags)
    for name, value in made.attributes:
        if name in ("src", "href", "xlink:href", "data", "action"):
            assert value is not None
            assert value.startswith("#")
        elif not name.startswith("xmlns"):
            assert "://" not in (value or "")
    assert not re.search(r"url\((?!#)|@import", text)
    assert "default-src 'none'" in text
    assert not re.search(r"<!DOCTYPE svg|<\?xml", text)


@pytest.mark.usefixtures("plotting")
def test_names_are_escaped_in_table_and_plots() -> None:
    text = page(results((NASTY, "日本")))
    made = Page(text)
    assert "<script" not in text
    assert made.text.count(NASTY) == 3 + 1  # a row of each method, and the axis
    assert "日本" in made.text


@pytest.mark.usefixtures("plotting")
def test_plots_suit_light_and_dark_pages() -> None:
    made = Page(page(results()))
    styles = " ".join(value or "" for name, value in made.attributes if name == "style")
    assert "currentColor" in styles
    assert not re.search(r"#000000|#ffffff|white|black|#010203", styles)
    assert ("content", "width=device-width, initial-scale=1") in made.attributes
    ids = [value for name, value in made.attributes if name == "id"]
    assert len(ids) == len(set(ids))


@pytest.mark.usefixtures("plotting")
def test_many_methods_get_marks_of_their_own() -> None:
    from paceline.lab.measure import plots

    [row] = [r for r in results()["rows"] if (r["drafter"], r["category"]) == ("wild", "all")]
    shown = plots.methods([{**row, "drafter": f"m{number}"} for number in range(20)])
    assert len({tuple(each.style.items()) for each in shown}) == len(shown) == 20


def test_an_empty_run_says_so() -> None:
    made = Page(page(results((), remarks=["interrupted after 0 of 4 prompts"])))
    assert "svg" not in made.tags
    assert "table" not in made.tags
    assert any("nothing to show" in text for text in made.text)
    assert "interrupted after 0 of 4 prompts" in made.text


def test_plain_decoding_alone_has_nothing_to_plot() -> None:
    rows = [row for row in results()["rows"] if row["drafter"] == "none"]
    made = Page(page(results(rows=rows)))
    assert "svg" not in made.tags
    assert "table" in made.tags


@pytest.mark.usefixtures("plotting")
def test_rows_without_time_are_no_points() -> None:
    rows = [{**row, "speedup": None, "speedup_low": None} for row in results()["rows"]]
    assert Page(page(results(rows=rows))).tags.count("svg") == FIGURES


def test_without_matplotlib_the_page_says_how_to_get_plots(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(report, "can_plot", lambda: False)
    made = Page(page(results()))
    assert "svg" not in made.tags
    assert HINT in made.text
    assert "recycling" in made.text


def test_a_resumed_run_says_what_was_lost() -> None:
    resumed = results(resumed_after=[3, 8])
    assert report.resumption(resumed) == [
        "resumed after 3, 8 prompts, where drafters that learn began anew"
    ]
    resumed["settings"]["cold"] = True
    assert report.resumption(resumed) == []
    assert report.resumption(results()) == []
