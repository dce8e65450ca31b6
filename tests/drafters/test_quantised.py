"""The target at int8 drafts for itself at fp32."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.helpers import tiny_model as tiny
from tests.runtimes import tiny_cpu

from paceline.drafters.resources import Loaded
from paceline.errors import InvalidOption, RuntimeUnavailable
from paceline.lab.tuning.space import Space
from paceline.registry.loading import load_model, make_engine

PROMPT = [7, 8, 9, 7, 8, 9, 7, 8]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny.save_directory(tmp_path_factory.mktemp("model"), tiny_cpu.config()))


def load(model: str, precision: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Loaded:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    return load_model(model, runtime="cpu", precision=precision)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("drafter", ["quantised", "suffix-automaton>quantised", "auto"])
def test_the_text_is_that_of_the_full_model(
    drafter: str, temperature: float, model: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    loaded = load(model, "fp32", monkeypatch, tmp_path)
    found = []
    for name in (drafter, "none"):
        engine = make_engine(loaded, drafter=name, controller="fixed", nodes=4, depth=4)
        found.append(
            engine.generate(
                PROMPT, max_new_tokens=24, ignore_eos=True, temperature=temperature, seed=3
            )
        )
    drafted, plain = found
    assert drafted.token_ids == plain.token_ids
    assert drafted.stats.target_forwards < plain.stats.target_forwards


def test_it_drafts_at_int8(model: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    engine = make_engine(load(model, "fp32", monkeypatch, tmp_path), drafter="quantised")
    assert engine.decoder.target.capabilities.precision == "fp32"
    assert engine.decoder.drafter._model.capabilities.precision == "int8"  # type: ignore[attr-defined]


def test_a_model_at_int8_has_nothing_coarser(
    model: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    loaded = load(model, "int8", monkeypatch, tmp_path)
    with pytest.raises(RuntimeUnavailable, match="--precision fp32"):
        make_engine(loaded, drafter="quantised")
    assert make_engine(loaded).config["drafter"] == "suffix-automaton"
    assert "quantised" not in Space.of(loaded).drafters


def test_tuning_tries_it(model: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    loaded = load(model, "fp32", monkeypatch, tmp_path)
    assert Space.of(loaded).drafters[1] == "suffix-automaton>quantised"


def test_an_unknown_option(model: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="no option 'bits': use growth, recent or vocabulary"):
        make_engine(load(model, "fp32", monkeypatch, tmp_path), drafter="quantised:bits=4")
