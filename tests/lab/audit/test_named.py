"""Engines by name: what is known, what is refused, and paceline itself."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cli import fakes

from paceline.errors import InvalidOption, PacelineError
from paceline.lab.audit import named as peers
from paceline.lab.audit.checks import AuditExtent
from paceline.lab.audit.engine import SeededRequest
from paceline.lab.audit.named import open_engine, referee
from paceline.lab.audit.outside import run
from paceline.registry.options import Options

Loads = list[Options]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path))
    return tmp_path


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> Loads:
    """A table takes the place of models; the options of every load."""
    seen: Loads = []

    def load_model(model: str, **options: Any) -> object:
        seen.append(Options(model=model, **options))
        return fakes.loaded()

    monkeypatch.setattr(peers, "load_model", load_model)
    return seen


def test_paceline_passes_its_own_audit(loads: Loads) -> None:
    options = {"drafter": "prompt-lookup", "nodes": "4", "depth": "4", "precision": "fp32"}
    plan = AuditExtent(
        greedy_prompts=3, greedy_tokens=24, check_prompts=("fox",), samples=60, tokens=3
    )
    report = run("paceline", plan, options)
    assert report.passed
    assert (report.identical, len(report.greedy)) == (3, 3)
    assert report.about["engine"] == "paceline"
    assert report.about["drafter"] == "prompt-lookup"
    assert [each.precision for each in loads] == ["fp32"]


def test_a_lossy_rule_of_paceline_is_found_and_told(loads: Loads) -> None:
    options = {"verifier": "typical", "nodes": "4", "depth": "4"}
    plan = AuditExtent(greedy_prompts=0, check_prompts=("fox",), samples=60, tokens=3)
    report = run("paceline", plan, options)
    assert report.rejected
    assert report.about["lossless"] == "False"


def test_without_speculation_paceline_decodes_plainly_whatever_the_rule(loads: Loads) -> None:
    ask = SeededRequest((1, 2, 3), False, 1.0, 4, tuple(range(20)))
    lossy, plain = (open_engine("paceline", {"verifier": v}) for v in ("typical", "coupled"))
    assert lossy.continuations(ask) == plain.continuations(ask)


def test_paceline_counts_the_drafted_tokens_that_it_accepts(loads: Loads) -> None:
    engine = open_engine("paceline", {"nodes": "4", "depth": "4"})
    ask = SeededRequest((1, 2, 3) * 4, False, 0.0, 24, (0,))
    engine.continuations(ask)
    assert "accepted drafts" not in engine.about()
    engine.continuations(replace(ask, speculation=True))
    accepted, of, tokens, _ = engine.about()["accepted drafts"].split()
    assert (of, tokens) == ("of", "24")
    assert 0 < int(accepted) < 24


def test_paceline_tells_the_law_of_its_target(loads: Loads) -> None:
    engine = open_engine("paceline")
    prompt = engine.prompt("fox", False)
    assert not isinstance(prompt, str)
    logits = fakes.loaded().target._logits(prompt).astype(float) / 0.7  # type: ignore[attr-defined]
    expected = np.exp(logits - logits.max())
    expected /= expected.sum()
    distribution = engine.distribution(prompt, 0.7)
    assert distribution is not None
    assert [distribution[token] for token in range(fakes.VOCABULARY)] == pytest.approx(
        expected, abs=1e-6
    )
    with pytest.raises(InvalidOption, match="temperature above 0"):
        engine.distribution(prompt, 0.0)


def test_chat_prompts_go_through_the_template(loads: Loads) -> None:
    engine = open_engine("paceline")
    assert len(engine.prompt("fox", True)) > len(engine.prompt("fox", False))


def test_a_function_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "given.py").write_text("def twice(ask):\n    return [[s, s] for s in ask.seeds]\n")
    monkeypatch.syspath_prepend(tmp_path)
    engine = open_engine("python:given:twice")
    assert engine.continuations(SeededRequest("a", True, 1.0, 2, (3, 4))) == [(3, 3), (4, 4)]
    assert engine.about() == {"engine": "given:twice"}


def test_a_command_by_name(tmp_path: Path) -> None:
    path = tmp_path / "engine.py"
    path.write_text("""print('{"about": {"engine": "c"}}', flush=True); input()""")
    engine = open_engine(f"command:{sys.executable} {path}")
    assert engine.about() == {"engine": "c"}
    engine.close()


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("nonsense", {}, "engine 'nonsense' is unknown: use paceline, transformers"),
        ("python:", {}, "is unknown"),
        ("python:json:nothing", {}, "cannot import 'nothing' from 'json'"),
        ("python:no_such_module:f", {}, "cannot import 'f' from 'no_such_module'"),
        ("python:json:loads", {"speed": "1"}, "takes no option 'speed'"),
        ("command:no-such-program", {}, "cannot start 'no-such-program'"),
        ("http://127.0.0.1:1/v1", {}, "same endpoint"),
        ("http://127.0.0.1:1/v1", {"speed": "1"}, "a URL has no option 'speed'"),
        ("http://127.0.0.1:1/v1", {"on_fields": "{"}, "'on_fields' must be a JSON object"),
        ("http://127.0.0.1:1/v1", {"off_fields": "[]"}, "'off_fields' must be a JSON object"),
        ("paceline", {"speed": "1"}, "engine 'paceline' has no option 'speed'"),
        ("paceline", {"nodes": "many"}, "option 'nodes' must be a number, not 'many'"),
        ("paceline", {"drafter": "nonsense"}, "nonsense"),
    ],
)
def test_bad_names_and_options(
    loads: Loads, name: str, options: dict[str, str], message: str
) -> None:
    with pytest.raises(PacelineError, match=message) as raised:
        open_engine(name, options)
    assert "\n" not in str(raised.value)


def test_a_peer_without_environment_names_the_script_that_makes_it() -> None:
    with pytest.raises(InvalidOption, match=r"peers/make\.py genai"):
        peers.command("genai")


def test_a_peer_outside_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "scripts", lambda: tmp_path)
    with pytest.raises(InvalidOption, match="run in a checkout"):
        peers.command("genai")


@pytest.mark.parametrize("engine", peers.PEERS)
def test_every_peer_has_a_script_and_runs_in_its_own_environment(engine: str, cache: Path) -> None:
    python = peers.interpreter(engine)
    assert python.is_relative_to(cache)
    python.parent.mkdir(parents=True)
    python.touch()
    command = peers.command(engine, "--tokens", "3")
    assert command[:2] == [str(python), "-E"]
    assert Path(command[2]).is_file()
    assert command[3:] == ["--tokens", "3"]


def test_only_engines_of_the_default_model_have_a_referee(loads: Loads) -> None:
    assert referee("paceline") is None
    judge = referee("genai")
    assert judge is not None
    assert not loads, "loaded only when there is something to judge"
    assert judge.distribution((5, 6), 1.0) is not None
    assert judge.distribution((5, 7), 1.0) is not None
    assert [each.precision for each in loads] == ["fp32"]
