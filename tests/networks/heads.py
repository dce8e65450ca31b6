"""Published EAGLE-3 heads with random weights, written in each layout; and what they compute.

`Oracle` is the mathematics of a head in NumPy, sequence by sequence, without anything of paceline.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors.numpy import save_file

from paceline.models.config import ModelConfig

Arrays = dict[str, np.ndarray]
LAYOUTS = ("speculators", "SafeAILab", "SafeAILab.bin", "DeepSpec", "GGUF")


@dataclass(frozen=True)
class Head:
    """Tensors by the names of speculators, and what a config says of them."""

    tensors: Arrays
    layer: dict[str, Any]
    ids: np.ndarray
    target_width: int
    boundaries: tuple[int, ...] | None = None
    flags: dict[str, Any] = field(default_factory=dict)


def random_head(
    target: ModelConfig,
    *,
    width: int = 64,
    layers: int = 1,
    parts: int = 3,
    drafted: int = 100,
    own_embedding: bool = False,
    qk_norm: bool = False,
    biases: bool = False,
    theta: float = 5000.0,
    boundaries: tuple[int, ...] | None = None,
    **flags: Any,
) -> Head:
    """No norm is one, no geometry is the target's: 2 heads of 32 over 1, 96 inner."""
    rng = np.random.default_rng(5)
    heads, kv_heads, size, inner = 2, 1, 32, 96
    wide, narrow, read = heads * size, kv_heads * size, parts * target.hidden_size
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (width, read),
        "norm.weight": (width,),
        "lm_head.weight": (drafted, width),
    }
    if flags.get("norm_before_fc"):
        shapes["input_norm.weight"] = (read,)
    if flags.get("fc_norm"):
        shapes |= {f"fc_norm.{i}.weight": (target.hidden_size,) for i in range(parts)}
    if own_embedding:
        shapes["embed_tokens.weight"] = (target.vocab_size, width)
    for index in range(layers):
        inputs = width if index else 2 * width
        parts_of = {
            "self_attn.q_proj": (wide, inputs),
            "self_attn.k_proj": (narrow, inputs),
            "self_attn.v_proj": (narrow, inputs),
            "self_attn.o_proj": (width, wide),
            "mlp.gate_proj": (inner, width),
            "mlp.up_proj": (inner, width),
            "mlp.down_proj": (width, inner),
        }
        shapes |= {f"layers.{index}.{name}.weight": shape for name, shape in parts_of.items()}
        if biases:
            shapes |= {f"layers.{index}.self_attn.{x}_proj.bias": (wide,) for x in "q"}
            shapes |= {f"layers.{index}.self_attn.{x}_proj.bias": (narrow,) for x in "kv"}
        norms = ["input_layernorm", "post_attention_layernorm"]
        norms += ["hidden_norm"][index:]
        shapes |= {f"layers.{index}.{name}.weight": (width,) for name in norms}
        if qk_norm:
            shapes |= {f"layers.{index}.self_attn.{x}_norm.weight": (size,) for x in "qk"}
    tensors = {}
    for name, shape in shapes.items():
        values = rng.standard_normal(shape)
        values = 0.8 + 0.3 * values if "norm" in name else values / np.sqrt(shape[-1])
        tensors[name] = values.astype(np.float32)
    ids = np.sort(rng.choice(target.vocab_size, drafted, replace=False))
    layer = {
        "model_type": "qwen3" if qk_norm else "llama",
        "vocab_size": target.vocab_size,
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": size,
        "intermediate_size": inner,
        "rope_theta": theta,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 256,
        "hidden_act": "silu",
        "attention_bias": biases,
    }
    return Head(tensors, layer, ids, target.hidden_size, boundaries, flags)


def with_maps(head: Head) -> Arrays:
    known = np.zeros(head.layer["vocab_size"], np.bool_)
    known[head.ids] = True
    return {**head.tensors, "d2t": head.ids - np.arange(len(head.ids)), "t2d": known}


def write(head: Head, layout: str, out: Path) -> Path:
    """Write a head as those who publish it do; return what a user names."""
    if layout == "GGUF":
        return _write_gguf(head, out.with_suffix(".gguf"))
    out.mkdir(parents=True, exist_ok=True)
    tensors = with_maps(head)
    ids = None if head.boundaries is None else list(head.boundaries)
    config: dict[str, Any] = {"draft_vocab_size": len(head.ids), **head.flags}
    config["target_hidden_size"] = head.target_width
    if layout == "speculators":
        config |= {
            "architectures": ["Eagle3Speculator"],
            "speculators_model_type": "eagle3",
            "speculators_config": {"verifier": {"name_or_path": "owner/model"}},
            "transformer_layer_config": head.layer,
            "eagle_aux_hidden_state_layer_ids": ids,
        }
    elif layout == "DeepSpec":  # outputs of layers, and no draft vocabulary
        assert ids is not None
        config |= head.layer
        config |= {"architectures": ["Qwen3Eagle3Model"], "target_layer_ids": [i - 1 for i in ids]}
    else:
        tensors = {name.replace("layers.0.", "midlayer."): each for name, each in tensors.items()}
        config |= {"architectures": ["LlamaForCausalLMEagle3"], **head.layer}
        if ids is not None:
            config["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": ids}
    (out / "config.json").write_text(json.dumps(config))
    if layout.endswith(".bin"):
        torch.save(
            {n: torch.from_numpy(each) for n, each in tensors.items()}, out / "pytorch_model.bin"
        )
    else:
        save_file(tensors, out / "model.safetensors")
    return out


_GGUF = {
    "input_layernorm": "attn_norm",
    "hidden_norm": "attn_norm_2",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
}
_ENDS = {"norm": "output_norm", "lm_head": "output", "embed_tokens": "token_embd"}


def start_gguf(head: Head, out: Path, arch: str) -> gguf.GGUFWriter:
    """Begin a file of a head with the shape of its layers."""
    layer = head.layer
    writer = gguf.GGUFWriter(out, arch)
    writer.add_block_count(layer["num_hidden_layers"])
    writer.add_context_length(layer["max_position_embeddings"])
    writer.add_embedding_length(layer["hidden_size"])
    writer.add_feed_forward_length(layer["intermediate_size"])
    writer.add_head_count(layer["num_attention_heads"])
    writer.add_head_count_kv(layer["num_key_value_heads"])
    writer.add_key_length(layer["head_dim"])
    writer.add_value_length(layer["head_dim"])
    writer.add_layer_norm_rms_eps(layer["rms_norm_eps"])
    writer.add_rope_freq_base(layer["rope_theta"])
    writer.add_vocab_size(layer["vocab_size"])
    return writer


def finish_gguf(writer: gguf.GGUFWriter, out: Path) -> Path:
    """Write what a writer holds."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


def gguf_name(body: str, ends: Mapping[str, str] = _ENDS) -> str:
    """The name of a tensor of the layouts with safetensors, without its kind."""
    _, layer, part = body.split(".", 2) if body.startswith("layers.") else ("", "", body)
    return f"blk.{layer}.{_GGUF[part]}" if layer else ends.get(body, body)


def _write_gguf(head: Head, out: Path) -> Path:
    layer, writer = head.layer, start_gguf(head, out, "eagle3")
    if head.boundaries is not None:
        writer.add_array("eagle3.extract_layers", list(head.boundaries))
    writer.add_uint32("eagle3.target_hidden_size", head.target_width)
    writer.add_bool("eagle3.norm_before_residual", bool(head.flags.get("norm_before_residual")))
    for name, each in head.tensors.items():
        body, _, kind = name.rpartition(".")
        theirs = gguf_name(body)
        if body.endswith(("self_attn.q_proj", "self_attn.k_proj")):  # the halves of a head in turns
            halves = each.reshape(-1, 2, layer["head_dim"] // 2, *each.shape[1:])
            each = np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(each.shape)
        writer.add_tensor(f"{theirs}.{kind}", each)
    writer.add_tensor("d2t", head.ids.astype(np.int64))  # ids themselves, as llama.cpp writes
    return finish_gguf(writer, out)


class Oracle:
    """Logits of a chain after the last context row, `[steps, drafted]`, in float64."""

    def __init__(self, head: Head, embedding: np.ndarray, **flags: bool) -> None:
        """Read the tensors; `flags` take the place of those of the head: wrong wirings."""
        self.head, self.flags = replace(head, flags={**head.flags, **flags}), {}
        self.weights = {name: each.astype(np.float64) for name, each in head.tensors.items()}
        own = self.weights.get("embed_tokens.weight")
        self.embedding = embedding.astype(np.float64) if own is None else own
        self.keys: list[list[np.ndarray]] = [[] for _ in range(head.layer["num_hidden_layers"])]
        self.values: list[list[np.ndarray]] = [[] for _ in self.keys]

    def draft(self, features: np.ndarray, tokens: list[int], drafted: list[int]) -> np.ndarray:
        flags, weights = self.head.flags, self.weights
        f = features.astype(np.float64)
        if flags.get("norm_before_fc"):
            f = self.norm(f, "input_norm")
        if flags.get("fc_norm"):
            each = np.split(f, f.shape[1] // self.head.target_width, axis=1)
            f = np.concatenate([self.norm(x, f"fc_norm.{i}") for i, x in enumerate(each)], axis=1)
        fused = f @ weights["fc.weight"].T
        out, state = [], fused[0]
        for place, token in enumerate([*tokens, *drafted]):
            state = self.layers(
                self.embedding[token], fused[place] if place < len(tokens) else state
            )
            normed = self.norm(state, "norm")
            state = normed if flags.get("norm_output") else state
            if place >= len(tokens) - 1:
                out.append(normed @ weights["lm_head.weight"].T)
        return np.stack(out)

    def layers(self, e: np.ndarray, x: np.ndarray) -> np.ndarray:
        e, normed = self.norm(e, "layers.0.input_layernorm"), self.norm(x, "layers.0.hidden_norm")
        x = normed if self.head.flags.get("norm_before_residual") else x
        read = np.concatenate([e, normed])
        for index in range(len(self.keys)):
            name = f"layers.{index}"
            x = x + self.attention(
                index, read if not index else self.norm(x, f"{name}.input_layernorm")
            )
            y = self.norm(x, f"{name}.post_attention_layernorm")
            gate = self.linear(y, f"{name}.mlp.gate_proj")
            up = self.linear(y, f"{name}.mlp.up_proj")
            x = x + self.linear(gate / (1 + np.exp(-gate)) * up, f"{name}.mlp.down_proj")
        return x

    def attention(self, index: int, x: np.ndarray) -> np.ndarray:
        layer, name, place = self.head.layer, f"layers.{index}.self_attn", len(self.keys[index])
        size, heads = layer["head_dim"], layer["num_attention_heads"]
        q, k, v = (self.linear(x, f"{name}.{part}_proj").reshape(-1, size) for part in "qkv")
        if f"{name}.q_norm.weight" in self.weights:
            q, k = self.norm(q, f"{name}.q_norm"), self.norm(k, f"{name}.k_norm")
        group = heads // layer["num_key_value_heads"]
        self.keys[index].append(self.turned(k, place).repeat(group, axis=0))
        self.values[index].append(v.repeat(group, axis=0))
        scores = np.einsum("hd,thd->ht", self.turned(q, place), np.stack(self.keys[index]))
        scores = np.exp(scores / np.sqrt(size))
        scores /= scores.sum(axis=1, keepdims=True)
        mixed = np.einsum("ht,thd->hd", scores, np.stack(self.values[index]))
        return self.linear(mixed.reshape(-1), f"{name}.o_proj")

    def turned(self, x: np.ndarray, place: int) -> np.ndarray:
        size = x.shape[-1]
        angles = place / self.head.layer["rope_theta"] ** (np.arange(0, size, 2) / size)
        a, b = np.split(x, 2, axis=-1)
        return np.concatenate(
            [a * np.cos(angles) - b * np.sin(angles), b * np.cos(angles) + a * np.sin(angles)], -1
        )

    def norm(self, x: np.ndarray, name: str) -> np.ndarray:
        eps = self.head.layer["rms_norm_eps"]
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * self.weights[f"{name}.weight"]

    def linear(self, x: np.ndarray, name: str) -> np.ndarray:
        return x @ self.weights[f"{name}.weight"].T + self.weights.get(f"{name}.bias", 0.0)
