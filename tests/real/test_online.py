"""A shipped drafter that learns while it serves: better at what is asked again, the same texts."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.real.conftest import load

from paceline.engine.engine import Engine
from paceline.networks.weights import load_network
from paceline.registry.loading import make_engine

pytest.importorskip("torch")
pytestmark = [pytest.mark.real, pytest.mark.slow]

ASKED = ["Name three facts about whales.", "Explain how a bicycle stays upright."]


def test_a_drafter_learns_from_what_it_missed(tmp_path: Path) -> None:
    loaded, path = load("int8"), tmp_path / "learnt.safetensors"
    drafter = f"hydra:online=10,rate=0.02,save={path}"
    engine = make_engine(loaded, drafter=drafter, nodes=4, depth=4)
    plain = answers(make_engine(loaded, drafter="none"))[0]
    shares = []
    for _ in range(6):
        texts, share = answers(engine)
        assert texts == plain
        shares.append(share)
        online = engine.decoder.drafter._online  # type: ignore[attr-defined]
        if online._job is not None:
            online._job.result()
    assert max(shares[-2:]) > shares[0] + 0.03
    online._file.save()
    assert load_network(path).metadata["model"] == loaded.source.fingerprint


def answers(engine: Engine) -> tuple[list[tuple[int, ...]], float]:
    """Texts, and the share of drafted tokens that stood."""
    found = [engine.generate(each, max_new_tokens=48) for each in ASKED]
    drafted = sum(each.stats.drafted_tokens for each in found)
    accepted = sum(each.stats.accepted_tokens for each in found)
    return [each.token_ids for each in found], accepted / max(1, drafted)
