"""Sampling that a model's files ask for: `generation_config.json`, and keys of GGUF files."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

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


def _numbers(found: Mapping[str, Any]) -> dict[str, float]:
    # What is out of range is refused where it is used.
    return {
        name: int(each) if name in _WHOLE else float(each)
        for name, each in found.items()
        if isinstance(each, int | float) and not isinstance(each, bool) and math.isfinite(each)
    }
