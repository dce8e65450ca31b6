"""Engines in processes of their own: the protocol, both of its sides, and how it breaks."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from paceline.errors import EngineFailed
from paceline.lab.audit.engine import SeededRequest
from paceline.lab.audit.named import scripts
from paceline.lab.audit.remote import JsonlEngine

ASK = SeededRequest((1, 2), True, 1.0, 3, (7, 8))

ECHO = """
import json, sys
print(json.dumps({"about": {"engine": "echo", "version": 3}}), flush=True)
for line in sys.stdin:
    request = json.loads(line)
    if "law" in request:
        print(json.dumps({"law": [[5, 0.5], [6, 0.25]] if request["law"]["prompt"] else None}))
    else:
        ask = request["continue"]
        on = int(ask["speculation"])
        print(json.dumps({"tokens": [[s, on, *ask["prompt"]] for s in ask["seeds"]]}))
    sys.stdout.flush()
"""


def program(tmp_path: Path, code: str) -> list[str]:
    path = tmp_path / "engine.py"
    path.write_text(code, encoding="utf-8")
    return [sys.executable, str(path)]


def answering(tmp_path: Path, line: str) -> JsonlEngine:
    """An engine that introduces itself and then writes `line` for every request."""
    code = f"""
import sys
print('{{"about": {{}}}}', flush=True)
for _ in sys.stdin:
    print({line!r}, flush=True)
"""
    return JsonlEngine(program(tmp_path, code), name="fake", seconds=30)


def test_requests_and_answers(tmp_path: Path) -> None:
    engine = JsonlEngine(program(tmp_path, ECHO))
    assert engine.about() == {"engine": "echo", "version": "3"}
    assert engine.continuations(ASK) == [(7, 1, 1), (8, 1, 1)], "cut to the wanted length"
    assert engine.distribution((1,), 1.0) == {5: 0.5, 6: 0.25}
    assert engine.distribution((), 1.0) is None
    assert engine.prompt("text", True) == "text"
    engine.close()


def test_prompts_are_encoded_where_an_engine_takes_ids(tmp_path: Path) -> None:
    engine = JsonlEngine(program(tmp_path, ECHO), lambda text, chat: (len(text), int(chat)))
    assert engine.prompt("text", True) == (4, 1)
    engine.close()


def test_the_answering_side_of_the_peers_scripts(tmp_path: Path) -> None:
    """Noise on standard output does not disturb the lines."""
    code = f"""
import os, sys
sys.path.insert(0, {str(scripts())!r})
from answering import claim_output, law_of, serve
lines = claim_output()
print("loading the model ...")
os.write(1, b"more noise\\n")
def continuations(prompt, speculation, temperature, tokens, seeds):
    print("generating")
    if temperature > 1:
        raise OSError("too\\nhot")
    return [[seed] * tokens for seed in seeds], 2 if speculation else None
def law(prompt, temperature):
    return law_of({{5: 0.0, 7: 0.0}} if prompt else [0.0, 0.0, -99.0], temperature)
serve(lines, {{"engine": "noisy"}}, continuations, law)
"""
    engine = JsonlEngine(program(tmp_path, code))
    assert engine.about() == {"engine": "noisy"}
    assert engine.continuations(ASK) == [(7, 7, 7), (8, 8, 8)]
    assert engine.distribution((), 1.0) == pytest.approx({0: 0.5, 1: 0.5})
    assert engine.distribution((1,), 1.0) == pytest.approx({5: 0.5, 7: 0.5})
    with pytest.raises(EngineFailed, match="says: OSError: too hot"):
        engine.continuations(replace(ASK, temperature=2.0))
    engine.continuations(replace(ASK, speculation=False))
    engine.continuations(ASK)
    assert engine.about()["accepted drafts"] == "4 of 12 tokens", "speculation alone counts"
    engine.close()


def test_an_engine_that_does_not_exist() -> None:
    with pytest.raises(EngineFailed, match="cannot start 'no-such-program'"):
        JsonlEngine(["no-such-program"])


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("raise SystemExit('no model here')", "died with exit code 1: no model here"),
        ("print('hello', flush=True)", "not JSON: 'hello'"),
        ("print('[]', flush=True)", "an answer is not an object"),
        ("print('{}', flush=True)", "its first line is not its 'about'"),
        ("import time; time.sleep(60)", "silent for 1 seconds"),
    ],
    ids=["dies", "text", "list", "no-about", "silent"],
)
def test_engines_that_do_not_start(tmp_path: Path, code: str, message: str) -> None:
    with pytest.raises(EngineFailed, match=message) as raised:
        JsonlEngine(program(tmp_path, code), name="fake", seconds=1 if "time" in code else 30)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("oops", "not JSON"),
        ("{}", "list of 2 lists"),
        ('{"tokens": [[1]]}', "list of 2 lists"),
        ('{"tokens": [[1], 2]}', "list of 2 lists"),
        ('{"tokens": [[1], [null]]}', "list of 2 lists"),
        ('{"tokens": [[1], [true]]}', "list of 2 lists"),
        ('{"tokens": [[1], [2]], "accepted": "two"}', "'accepted' is not a number"),
        ('{"error": "out of\\nmemory"}', "engine 'fake' says: out of memory"),
    ],
)
def test_wrong_answers(tmp_path: Path, line: str, message: str) -> None:
    engine = answering(tmp_path, line)
    with pytest.raises(EngineFailed, match=message) as raised:
        engine.continuations(ASK)
    assert "\n" not in str(raised.value)
    engine.close()


@pytest.mark.parametrize("distribution", [[[1, 0.9], [2, 0.9]], [[1]], 3, [[1.5, 0.5]], [[1, 0.0]]])
def test_wrong_laws(tmp_path: Path, distribution: object) -> None:
    engine = answering(tmp_path, json.dumps({"law": distribution}))
    with pytest.raises(EngineFailed, match="'law'"):
        engine.distribution((1,), 1.0)
    engine.close()


def test_an_engine_that_dies_at_work(tmp_path: Path) -> None:
    code = """
import sys
print('{"about": {}}', flush=True)
sys.stdin.readline()
sys.exit("Segmentation fault")
"""
    engine = JsonlEngine(program(tmp_path, code), name="fake")
    for _ in range(2):
        with pytest.raises(EngineFailed, match="died with exit code 1: Segmentation fault"):
            engine.continuations(ASK)
    engine.close()
