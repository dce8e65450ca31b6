"""Tuning the default model for a few seconds: whatever "auto" becomes, the text stays the same."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("optuna")

from tests.real.conftest import load
from tests.real.prompts import PROMPTS

from paceline.core.types import SamplingParams
from paceline.lab.measure.prompts import BenchPrompt
from paceline.lab.tuning.search import Search
from paceline.lab.tuning.space import ModelTrack, Space
from paceline.lab.tuning.tuner import Tuner
from paceline.registry import tuned_choice as tuned
from paceline.registry.loading import make_engine

pytestmark = pytest.mark.real


def test_text_under_what_was_tuned_is_plain_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = load("int8")
    loaded.costs  # noqa: B018 (from the user's cache, before it is put aside)
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path))
    prompts = [BenchPrompt(str(n), "any", (text,)) for n, text in enumerate(PROMPTS[:4])]
    space = Space.of(loaded)
    assert "suffix-automaton>hydra" in space.drafters  # its weights ship
    track = ModelTrack(loaded, prompts, SamplingParams(max_new_tokens=12))
    search = Search(tmp_path / "tuned.journal", "study", 2, space=space)
    found = list(Tuner(search, track, 8.0).run())[-1]
    # Should the time not suffice; and a network that sampled requests know nothing of.
    likely = space.everything["suffix-decoding+recycling, fixed 7x4"]
    trained = space.everything["suffix-automaton>hydra, fixed 3x3"]
    plain = make_engine(loaded, drafter="none")
    for greedy, sampled in ((found or likely, likely), (trained, likely)):
        tuned.write(loaded.place, "greedy", tuned.TunedChoice(greedy, {}))
        tuned.write(loaded.place, "sampled", tuned.TunedChoice(sampled, {}))
        engine = make_engine(loaded)
        assert engine.config["auto"] == "tuned"
        for chosen, temperature in ((greedy, 0.0), (sampled, 0.5)):
            asked = {"max_new_tokens": 40, "temperature": temperature, "seed": 4}
            done = engine.generate(PROMPTS[3], **asked)
            assert done.token_ids == plain.generate(PROMPTS[3], **asked).token_ids
            assert done.stats.drafted_tokens > 0 or chosen.drafter == "none"
