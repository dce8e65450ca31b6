"""What the processor offers, and what becomes of a model where it does not offer enough."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from paceline.core import processor

SKYLAKE = frozenset({"sse2", "avx", "avx2", "avx512bw"})
HASWELL = frozenset({"sse2", "avx", "avx2"})
ALDER_LAKE = frozenset({"sse2", "avx", "avx2", "avx_vnni"})
OLD = frozenset({"sse2"})


@pytest.mark.parametrize(
    ("flags", "limit", "there"),
    [
        (SKYLAKE, "", {"AVX", "AVX2", "AVX2_VNNI", "AVX512_CORE"}),
        (ALDER_LAKE, "", {"AVX", "AVX2", "AVX2_VNNI"}),
        (HASWELL, "", {"AVX", "AVX2"}),
        (OLD, "", set()),
        (SKYLAKE, "avx2", {"AVX", "AVX2"}),
        (SKYLAKE, "SSE41", set()),
        (HASWELL, "AVX512_CORE", {"AVX", "AVX2"}),
        (SKYLAKE, "ALL", {"AVX", "AVX2", "AVX2_VNNI", "AVX512_CORE"}),
        (frozenset(), "", {"AVX", "AVX2", "AVX2_VNNI", "AVX512_CORE"}),
    ],
)
def test_instruction_sets(
    flags: frozenset[str], limit: str, there: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processor, "flags", lambda: flags)
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", limit)
    found = {each for each in ("AVX", "AVX2", "AVX2_VNNI", "AVX512_CORE") if processor.has(each)}
    assert found == there


def test_more_threads_than_cores_are_refused(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(processor, "cores", lambda: 3)
    assert processor.usable_threads(None) == 3
    assert processor.usable_threads(2) == 2
    assert processor.usable_threads(3) == 3
    assert not caplog.messages
    assert processor.usable_threads(64) == 3
    [message] = caplog.messages
    assert "64" in message
    assert "3 cores" in message


HERE = """
import json, logging, sys
logging.basicConfig(format="%(message)s")
from paceline.measure.doctor import noise_floor
from paceline.errors import RuntimeUnavailable
from tests.runtimes import tiny_openvino
out = {}
for precision in ("int8", "fp32"):
    try:
        target = tiny_openvino.target(precision)
        exact = target.capabilities.bit_exact
        out[precision] = [exact, max(noise_floor(target, list(range(100))).values())]
    except RuntimeUnavailable as error:
        out[precision] = str(error)
print(json.dumps(out))
"""


def limited(instructions: str) -> tuple[dict[str, object], list[str]]:
    """What models do in a process whose kernels get these instructions, and what is said."""
    pytest.importorskip("openvino")
    done = subprocess.run(
        [sys.executable, "-c", HERE],
        capture_output=True,
        text=True,
        env={**os.environ, "ONEDNN_MAX_CPU_ISA": instructions},
        check=True,
    )
    return json.loads(done.stdout), done.stderr.splitlines()


@pytest.mark.skipif(not processor.has("AVX512_CORE"), reason="this processor has no more itself")
def test_without_instructions_for_int8_a_model_runs_on_fp32_activations() -> None:
    found, said = limited("AVX2")
    exact, noise = found["int8"]  # type: ignore[misc]
    assert not exact
    assert 0 < noise < 1e-3, "near, but not the same bits, as the capabilities say"
    assert found["fp32"] == [True, 0]
    [line] = said
    assert "AVX-VNNI" in line
    assert "int8" in line


@pytest.mark.skipif(not processor.has("AVX2"), reason="this processor has no more itself")
def test_without_instructions_for_attention_the_runtime_says_so() -> None:
    found, said = limited("AVX")
    assert "AVX2" in str(found["int8"])
    assert "--runtime torch" in str(found["fp32"])
    assert not said
