"""EAGLE, DFlash and DSpark drafters in directories: the layouts of SafeAILab, speculators, DeepSpec
and z-lab.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from paceline.errors import InvalidOption, ModelError
from paceline.models.config import FINAL, ModelConfig
from paceline.models.families import hf_config
from paceline.models.families.base import HF_PARTS
from paceline.networks.dflash import MaskedBlock
from paceline.networks.published.eagle3 import HeadWiring
from paceline.networks.published.head import HeadTensors, PublishedHead, no_whole
from paceline.networks.published.wirings import (
    STEPS,
    BlockWiring,
    StateWiring,
    Wiring,
    fitting,
)

# Tensors outside the layers. Of the first layer "attention_norm" norms the embeddings and
# "hidden_norm" the states beside them.
_ENDS = {
    **{"fc": "fc", "norm": "norm", "head": "lm_head", "embed": "embed_tokens"},
    "hidden_norm": "hidden_norm",
    "markov_in": "markov_head.markov_w1",
    "markov_out": "markov_head.markov_w2",
    "markov_gate": "markov_head.gate_proj",
}
# What a checkpoint may hold that says nothing of a draft, or that is computed.
_SPARE = (
    "t2d",
    "verifier_norm",
    "verifier_lm_head",
    "rotary_emb",
    "rope_freqs",
    "confidence_head",  # how far a draft goes is learned from what is accepted
)

# An entry of a config, wherever it stands there, or else a default.
Said: TypeAlias = Callable[..., Any]


def directory_head(
    path: Path,
    config: Mapping[str, Any],
    kind: str,
    tensors: HeadTensors,
    found: Sequence[str],
    metadata: Mapping[str, str],
) -> PublishedHead:
    """Return the drafter of a directory's `config` and tensors; raises as `open_head`.

    `found` are the tensors' names, `metadata` is what their files say beside.
    """
    names = dict(_named(found))
    layer = config.get("transformer_layer_config") or config.get("model") or config
    places = [config, *(config.get(each) or {} for each in ("eagle_config", "dflash_config"))]

    def said(name: str, default: Any = None) -> Any:
        given = (each.get(name) for each in places)
        return next((each for each in given if each is not None), default)

    try:
        family = layer.get("model_type")
        own = hf_config(
            {
                "max_position_embeddings": 2048,
                "num_key_value_heads": layer["num_attention_heads"],
                "sliding_window": said("swa_window_size"),
                **layer,
                "model_type": family if family == "qwen3" else "llama",
                "architectures": None,
                "attention_bias": False,  # which tensors say
                "use_sliding_window": "sliding_attention" in (layer.get("layer_types") or ()),
            }
        )
        own = replace(own, qk_norm="layers.0.q_norm" in names, qkv_bias=False)
        inputs = tensors.shape(names["fc"])[1]
        layout: str
        wiring: Wiring
        proposals = (config.get("speculators_config") or {}).get("proposal_methods") or [{}]
        steps = int(proposals[0].get("speculative_tokens") or said("ttt_length") or STEPS)
        if kind == "EAGLE-1":
            layout, wiring = "SafeAILab", StateWiring(width=inputs // 2)
        elif kind in ("EAGLE-3", "P-EAGLE"):
            layout, wiring = _head_wiring(said, layer is not config, names, inputs)
            if kind == "P-EAGLE" or "mask_hidden" in names:  # which others call EAGLE-3
                ids = (said(each) for each in ("mask_token_id", "pard_token", "ptd_token_id"))
                mask = int(next((each for each in ids if each is not None), -1))
                if not 0 <= mask < own.vocab_size or steps < 2:
                    raise ValueError(f"{steps} slots with mask {mask} of {own.vocab_size} tokens")
                wiring = replace(wiring, slots=steps, mask=mask)
        else:
            layout, wiring = _block_wiring(path, said, layer is not config, own, inputs)
        verifier = (config.get("speculators_config") or {}).get("verifier") or {}
        return PublishedHead(
            path,
            layout,
            own,
            wiring,
            steps,
            str(verifier.get("name_or_path") or ""),
            metadata,
            tensors,
            names,
        )
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, ModelError) as error:
        raise no_whole(path, kind, f"config.json: {error}") from error


def _head_wiring(
    said: Said, speculators: bool, names: Mapping[str, str], inputs: int
) -> tuple[str, HeadWiring]:
    # Layout and wiring of an EAGLE-3 head, whose "fc" reads so many numbers.
    layout = "speculators" if speculators else "SafeAILab"
    ids = said("eagle_aux_hidden_state_layer_ids")
    doubts = [] if said("norm_output") is not None else ["norm_output"]
    if ids is None and said("target_layer_ids") is not None:  # of outputs
        layout, ids = "DeepSpec", [each + 1 for each in said("target_layer_ids")]
    elif ids and not speculators:
        doubts.append("boundaries")
        ids = [each + 1 for each in ids] if ids[0] == 1 else ids  # which are outputs then
    if said("use_aux_hidden_state", True) is False:
        ids = [FINAL]
    norms = "whole" if said("norm_before_fc") else ""
    return layout, HeadWiring(
        width=int(said("target_hidden_size") or inputs // (len(ids) if ids else 3)),
        boundaries=tuple(map(int, ids or ())),
        doubts=tuple(doubts),
        norms="parts" if said("fc_norm") or "fc_norm.0" in names else norms,
        norm_before_residual=bool(said("norm_before_residual")),
        norm_output=bool(said("norm_output")),
    )


def _block_wiring(
    path: Path, said: Said, speculators: bool, own: ModelConfig, inputs: int
) -> tuple[str, BlockWiring]:
    # The same of a DFlash or DSpark drafter, whose layers are `own`.
    markov, rank = str(said("markov_head_type", "vanilla")), int(said("markov_rank", 0))
    sinks = said("attention_sink_bias")
    unread = "attention sinks" if sinks else f"a Markov head of type {markov}"
    if sinks or (rank and markov not in ("vanilla", "gated")):
        raise InvalidOption(
            f"{path} is a published drafter with {unread}, which is not read: give another, or a "
            "draft model"
        )
    layout = "DeepSpec" if said("num_anchors") is not None else "z-lab"
    ids = said("aux_hidden_state_layer_ids")
    if ids is None:  # of outputs; the last is read after the norm
        last = int(said("num_target_layers", 0)) - 1
        ids = [FINAL if each == last else each + 1 for each in said("target_layer_ids")]
    both_ways = speculators and said("sliding_window_non_causal")
    causal = {i for i, window in enumerate(own.windows) if window and not both_ways}
    causal |= set(range(own.layers)) if not speculators and said("causal") else set()
    block = MaskedBlock(
        int(said("block_size")),
        int(said("mask_token_id")),
        bool(said("sample_from_anchor", rank > 0 or layout == "DeepSpec")),
        frozenset(causal),
        rank,
        markov == "gated",
    )
    width = int(said("target_hidden_size") or inputs // len(ids))
    wiring = BlockWiring(
        width=width, boundaries=tuple(map(int, ids)), block=fitting(block, own.vocab_size)
    )
    return "speculators" if speculators else layout, wiring


def _named(found: Sequence[str]) -> Iterator[tuple[str, str]]:
    # Our names of the tensors of a checkpoint, and its own; unknown ones keep theirs.
    parts = {theirs: mine for mine, theirs in HF_PARTS.items()} | {"hidden_norm": "hidden_norm"}
    ends = {theirs: mine for mine, theirs in _ENDS.items()}
    ends |= {f"aux_norm_{name}": f"fc_norm.{i}" for i, name in enumerate(("low", "mid", "high"))}
    for name in found:
        plain = name.removeprefix("model.")
        plain = plain.replace("midlayer.", "layers.0.", 1)
        body, _, kind = plain.rpartition(".")
        bias = ".bias" if kind == "bias" else ""
        layer, _, part = body.removeprefix("layers.").partition(".")
        if plain in ("d2t", "t2d"):
            yield plain, name
        elif body in ends:
            yield f"{ends[body]}{bias}", name
        elif body == "input_norm" or body.startswith("fc_norm."):
            yield body, name
        elif body.startswith("layers.") and part in parts:
            yield f"layers.{layer}.{parts[part]}{bias}", name
        elif not any(each in plain for each in _SPARE):
            yield plain, name
