"""Mixtures of experts as models: three backends agree, wrong ones do not, drafts change no bit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from paceline.core.target import Rows
from paceline.core.tree import chain
from paceline.core.types import ROOT, TokenTree
from paceline.errors import ModelError
from paceline.lab.measure.fingerprint import RandomWeights, TinyModel
from paceline.models.config import ModelConfig
from paceline.models.families import gguf_config, hf_config
from paceline.models.ops import Experts
from paceline.runtimes.cpu.target import CpuTarget
from paceline.runtimes.reference.ops import ReferenceOps
from paceline.runtimes.reference.target import ReferenceTarget
from paceline.runtimes.torch.target import TorchTarget

FAMILIES = ("qwen3_moe", "mixtral", "llama_blockffn", "qwen3_5_moe_text", "gpt_oss")
TOKENS = [3, 17, 5, 80, 41, 9, 2, 66, 31, 7, 250, 12]


class Weights(RandomWeights):
    """With routers that tell rows apart."""

    def __getitem__(self, name: str) -> Any:
        return super().__getitem__(name) * (4 if name.endswith("router") else 1)

    def stored(self, name: str) -> Any:
        found = super().stored(name)
        return replace(found, blocks=self[name].view(np.uint8).reshape(found.shape[0], -1))


def model(family: str) -> tuple[ModelConfig, Weights]:
    config = TinyModel(family, ("F32",)).config
    return config, Weights(config, ("F32",))


def found(target: Any) -> Any:
    cache = target.open()
    (output,) = target.forward([Rows.draft(cache, TOKENS[:1], chain(TOKENS[1:]))])
    logits = output.logits.copy()
    target.release(cache)
    return logits


def expected_of(config: ModelConfig, weights: Any) -> Any:
    return found(ReferenceTarget(config, weights, "fp32"))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_backends_agree(family: str) -> None:
    config, weights = model(family)
    expected = expected_of(config, weights)
    assert np.array_equal(found(CpuTarget(config, weights, "fp32", kv_tokens=128)), expected)
    on_torch = found(TorchTarget(config, weights))
    assert np.abs(on_torch - expected).max() < 1e-5 * np.abs(expected).max()


class NoNorm(ReferenceOps):
    """BlockFFN without its RMS norm."""

    def route(self, x: Any, name: str, experts: Experts) -> Any:
        if experts.used:
            return super().route(x, name, experts)
        return np.maximum(self.linear(x, [name]), 0)


class Softmax(ReferenceOps):
    """Another router in its place: a softmax over all, or ReLU instead of a softmax."""

    def route(self, x: Any, name: str, experts: Experts) -> Any:
        scores = self.linear(x, [name])
        return scores / np.abs(scores).sum(-1, keepdims=True)


class Unweighted(ReferenceOps):
    """Experts that count alike."""

    def route(self, x: Any, name: str, experts: Experts) -> Any:
        found = super().route(x, name, experts)
        return (found != 0) / np.maximum((found != 0).sum(-1, keepdims=True), 1)


@pytest.mark.parametrize(
    ("family", "wrong"),
    [
        *((family, wrong) for family in FAMILIES for wrong in (Softmax, Unweighted)),
        ("llama_blockffn", NoNorm),  # the others have none
    ],
)
def test_another_router_is_seen(
    family: str, wrong: type[ReferenceOps], monkeypatch: pytest.MonkeyPatch
) -> None:
    config, weights = model(family)
    expected = expected_of(config, weights)
    monkeypatch.setattr("paceline.runtimes.reference.target.ReferenceOps", wrong)
    other = expected_of(config, weights)
    assert np.abs(other - expected).max() > 1e-3 * np.abs(expected).max()


@pytest.mark.parametrize("family", FAMILIES)
def test_other_numbers_of_experts_are_seen(family: str) -> None:
    config, weights = model(family)
    assert config.experts is not None
    expected, old = expected_of(config, weights), config.experts
    for experts in (
        replace(old, used=1 if old.used else 2),
        replace(old, sum_to_one=not old.sum_to_one) if old.used else replace(old, gated=True),
    ):
        other = expected_of(replace(config, experts=experts), weights)
        assert np.abs(other - expected).max() > 1e-3 * np.abs(expected).max()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("precision", ["fp32", "int8", "int4"])
def test_drafts_and_batches_change_no_bit(family: str, precision: str) -> None:
    config, weights = model(family)
    alone = CpuTarget(config, weights, precision, kv_tokens=256)
    cache, expected = alone.open(), []
    for token in TOKENS:
        expected.append(alone.forward([Rows.draft(cache, [token])])[0].logits[0].copy())
        alone.keep(cache, 1, [])
    dense = replace(config, experts=replace(config.experts, every=True))
    for each in (alone, CpuTarget(dense, weights, precision, kv_tokens=256)):
        assert np.array_equal(found(each), expected)
        one, other = each.open(), each.open()
        tree = TokenTree(np.array([9, *TOKENS[1:4], 8]), np.array([ROOT, ROOT, 1, 2, 0]))
        outputs = each.forward([Rows.draft(other, [5, 6, 7]), Rows.draft(one, TOKENS[:1], tree)])
        assert np.array_equal(outputs[1].logits[[0, 2, 3, 4]], expected[:4])


def test_rows_of_a_real_forward_use_different_experts() -> None:
    config, weights = model("qwen3_moe")
    target = CpuTarget(config, weights, "fp32", kv_tokens=256)
    found(target)
    routes = target.routes()
    assert [each.shape for each in routes] == [(len(TOKENS), 6)] * config.layers
    for each in routes:
        assert ((each != 0).sum(1) == 2).all()
        np.testing.assert_allclose(each.sum(1), 1, rtol=1e-6)
        assert len({tuple(row) for row in (each != 0).tolist()}) > 1


def test_models_without_experts_have_no_routes() -> None:
    target = TinyModel("llama", ("F32",)).target()
    found(target)
    assert target.routes() == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_experts_per_tok": 7}, "cannot use 7 of 6 experts"),
        ({"num_experts": 0}, "cannot use 2 of 0 experts"),
        ({"norm_topk_prob": None, "num_experts_per_tok": "two"}, "complete qwen3_moe model"),
    ],
)
def test_configs_that_are_wrong_are_named(changes: dict[str, Any], message: str) -> None:
    from paceline.lab.measure import fingerprint

    whole = {**fingerprint._CONFIG, "model_type": "qwen3_moe", **fingerprint._ADDED["qwen3_moe"]}
    assert hf_config(whole).experts == Experts(6, 2, True)
    with pytest.raises(ModelError, match=message):
        hf_config({**whole, **changes})


def test_an_expert_that_is_missing_is_named() -> None:
    config, weights = model("mixtral")
    del weights._shapes["layers.1.experts.2.up"]
    for runtime in (CpuTarget, TorchTarget):
        with pytest.raises((ModelError, KeyError), match=r"layers.1.experts.2.up"):
            runtime(config, weights)


def test_a_gguf_llama_with_experts_is_refused() -> None:
    """Mixtral is called Llama there."""
    metadata: dict[str, Any] = {"general.architecture": "llama", "llama.block_count": 1}
    metadata["llama.expert_count"] = 8
    sizes = ("embedding_length", "context_length", "feed_forward_length")
    metadata |= {f"llama.{each}": 64 for each in sizes}
    metadata |= {"llama.attention.head_count": 2, "llama.attention.layer_norm_rms_epsilon": 1e-5}
    shapes = {"token_embd.weight": (64, 64)}
    with pytest.raises(ModelError, match="mixtures of experts of family llama"):
        gguf_config(metadata, shapes, {})
    del metadata["llama.expert_count"]
    assert gguf_config(metadata, shapes, {}).experts is None
    for counts, message in (([2, 0], "layers without attention"), ([1, 2], "layers of \\[1, 2\\]")):
        with pytest.raises(ModelError, match=message):
            gguf_config({**metadata, "llama.attention.head_count_kv": counts}, shapes, {})
    granite = {key.replace("llama", "granite"): each for key, each in metadata.items()}
    granite["general.architecture"] = "granite"
    for positions in (True, False):
        granite["granite.rope.scaling.finetuned"] = positions
        assert gguf_config(granite, shapes, {}).no_positions == (() if positions else (0,))
