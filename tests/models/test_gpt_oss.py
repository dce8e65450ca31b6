"""gpt-oss: wrong wirings are seen, experts of four bits are those of transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.models.test_families import COMMON, TOKENS, original
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from paceline.core.target import Rows
from paceline.core.tree import chain
from paceline.errors import ModelError
from paceline.models import quantised
from paceline.models.config import ModelConfig, rotary
from paceline.models.families import gguf_config, hf_config
from paceline.models.source import DirectorySource
from paceline.runtimes.cpu.target import CpuTarget
from paceline.runtimes.reference import arithmetic
from paceline.runtimes.reference import ops as reference_ops
from paceline.runtimes.reference.target import ReferenceTarget
from paceline.runtimes.torch import target as torch_runtime
from paceline.runtimes.torch.target import TorchTarget

BITS = {"hidden_size": 64, "intermediate_size": 96}


def logits_of(target: Any) -> Any:
    """Of all tokens but the first five, as a draft behind them."""
    cache = target.open()
    target.prefill(cache, TOKENS[:5])
    [found] = target.forward([Rows.draft(cache, TOKENS[5:6], chain(TOKENS[6:]))])
    return found.logits.copy()


def expected_of(model: Any) -> Any:
    with torch.inference_mode():
        return model(torch.tensor([TOKENS])).logits[0, 5:].numpy()


def difference(found: Any, expected: Any) -> float:
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def by_turns(gate: Any, up: Any, activation: str) -> Any:
    """Gate and up as halves of one matrix whose rows go by turns."""
    both = np.stack([gate, up], axis=-1).reshape(len(gate), 2 * gate.shape[1])
    return GATED(*np.split(both, 2, axis=-1), activation)


def unclamped(gate: Any, up: Any, activation: str) -> Any:
    return gate * arithmetic.sigmoid(np.float32(1.702) * gate) * (up + 1)


def plain_up(gate: Any, up: Any, activation: str) -> Any:
    gate, up = np.minimum(gate, 7), np.clip(up, -7, 7)
    return gate * arithmetic.sigmoid(np.float32(1.702) * gate) * up


def no_sinks(*parts: Any) -> Any:
    return ATTENTION(*parts[:4])


def sinks_as_keys_of_others(*parts: Any) -> Any:
    """Those of the heads beside."""
    return ATTENTION(*parts[:4], np.roll(parts[4], 1))


def unbiased(of: str) -> Any:
    def bias(formats: Any, name: str) -> Any:
        return None if of in name else BIAS(formats, name)

    return bias


GATED, ATTENTION = reference_ops.gated, reference_ops.attention
BIAS = reference_ops.Formats.bias
WRONG: dict[str, tuple[Any, str, Any]] = {
    "": (reference_ops, "gated", GATED),
    "gate and up not by turns": (reference_ops, "gated", by_turns),
    "clamp left out": (reference_ops, "gated", unclamped),
    "one not added": (reference_ops, "gated", plain_up),
    "no sinks": (reference_ops, "attention", no_sinks),
    "sinks of other heads": (reference_ops, "attention", sinks_as_keys_of_others),
    **{
        f"no bias of {of}": (reference_ops.Formats, "bias", unbiased(of))
        for of in (".q", ".k", ".v", ".o", ".router", ".gate", ".up", ".down")
    },
}


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_wirings_are_seen(
    wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = expected_of(original("gpt-oss", tmp_path))
    source = DirectorySource(tmp_path)
    monkeypatch.setattr(*WRONG[wrong])
    found = logits_of(ReferenceTarget(source.config, source.weights(), "fp32"))
    if not wrong:
        assert difference(found, expected) < 1e-5
    elif wrong == "no bias of .k":  # shifts all scores of a query alike but for the rotation
        assert difference(found, expected) > 1e-3
    else:
        assert difference(found, expected) > 1e-2


def test_a_long_prefix_has_its_sinks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch reads it apart from a draft; without sinks there another text comes out."""
    expected = expected_of(original("gpt-oss", tmp_path, sliding_window=64))
    source = DirectorySource(tmp_path)
    target = TorchTarget(source.config, source.weights())
    monkeypatch.setattr(torch_runtime, "LONG", 3)
    assert difference(logits_of(target), expected) < 1e-5
    attend = torch_runtime.attend
    monkeypatch.setattr(
        torch_runtime, "attend", lambda *parts, past, sinks: attend(*parts, past=past)
    )
    assert difference(logits_of(target), expected) > 1e-2


def packed(path: Path, model: Any) -> dict[str, torch.Tensor]:
    """Save a model with random experts of four bits, as those that are published."""
    tensors = load_file(path / "model.safetensors")
    generator = torch.Generator().manual_seed(3)
    state = model.state_dict()
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        count, inputs, outputs = tensors.pop(name).shape
        shape = count, outputs, inputs // 32
        blocks = torch.randint(256, (*shape, 16), generator=generator, dtype=torch.uint8)
        scales = torch.randint(121, 125, shape, generator=generator, dtype=torch.uint8)
        tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        state[name].copy_(convert_moe_packed_tensors(blocks, scales, dtype=torch.float32))
    save_file(tensors, path / "model.safetensors")
    config = json.loads((path / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": []}
    (path / "config.json").write_text(json.dumps(config))
    return tensors


def test_experts_of_four_bits_are_those_of_transformers(tmp_path: Path) -> None:
    model = original("gpt-oss", tmp_path, num_hidden_layers=2)
    packed(tmp_path, model)
    expected = expected_of(model)
    source = DirectorySource(tmp_path)
    config, weights = source.config, source.weights()
    for target in (
        ReferenceTarget(config, weights, "fp32"),
        CpuTarget(config, weights, "fp32", kv_tokens=128, kv_precision="fp32"),
        TorchTarget(config, weights),
    ):
        assert difference(logits_of(target), expected) < 1e-5
    name = "layers.1.experts.4.up"
    stored = weights.stored(name)
    assert (stored.kind, stored.shape) == ("MXFP4", (96, 64))
    theirs = model.model.layers[1].mlp.experts.gate_up_proj[4, :, 1::2].T.detach().numpy()
    assert np.array_equal(weights[name], theirs)


@pytest.mark.parametrize("precision", ["file", "int8", "int4"])
def test_they_run_as_stored(precision: str, tmp_path: Path) -> None:
    packed(tmp_path, original("gpt-oss", tmp_path, num_hidden_layers=2))
    source = DirectorySource(tmp_path)
    target = CpuTarget(source.config, source.weights(), precision, kv_tokens=128)
    reference = ReferenceTarget(source.config, source.weights(), precision)
    assert reference._formats.blocks("layers.0.experts.1.down")[0] == "MXFP4"
    assert np.array_equal(logits_of(target), logits_of(reference))


def test_another_order_of_four_bits_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: the blocks as they lie there are others."""
    model = original("gpt-oss", tmp_path, num_hidden_layers=2)
    packed(tmp_path, model)
    source = DirectorySource(tmp_path)

    def as_they_lie(nibbles: Any) -> Any:
        return nibbles.reshape(len(nibbles), -1, 16)

    monkeypatch.setattr(quantised, "_in_halves", as_they_lie)
    found = logits_of(ReferenceTarget(source.config, source.weights(), "fp32"))
    assert difference(found, expected_of(model)) > 1e-2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda found: found.pop("model.layers.1.self_attn.sinks"), "sinks"),
        (lambda found: found.pop("model.layers.1.mlp.experts.down_proj_scales"), "down"),
        (lambda found: found.pop("model.layers.1.mlp.experts.down_proj_blocks"), "down"),
        (
            lambda found: found.update(
                {"model.layers.1.mlp.experts.down_proj_scales": torch.zeros(6, 64, 2).byte()}
            ),
            "do not fit",
        ),
    ],
)
def test_what_is_missing_or_odd_is_named(change: Any, message: str, tmp_path: Path) -> None:
    tensors = packed(tmp_path, original("gpt-oss", tmp_path, num_hidden_layers=2))
    change(tensors)
    save_file(tensors, tmp_path / "model.safetensors")
    source = DirectorySource(tmp_path)
    for runtime in (CpuTarget, TorchTarget):
        with pytest.raises(ModelError, match=message):
            runtime(source.config, source.weights())


ENTRIES = {
    "model_type": "gpt_oss",
    "rms_norm_eps": 1e-5,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "sliding_window": 128,
    **{key: value for key, value in COMMON.items() if isinstance(value, int)},
}


def test_what_a_config_does_not_say() -> None:
    """As `GptOssConfig` has it, and as the published config says it."""
    found = hf_config(ENTRIES)
    assert found.windows == (128, 0, 128, 0)
    assert found.rope_base == 150_000
    said = {
        "rope_theta": 150000,
        "rope_scaling": {
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "factor": 32.0,
            "original_max_position_embeddings": 4096,
            "rope_type": "yarn",
            "truncate": False,
        },
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "attention_bias": True,
        "swiglu_limit": 7.0,
        "quantization_config": {"quant_method": "mxfp4"},
        "experts_per_token": 4,
        "initial_context_length": 4096,
    }
    assert hf_config({**ENTRIES, **said}) == found


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"swiglu_limit": 5.0}, "swiglu_limit 7.0 alone, not 5.0"),
        ({"swiglu_alpha": 1.0}, "swiglu_alpha 1.702 alone, not 1.0"),
        ({"num_experts_per_tok": 5}, "cannot use 5 of 4 experts"),
        ({"mlp_bias": True}, "feed-forward"),
    ],
)
def test_what_is_not_there_is_refused(entry: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        hf_config({**ENTRIES, **entry})


def from_gguf(**more: Any) -> ModelConfig:
    """Metadata as llama.cpp's converter writes it for the 20B model."""
    said = {
        "block_count": 24,
        "context_length": 131072,
        "embedding_length": 2880,
        "feed_forward_length": 2880,
        "attention.head_count": 64,
        "attention.head_count_kv": 8,
        "attention.key_length": 64,
        "attention.value_length": 64,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "attention.sliding_window": 128,
        "expert_count": 32,
        "expert_used_count": 4,
        "expert_feed_forward_length": 2880,
        "rope.dimension_count": 64,
        "rope.freq_base": 150000.0,
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 32.0,
        "rope.scaling.original_context_length": 4096,
        **more,
    }
    metadata = {f"gpt-oss.{name}": value for name, value in said.items()}
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (201088, 2880),
        "output.weight": (201088, 2880),
        "blk.0.attn_q.bias": (4096,),
        "blk.0.attn_output.bias": (2880,),
    }
    return gguf_config({"general.architecture": "gpt-oss", **metadata}, shapes, {})


def test_a_gguf_file_is_the_published_model() -> None:
    theirs = {
        **ENTRIES,
        "vocab_size": 201088,
        "hidden_size": 2880,
        "intermediate_size": 2880,
        "num_hidden_layers": 24,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "num_local_experts": 32,
        "num_experts_per_tok": 4,
        "max_position_embeddings": 131072,
    }
    mine = from_gguf()
    assert mine == hf_config(theirs)
    turned = rotary(mine, 0)
    assert turned is not None
    assert turned.factor == pytest.approx(1.3465736)
    # Blending begins at 8.1 and ends at 17.4, not at 8 and 18.
    assert 1 < mine.rope_divisors[9] < mine.rope_divisors[17] < 32  # type: ignore[index]
    assert mine.rope_divisors[18] == 32  # type: ignore[index]


def test_what_a_gguf_file_says_beside_is_refused() -> None:
    for more in ({"expert_weights_scale": 2.5}, {"rope.scaling.yarn_beta_fast": 16.0}):
        with pytest.raises(ModelError, match=r"gpt-oss\."):
            from_gguf(**more)
