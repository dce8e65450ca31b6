"""Premiums of languages: texts of pages, tokens beside a reference, and passes with drafts."""

from __future__ import annotations

import hashlib
import json
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.tokens import passes, premiums, texts
from tests.cli import fakes

from paceline.errors import ModelError
from paceline.registry.options import Options

PAGE = """<html><head><title>No</title></head><body><h1>Of   rights</h1><header>
<p>All &amp; every<br>one,</p></header><ol><li>born <b>free</b>.</li></ol></body></html>"""


def test_a_page_becomes_its_paragraphs() -> None:
    assert texts.declaration(PAGE) == "Of rights\nAll & everyone,\nborn free."


def test_another_archive_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(PAGE)
    path = tmp_path / "x.tgz"
    with tarfile.open(path, "w:gz") as tar:
        tar.add(tmp_path / "a.html", "package/declaration/eng.html")
        tar.add(tmp_path / "a.html", "package/readme.html")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    found = texts.Archive(("true",), path.name, digest, texts.DECLARATION.members)
    assert list(texts.members(found, tmp_path)) == [("eng", PAGE.encode())]
    with pytest.raises(ModelError, match="another file"):
        list(texts.members(replace(found, sha256="0" * 64), tmp_path))
    with pytest.raises(ModelError, match=r"cannot fetch x\.tgz"):
        list(texts.members(replace(found, command=("false",)), tmp_path))


def test_premiums_are_beside_the_first_text() -> None:
    tokenizer = fakes.loaded().tokenizer
    found = premiums.premiums({"eng": "ab cd", "x": "éé éé ab"}, {"a": tokenizer, "b": tokenizer})
    assert list(found) == ["a"], "alike in all texts"
    assert found["a"]["eng"] == 1
    assert found["a"]["x"] == round(len(tokenizer.plain("éé éé ab")) / 5, 3)


def test_passes_go_on_where_they_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "load_model", lambda options: fakes.loaded())
    out, held = tmp_path / "out.json", {"eng": "ab cd ef " * 9, "x": "é ab " * 20}
    drafters = ["none", "suffix-automaton"]
    found = passes.measure(Options(), drafters, held, 200, out)
    for each in found.values():
        assert each["none, greedy"] == each["none, t=1"] == 1
        assert each["suffix-automaton, greedy"] > 1.5, "a table runs in loops"
    assert len(passes.table(found, drafters)[0]) == 2 + 4
    kept = json.loads(out.read_text())
    kept["x"]["none, greedy"] = 7.0
    del kept["x"]["none, t=1"]
    out.write_text(json.dumps(kept))
    again = passes.measure(Options(), drafters, held, 200, out)
    assert (again["x"]["none, greedy"], again["x"]["none, t=1"]) == (7.0, 1)
