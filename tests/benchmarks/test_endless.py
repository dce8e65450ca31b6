"""Perplexity by position: what each way keeps, and that its numbers are those of the rule."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.helpers.endless import CONFIG, WEIGHTS, WINDOW, endless_engine, endless_target

from benchmarks import endless
from paceline.core.target import LEAVING, SINKS, whole
from paceline.core.types import SamplingParams
from paceline.lab.measure import results

TOKENS = np.random.default_rng(5).integers(3, 300, 900).tolist()


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    source = SimpleNamespace(
        name="tiny",
        fingerprint="tiny",
        config=CONFIG,
        precision="fp32",
        weights=lambda: WEIGHTS,
        tokenizer=lambda: SimpleNamespace(encode=lambda text: TOKENS),
    )
    monkeypatch.setattr(endless, "resolve", lambda model: source)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs/results/data").mkdir(parents=True)
    (tmp_path / "docs/page.md").write_text("text")


def all_nats(found: Any) -> list[float]:
    return [each for _, nats, _, _ in found for each in nats]


def test_sinks_score_as_the_engine_does() -> None:
    target = endless_target()
    found = all_nats(endless.read(target, TOKENS, WINDOW, endless.slide, {}))
    params = SamplingParams(max_new_tokens=1, prompt_logprobs=0)
    scored = endless_engine().generate(TOKENS, params, endless=WINDOW).prompt_logprobs
    np.testing.assert_allclose(found, [-each.logprob for each in scored], atol=1e-6)


def test_ways_agree_until_something_has_left_and_then_differ() -> None:
    target = endless_target(max_context=1024)
    leaves = {"full": None, "window": endless.forget, "sinks": endless.slide}
    found = {
        way: all_nats(endless.read(target, TOKENS, WINDOW, leave, {}))
        for way, leave in leaves.items()
    }
    same = whole(WINDOW)
    assert found["full"][:same] == found["window"][:same] == found["sinks"][:same]
    ends = [tuple(each[same:]) for each in found.values()]
    assert len(set(ends)) == 3
    assert target.memory.free == target.memory.blocks


def test_a_recomputed_token_is_scored_by_its_window_alone() -> None:
    target = endless_target()
    found = list(endless.recomputed(target, TOKENS, WINDOW, 300))
    assert [end for end, *_ in found] == [300, 600]
    cache = target.open()
    target.prefill(cache, TOKENS[600 - WINDOW : 599])
    [output] = target.forward([endless.Rows.draft(cache, TOKENS[599:600])])
    assert found[1][1] == endless.nats(output.logits, TOKENS[600:601])


def test_the_command_tells_every_way(
    tiny: None,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, target = [], endless.CpuTarget
    monkeypatch.setattr(
        endless, "CpuTarget", lambda *args, **kw: made.append(target(*args, **kw)) or made[-1]
    )
    sizes = ["--tokens", "850", "--window", str(WINDOW), "--full", "650", "--every", "100"]
    more = ["--bucket", "200", "--decode", "3", "--threads", "1"]
    assert endless.main([*sizes, *more, "--json", "--record", "some"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert made[0].memory.free == made[0].memory.blocks, "each way has all the room"
    count = {
        way: sum(r["tokens"] for r in found["rows"] if r["way"] == way) for way in endless.WAYS
    }
    assert count == {"full": 649, "window": 849, "sinks": 849, "recomputed": 8}
    most = {
        way: max(r["cached_tokens"] for r in found["rows"] if r["way"] == way)
        for way in endless.WAYS
    }
    assert most["full"] == 672
    assert most["window"] == most["sinks"] == whole(WINDOW)
    assert len(found["decoding"]) == 2
    assert found["recomputed_tokens"] == 3
    assert found["at_recomputed"].keys() == {"window", "sinks", "recomputed"}  # full is shorter
    results.validate("some", json.loads((tmp_path / "docs/results/data/some.json").read_text()))
    assert whole(0) == SINKS + LEAVING


def test_what_was_read_is_kept(
    tiny: None,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    sizes = ["--tokens", "600", "--window", str(WINDOW), "--full", "500", "--every", "100"]
    options = [*sizes, "--bucket", "200", "--decode", "3", "--threads", "1", "--json"]
    assert endless.main(options) == 0
    expected = json.loads(capsys.readouterr().out)
    options += ["--keep", str(tmp_path / "kept.json")]
    with monkeypatch.context() as patch:
        patch.setattr(endless, "recomputed", stop)  # the last way
        assert endless.main(options) == 130
    with monkeypatch.context() as patch:
        patch.setattr(endless, "read", stop)  # what the others would read again
        assert endless.main(options[:-2]) == 130
        capsys.readouterr()
        assert endless.main(options) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["decoding"].keys() == expected["decoding"].keys()
    assert found["at_recomputed"] == expected["at_recomputed"]
    for mine, theirs in zip(found["rows"], expected["rows"], strict=True):
        speeds = {"tokens_per_second": 0.0}
        assert mine | speeds == theirs | speeds
    assert endless.main([*options, "--every", "50"]) == 2
    assert "of other settings" in capsys.readouterr().err


@pytest.mark.parametrize(
    "options", [["--ways", "all"], ["--window", "100"], ["--tokens", "5000"], ["--window", "0"]]
)
def test_what_cannot_be_is_refused(
    tiny: None, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert endless.main(options) == 2
    assert options[0] in capsys.readouterr().err
