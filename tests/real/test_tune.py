"""Tuning the default model for a few seconds: whatever "auto" becomes, the text stays the same."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("optuna")

from tests.real.conftest import load
from tests.real.prompts import PROMPTS

from paceline import tuned
from paceline.bench.prompts import BenchPrompt
from paceline.loading import make_engine
from paceline.tuning.search import Search
from paceline.tuning.space import EVERYTHING
from paceline.tuning.track import ModelTrack
from paceline.tuning.tuner import Tuner
from paceline.types import SamplingParams

pytestmark = pytest.mark.real


def test_greedy_text_under_what_was_tuned_is_plain_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = load("int8")
    loaded.costs  # noqa: B018 (from the user's cache, before it is put aside)
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path))
    prompts = [BenchPrompt(str(n), "any", (text,)) for n, text in enumerate(PROMPTS[:4])]
    track = ModelTrack(loaded, prompts, SamplingParams(max_new_tokens=12))
    tuner = Tuner(Search(tmp_path / "tuned.journal", "study", 2), track, 8.0)
    found = list(tuner.run())[-1]
    plain = make_engine(loaded, drafter="none").generate(PROMPTS[3], max_new_tokens=40)
    likely = EVERYTHING["suffix-decoding+recycling, fixed 7x4"]  # should the time not suffice
    for choice in filter(None, (found, likely)):
        tuned.write(loaded.place, tuned.Choice(choice, {}))
        engine = make_engine(loaded)
        assert engine.config["auto"] == "tuned"
        assert engine.config["drafter"] == choice.drafter
        done = engine.generate(PROMPTS[3], max_new_tokens=40)
        assert done.token_ids == plain.token_ids
        assert done.stats.drafted_tokens > 0 or choice.drafter == "none"
