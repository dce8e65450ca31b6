"""The network of docs/own-network.md, as it stands there: right, trained, decoding."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from tests.helpers import tiny_model as tiny
from tests.networks import cases
from tests.networks.runners import Reference

import paceline
from paceline.lab.training.data import Shards, Text
from paceline.models.source import DirectorySource
from paceline.networks.catalogue import NETWORKS
from paceline.networks.weights import load_network

PAGE = Path(__file__).parents[3] / "docs" / "own-network.md"
TEXTS, TIME = 48, 24


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module that a reader saves."""
    [code, *_] = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(code.splitlines()) < 100
    path = tmp_path / "own_network.py"
    path.write_text(code)
    spec = importlib.util.spec_from_file_location("own_network", path)
    assert spec is not None
    assert spec.loader is not None
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    module = importlib.util.module_from_spec(spec)
    before = dict(NETWORKS)
    spec.loader.exec_module(module)
    yield module
    NETWORKS.clear()
    NETWORKS.update(before)


def test_it_computes_the_same_over_a_whole_text_and_row_by_row(page: Any) -> None:
    features, tokens = cases.texts(1, TIME)
    network = page.Recurrent(cases.TINY, steps=3, inner=5)
    trained = cases.module(network)
    with torch.no_grad():
        expected = torch.stack(trained(features, tokens), dim=2)[0].numpy()
    drafter = Reference(trained)
    for at in range(TIME - network.depth - 1):
        follow = tokens[0, at + 2 :].tolist()
        found = drafter.draft(features[0, at : at + 1].numpy(), [int(tokens[0, at + 1])], follow)
        np.testing.assert_allclose(found, expected[at], atol=4e-6 * np.abs(expected).max())


def test_it_is_trained_and_decodes_and_changes_no_token(page: Any, tmp_path: Path) -> None:
    path = tiny.save_directory(tmp_path / "model", tiny.tiny_config(vocab_size=320))
    model, weights = str(path), str(tmp_path / "own.safetensors")
    rng = np.random.default_rng(0)
    texts = [Text(i, rng.integers(3, 320, TIME), 2) for i in range(TEXTS)]
    settings = {"model": DirectorySource(path).fingerprint, "prompts": "none"}
    Shards(tmp_path / "data", settings).write(0, texts)
    options = ("--tokens", "2000", "--batch-tokens", "240", "--vocabulary", "200")
    assert page.train(model, str(tmp_path / "data"), weights, *options) == 0
    trained = load_network(Path(weights)).parameters
    assert np.abs(trained["down.residual"]).max() > 0  # it started as zeros
    prompt = list(range(5, 17))
    how: dict[str, Any] = {"max_new_tokens": 40, "ignore_eos": True}
    drafted = page.load(model, weights).generate(prompt, **how)
    plain = paceline.load(model, drafter="none").generate(prompt, **how)
    assert drafted.token_ids == plain.token_ids
    assert drafted.stats.drafted_tokens > 40
