"""What comes with the package, and what the second distribution of this repository brings."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from paceline import weights
from paceline.errors import InvalidOption, ModelError
from paceline.models.adapters import LoraAdapter
from paceline.models.source import resolve
from paceline.networks.weights import shipped_cards
from paceline.registry.loading import load, load_model, make_engine
from paceline.version import __version__

ROOT = Path(__file__).parents[1]


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the second distribution were not installed."""
    own = Path(weights.__file__).parent
    monkeypatch.setattr(weights, "folders", lambda: (own,))


def test_both_distributions_have_one_version_and_the_first_is_small() -> None:
    project = tomllib.loads((ROOT / "drafters" / "pyproject.toml").read_text())["project"]
    assert project["version"] == __version__
    own = [path for path in Path(weights.__file__).parent.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in own) < 40 * 2**20


def test_all_weights_are_found() -> None:
    kinds = {card.kind for card in shipped_cards()}
    assert kinds >= {"eagle3", "hydra", "block-parallel", "draft-lm", "kangaroo", "ppd"}
    assert len(weights.folders()) == 2
    for name in ("lists-bd", "lists-order", "lists-blockffn", "deer-smollm2-135m"):
        assert resolve(name).config.layers


def test_an_adapter_is_found_by_its_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    found = LoraAdapter("causal-whisper-base=0.5")
    assert len(found.factors) == 72  # of four matrices of six layers, three times
    assert found.scale == 0.5
    (tmp_path / "causal-whisper-base").mkdir()  # what is here comes first
    with pytest.raises(ModelError, match="is no adapter"):
        LoraAdapter("causal-whisper-base")
    for other in ("../adapters", "adapters", "*", ""):
        with pytest.raises(ModelError, match="is no adapter"):
            LoraAdapter(other)


@pytest.mark.usefixtures("alone")
def test_what_is_not_installed_is_named() -> None:
    assert {card.kind for card in shipped_cards()} == {"eagle3"}
    with pytest.raises(ModelError, match=r"lists-order is not here: pip install 'paceline\[dra"):
        resolve("lists-order")
    with pytest.raises(InvalidOption, match=r"no mask rows ship for .*: pip install 'paceline\["):
        load_model(denoiser="rows")


@pytest.mark.real
@pytest.mark.usefixtures("alone")
def test_defaults_need_nothing_else() -> None:
    loaded = load_model()
    assert make_engine(loaded).config["drafter"] == "suffix-automaton>eagle3"
    with pytest.raises(InvalidOption, match=r"'hydra' and this model: pip install 'paceline\[dra"):
        make_engine(loaded, drafter="hydra")
    assert load("lists-bd").generate("copy: a b", max_new_tokens=4).token_ids
