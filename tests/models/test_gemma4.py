"""Gemma 4: what it adds matters, its configs, and drafts over lent keys and two shapes of heads."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.helpers import target_contract as contract
from tests.models.test_families import CASES, GEMMA4, TOKENS, original

from paceline.core.target import Rows, Target
from paceline.core.tree import chain
from paceline.errors import InvalidOption, ModelError
from paceline.lab.measure.fingerprint import CASES as TINY
from paceline.lab.measure.fingerprint import RandomWeights
from paceline.models.config import ModelConfig
from paceline.models.families import hf_config
from paceline.models.ops import KV, Heads
from paceline.models.source import DirectorySource
from paceline.runtimes.cpu.target import CpuTarget
from paceline.runtimes.reference.ops import ReferenceOps
from paceline.runtimes.reference.target import ReferenceTarget
from paceline.runtimes.torch.target import TorchTarget

TIMES, EMBED, NORM = ReferenceOps.times, ReferenceOps.embed, ReferenceOps.norm
WEIGHT, ATTEND, MIX = ReferenceOps.weight, ReferenceOps.attend, ReferenceOps.mix


def _keys_normed_as_values(ops: ReferenceOps, kv: int | KV, x: Any, heads: Heads) -> Any:
    # The values of the second layer without a window are its keys behind their norm.
    if kv != 2:
        return ATTEND(ops, kv, x, heads)
    queries, width = heads.heads * heads.width, heads.kv_heads * heads.width
    key = NORM(ops, x[:, queries : queries + width], f"layers.{kv}.k_norm", heads=heads.kv_heads)
    return ATTEND(ops, kv, np.concatenate([x[:, : queries + width], key], axis=1), heads)


def _norm_of(name: str, instead: str) -> Any:
    def norm(ops: ReferenceOps, x: Any, given: str, **more: Any) -> Any:
        return NORM(ops, x, given.replace(name, instead), **more)

    return norm


# Wrong wirings by case: other fields of the config, or functions in place of the reference's.
WRONG: dict[str, dict[str, dict[str, Any]]] = {
    "gemma4": {
        "values without norm": {"value_norm": False},
        "logits without cap": {"logit_cap": 0.0},
        "all pairs rotated": {"rope_divisors": None},
        "one base": {"local_rope_base": 1e6},
        "keys of the layer before the last": {"lenders": (0, 1, 2, 3, 1, 2)},
        "no window": {"windows": (64, 64, 0, 64, 64, 0)},
        "no layer scale": {
            "times": lambda ops, x, by: x if isinstance(by, str) else TIMES(ops, x, by)
        },
        "inputs not scaled": {
            "embed": lambda ops, ids, scale, table="embed": EMBED(
                ops, ids, scale if table == "embed" else 1.0, table
            )
        },
        "inputs of the first layer for all": {
            "split": lambda _, x, sizes: [x[:, : sizes[0]]] * len(sizes)
        },
        "gate without activation": {"gelu": lambda _, x: x},
        "norms as Gemma 3's": {
            "norm": lambda ops, x, name, **more: (
                NORM(ops, 1.5 * x, name, **more)
                if name == "norm"
                else NORM(ops, x, name.replace("post_ffn", "post_attention"), **more)
            )
        },
    },
    "gemma4-keys": {"values are normed keys": {"attend": _keys_normed_as_values}},
    "gemma4-moe": {
        "no scale of experts": {
            "weight": lambda ops, name: np.ones_like(WEIGHT(ops, name)),
        },
        "router reads what experts read": {"norm": _norm_of("router_scale", "experts_norm")},
        "experts before the dense norm": {"norm": _norm_of("dense_norm", "post_experts_norm")},
        "experts without norm": {"norm": _norm_of("experts_norm", "ffn_norm")},
        "router not scaled": {
            "times": lambda ops, x, by: TIMES(ops, x, by) if isinstance(by, str) else x
        },
    },
}


def _difference(model: Any, source: DirectorySource, **fields: Any) -> float:
    with torch.inference_mode():
        expected = model(torch.tensor([TOKENS])).logits[0, 5:].numpy()
    config = replace(source.config, **fields)
    reference = ReferenceTarget(config, source.weights(), "fp32")
    [read] = reference.forward([Rows.draft(reference.open(), TOKENS[:6], chain(TOKENS[6:]))])
    return float(np.abs(read.logits - expected).max() / np.abs(expected).max())


@pytest.mark.parametrize("case", WRONG)
def test_wrong_wirings_are_seen(case: str, tmp_path: Path) -> None:
    model = original(case, tmp_path)
    source = DirectorySource(tmp_path)
    assert _difference(model, source) < 1e-5
    known = set(ModelConfig.__dataclass_fields__)
    for wrong, changes in WRONG[case].items():
        fields = {name: value for name, value in changes.items() if name in known}
        with pytest.MonkeyPatch.context() as patch:
            for name in changes.keys() - known:
                patch.setattr(ReferenceOps, name, changes[name])
            assert _difference(model, source, **fields) > 1e-3, wrong


def test_configs_of_all_ages_are_read(tmp_path: Path) -> None:
    """With what differs by layer, with flat entries, and inside that of a model with pictures."""
    original("gemma4-keys", tmp_path)
    path = tmp_path / "config.json"
    inner = json.loads(path.read_text())
    expected = DirectorySource(tmp_path).config
    assert (expected.full_head_dim, expected.full_kv_heads, expected.head_dim) == (64, 1, 32)
    flat = {key: value for key, value in inner.items() if key != "per_layer_config"}
    flat |= {"global_head_dim": 64, "num_global_key_value_heads": 1}
    flat |= {"use_bidirectional_attention": "vision"}
    wrapper = {"model_type": "gemma4", "text_config": flat, "tie_word_embeddings": True}
    for config in (flat, wrapper, {**wrapper, "model_type": "gemma4_unified"}):
        assert replace(hf_config(config), eos_token_ids=expected.eos_token_ids) == expected
    tensors = load_file(tmp_path / "model.safetensors")
    tensors = {name.replace("model.", "model.language_model.", 1): x for name, x in tensors.items()}
    tensors["model.vision_tower.patch_embedder.input_proj.weight"] = torch.zeros(4, 4)
    before = DirectorySource(tmp_path).weights()
    save_file(tensors, tmp_path / "wrapped.safetensors")
    other = tmp_path / "wrapped"
    other.mkdir()
    (tmp_path / "wrapped.safetensors").rename(other / "model.safetensors")
    (other / "config.json").write_text(json.dumps(wrapper))
    after = DirectorySource(other).weights()
    for name in ("embed", "layers.2.scale", "layers.0.q"):
        assert np.array_equal(before[name], after[name])


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"use_bidirectional_attention": "all"}, "later tokens"),
        ({"per_layer_config": {"0": {"head_dim": 16}}}, "two shapes"),
        ({"per_layer_config": {"2": {"head_dim": 64}}}, "one shape"),
        ({"rope_parameters": {"full_attention": {"rope_type": "yarn"}}}, "no yarn rotary"),
        (
            {"vocab_size_per_layer_input": 90, "hidden_size_per_layer_input": 8},
            "those of 90 tokens",
        ),
        ({"attention_bias": True}, "bias on the attention output"),
        ({"num_experts": None, "enable_moe_block": True}, "complete gemma4_text"),
    ],
)
def test_what_does_not_run_is_refused(entry: dict[str, Any], message: str) -> None:
    whole = {
        "model_type": "gemma4_text",
        "vocab_size": 96,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-6,
        **GEMMA4,
    }
    assert hf_config(whole).kv_shapes == ((2, 32), (2, 32), (2, 64)) * 2
    with pytest.raises(ModelError, match=message):
        hf_config({**whole, **entry})


@pytest.fixture(scope="module", params=["cpu", "torch"])
def target(request: pytest.FixtureRequest) -> Target:
    """Lent keys, two shapes of heads, inputs of layers, experts and a cap in one tiny model."""
    tiny = TINY["gemma4_text"]
    weights = RandomWeights(tiny.config, ("F32",))
    if request.param == "cpu":
        return CpuTarget(tiny.config, weights, "fp32", kv_tokens=2048)
    return TorchTarget(tiny.config, weights)


def test_it_keeps_the_contract_of_targets(target: Target) -> None:
    tolerance = 0.0 if target.capabilities.bit_exact else 1e-4
    contract.check_nodes_equal_their_paths(target, tolerance, contract.DRAFT)
    contract.check_features(target, tolerance)
    contract.check_forward_alone_changes_nothing(target, tolerance)
    for path in ((), (0,), contract.ACROSS):
        contract.check_keep(target, path, tolerance)
    contract.check_truncate(target, tolerance)
    contract.check_fork(target, tolerance)
    contract.check_ragged_batches(target, tolerance)
    contract.check_most_probable(target)


def test_layers_run_behind_those_that_lend_to_them(target: Target) -> None:
    cache = contract.cache_with(target, contract.PROMPT)
    with pytest.raises(InvalidOption, match="layer 2 of this model reads keys and values of layer"):
        target.forward([Rows.draft(cache, [3])], [1, 2, 3])
    [whole] = target.forward([Rows.draft(cache, [3])], [0, 1, 2, 3])
    [first] = target.forward([Rows.draft(cache, [3])], [0, 1])
    [rest] = target.forward([Rows.draft(cache, [3], inputs=first.state)], [2, 3])
    contract.close(rest.logits, whole.logits, 0.0 if target.capabilities.bit_exact else 1e-5)


def test_rows_of_other_embeddings_are_refused(target: Target) -> None:
    assert not target.capabilities.embeddings
    if hasattr(target, "add_embeddings"):
        with pytest.raises(InvalidOption, match="read tokens too"):
            target.add_embeddings(np.ones((1, 256), np.float32))


def test_a_cache_has_the_shapes_of_its_layers() -> None:
    """Lent layers store nothing, and each layer what it needs."""
    tiny = TINY["gemma4_text"]
    assert tiny.config.kv_shapes == ((2, 32), (1, 64))
    target = CpuTarget(tiny.config, RandomWeights(tiny.config, ("F32",)), kv_tokens=64)
    assert target.capabilities.kv_bytes_per_token == 2 * 2 * (2 * 32 + 1 * 64)
    assert CASES["gemma4"][0] == tiny.family
