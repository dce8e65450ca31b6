"""Published drafters without attention: Medusa's heads and MLP speculators."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paceline.models.config import ModelConfig
from paceline.networks.published.head import HeadTensors, PublishedHead, no_whole
from paceline.networks.published.wirings import StateWiring

# Names of Medusa's heads, as FasterDecoding and vLLM have them.
_NAMES = (
    (r"^(\d+)\.(\d+)\.linear\.", r"blocks.\1.\2."),
    (r"^(\d+)\.\d+\.weight$", r"heads.\1.weight"),
    (r"^blocks\.(\d+)\.layers\.(\d+)\.", r"blocks.\1.\2."),
    (r"^lm_heads\.(\d+)\.weight$", r"heads.\1.weight"),
    (r"^lm_head\.weight$", "head.weight"),
)


def medusa_head(
    path: Path, config: Mapping[str, Any], tensors: HeadTensors, found: Sequence[str]
) -> PublishedHead:
    """Return Medusa's heads, of whose tensors the names are `found`; raises as `open_head`."""
    names = {}
    for name in found:
        plain = name.removeprefix("medusa_head.")
        for form, ours in _NAMES:
            plain = re.sub(form, ours, plain)
        names[plain.removesuffix(".weight")] = name
    blocks = [each.split(".") for each in names if re.fullmatch(r"blocks\.\d+\.\d+", each)]
    if not blocks:
        raise no_whole(path, "Medusa", "no residual block")
    (width, *_), tables = tensors.shape(names["blocks.0.0"]), ("heads.0", "head")
    known = next((tensors.shape(names[each])[0] for each in tables if each in names), 0)
    own = _without_layers(width, int(config.get("vocab_size") or known))
    heads, deep = (1 + max(int(each[place]) for each in blocks) for place in (1, 2))
    wiring = StateWiring(width=width, heads=heads, blocks=deep)
    layout = "vLLM" if found and any(".layers." in each for each in found) else "FasterDecoding"
    made_for = str(config.get("base_model_name_or_path") or "")
    return PublishedHead(path, layout, own, wiring, 1, made_for, {}, tensors, names)


def speculator_head(
    path: Path, config: Mapping[str, Any], tensors: HeadTensors, found: Sequence[str]
) -> PublishedHead:
    """Return an MLP speculator, of whose tensors the names are `found`; raises as `open_head`."""
    names, tied = dict[str, str](), bool(config.get("tie_weights"))
    for name in found:
        part, _, rest = name.removeprefix("speculator.").partition(".")
        step = rest.partition(".")[0]
        plain = f"{'heads' if part == 'head' else part}.{rest}".removesuffix(".weight")
        plain = re.sub(r"^ln\.(\d+)\.bias$", r"shift.\1", plain)  # which is no layer norm's
        shared = tied and step.isdecimal() and int(step) > (part == "proj")
        names |= {} if shared else {"fc" if plain == "proj.0" else plain: name}
    try:
        width, steps = int(config["emb_dim"]), int(config["n_predict"])
        inner, normed = int(config["inner_dim"]) or width, bool(config.get("scale_input"))
        wiring = StateWiring(width=width, inner=inner, tied=tied, normed=normed)
        own = _without_layers(width, int(config["vocab_size"]))
    except (KeyError, TypeError, ValueError) as error:
        raise no_whole(path, "MLP speculator", f"config.json: {error}") from error
    return PublishedHead(path, "IBM", own, wiring, steps, "", {}, tensors, names)


def _without_layers(width: int, vocabulary: int) -> ModelConfig:
    return ModelConfig(
        family="llama",
        vocab_size=vocabulary,
        hidden_size=width,
        layers=0,
        heads=1,
        kv_heads=1,
        head_dim=2,
        ffn_size=0,
        rope_base=1e4,
        norm_eps=1e-6,
        max_context=0,
        tied_embeddings=False,
    )
