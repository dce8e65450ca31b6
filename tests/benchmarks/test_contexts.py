"""Engines by length of the prompt: what is asked, counted, kept and recorded."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from benchmarks.peers import contexts, startup
from benchmarks.peers.timing import Configuration, Turn

from paceline.errors import EngineFailed
from paceline.lab.audit.engine import Timing
from paceline.lab.audit.named import scripts
from paceline.lab.audit.remote import JsonlEngine
from paceline.lab.measure import results

ANSWERING = f"""
import sys
sys.path.insert(0, {str(scripts())!r})
from answering import claim_output, serve
lines = claim_output()
held = []
def timing(prompt, speculation, tokens):
    held.append(b"x" * (len(prompt) * 2**16))
    first = len(prompt) / 100
    return {{"tokens": [5] * tokens, "seconds": first + 2, "first_seconds": first}}
serve(lines, {{"weights": "none", "flags": " ".join(sys.argv[1:])}}, None, None, timing)
"""
"""Reads 100 tokens a second and holds 64 KiB of each; then all its tokens take two seconds."""


class Model:
    """Enough of a model for prompts to be encoded."""

    name, fingerprint, path = "tiny", "0", Path("tiny.gguf")
    config = SimpleNamespace(max_context=1000)

    def tokenizer(self) -> Any:
        return SimpleNamespace(encode=lambda text: list(range(700)))


def test_no_prompt_begins_like_another() -> None:
    found = contexts.prompts(range(500), (4, 600), 3)
    assert [len(prompt) for prompt in found] == [4, 600] * 3
    assert len({prompt[0] for prompt in found}) == 6
    assert found[1][:500] != found[1][100:600], "the text is not just one token"


def test_rows_by_context() -> None:
    own = Configuration("own plain", "own", False, "plain", "own plain")
    peer = Configuration("peer plain", "peer", True, "plain", "peer plain")

    def timing(read: float, decode: float, context: int) -> Timing:
        first = context / read
        return Timing((1,) * 11, first + 10 / decode, first)

    turns = [
        Turn(
            0,
            number,
            {
                "own plain": timing(200, 20 if context == 10 else 5, context),
                "peer plain": timing(100, 10, context),
            },
        )
        for number, context in enumerate((10, 50, 10, 50))
    ]
    found = contexts.rows(turns, [own, peer], (10, 50), {("own", 50): 7.0})
    assert [(row["engine"], row["context"]) for row in found] == [
        *(("own", 10), ("peer", 10), ("own", 50), ("peer", 50))
    ]
    short, _, long, _ = found
    assert short["prefill_tokens_per_second"] == pytest.approx(200)
    assert short["decode_tokens_per_second"] == pytest.approx(20)
    assert short["decode_to_best"] == pytest.approx(2)
    assert (long["prefill_to_best"], long["decode_to_best"]) == (
        *(pytest.approx(2), pytest.approx(0.5)),
    )
    assert (short["peak_mib"], long["peak_mib"]) == (None, 7)
    assert short["samples"] == 2


def test_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "engine.py"
    program.write_text(ANSWERING, encoding="utf-8")
    started: list[str] = []

    def start(name: str, source: object, threads: int, *flags: str) -> JsonlEngine:
        if name == "genai":
            raise EngineFailed("genai does not take this model")
        started.append(name)
        return JsonlEngine([sys.executable, str(program), *flags])

    monkeypatch.setattr(contexts, "start", start)
    monkeypatch.setattr(startup, "start", start)
    monkeypatch.setattr(startup, "_forget", lambda name, source: None)
    monkeypatch.setattr(contexts, "resolve", lambda name: Model())
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs" / "results" / "data").mkdir(parents=True)
    line = ["--only", "paceline", "llama-cpp", "genai", "--contexts", "100,400,4000"]
    line += ["--rounds", "2", "--tokens", "9", "--out", "out", "--starts", "1"]
    assert contexts.main([*line, "--record", "tiny-contexts", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["settings"]["contexts"] == [100, 400], "the model has no more"
    assert found["not_run"] == {"genai": "genai does not take this model"}
    assert found["about"]["paceline"]["flags"] == f"--plain --context {400 + 9 + contexts.MARGIN}"
    rows = {(row["engine"], row["context"]): row for row in found["rows"]}
    assert len(rows) == 4
    for (_, _), row in rows.items():
        assert row["prefill_tokens_per_second"] == pytest.approx(100)
        assert row["decode_tokens_per_second"] == pytest.approx(4)
        assert row["samples"] == 2
    if sys.platform.startswith("linux"):
        grown = rows["paceline", 400]["peak_mib"] - rows["paceline", 100]["peak_mib"]
        assert grown == pytest.approx(25, abs=3), "400 tokens of 64 KiB"
    assert {row["engine"] for row in found["starts"]} == {"paceline", "llama-cpp"}
    assert {row["mode"] for row in found["starts"]} == {"plain"}

    kept = results.load(tmp_path / "docs" / "results" / "data")["tiny-contexts"]
    assert kept["rows"][0][:4] == ["paceline", "none", 100, 100.0]
    assert "genai does not take this model" in kept["note"]
    assert "tiny by context" in results.render(tmp_path / "docs" / "results" / "data")["peers.md"]

    started.clear()
    assert contexts.main([*line, "--starts", "0"]) == 0
    assert started == [], "nothing is left to do"
    assert "not run" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "named"), [("400,100", "ascend"), ("a", "ascend"), ("2000", "at most 968")]
)
def test_contexts_that_make_no_sense(
    given: str, named: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(contexts, "resolve", lambda name: Model())
    assert contexts.main(["--contexts", given]) == 2
    assert named in capsys.readouterr().err
