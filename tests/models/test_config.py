"""Shapes from Hugging Face configs, rotary frequencies, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.helpers.tiny_model import FAMILIES, tiny_config
from tests.helpers.tiny_model import hf_config as config_json

from paceline.errors import ModelError
from paceline.models.config import ModelConfig, hf_eos_token_ids, inverse_frequencies
from paceline.models.families import hf_config

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def read(**changes: Any) -> ModelConfig:
    return hf_config({**config_json(tiny_config()), **changes}, (2,))


@pytest.mark.parametrize("family", FAMILIES)
def test_hugging_face_config_is_read_back(family: Any) -> None:
    config = tiny_config(family)
    assert hf_config(config_json(config), (2,)) == config


def test_new_style_rope_parameters_are_read() -> None:
    old = read(rope_theta=5e5, rope_scaling=LLAMA3)
    new = read(rope_theta=None, rope_parameters={**LLAMA3, "rope_theta": 5e5})
    assert old == new


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
LONG = {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [1.5, 2, 3, 4] * 2}
LONG["original_max_position_embeddings"] = 64


@pytest.mark.parametrize(
    "scaling",
    [
        LLAMA3,
        {"type": "linear", "factor": 4.0},
        None,
        {"rope_type": "dynamic", "factor": 4.0},
        YARN,
        {**YARN, "beta_fast": 16, "beta_slow": 2},
        {**YARN, "truncate": False},
        {**YARN, "attention_factor": 1.7},
        {**YARN, "mscale": 0.7, "mscale_all_dim": 1.2},
        {**YARN, "mscale": 0.7},
        {**YARN, "factor": 0.5},
        LONG,
        {**LONG, "factor": 8.0},
        {**LONG, "attention_factor": 1.1},
        {**LONG, "original_max_position_embeddings": 256},
    ],
    ids=str,
)
def test_frequencies_equal_those_of_transformers(scaling: dict[str, Any] | None) -> None:
    """At the model's own context, which is the longest that is taken."""
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    rope = {"rope_theta": 1e4, "rope_type": "default", **(scaling or {})}
    rope["rope_type"] = rope.pop("type", rope["rope_type"])
    theirs = LlamaConfig(
        hidden_size=64,
        num_attention_heads=4,
        head_dim=16,
        max_position_embeddings=256,
        rope_parameters=rope,
    )
    kind = rope["rope_type"]
    if kind == "default":
        frequencies, factor = LlamaRotaryEmbedding(theirs).inv_freq, 1.0
    else:
        frequencies, factor = ROPE_INIT_FUNCTIONS[kind](theirs, "cpu", seq_len=256)
    ours = read(rope_scaling=scaling)
    np.testing.assert_allclose(inverse_frequencies(ours), frequencies.numpy(), rtol=1e-6)
    assert ours.rope_factor == pytest.approx(factor, rel=1e-6)


def test_a_sliding_window_is_that_of_every_layer() -> None:
    mistral = {"model_type": "mistral", "sliding_window": 100}
    assert (read(**mistral).windows, read(**mistral).max_context) == ((100, 100), 256)
    unused = {"model_type": "qwen2", "sliding_window": 100, "use_sliding_window": False}
    assert read(**unused).windows == ()


def test_end_ids_come_from_the_first_config_that_has_any() -> None:
    assert hf_eos_token_ids({}, {"eos_token_id": [3, 4]}) == (3, 4)
    assert hf_eos_token_ids({"eos_token_id": 0}, {"eos_token_id": 1}) == (0,)
    assert hf_eos_token_ids({}, {}) == ()


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"model_type": "mamba"}, "mamba"),
        ({"rope_scaling": {"type": "proportional", "factor": 4.0}}, "proportional"),
        ({"rope_scaling": {"type": "dynamic", "factor": 4.0, "alpha": 8.0}}, "alpha"),
        ({"rope_parameters": {"rope_type": "linear", "factor": 2.0, "speed": 1}}, "speed"),
        ({"layer_types": ["full_attention", "chunked_attention"]}, "chunked_attention"),
        ({"is_causal": False}, "later tokens"),
        ({"use_bidirectional_attention": True}, "later tokens"),
        ({"attention_bias": True}, "bias"),
        ({"mlp_bias": True}, "bias"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"partial_rotary_factor": 0.1}, "over 1 numbers of 16"),
        ({"final_logit_softcapping": 30.0}, "capped"),
        ({"num_key_value_heads": 3}, "heads"),
    ],
)
def test_unsupported_features_point_to_transformers(changes: Any, named: str) -> None:
    with pytest.raises(ModelError, match=rf"{named}.*--runtime transformers"):
        read(**changes)


def test_a_missing_entry_is_named() -> None:
    broken = config_json(tiny_config())
    del broken["num_hidden_layers"]
    with pytest.raises(ModelError, match="num_hidden_layers"):
        hf_config(broken)


def test_per_frequency_divisors_are_applied() -> None:
    plain = tiny_config()
    divisors = (1.0, 1.0, 2.0, 2.0, 4.0, 4.0, 8.0, 8.0)
    divided = replace(plain, rope_divisors=divisors)
    ratio = inverse_frequencies(plain) / inverse_frequencies(divided)
    np.testing.assert_allclose(ratio, divisors)
