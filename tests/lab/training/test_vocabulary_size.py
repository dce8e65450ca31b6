"""The size of a draft vocabulary against a plain search, and trimmed weights."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cli.conftest import Command, command  # noqa: F401

from paceline.errors import InvalidOption
from paceline.lab.training.data import Shards, Text
from paceline.lab.training.vocabulary import best_size, sizes, trimmed
from paceline.models.pull import DEFAULT_MODEL
from paceline.models.source import resolve
from paceline.networks.weights import load_network, shipped_file

COUNTS = st.lists(st.integers(0, 50), min_size=2, max_size=12).filter(any)


@given(COUNTS, st.floats(0, 1), st.floats(0, 1), st.integers(0, 40), st.integers(1, 9))
def test_no_size_has_a_greater_utility(
    counts: list[int], weight: float, least: float, body: int, width: int
) -> None:
    found = best_size(sizes(np.array(counts), body, width, weight), least)

    def utility(size: int) -> tuple[float, float]:
        covered = sum(sorted(counts, reverse=True)[:size]) / sum(counts)
        saved = width * (len(counts) - size) / (body + width * len(counts))
        return covered, weight * covered + (1 - weight) * saved

    allowed = [size for size in range(1, len(counts) + 1) if utility(size)[0] >= least - 1e-12]
    assert found.tokens in allowed
    assert found.utility == pytest.approx(max(utility(size)[1] for size in allowed))
    assert (found.coverage, found.utility) == pytest.approx(utility(found.tokens))


def test_limits_of_the_utility() -> None:
    """Coverage alone keeps every token that occurs, time alone as few as are allowed."""
    counts = np.array([5, 0, 3, 2, 0])
    assert best_size(sizes(counts, 10, 4, 1.0), 0.0).tokens == 3
    assert best_size(sizes(counts, 10, 4, 0.0), 0.0).tokens == 1
    assert best_size(sizes(counts, 10, 4, 0.0), 0.8).tokens == 2
    for wrong in (-0.1, 1.1):
        with pytest.raises(InvalidOption, match="weight"):
            sizes(counts, 10, 4, wrong)
        with pytest.raises(InvalidOption, match="least"):
            best_size(sizes(counts, 10, 4, 1.0), wrong)
    with pytest.raises(InvalidOption, match="no tokens are counted"):
        sizes(np.zeros(4, dtype=np.int64), 10, 4, 1.0)


@pytest.mark.real
def test_shipped_weights_are_trimmed_by_the_command(
    command: Command,  # noqa: F811
    tmp_path: Path,
) -> None:
    source = resolve(DEFAULT_MODEL)
    whole_at = shipped_file("eagle3", source.fingerprint)
    assert whole_at is not None
    whole = load_network(whole_at)
    # A text in which 40 drafted tokens stand, the first the oftenest.
    some = np.repeat(whole.draft_ids[100:140], np.arange(40, 0, -1))
    data, out = tmp_path / "data", tmp_path / "small.safetensors"
    data.mkdir()
    shards = Shards(data, {"model": source.fingerprint})
    shards.write(0, [Text(0, np.concatenate([[1], some]), 1)])
    asked = ("train", "vocabulary", "eagle3", "--data", str(data), "--out", str(out), "--json")
    done = command(*asked, "--size", "20")
    assert done.code == 0, done.err
    report = json.loads(done.out)
    small = load_network(out)
    ends = set(source.config.eos_token_ids) & set(whole.draft_ids.tolist())
    expected = {*whole.draft_ids[100 : 120 - len(ends)].tolist(), *ends}
    assert set(small.draft_ids.tolist()) == expected
    assert report["tokens"] == 20
    assert small.metadata["model"] == source.fingerprint
    for name, each in small.parameters.items():
        np.testing.assert_array_equal(each, whole.parameters[name])
    if whole.head_preview is not None:
        places = np.searchsorted(whole.draft_ids, small.draft_ids)
        assert small.head_preview is not None
        np.testing.assert_array_equal(small.head_preview.up, whole.head_preview.up[places])
    found = json.loads(command(*asked).out)
    assert 1 <= found["tokens"] <= 40
    assert found["coverage"] >= 0.9
    # Of a draft model, the model itself here, the ids alone are written.
    model = source.path
    asked = ("train", "vocabulary", str(model), "--data", str(data), "--json")
    kept = tmp_path / "kept.json"
    assert command(*asked, "--size", "20", "--out", str(kept)).code == 0
    ends = set(source.config.eos_token_ids)
    expected = {*whole.draft_ids[100 : 120 - len(ends)].tolist(), *ends}
    assert set(json.loads(kept.read_text())["tokens"]) == expected
    assert command(*asked, "--out", str(model)).code == 2
    asked = ("train", "vocabulary", "eagle3", "--data", str(data), "--out", str(out), "--json")
    for size in ("-1", "999999"):
        assert command(*asked, "--size", size).code == 2
    assert command("train", "vocabulary", "nothing", "--data", str(data)).code == 2
    with pytest.raises(InvalidOption, match="none of these"):
        trimmed(small, np.array([0]) if 0 not in small.draft_ids else np.array([1]))
