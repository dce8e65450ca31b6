"""Published DFlash and DSpark drafters with random weights, written in each layout.

`Oracle` is the mathematics of a block in NumPy, without anything of paceline.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tests.networks import heads
from tests.networks.heads import Head

from paceline.models.config import ModelConfig

LAYOUTS = ("z-lab", "speculators", "DeepSpec", "GGUF")
MASK = 301


@dataclass(frozen=True)
class Drafter(Head):
    """One with a block; `more` is said in its config beside."""

    slots: int = 5
    anchored: bool = False
    rank: int = 0
    gated: bool = False
    window: int = 0
    more: dict[str, Any] = field(default_factory=dict)


def random_drafter(
    target: ModelConfig,
    *,
    slots: int = 5,
    anchored: bool = False,
    rank: int = 0,
    gated: bool = False,
    window: int = 0,
    drafted: int = 100,
    boundaries: tuple[int, ...] = (2, 4, 6),
    own_embedding: bool = False,
) -> Drafter:
    """Two layers, of which the second has a window, if any does."""
    made = heads.random_head(
        target,
        layers=2,
        parts=len(boundaries),
        drafted=drafted,
        qk_norm=True,
        boundaries=boundaries,
        own_embedding=own_embedding,
    )
    rng = np.random.default_rng(7)
    tensors = {**made.tensors, "hidden_norm.weight": made.tensors["norm.weight"][::-1].copy()}
    del tensors["layers.0.hidden_norm.weight"]
    for name in [each for each in tensors if each.startswith("layers.0") and "_proj" in each]:
        tensors[name] = tensors[name][:, : made.layer["hidden_size"]].copy()
        if "mlp" in name or "o_proj" in name:
            tensors[name] = made.tensors[name]
    width, vocabulary = made.layer["hidden_size"], target.vocab_size
    more: dict[str, tuple[int, ...]] = {}
    if rank:
        more |= {"markov_w1.weight": (vocabulary, rank), "markov_w2.weight": (drafted, rank)}
    if gated:
        more |= {"gate_proj.weight": (rank, width + rank), "gate_proj.bias": (rank,)}
    for name, shape in more.items():
        tensors[f"markov_head.{name}"] = rng.standard_normal(shape).astype(np.float32)
    if rank:
        tensors["confidence_head.proj.weight"] = np.ones((1, width + rank), np.float32)
        tensors["confidence_head.proj.bias"] = np.ones(1, np.float32)
    layer = {**made.layer, "max_position_embeddings": 512}
    if window:
        kinds = ["full_attention", "sliding_attention"]
        layer |= {"layer_types": kinds, "sliding_window": window, "use_sliding_window": True}
    parts = made.ids, made.target_width, boundaries, {}
    return Drafter(tensors, layer, *parts, slots, anchored, rank, gated, window)


def whole(drafter: Drafter) -> Drafter:
    """The same without the map of a draft vocabulary, for layouts that have none."""
    return replace(drafter, ids=np.arange(drafter.layer["vocab_size"]))


def write(drafter: Drafter, layout: str, out: Path) -> Path:
    """Write a drafter as those who publish it do; return what a user names."""
    if layout == "GGUF":
        return _write_gguf(drafter, out.with_suffix(".gguf"))
    out.mkdir(parents=True, exist_ok=True)
    ids, layer = list(drafter.boundaries or ()), drafter.layer
    full = len(drafter.ids) == layer["vocab_size"]
    tensors = dict(drafter.tensors) if full else heads.with_maps(drafter)
    said = {"mask_token_id": MASK, "target_layer_ids": [each - 1 for each in ids]}
    config: dict[str, Any] = {"block_size": drafter.slots}
    markov = {"markov_rank": drafter.rank}
    markov |= {"markov_head_type": "gated" if drafter.gated else "vanilla"} if drafter.rank else {}
    if layout == "speculators":
        kind = "dspark" if drafter.rank else "dflash"
        config |= {
            "architectures": ["DSparkDraftModel" if drafter.rank else "DFlashDraftModel"],
            "speculators_model_type": kind,
            "speculators_config": {"verifier": {"name_or_path": "owner/model"}},
            "transformer_layer_config": layer,
            "aux_hidden_state_layer_ids": ids,
            "draft_vocab_size": len(drafter.ids),
            "mask_token_id": MASK,
            "sample_from_anchor": drafter.anchored,
            **markov,
        }
    elif layout == "DeepSpec":
        config |= {**layer, "architectures": ["Qwen3DSparkModel"], "num_anchors": 512}
        config |= {**said, **markov, "num_target_layers": 8}
    else:
        config |= {**layer, "architectures": ["DFlashDraftModel"], "dflash_config": said}
        config |= {"num_target_layers": 8}
    (out / "config.json").write_text(json.dumps({**config, **drafter.more}))
    save_file(tensors, out / "model.safetensors")
    return out


_ENDS = {
    "norm": "output_norm",
    "hidden_norm": "enc.output_norm",
    "lm_head": "output",
    "embed_tokens": "token_embd",
    "markov_head.markov_w1": "markov_w1",
    "markov_head.markov_w2": "markov_w2",
    "confidence_head.proj": "conf_proj",
}


def _write_gguf(drafter: Drafter, out: Path) -> Path:
    """As llama.cpp converts: halves of a head as they are, boundaries, a window by layer."""
    writer = heads.start_gguf(drafter, out, "dflash")
    writer.add_array("dflash.target_layers", list(drafter.boundaries or ()))
    writer.add_uint32("dflash.block_size", drafter.slots)
    writer.add_mask_token_id(MASK)
    writer.add_causal_attention(False)
    if drafter.window:
        writer.add_sliding_window(drafter.window)
        writer.add_array("dflash.attention.sliding_window_pattern", [False, True])
    for name, each in drafter.tensors.items():
        body, _, kind = name.rpartition(".")
        writer.add_tensor(f"{heads.gguf_name(body, _ENDS)}.{kind}", each)
    if len(drafter.ids) < drafter.layer["vocab_size"]:
        writer.add_tensor("d2t", drafter.ids.astype(np.int64))
    return heads.finish_gguf(writer, out)


class Oracle(heads.Oracle):
    """Logits of the slots that foretell a token, `[slots, drafted]`, in float64."""

    def block(
        self,
        features: np.ndarray,
        root: int,
        drafted: list[int],
        *,
        order: str = "injected",
        first: int | None = None,
    ) -> np.ndarray:
        """Return them after context rows; `drafted` are the tokens before the second slot and on.

        `order` "normed" norms the injected rows as the block's, which is wrong; `first` is the
        position of the root, where it should not be that behind the context.
        """
        made, weights = self.head, self.weights
        assert isinstance(made, Drafter)
        context = self.norm(features.astype(np.float64) @ weights["fc.weight"].T, "hidden_norm")
        x = self.embedding[[root, *[MASK] * (made.slots - 1)]]
        begin = len(context) if first is None else first
        for index in range(made.layer["num_hidden_layers"]):
            name = f"layers.{index}"
            normed = self.norm(x, f"{name}.input_layernorm")
            known = self.norm(context, f"{name}.input_layernorm") if order == "normed" else context
            x = x + self.mixed(index, known, normed, begin)
            y = self.norm(x, f"{name}.post_attention_layernorm")
            gate = self.linear(y, f"{name}.mlp.gate_proj")
            up = self.linear(y, f"{name}.mlp.up_proj")
            x = x + self.linear(gate / (1 + np.exp(-gate)) * up, f"{name}.mlp.down_proj")
        hidden = self.norm(x, "norm")[not made.anchored :]
        logits = hidden @ weights.get("lm_head.weight", self.embedding).T
        if made.rank:
            before = weights["markov_head.markov_w1.weight"][[root, *drafted][: len(hidden)]]
            if made.gated:
                read = np.concatenate([hidden, before], axis=1)
                before = before / (1 + np.exp(-self.linear(read, "markov_head.gate_proj")))
            logits = logits + before @ weights["markov_head.markov_w2.weight"].T
        return np.asarray(logits)

    def mixed(self, index: int, context: np.ndarray, x: np.ndarray, begin: int) -> np.ndarray:
        made, name = self.head, f"layers.{index}.self_attn"
        assert isinstance(made, Drafter)
        size, rows = made.layer["head_dim"], len(x)
        keys = [self.linear(each, f"{name}.k_proj") for each in (context, x)]
        values = np.concatenate([self.linear(each, f"{name}.v_proj") for each in (context, x)])
        places = [*range(len(context)), *range(begin, begin + rows)]
        k = self.norm(np.concatenate(keys).reshape(len(places), -1, size), f"{name}.k_norm")
        q = self.norm(self.linear(x, f"{name}.q_proj").reshape(rows, -1, size), f"{name}.q_norm")
        k = np.stack([self.turned(each, place) for each, place in zip(k, places, strict=True)])
        q = np.stack([self.turned(each, begin + at) for at, each in enumerate(q)])
        group = q.shape[1] // k.shape[1]
        k, v = (y.reshape(len(places), -1, size).repeat(group, axis=1) for y in (k, values))
        scores = np.einsum("shd,thd->hst", q, k) / np.sqrt(size)
        if made.window and index:
            back = np.arange(begin, begin + rows)[:, None] - np.array(places)
            scores[:, (back < 0) | (back >= made.window)] = -np.inf
        scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
        scores /= scores.sum(axis=-1, keepdims=True)
        return self.linear(np.einsum("hst,thd->shd", scores, v).reshape(rows, -1), f"{name}.o_proj")
