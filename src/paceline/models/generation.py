"""Sampling that a model's files ask for: `generation_config.json`, and keys of GGUF files."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from paceline.core.types import OF_CHANCE, SamplingParams
from paceline.errors import InvalidOption

_HF = ("temperature", "top_k", "top_p", "min_p", "typical_p", "repetition_penalty")
_GGUF = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
    "penalty_last_n": "repeat_last_n",
    **{name: name for name in ("xtc_probability", "xtc_threshold")},
    **{name: name for name in ("mirostat", "mirostat_tau", "mirostat_eta")},
}
_WHOLE = ("top_k", "repeat_last_n", "mirostat")


def hf_sampling(config: Mapping[str, Any]) -> dict[str, float]:
    """Return fields of `SamplingParams`; with `do_sample` false only the penalty counts."""
    found = _numbers({name: config.get(name) for name in _HF})
    if config.get("do_sample") is False:
        found = {name: each for name, each in found.items() if name == "repetition_penalty"}
    return found


def gguf_sampling(metadata: Mapping[str, Any]) -> dict[str, float]:
    """Return fields of `SamplingParams` from `general.sampling.*`."""
    return _numbers({to: metadata.get(f"general.sampling.{key}") for key, to in _GGUF.items()})


def told(asked: Mapping[str, float]) -> str:
    """Say in words what a model's files ask for."""
    return ", ".join(f"{name} {value:g}" for name, value in asked.items())


def completed(
    params: SamplingParams, defaults: Mapping[str, float], given: Collection[str]
) -> tuple[SamplingParams, dict[str, float]]:
    """Return parameters with the model's own where none are `given`, and which these are.

    Samplers that mean nothing at temperature 0 are left out there. InvalidOption: a value that the
    files ask for is out of range.
    """
    asked = {name: each for name, each in defaults.items() if name not in given}
    if asked.get("temperature", params.temperature) == 0:
        asked = {name: each for name, each in asked.items() if name not in OF_CHANCE}
    try:
        return replace(params, **asked), asked  # type: ignore[arg-type]  # of its fields' types
    except InvalidOption as error:
        raise InvalidOption(
            f"the model's files ask for {told(asked)}: {error}: give --no-generation-config"
        ) from error


def _numbers(found: Mapping[str, Any]) -> dict[str, float]:
    # What is out of range is refused where it is used.
    return {
        name: int(each) if name in _WHOLE else float(each)
        for name, each in found.items()
        if isinstance(each, int | float) and not isinstance(each, bool) and math.isfinite(each)
    }
