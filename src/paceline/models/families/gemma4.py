"""Gemma 4, text (Gemma Team 2026): heads of two shapes, keys and values lent to later layers,
inputs of each layer from a table of its own, capped logits.

Unlike Gemma 3's its norms have plain weights, and scores are not scaled.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from paceline.errors import ModelError
from paceline.models.config import ELSEWHERE, ModelConfig, Shapes
from paceline.models.families.base import (
    GGUF_ENDS,
    GGUF_PARTS,
    HF_ENDS,
    HF_PARTS,
    Family,
    Get,
    LayerNames,
    Step,
    feed_forward,
    heads_of,
)
from paceline.models.families.experts import GGUF_STACKED, parts_of, stacked_in
from paceline.models.ops import KV, Experts, Ops, Rows, Sight

_PATTERN = 6  # every sixth layer sees everything
_LOCAL_BASE, _BASE = 10_000.0, 1_000_000.0
_ROTATED = 0.25  # of the pairs of a head that sees everything
_FULL_WIDTH = 512


def _lenders(windows: Sequence[int], lent: int) -> tuple[int, ...]:
    # The last `lent` layers read keys and values of the last layer before them of the same kind.
    if not lent:
        return ()
    own = len(windows) - lent
    last = {bool(windows[index]): index for index in range(own)}
    return (*range(own), *(last[bool(each)] for each in windows[own:]))


def _still(width: int, share: float) -> tuple[float, ...]:
    # Divisors of frequencies: only the first pairs of a head are rotated.
    rotated = int(share * width // 2)
    return (1.0,) * rotated + (math.inf,) * (width // 2 - rotated)


def _entries(config: Mapping[str, Any]) -> dict[str, Any]:
    # Later tokens are seen among those of a picture alone, and none is read here.
    sees = config.get("use_bidirectional_attention")
    ropes = config.get("rope_parameters") or {}
    full, local = (ropes.get(f"{kind}_attention") or {} for kind in ("full", "sliding"))
    for rope, kind in ((full, "proportional"), (local, "default")):
        found = rope.get("rope_type", kind)
        if found != kind or float(rope.get("factor") or 1.0) != 1.0:
            raise ModelError(f"this runtime runs Gemma 4 with no {found} rotary: {ELSEWHERE}")
    return {
        **config,
        "use_bidirectional_attention": None if sees == "vision" else sees,
        "rope_parameters": {"rope_theta": full.get("rope_theta", _BASE)},
        "full_rotated": full.get("partial_rotary_factor", _ROTATED),
        "local_rope_base": local.get("rope_theta", _LOCAL_BASE),
    }


def _from_hf(config: Mapping[str, Any]) -> dict[str, Any]:
    layers, window = int(config["num_hidden_layers"]), int(config["sliding_window"])
    kinds = config.get("layer_types") or [
        "full_attention" if (index + 1) % _PATTERN == 0 else "sliding_attention"
        for index in range(layers)
    ]
    inputs = int(config.get("hidden_size_per_layer_input") or 0)
    if inputs:
        vocabulary = int(config["vocab_size"])
        _check_table(int(config.get("vocab_size_per_layer_input") or vocabulary), vocabulary)
    # The last layer sees everything, whatever is said of it.
    windows = (*(window if kind == "sliding_attention" else 0 for kind in kinds[:-1]), 0)
    if len(windows) != layers:
        raise ValueError(f"kinds of {len(windows)} layers of {layers}")
    same = bool(config.get("attention_k_eq_v"))
    width = int(config.get("global_head_dim") or _FULL_WIDTH)
    kv_heads = config.get("num_global_key_value_heads") if same else None
    own = config.get("per_layer_config")
    if own is not None:
        width, kv_heads = _full_shape(config, own, windows)
    return {
        **_shared(config["hidden_size"]),
        "experts": Experts(int(config["num_experts"]), int(config["top_k_experts"]), True)
        if config.get("enable_moe_block")
        else None,
        "windows": windows,
        "rope_divisors": _still(width, float(config["full_rotated"])),
        "local_rope_base": float(config["local_rope_base"]),
        "full_head_dim": width,
        "full_kv_heads": int(kv_heads or config["num_key_value_heads"]),
        "values_are_keys": same,
        "lenders": _lenders(windows, int(config.get("num_kv_shared_layers") or 0)),
        "layer_inputs": inputs,
        "logit_cap": float(config.get("final_logit_softcapping") or 0.0),
        "tied_embeddings": bool(config.get("tie_word_embeddings", True)),
    }


def _check_table(rows: int, vocabulary: int) -> None:
    if rows < vocabulary:
        raise ModelError(
            f"the inputs of layers are those of {rows} tokens, and the model has {vocabulary}: "
            "download it again"
        )


def _full_shape(
    config: Mapping[str, Any], own: Mapping[str, Any], windows: Sequence[int]
) -> tuple[int, int | None]:
    # What newer configs say of each layer that is not as the others.
    shapes = set()
    for index, window in enumerate(windows):
        said = dict(own.get(str(index)) or {})
        width, heads = said.pop("head_dim", None), said.pop("num_key_value_heads", None)
        if said or (window and (width or heads)):
            raise ModelError(
                f"this runtime runs Gemma 4 with layers of two shapes, not as config.json has "
                f"layer {index}: {ELSEWHERE}"
            )
        if not window:
            shapes.add((int(width or config["head_dim"]), heads))
    if len(shapes) != 1:
        raise ModelError(
            f"this runtime runs Gemma 4 with one shape of layers without a window: {ELSEWHERE}"
        )
    return shapes.pop()


def _shared(width: int) -> dict[str, Any]:
    return {
        "activation": "gelu",
        "qk_norm": True,
        "value_norm": True,
        "attention_scale": 1.0,
        "embedding_scale": math.sqrt(width),
    }


def _gguf_entries(metadata: Mapping[str, Any], shapes: Shapes) -> dict[str, Any]:
    # What the file says of each layer: first for those with a window.
    found, prefix = dict(metadata), f"{GEMMA4.gguf}."

    def get(name: str, default: Any = None) -> Any:
        return metadata.get(prefix + name, default)

    layers = int(get("block_count"))
    window, pattern = int(get("attention.sliding_window")), get("attention.sliding_window_pattern")
    if pattern is None or isinstance(pattern, int):
        pattern = [bool((index + 1) % int(pattern or _PATTERN)) for index in range(layers)]
    windows = [window if each else 0 for each in list(pattern)]
    if len(windows) != layers:
        raise ValueError(f"windows of {len(windows)} layers of {layers}")
    heads = get("attention.head_count_kv")
    heads = [heads] * layers if isinstance(heads, int) else list(map(int, heads))
    full, local = windows.index(0), windows.index(window)
    widths = get("feed_forward_length")
    keys, values, rotated = (
        (int(get(name)), int(get(f"{name}_swa", get(name))))
        for name in ("attention.key_length", "attention.value_length", "rope.dimension_count")
    )
    if not keys == values == rotated:
        raise ModelError(
            f"this runtime runs Gemma 4 with values as wide as keys, all rotated: {ELSEWHERE}"
        )
    table = shapes.get(GEMMA4.gguf_ends["token_inputs"])
    if table is not None:
        _check_table(table[0], shapes[GGUF_ENDS["embed"]][0])
    changes = {
        "feed_forward_length": widths if isinstance(widths, int) else int(widths[0]),
        "attention.head_count_kv": heads[local],
        "attention.key_length": keys[1],
        "attention.value_length": keys[1],
        "rope.dimension_count": keys[1],
        "full_head_dim": keys[0],
        "full_kv_heads": heads[full],
        "windows": tuple(windows),
        "values_are_keys": f"blk.{full}.attn_v.weight" not in shapes,
    }
    for name in ("head_count_kv", "sliding_window_pattern", "key_length_swa", "value_length_swa"):
        found.pop(f"{prefix}attention.{name}", None)
    found.pop(f"{prefix}rope.dimension_count_swa", None)
    return found | {prefix + name: value for name, value in changes.items()}


def _from_gguf(get: Get) -> dict[str, Any]:
    windows, width = get("windows"), get("full_head_dim")
    get("attention.sliding_window")
    count = int(get("expert_count", 0))
    return {
        **_shared(int(get("embedding_length"))),
        "experts": Experts(count, int(get("expert_used_count")), True) if count else None,
        "windows": windows,
        "local_rope_base": float(get("rope.freq_base_swa", _LOCAL_BASE)),
        "full_head_dim": width,
        "full_kv_heads": get("full_kv_heads"),
        "values_are_keys": get("values_are_keys"),
        "lenders": _lenders(windows, int(get("attention.shared_kv_layers", 0))),
        "layer_inputs": int(get("embedding_length_per_layer_input", 0)),
        "logit_cap": float(get("final_logit_softcapping", 0.0)),
    }


def _reading(ops: Ops, config: ModelConfig, tokens: Rows) -> tuple[Step, Step]:
    inputs = _layer_inputs(ops, config, tokens) if config.layer_inputs else ()
    return _attention, partial(_feed_forward, inputs)


def _layer_inputs(ops: Ops, config: ModelConfig, tokens: Rows) -> Sequence[Rows]:
    # What each layer reads of a token: of its own table, and of the token's embedding.
    layers, width = len(config.windows), config.layer_inputs  # all, if only the first run too
    own = ops.embed(tokens, math.sqrt(width), "token_inputs")
    embedded = ops.embed(tokens, config.embedding_scale)
    mixed = ops.linear(embedded, ["input_projection"], scale=config.hidden_size**-0.5)
    both = ops.norm(mixed, "input_norm", heads=layers, residual=own)
    return ops.split(ops.times(both, 0.5**0.5), [width] * layers)


def _attention(ops: Ops, config: ModelConfig, index: int, x: Rows) -> Rows:
    names, heads = LayerNames.of(index), heads_of(config, index)
    name, lender = f"layers.{index}", config.lenders[index] if config.lenders else index
    layer = config.attention_layers.index(lender)
    if lender == index:
        q, k, v = names.qkv
        full = not config.windows[index]
        qkv = ops.linear(x, [q, k, k if full and config.values_are_keys else v], norm=names.norm)
        mixed = ops.attend(layer, qkv, heads)
    else:
        mixed = _attend_to(ops, config, index, x, KV(layer))
    return ops.norm(ops.linear(mixed, [names.o]), f"{name}.post_attention_norm", residual=x)


def _attend_to(
    ops: Ops, config: ModelConfig, index: int, x: Rows, kv: KV, sees: Sight = "context"
) -> Rows:
    # A layer without keys and values of its own.
    names, heads = LayerNames.of(index), heads_of(config, index)
    if sees == "root" and heads.window:  # the root is in the window, and has no key
        heads = replace(heads, window=heads.window - 1)
    queries = ops.linear(x, names.qkv[:1], norm=names.norm)
    return ops.attend(kv, queries, replace(heads, key_norm=None, value_norm=False), sees)


def layer_over(ops: Ops, config: ModelConfig, index: int, x: Rows, kv: KV) -> Rows:
    """Return the stream behind a dense layer that attends from the root to keys of a target."""
    mixed = _attend_to(ops, config, index, x, kv, "root")
    mixed = ops.linear(mixed, [LayerNames.of(index).o])
    x = ops.norm(mixed, f"layers.{index}.post_attention_norm", residual=x)
    return _feed_forward((), ops, config, index, x)


def _feed_forward(
    inputs: Sequence[Rows], ops: Ops, config: ModelConfig, index: int, x: Rows
) -> Rows:
    name = f"layers.{index}"
    fed = ops.linear(feed_forward(ops, config, index, x), [f"{name}.down"])
    if config.experts is not None:
        fed = ops.norm(fed, f"{name}.dense_norm") + _mixed(ops, config, config.experts, name, x)
    x = ops.norm(fed, f"{name}.post_ffn_norm", residual=x)
    if inputs:
        read = ops.gelu(ops.linear(x, [f"{name}.input_gate"])) * inputs[index]
        x = ops.norm(ops.linear(read, [f"{name}.input_up"]), f"{name}.input_norm", residual=x)
    return ops.times(x, f"{name}.scale")


def _mixed(ops: Ops, config: ModelConfig, experts: Experts, name: str, x: Rows) -> Rows:
    # Experts stand beside the dense block; what chooses them reads the stream by a norm of its own.
    seen = ops.times(ops.norm(x, f"{name}.router_scale"), config.hidden_size**-0.5)
    weights = ops.route(seen, f"{name}.router", experts) * ops.weight(f"{name}.expert_scale")
    read = ops.norm(x, f"{name}.experts_norm")
    mixed = ops.mix(read, weights, f"{name}.experts", experts, config.activation)
    return ops.norm(mixed, f"{name}.post_experts_norm")


GEMMA4 = Family(
    "gemma4_text",
    "gemma4",
    hf_ends=HF_ENDS
    | {
        "token_inputs": "model.embed_tokens_per_layer.weight",
        "input_projection": "model.per_layer_model_projection.weight",
        "input_norm": "model.per_layer_projection_norm.weight",
    },
    gguf_ends={
        "token_inputs": "per_layer_token_embd.weight",
        "input_projection": "per_layer_model_proj.weight",
        "input_norm": "per_layer_proj_norm.weight",
    },
    hf_parts=HF_PARTS
    | {
        "post_attention_norm": "post_attention_layernorm",
        "ffn_norm": "pre_feedforward_layernorm",
        "post_ffn_norm": "post_feedforward_layernorm",
        "input_gate": "per_layer_input_gate",
        "input_up": "per_layer_projection",
        "input_norm": "post_per_layer_input_norm",
        "scale": "layer_scalar",
        "dense_norm": "post_feedforward_layernorm_1",
        "experts_norm": "pre_feedforward_layernorm_2",
        "post_experts_norm": "post_feedforward_layernorm_2",
        **parts_of("router.proj", "experts.{{}}.{}_proj"),
        "router_scale": "router.scale",
        "expert_scale": "router.per_expert_scale",
    },
    gguf_parts=GGUF_PARTS
    | {
        "input_gate": "inp_gate",
        "input_up": "proj",
        "input_norm": "post_norm",
        "scale": "layer_output_scale",
        "dense_norm": "post_ffw_norm_1",
        "experts_norm": "pre_ffw_norm_2",
        "post_experts_norm": "post_ffw_norm_2",
        **parts_of("ffn_gate_inp", "ffn_{}_exps"),
        "router_scale": "ffn_gate_inp.scale",
        "expert_scale": "ffn_down_exps.scale",
    },
    hf_stacked=stacked_in("experts"),
    gguf_stacked=GGUF_STACKED,
    bare=(
        "layer_scalar",
        "router.scale",
        "router.per_expert_scale",
        "ffn_gate_inp.scale",
        "ffn_down_exps.scale",
    ),
    wraps=("gemma4", "gemma4_unified"),
    entries=_entries,
    gguf_entries=_gguf_entries,
    from_hf=_from_hf,
    from_gguf=_from_gguf,
    reading=_reading,
)
