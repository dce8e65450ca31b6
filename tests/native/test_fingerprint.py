"""The same logits, to the last bit, at every instruction set: golden hashes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.core import processor
from paceline.lab.measure.fingerprint import CASES, fingerprint, fingerprints
from paceline.models.source import resolve
from paceline.native import build, library
from paceline.runtimes.cpu.target import CpuTarget

GOLDEN = json.loads(Path(__file__).with_name("fingerprints.json").read_text())
# A folder with the GGUF files that the golden hashes name.
FOLDER = os.environ.get("PACELINE_MODELS", "")
SCRIPT = """
import json
from paceline.native import build, library
{before}
from paceline.lab.measure.fingerprint import fingerprints
print(json.dumps([library.found()[0], fingerprints()]))
"""


def elsewhere(level: str, before: str = "") -> dict[str, str]:
    """Fingerprints by a process of its own, forced to a level."""
    command = [sys.executable, "-c", SCRIPT.format(before=before)]
    environment = {**os.environ, build.FORCE: level}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    used, found = json.loads(done.stdout)
    assert used == level
    return dict(found)


def test_every_case_is_golden_here() -> None:
    assert fingerprints() == GOLDEN["built_in"]
    assert len(set(GOLDEN["built_in"].values())) == len(CASES)


@pytest.mark.parametrize("level", build.LEVELS)
def test_every_level_gives_the_golden_ones(level: str) -> None:
    if level not in build.levels(processor.flags()):
        pytest.skip(f"this processor lacks {level}")
    assert elsewhere(level) == GOLDEN["built_in"]


def test_a_multiply_add_where_none_stands_is_seen() -> None:
    """Compilers that contract sums of products give other bits, in every case."""
    found = elsewhere(
        library.candidates()[0],
        "build._FLAGS = tuple(each.replace('contract=off', 'contract=fast') for each in "
        "build._FLAGS)",
    )
    assert all(found[name] != value for name, value in GOLDEN["built_in"].items())


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("case", ["llama", "gemma3_text", "llama fp32"])
def test_threads_change_nothing(case: str, threads: int) -> None:
    assert fingerprint(CASES[case].target(threads)) == GOLDEN["built_in"][case]


@pytest.mark.real
def test_the_default_model() -> None:
    target = CpuTarget.load(resolve("smollm2-135m"))
    assert fingerprint(target) == GOLDEN["models"]["smollm2-135m"]


@pytest.mark.models
@pytest.mark.skipif(not FOLDER, reason="PACELINE_MODELS names no folder of GGUF files")
@pytest.mark.parametrize("name", [name for name in GOLDEN["models"] if name.endswith(".gguf")])
def test_files_that_people_run(name: str) -> None:
    target = CpuTarget.load(resolve(str(Path(FOLDER) / name)))
    assert fingerprint(target) == GOLDEN["models"][name]
