"""Drafters of a tiny Whisper, of random numbers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from tests.helpers.tiny_whisper import WhisperWeights, sound, tiny_whisper

from paceline.networks.base import Network
from paceline.networks.catalogue import build
from paceline.networks.weights import Trained, save_network
from paceline.runtimes.cpu.target import CpuTarget
from paceline.runtimes.reference.target import ReferenceTarget

CONFIG = tiny_whisper()
SIZES: Mapping[str, Mapping[str, int]] = {
    "gad": {"width": 5},
    "gad-ctc": {"width": 8},
    "paraformer": {"width": 8},
}
IDS = np.arange(0, 62, 2)  # of the draft vocabulary
TEXT = [41, 42, 13, 2]


def network(name: str) -> Network:
    return build(name, CONFIG, SIZES[name])


def trained(name: str, seed: int = 0) -> Trained:
    rng, made = np.random.default_rng(seed), network(name)
    drawn = {
        each: rng.normal(size=shape) / np.sqrt(shape[-1])
        if len(shape) > 1
        else rng.uniform(0.5, 1.5, shape)
        for each, shape in made.shapes().items()
    }
    parameters = {each: x.astype(np.float16).astype(np.float32) for each, x in drawn.items()}
    return Trained(made, parameters, IDS, {"model": "tiny"})


def saved(folder: Path, name: str) -> str:
    path = folder / f"{name}.safetensors"
    save_network(path, trained(name))
    return str(path)


@cache
def cpu(precision: str = "fp32") -> CpuTarget:
    return CpuTarget(CONFIG, WhisperWeights(CONFIG), precision, kv_tokens=1024, threads=1)


def reference(precision: str = "fp32") -> ReferenceTarget:
    return ReferenceTarget(CONFIG, WhisperWeights(CONFIG), precision)


def opened(target: Any, seed: int) -> Any:
    """A text of a sound."""
    memory = target.encode(sound(seed))
    cache = target.open_to(memory)
    target.release(memory)
    return cache
