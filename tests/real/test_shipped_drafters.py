"""The trained drafters that ship: they load by name, draft well enough to be worth shipping, and
change nothing."""

from __future__ import annotations

from importlib.resources import as_file, files

import pytest
from tests.real.conftest import load

from paceline.loading import Loaded, make_engine
from paceline.networks.weights import load_network

pytestmark = pytest.mark.real

SHIPPED = ["hydra", "eagle3"]
ASKED = ["Write a short story about a dog who finds a key.", "What is 12 times 7? Explain."]


@pytest.fixture(scope="module")
def loaded() -> Loaded:
    return load("int8")


def test_every_file_tells_where_it_comes_from(loaded: Loaded) -> None:
    with as_file(files("paceline.weights")) as folder:
        for name in SHIPPED:
            path = folder / f"{name}-smollm2-135m.safetensors"
            assert path.stat().st_size < 20 * 2**20
            trained = load_network(path)
            assert trained.metadata["model"] == loaded.source.fingerprint
            assert trained.metadata["command"].startswith(f"paceline train drafter {name}")
            assert "new_tokens" in trained.metadata["data"]


@pytest.mark.parametrize("name", SHIPPED)
def test_texts_are_those_of_plain_decoding_in_fewer_forwards(name: str, loaded: Loaded) -> None:
    plain = make_engine(loaded, drafter="none").generate(ASKED, max_new_tokens=40)
    drafted = make_engine(loaded, drafter=name, nodes=4, depth=4).generate(ASKED, max_new_tokens=40)
    assert [a.token_ids for a in drafted] == [b.token_ids for b in plain]
    forwards = sum(answer.stats.target_forwards for answer in drafted)
    assert sum(len(answer.token_ids) for answer in drafted) > 1.25 * forwards
