"""Fingerprints: SHA-256 of logits over fixed tokens, equal on every processor.

Built-in tiny models of every family and weight format; their weights come from SHAKE-256, so that
they are the same everywhere.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.core.target import Listens, Rows, Target
from paceline.core.types import ROOT, LogitArray, TokenTree
from paceline.models.config import Encoder, ModelConfig
from paceline.models.families import FAMILIES, LISTENERS, hf_config
from paceline.models.ops import StateHeads
from paceline.models.weights import Stored
from paceline.native.blocks import GROUP, KINDS, TYPES
from paceline.runtimes.cpu.target import CpuTarget

_CONFIG: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 256,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 4096,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_LONG = {
    "rope_type": "longrope",
    "short_factor": [1.0] * 24,
    "long_factor": [1 + index / 8 for index in range(24)],
    "original_max_position_embeddings": 64,
    "partial_rotary_factor": 0.75,
}
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}

# What a family adds to Llama, by its name in Hugging Face configs.
_ADDED: dict[str, dict[str, Any]] = {
    "llama": {"rope_scaling": _LLAMA3, "rope_theta": 500_000.0},
    "mistral": {"sliding_window": 7, "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
    "qwen2": {"rope_scaling": _YARN, "rope_theta": 1e6, "tie_word_embeddings": True},
    "qwen3": {"head_dim": 32},
    "gemma3_text": {"head_dim": 32, "sliding_window": 6, "sliding_window_pattern": 2},
    "phi3": {"rope_scaling": _LONG, "partial_rotary_factor": 0.75},
    "smollm3": {"no_rope_layer_interval": 2},
    "granite": {
        "embedding_multiplier": 6.0,
        "residual_multiplier": 0.4,
        "attention_multiplier": 0.1,
        "logits_scaling": 3.0,
    },
    "qwen3_5_text": {
        "layer_types": ["linear_attention", "full_attention"],
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 32,
        "linear_conv_kernel_dim": 4,
    },
    "ministral3": {
        "rope_parameters": {
            **_YARN,
            "rope_theta": 1e6,
            "llama_4_scaling_beta": 0.1,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
        }
    },
    "olmo2": {"rope_theta": 500_000.0, "num_key_value_heads": 4},
    "olmo3": {
        "sliding_window": 7,
        "layer_types": ["sliding_attention", "full_attention"],
        "rope_scaling": _YARN,
        "rope_theta": 500_000.0,
    },
    "lfm2": {
        "layer_types": ["conv", "full_attention"],
        "conv_L_cache": 3,
        "norm_eps": 1e-5,
        "block_auto_adjust_ff_dim": False,
    },
    "granitemoehybrid": {
        "layer_types": ["attention", "attention"],
        "position_embedding_type": "nope",
        "shared_intermediate_size": 256,
        "residual_multiplier": 0.4,
        "attention_multiplier": 0.1,
    },
    "qwen3_moe": {
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
    },
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "llama_blockffn": {"num_experts": 6},
    "gpt_oss": {
        "sliding_window": 7,
        "num_local_experts": 6,
        "num_experts_per_tok": 2,
        "rope_scaling": {**_YARN, "truncate": False},
    },
    "gemma4_text": {
        "num_hidden_layers": 4,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "sliding_window": 6,
        "head_dim": 32,
        "global_head_dim": 64,
        "num_global_key_value_heads": 1,
        "attention_k_eq_v": True,
        "num_kv_shared_layers": 2,
        "hidden_size_per_layer_input": 64,
        "enable_moe_block": True,
        "num_experts": 6,
        "top_k_experts": 2,
        "final_logit_softcapping": 30.0,
    },
}
_ADDED["qwen3_5_moe_text"] = _ADDED["qwen3_5_text"] | {
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 256,
}
_ADDED["lfm2_moe"] = _ADDED["lfm2"] | {
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "num_dense_layers": 1,
}
_ADDED["nemotron_h"] = {
    "hybrid_override_pattern": "M-*M",
    "n_groups": 2,
    "mamba_num_heads": 8,
    "mamba_head_dim": 32,
    "ssm_state_size": 16,
    "conv_kernel": 4,
    "layer_norm_epsilon": 1e-5,
}
_ADDED["nemotron_h_moe"] = _ADDED["nemotron_h"] | {
    "hybrid_override_pattern": "ME*-E",
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "routed_scaling_factor": 2.5,
}
_ADDED["falcon_h1"] = {
    **{"mamba_d_ssm": 256, "mamba_n_heads": 8, "mamba_d_head": 32, "mamba_d_state": 16},
    **{"mamba_n_groups": 2, "mamba_d_conv": 4, "key_multiplier": 0.6, "ssm_out_multiplier": 0.7},
    "ssm_multipliers": [0.5, 0.8, 1.25, 0.6, 1.75],
    "mlp_multipliers": [0.75, 1.5],
}
_ADDED["deepseek_v3"] = {
    "num_key_value_heads": 4,
    "q_lora_rank": 256,
    "kv_lora_rank": 256,
    "qk_rope_head_dim": 32,
    "qk_nope_head_dim": 256,
    "v_head_dim": 64,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "n_group": 4,
    "topk_group": 2,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "first_k_dense_replace": 1,
}
_ADDED["glm4_moe_lite"] = _ADDED["deepseek_v3"] | {
    "q_lora_rank": None,
    "n_group": 1,
    "topk_group": 1,
}
_ADDED["whisper"] = {
    **{"d_model": 256, "encoder_layers": 2, "decoder_layers": 2, "num_key_value_heads": 4},
    **{f"{side}_attention_heads": 4 for side in ("encoder", "decoder")},
    **{f"{side}_ffn_dim": 256 for side in ("encoder", "decoder")},
    **{"max_source_positions": 75, "max_target_positions": 4096, "num_mel_bins": 80},
}
_BIASED = ("qwen2",)
_SCANS = ("nemotron_h", "nemotron_h_moe", "falcon_h1")

# Half-precision numbers in a block: place, and bits but for ten of mantissa.
_HALVES: dict[str, dict[int, int]] = {
    "Q4_0": {0: 0x2400},
    "Q4_1": {0: 0x2400, 2: 0xB000},
    "Q5_0": {0: 0x2000},
    "Q5_1": {0: 0x2000, 2: 0xB000},
    "Q8_0": {0: 0x1400},
    "Q4_K": {0: 0x1000, 2: 0x1C00},
    "Q5_K": {0: 0x0C00, 2: 0x1C00},
    "Q6_K": {208: 0x0400},
    "Q2_K": {80: 0x1C00, 82: 0x2000},
    "Q3_K": {108: 0x1800},
    "IQ4_NL": {0: 0x1400},
    "IQ4_XS": {0: 0x0400},
    "MXFP4": {},
    "I8_K": {},
}
# Formats that matrices of a family have by turns; a Whisper's may be of any multiple of `GROUP`.
_TURNS = KINDS[:11]
_NARROW = tuple(each for each in _TURNS if TYPES[each][1] <= GROUP)


class RandomWeights:
    """`models.weights.Weights` of a shape, from the names of the tensors alone."""

    def __init__(self, config: ModelConfig, kinds: tuple[str, ...]) -> None:
        """`kinds` are the formats of the matrices, by turns."""
        width, ffn, self._kinds = config.hidden_size, config.ffn_size, kinds
        read = config.layer_inputs
        self._shapes: dict[str, tuple[int, ...]] = {
            "embed": (config.vocab_size, width),
            "norm": (width,),
        }
        if not config.tied_embeddings:
            self._shapes["head"] = (config.vocab_size, width)
        if read:
            self._shapes["token_inputs"] = config.vocab_size, read * config.layers
            self._shapes["input_projection"] = read * config.layers, width
            self._shapes["input_norm"] = (read,)
        for layer in range(config.layers):
            kv_heads, head = config.kv_shape(layer)
            wide, narrow = config.heads * head, kv_heads * head
            parts: dict[str, tuple[int, ...]] = {
                **{"q": (wide, width), "k": (narrow, width), "v": (narrow, width)},
                **{"o": (width, wide), "gate": (ffn, width), "up": (ffn, width)},
                "down": (width, ffn),
                **dict.fromkeys(("attention_norm", "ffn_norm"), (width,)),
                **dict.fromkeys(("post_attention_norm", "post_ffn_norm"), (width,)),
                **dict.fromkeys(("q_norm", "k_norm"), (head,)),
            }
            if config.family in _BIASED:
                parts |= {f"{part}.bias": parts[part][:1] for part in "qkv"}
            if config.norms_after:
                parts |= {"q_norm": (wide,), "k_norm": (narrow,)}
            if config.short_taps:
                parts |= {"conv_in": (3 * width, width), "conv_o": (width, width)}
                parts |= {"conv_taps": (width, config.short_taps)}
            scans = config.family in _SCANS
            if config.state_heads is not None and scans:
                parts |= _scan_shapes(config.state_heads, width)
            elif config.state_heads is not None:
                parts |= {"q_gate": (wide, width), **_delta_shapes(config.state_heads, width)}
            if read:
                parts |= {"input_gate": (read, width), "input_up": (width, read)}
                parts |= {"input_norm": (width,)}
            experts, count = config.experts, config.experts.count if config.experts else 0
            if config.full_head_dim:
                norms = ("dense_norm", "experts_norm", "post_experts_norm", "router_scale")
                parts |= {"scale": (1,), "expert_scale": (count,)}
                parts |= dict.fromkeys(norms, (width,))
            parts |= {"router": (count, width), "router_norm": (count,)} if count else {}
            parts |= {"shared_by": (1, width)} if experts and experts.shared else {}
            parts |= {"router_offset": (count,)} if experts and experts.sigmoid else {}
            own = scans or config.latents
            for part in ("gate", "up", "down"):
                parts |= {f"shared_{part}": parts[part]} if "shared_by" in parts or own else {}
                parts |= {f"experts.{each}.{part}": parts[part] for each in range(count)}
            if config.latents is not None:
                parts |= config.latents.shapes(config.heads, width)
            if config.sinks:
                biased = (*"qkvo", "router", *(part for part in parts if "experts" in part))
                parts |= {f"{part}.bias": parts[part][:1] for part in biased}
                parts["sinks"] = (config.heads,)
            self._shapes |= {f"layers.{layer}.{part}": shape for part, shape in parts.items()}
        if config.encoder is not None:
            self._shapes = _whisper_shapes(config, config.encoder)

    def __contains__(self, name: object) -> bool:
        return name in self._shapes

    def __getitem__(self, name: str) -> LogitArray:
        numbers = self._numbers(name)
        if name.endswith("_rate"):
            return -1 - numbers
        return numbers if numbers.ndim == 2 or name.endswith(".bias") else 1 + numbers

    def stored(self, name: str) -> Stored:
        rows, columns = self._shapes[name]
        kind = self._kinds[list(self._shapes).index(name) % len(self._kinds)]
        if kind in _HALVES:
            _, inputs, size = TYPES[kind]
            raw = _bytes(name + kind, rows * columns // inputs * size).reshape(-1, size)
            for at, bits in _HALVES[kind].items():
                drawn = raw[:, at : at + 2].copy().view("<u2")
                raw[:, at : at + 2] = (drawn & 0x3FF | bits).view(np.uint8)
            if kind == "MXFP4":
                raw[:, 0] = raw[:, 0] & 3 | 120
            if kind == "I8_K":  # scales and codes as grids have them
                raw[:, 2:4] = raw[:, 2:4] & (0x7F, 0) | (0, 0x39)
                raw[:, 4:20] &= 31
                raw[:, 20:] = (raw[:, 20:] & 127) - 64
        elif kind == "BF16":
            raw = (self._numbers(name).view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
        else:
            raw = self._numbers(name).astype(np.float16 if kind == "F16" else np.float32)
            raw = raw.view(np.uint8)
        return Stored(kind, (rows, columns), raw.reshape(rows, -1))

    def _numbers(self, name: str) -> LogitArray:
        shape = self._shapes[name]
        drawn = _bytes(name, 2 * int(np.prod(shape))).view("<i2").astype(np.float32)
        return drawn.reshape(shape) * np.float32(2.0**-18)


def _whisper_shapes(config: ModelConfig, of: Encoder) -> dict[str, tuple[int, ...]]:
    width, ffn = config.hidden_size, config.ffn_size
    norms, looks = ("attention_norm", "ffn_norm"), [f"look_{part}" for part in "qkvo"]
    shapes: dict[str, tuple[int, ...]] = {
        "embed": (config.vocab_size, width),
        "positions": (config.max_context, width),
        "norm": (width,),
        "encoder.conv1": (width, 3 * (of.mels + -of.mels % GROUP)),
        "encoder.conv2": (width, 3 * width),
        "encoder.positions": (of.rows, width),
        "encoder.norm": (width,),
    }
    parts: dict[str, tuple[int, ...]] = dict.fromkeys("qkvo", (width, width))
    parts |= {"up": (ffn, width), "down": (width, ffn), **dict.fromkeys(norms, (width,))}
    look: dict[str, tuple[int, ...]] = dict.fromkeys(looks, (width, width))
    look["look_norm"] = (width,)
    for layer in range(of.layers):
        shapes |= {f"encoder.layers.{layer}.{part}": shape for part, shape in parts.items()}
    for layer in range(config.layers):
        shapes |= {f"layers.{layer}.{part}": shape for part, shape in (parts | look).items()}
    without = ("embed", "positions", "k", "look_k")
    biased = {f"{name}.bias": shape[:1] for name, shape in shapes.items()}
    return shapes | {
        name: shape for name, shape in biased.items() if name.split(".")[-2] not in without
    }


def _delta_shapes(of: StateHeads, width: int) -> dict[str, tuple[int, ...]]:
    heads, convolved = of.value_heads, 2 * of.keys + of.values
    return {
        "delta_qkv": (convolved, width),
        "delta_z": (of.values, width),
        "delta_b": (heads, width),
        "delta_a": (heads, width),
        "delta_o": (width, of.values),
        "delta_conv": (convolved, of.taps),
        "delta_norm": (of.value_width,),
        "delta_rate": (heads,),
        "delta_dt": (heads,),
    }


def _scan_shapes(of: StateHeads, width: int) -> dict[str, tuple[int, ...]]:
    convolved = 2 * of.keys + of.values
    return {
        "ssm_z": (of.values, width),
        "ssm_x": (convolved, width),
        "ssm_steps": (of.value_heads, width),
        "ssm_conv": (convolved, of.taps),
        "ssm_conv.bias": (convolved,),
        "ssm_norm": (of.values,),
        "ssm_o": (width, of.values),
        **dict.fromkeys(("ssm_rate", "ssm_dt", "ssm_skip"), (of.value_heads,)),
    }


def _bytes(name: str, count: int) -> npt.NDArray[np.uint8]:
    return np.frombuffer(bytearray(hashlib.shake_256(name.encode()).digest(count)), dtype=np.uint8)


@dataclass(frozen=True, slots=True)
class TinyModel:
    """A tiny model: its family, the formats of its matrices by turns, and the precision."""

    family: str
    kinds: tuple[str, ...]
    precision: str = "file"

    @property
    def config(self) -> ModelConfig:
        return hf_config({**_CONFIG, "model_type": self.family, **_ADDED[self.family]})

    def target(self, threads: int | None = None) -> CpuTarget:
        config, weights = self.config, RandomWeights(self.config, self.kinds)
        return CpuTarget(config, weights, self.precision, kv_tokens=1024, threads=threads)


CASES: dict[str, TinyModel] = {
    **{family.hf: TinyModel(family.hf, _TURNS) for family in FAMILIES},
    **{f"llama {kind}": TinyModel("llama", (kind,)) for kind in KINDS},
    "qwen3_moe MXFP4": TinyModel("qwen3_moe", ("MXFP4",)),
    **{f"llama {each}": TinyModel("llama", ("F32",), each) for each in ("int8", "int4", "fp32")},
    **{family.hf: TinyModel(family.hf, _NARROW) for family in LISTENERS},
}


def fingerprint(target: Target) -> str:
    """Return the SHA-256 of a model's logits: after a long prompt, in trees, in a ragged batch."""
    found = hashlib.sha256()
    size = target.capabilities.vocab_size
    ids = (_bytes("tokens", 4 * 300).view("<u4").astype(np.int64) % size).tolist()
    tree = TokenTree(np.array(ids[:7]), np.array([ROOT, 0, 0, 1, ROOT, 4, 3]))
    chain = TokenTree(np.array(ids[:3]), np.array([ROOT, 0, 1]))
    (long, short, empty), memories = _opened(target)
    target.prefill(long, ids[:200])
    target.prefill(short, ids[200:220])
    rows = [
        Rows.draft(long, ids[220:221], tree),
        Rows.draft(short, ids[221:223], chain),
        Rows.draft(empty, ids[223:260]),
    ]
    _add(found, target, rows)
    target.keep(long, 1, [0, 1])
    target.keep(short, 2, [0])
    target.keep(empty, 37, [])
    _add(found, target, [Rows.draft(long, ids[260:261]), Rows.draft(empty, ids[261:262], tree)])
    for cache in (long, short, empty, *memories):
        target.release(cache)
    return found.hexdigest()


def _opened(target: Target) -> tuple[list[Any], list[Any]]:
    # Three caches, and the memories of a long and a short sound if a model hears those.
    if not isinstance(target, Listens) or not target.mels:
        return [target.open() for _ in range(3)], []
    drawn = _bytes("frames", 2 * 100 * target.mels).view("<i2").astype(np.float32)
    frames = drawn.reshape(100, target.mels) * np.float32(2.0**-14)
    memories = [target.encode(frames), target.encode(frames[:34])]
    return [target.open_to(memories[each]) for each in (0, 1, 0)], memories


def _add(found: Any, target: Target, rows: list[Rows]) -> None:
    for output in target.forward(rows):
        found.update(np.ascontiguousarray(output.logits, dtype="<f4").tobytes())


def fingerprints() -> dict[str, str]:
    """Return the fingerprint of every case."""
    return {name: fingerprint(case.target()) for name, case in CASES.items()}


def summary(found: dict[str, str]) -> str:
    """Return the SHA-256 of fingerprints, one line each."""
    lines = (f"{name} {found[name]}\n" for name in sorted(found))
    return hashlib.sha256("".join(lines).encode()).hexdigest()
