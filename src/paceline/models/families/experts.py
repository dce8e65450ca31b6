"""Families with mixtures of experts in place of feed-forward blocks: Qwen 3 MoE (Yang et al. 2025),
Mixtral (Jiang et al. 2024), and Llama with the experts of BlockFFN (Song et al. 2025,
arXiv:2507.08771), whose own checkpoints have another attention and are not read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.models.config import ModelConfig
from paceline.models.families import qwen3
from paceline.models.families.base import (
    GGUF_PARTS,
    HF_PARTS,
    Family,
    Get,
    llama_attention,
    llama_feed_forward,
)
from paceline.models.ops import Experts, Ops, Rows


def feed_forward(ops: Ops, config: ModelConfig, index: int, x: Rows) -> Rows:
    """Mixture of experts, added to the stream, with the shared one; of a dense layer SwiGLU."""
    if config.experts is None or index in config.dense_layers:
        return llama_feed_forward(ops, config, index, x)
    name = f"layers.{index}"
    normed = ops.norm(x, f"{name}.ffn_norm")
    if config.experts.shared:
        parts = [f"{name}.shared_{part}" for part in (*PARTS, "by")]
        inner = ops.gated(normed, parts[:2], activation=config.activation)
        x = x + ops.gate(ops.linear(inner, parts[2:3]), ops.linear(normed, parts[3:]))
    return add_experts(ops, config, index, x, normed)


def add_experts(ops: Ops, config: ModelConfig, index: int, x: Rows, normed: Rows) -> Rows:
    """Return the stream with what a layer's experts make of its normed rows added."""
    experts, name = config.experts, f"layers.{index}"
    assert experts is not None
    weights, names = ops.route(normed, f"{name}.router", experts), (f"{name}.experts", experts)
    if not experts.latent:
        return ops.mix(normed, weights, *names, activation=config.activation, residual=x)
    latents = ops.linear(normed, [f"{name}.experts_in"])
    mixed = ops.mix(latents, weights, *names, activation=config.activation)
    return ops.linear(mixed, [f"{name}.experts_out"], residual=x)


PARTS = ("gate", "up", "down")


def parts_of(router: str, expert: str, names: tuple[str, str, str] = PARTS) -> dict[str, str]:
    """Return names of a layer's router and experts, whose `{}` are number and part."""
    own = zip(PARTS, names, strict=True)
    return {"router": router} | {f"experts.{part}": expert.format(theirs) for part, theirs in own}


def stacked_in(module: str) -> dict[str, str]:
    """Return names of a layer's tensors with a part of all experts, as newer checkpoints have."""
    both = dict.fromkeys(("experts.gate", "experts.up"), f"{module}.gate_up_proj")
    return both | {"experts.down": f"{module}.down_proj"}


# Of GGUF files, where gate and up lie in one tensor.
GGUF_STACKED = dict.fromkeys(("experts.gate", "experts.up"), "ffn_gate_up_exps.weight")
HALVES = (llama_attention, feed_forward)
_QWEN = ("gate_proj", "up_proj", "down_proj")


def _count(config: Mapping[str, Any]) -> int:
    found = config.get("num_experts")
    return int(config["num_local_experts"] if found is None else found)


def _qwen3_from_hf(config: Mapping[str, Any]) -> dict[str, Any]:
    layers, every = range(int(config["num_hidden_layers"])), int(config["decoder_sparse_step"])
    alone = {int(each) for each in config.get("mlp_only_layers") or ()}
    count, used = _count(config), int(config["num_experts_per_tok"])
    return {
        **qwen3.from_hf(config),
        "experts": Experts(count, used, bool(config["norm_topk_prob"])),
        "dense_layers": tuple(each for each in layers if each in alone or (each + 1) % every),
    }


def _qwen3_from_gguf(get: Get) -> dict[str, Any]:
    return {"experts": Experts(int(get("expert_count")), int(get("expert_used_count")), True)}


QWEN3_MOE = Family(
    "qwen3_moe",
    "qwen3moe",
    hf_parts=HF_PARTS | parts_of("mlp.gate", "mlp.experts.{{}}.{}", _QWEN),
    gguf_parts=GGUF_PARTS | parts_of("ffn_gate_inp", "ffn_{}_exps"),
    from_hf=_qwen3_from_hf,
    from_gguf=_qwen3_from_gguf,
    halves=HALVES,
)


def _mixtral_from_hf(config: Mapping[str, Any]) -> dict[str, Any]:
    window, layers = int(config.get("sliding_window") or 0), int(config["num_hidden_layers"])
    experts = Experts(_count(config), int(config["num_experts_per_tok"]), True)
    return {"experts": experts} | ({"windows": (window,) * layers} if window else {})


MIXTRAL = Family(
    "mixtral",
    "",
    hf_parts=HF_PARTS
    | parts_of("block_sparse_moe.gate", "block_sparse_moe.experts.{{}}.{}", ("w1", "w3", "w2")),
    from_hf=_mixtral_from_hf,
    halves=HALVES,
)


def _blockffn_from_hf(config: Mapping[str, Any]) -> dict[str, Any]:
    return {"experts": Experts(_count(config), gated=False)}


BLOCKFFN = Family(
    "llama_blockffn",
    "",
    hf_parts=HF_PARTS
    | parts_of("mlp.router_proj", "mlp.experts.{{}}.{}", _QWEN)
    | {"router_norm": "mlp.router_norm"},
    from_hf=_blockffn_from_hf,
    halves=HALVES,
)
