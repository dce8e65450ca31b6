"""What is exported and read back as a published head drafts the very same, in every layout."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

from safetensors.numpy import load_file
from tests.helpers import tiny_model as tiny
from tests.lab.export import drafters
from tests.networks.heads import Head, write

import paceline
from paceline.core.target import Rows
from paceline.lab.export.layout import write_layout
from paceline.lab.export.vllm import vllm_layout
from paceline.models.config import feature_layers
from paceline.models.source import DirectorySource
from paceline.networks.catalogue import build
from paceline.networks.published import open_head
from paceline.networks.runner import Chain, ContextUpdate
from paceline.networks.weights import Trained, load_network
from paceline.runtimes.cpu.target import CpuTarget

TOKENS = [5, 17, 200, 31, 8, 90, 4, 251, 60, 7, 7, 12]
LAYOUTS = ("export", "SafeAILab", "SafeAILab.bin", "GGUF")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> DirectorySource:
    return drafters.target(tmp_path_factory.mktemp("target"), "llama")


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory, source: DirectorySource) -> Path:
    path = tmp_path_factory.mktemp("weights") / "eagle3.safetensors"
    network = build("eagle3", source.config, {"steps": 3, "ffn_size": 64})
    return drafters.save(path, network, source.fingerprint)


def exported(weights: Path, source: DirectorySource, layout: str, out: Path) -> Path:
    write_layout(vllm_layout(str(weights), str(source.path)), out)
    if layout == "export":
        return out
    opened = open_head(out)
    assert opened is not None
    tensors = load_file(out / "model.safetensors")
    ids = tensors.pop("d2t") + np.arange(len(tensors["lm_head.weight"]))
    tensors.pop("t2d")
    layer = {**tiny.hf_config(opened.config), "intermediate_size": opened.config.ffn_size}
    boundaries = feature_layers(source.config.layers)
    head = Head(tensors, layer, ids, source.config.hidden_size, boundaries)
    return write(head, layout, out.with_name("again"))


def chains(trained: Trained, source: DirectorySource, precision: str) -> list[Chain]:
    target = CpuTarget(source.config, source.weights(), precision)
    rows = Rows.draft(target.open(), TOKENS, features=True)
    [output] = target.forward([rows])
    assert output.features is not None
    wide = 4 * source.config.hidden_size
    read = output.features[:, : trained.network.feature_width]
    features = read if trained.network.feature_width < wide else output.features
    runner = target.run_network(trained)
    out, cache = [], runner.open()
    for end in range(1, len(TOKENS)):
        update = ContextUpdate(cache, features[end - 1 : end].copy(), TOKENS[end : end + 1])
        out += runner.draft([update], 3)
    return out


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_an_export_drafts_the_same(
    tmp_path: Path, source: DirectorySource, weights: Path, precision: str
) -> None:
    """To the bit, at int8 as well, where another rounding of a matrix would show."""
    head = open_head(exported(weights, source, "export", tmp_path / "out"))
    assert head is not None
    again = head.fit(source.config, source.weights(), source.fingerprint)
    own = load_network(weights)
    assert "head" not in again.parameters  # the target's own
    np.testing.assert_array_equal(again.parameters["fc"], own.parameters["fuse"])
    assert chains(again, source, precision) == chains(own, source, precision)
    other = replace(own, parameters={**own.parameters, "scale": own.parameters["scale"] * 1.1})
    assert chains(other, source, precision) != chains(own, source, precision)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_layout_drafts_losslessly(
    tmp_path: Path, source: DirectorySource, weights: Path, layout: str
) -> None:
    """The same texts as without drafts, and the drafts of the weights that were exported."""
    path = exported(weights, source, layout, tmp_path / "out")
    head = open_head(path)
    assert head is not None
    again = head.fit(source.config, source.weights(), source.fingerprint)
    own = [each.tokens for each in chains(load_network(weights), source, "fp32")]
    assert [each.tokens for each in chains(again, source, "fp32")] == own
    texts = []
    for options in ({"drafter": "none"}, {"draft_model": str(path)}):
        engine = paceline.load(str(source.path), precision="fp32", nodes=3, depth=3, **options)
        made = engine.generate("the quick brown", max_new_tokens=24, temperature=0)
        drawn = engine.generate("def f(x)", max_new_tokens=24, temperature=1, seed=3)
        texts.append((made.token_ids, drawn.token_ids))
        if options.get("draft_model"):
            assert engine.config["drafter"] == "suffix-automaton>eagle3"
            assert made.stats.drafted_tokens > 0
    assert texts[0] == texts[1]
