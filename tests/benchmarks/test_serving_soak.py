"""The soak: silent on a server that keeps nothing, and it finds one that does."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from benchmarks.serving import soak
from benchmarks.serving.soak import Sample, Soak

from paceline.errors import EngineFailed

ROOT = Path(__file__).parents[2]


def run(seconds: float, folder: Path, **options: Any) -> Soak:
    """Soak a server over a table."""
    options |= {"settings": {"max_waiting": 64}}
    log = folder / "log"
    with log.open("w") as out:
        server = subprocess.Popen(
            [sys.executable, "-m", "tests.helpers.serve_tables", json.dumps(options)],
            cwd=ROOT,
            stderr=out,
        )
    found = Soak()
    try:
        while '"ready"' not in log.read_text():
            assert server.poll() is None, log.read_text()
            time.sleep(0.02)
        [port] = re.findall(r"listening on http://127.0.0.1:(\d+)", log.read_text())
        soak.soak(found, server, f"http://127.0.0.1:{port}", seconds, 4, folder)
    finally:
        server.kill()
        server.wait()
    return found


def test_a_server_is_soaked_and_drained(tmp_path: Path) -> None:
    found = run(8, tmp_path)
    assert [each for each in found.wrong if "memory" not in each] == []  # too short to tell
    assert found.counts["answers"] > 20
    assert found.samples[-1].answers > found.samples[0].answers
    assert found.empty_seconds is not None
    assert found.drain_seconds is not None


def samples(grow: float, threads: int = 0, noise: int = 300) -> list[Sample]:
    return [
        Sample(
            at,
            20 * at,
            9000 + int(20 * at * grow) + at * 7919 % noise,
            30,
            9 + threads * at,
            0,
            4,
            0,
        )
        for at in range(100)
    ]


@pytest.mark.parametrize(
    ("made", "wrong"),
    [
        (samples(0), []),
        (samples(0.5), []),
        (samples(5), ["memory grows by 5.0 KiB with each answer"]),
        (samples(0, threads=1), ["threads grow by 47"]),
    ],
)
def test_what_grows_is_named(made: list[Sample], wrong: list[str]) -> None:
    found = Soak(made, {"answers": 2000, "differences": 0, "errors": 0})
    found.judge(4)
    assert found.wrong == wrong


def test_differences_and_errors_are_wrong() -> None:
    found = Soak(samples(0), {"answers": 2000, "differences": 2, "errors": 1})
    found.judge(4)
    assert found.wrong == ["2 differences", "1 errors"]


def test_a_server_that_has_ended_is_named() -> None:
    with pytest.raises(EngineFailed, match="the server has ended"):
        soak.sample(2**22 + 1, "http://127.0.0.1:9", 0.0, 0)
