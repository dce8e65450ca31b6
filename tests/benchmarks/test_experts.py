"""Pages that a mixture of experts reads, on a small file of its shape."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import pytest

from benchmarks import experts

SMALL = {"VOCABULARY": 512, "WIDTH": 512, "COUNT": 16, "USED": 2, "INNER": 512, "VALUE_HEADS": 4}
SMALL |= {"KEY_HEADS": 2, "HEADS": 4, "HEAD": 128}


@pytest.fixture
def decoding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> experts.Decoding:
    if not os.access("/proc/self/clear_refs", os.W_OK):
        pytest.skip("this system counts no accessed pages")
    for name, value in SMALL.items():
        monkeypatch.setattr(experts, name, value)
    return experts.Decoding(experts.write(tmp_path / "experts.gguf", 4, True), 2)


def test_a_token_reads_the_experts_that_it_uses(decoding: experts.Decoding) -> None:
    found = experts.count(decoding, 3)
    # What is fetched ahead ends in the next matrix, two or three pages of about forty.
    assert 1 < found["experts_to_those_used"] < 1.25
    assert found["experts_mib"] < found["all_mib"] < found["all_of_the_file_mib"] / 2


def test_a_forward_that_reads_all_experts_is_seen(decoding: experts.Decoding) -> None:
    step, target = decoding.step, decoding.target

    def greedy() -> float:
        for name, matrix in target.matrices._matrices.items():
            if ".experts." in name:
                ctypes.string_at(matrix.tiles, 512 * 512 // 2)
        return step()

    decoding.step = greedy  # type: ignore[method-assign]
    found = experts.count(decoding, 1)
    assert found["experts_to_those_used"] > 6


def test_the_dense_file_has_the_weights_that_a_token_uses(tmp_path: Path) -> None:
    def stored(with_experts: bool) -> float:
        shapes = experts.shapes(4, with_experts).items()
        share = experts.USED / experts.COUNT
        return sum(
            float(experts.np.prod(shape)) * (share if "_exps" in name else 1)
            for name, shape in shapes
            if len(shape) > 1 and "gate_inp" not in name
        )

    assert stored(True) == stored(False)
