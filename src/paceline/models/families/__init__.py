"""Families of models that are written in `models.ops`, one file each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paceline.errors import ModelError
from paceline.models.config import ELSEWHERE, ModelConfig
from paceline.models.families.base import LLAMA_HALVES, Family, Step
from paceline.models.families.deepseek import DEEPSEEK3, GLM4_LITE
from paceline.models.families.denoisers import DENOISERS, UNSUPPORTED
from paceline.models.families.experts import BLOCKFFN, MIXTRAL, QWEN3_MOE
from paceline.models.families.falcon_h1 import FALCON_H1
from paceline.models.families.gemma3 import GEMMA3
from paceline.models.families.gemma4 import GEMMA4
from paceline.models.families.gpt_oss import GPT_OSS
from paceline.models.families.granite import GRANITE, GRANITE4
from paceline.models.families.lfm2 import LFM2, LFM2_MOE
from paceline.models.families.llama import LLAMA
from paceline.models.families.ministral3 import MINISTRAL3
from paceline.models.families.mistral import MISTRAL
from paceline.models.families.nemotron_h import NEMOTRON_H, NEMOTRON_H_MOE
from paceline.models.families.olmo3 import OLMO2, OLMO3
from paceline.models.families.phi3 import PHI3
from paceline.models.families.qwen2 import QWEN2
from paceline.models.families.qwen3 import QWEN3
from paceline.models.families.qwen3_5 import QWEN3_5, QWEN3_5_MOE
from paceline.models.families.smollm3 import SMOLLM3
from paceline.models.families.whisper import WHISPER
from paceline.models.ops import Ops, Rows

_DENSE = (LLAMA, MISTRAL, MINISTRAL3, QWEN2, QWEN3, GEMMA3, PHI3, SMOLLM3, GRANITE, GRANITE4)
_HYBRID = (QWEN3_5, LFM2, LFM2_MOE, NEMOTRON_H, NEMOTRON_H_MOE, FALCON_H1)
_SPARSE = (QWEN3_MOE, MIXTRAL, BLOCKFFN, QWEN3_5_MOE, GPT_OSS, DEEPSEEK3, GLM4_LITE)
FAMILIES = (*_DENSE, OLMO2, OLMO3, GEMMA4, *_HYBRID, *_SPARSE)
"""Autoregressive ones."""
LISTENERS = (WHISPER,)
"""Those whose layers look at a memory of sound."""


def family_of(config: ModelConfig) -> Family:
    return next(each for each in (*FAMILIES, *LISTENERS, *DENOISERS) if each.hf == config.family)


def is_denoiser(config: Mapping[str, Any]) -> bool:
    """Return whether the content of a `config.json` is that of a model that fills a canvas.

    A GGUF file's architecture is a `model_type`.
    """
    kinds = {*UNSUPPORTED, *(name for each in DENOISERS for name in (each.hf, each.gguf))}
    return "denoiser" in config or not kinds.isdisjoint(_kinds(config))


def hf_config(config: Mapping[str, Any], eos_token_ids: tuple[int, ...] = ()) -> ModelConfig:
    """Read the content of a `config.json`, all but `denoises`.

    Raises:
        ModelError: the architecture or a feature is unsupported, or an entry is missing.
    """
    for kind in _kinds(config):
        if kind in UNSUPPORTED:
            raise ModelError(UNSUPPORTED[kind])
    config = _text_config(config)
    family = _find(config.get("model_type"), "hf")
    return ModelConfig.from_hf(config, family.hf, family.from_hf, eos_token_ids, family.entries)


def gguf_config(
    metadata: Mapping[str, Any],
    shapes: Mapping[str, tuple[int, ...]],
    divisors: Mapping[str, Sequence[float]],
) -> ModelConfig:
    """Read GGUF metadata; raises ModelError as `hf_config`.

    Args:
        metadata: of the file.
        shapes: GGUF tensor name to shape, outer dimension first.
        divisors: `rope_freqs.weight` and its likes, those that the file has.
    """
    kind = metadata.get("general.architecture")
    if kind in UNSUPPORTED:
        raise ModelError(UNSUPPORTED[kind])
    family = _find(kind, "gguf")
    return ModelConfig.from_gguf(
        metadata, shapes, family.hf, family.from_gguf, divisors, family.gguf_entries
    )


def halves_of(config: ModelConfig, ops: Ops, tokens: Rows) -> tuple[Step, Step]:
    """Return the halves of a layer, attention and feed-forward block, for rows of some tokens."""
    family = family_of(config)
    return family.reading(ops, config, tokens) if family.reading else family.halves or LLAMA_HALVES


def _text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    # Of a model that reads pictures too, whose parts for these are not loaded.
    wrapped = config.get("text_config")
    family = next((each for each in FAMILIES if config.get("model_type") in each.wraps), None)
    if family is None or not isinstance(wrapped, Mapping):
        return config
    named = "tie_word_embeddings"
    tied = config.get(named, wrapped.get(named, family.usual.get(named, False)))
    own = wrapped.get("model_type")  # that of Mistral Small in the wrapper of Ministral
    kind = own if own in {each.hf for each in FAMILIES} else family.hf
    return {**family.usual, **wrapped, "model_type": kind, named: tied}


def _kinds(config: Mapping[str, Any]) -> list[str]:
    # Remote code may have an architecture of its own under another's model type.
    named = config.get("architectures")
    return [str(config.get("model_type")), *map(str, named if isinstance(named, list) else ())]


def _find(name: object, key: str) -> Family:
    families: list[Family] = [*FAMILIES, *LISTENERS, *DENOISERS]
    for family in families:
        if name and getattr(family, key) == name:
            return family
    known = ", ".join(dict.fromkeys(filter(None, (getattr(each, key) for each in families))))
    raise ModelError(f"architecture {name!r} is not one of {known}: {ELSEWHERE}")
