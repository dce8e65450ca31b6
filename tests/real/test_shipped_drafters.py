"""The trained drafters that ship: they load by name, draft well enough to be worth shipping, and
change nothing."""

from __future__ import annotations

import pytest
from tests.real.conftest import load

from paceline.drafters.resources import Loaded
from paceline.networks.weights import read_metadata
from paceline.registry.loading import make_engine
from paceline.weights import weight_files

pytestmark = pytest.mark.real

SHIPPED = {"hydra": 1.25, "eagle3": 1.25, "block-parallel": 1.2, "ppd": 1.1}
SHIPPED |= {"kangaroo": 1.08, "kangaroo:stop=0.1": 1.2}  # by default it halts sooner: 1.13
"""Networks, with the tokens per forward that each is to bring at least."""

ASKED = ["Write a short story about a dog who finds a key.", "What is 12 times 7? Explain."]


@pytest.fixture(scope="module")
def loaded() -> Loaded:
    return load("int8")


def test_every_file_tells_where_it_comes_from(loaded: Loaded) -> None:
    for name in {spec.partition(":")[0] for spec in SHIPPED}:
        [path] = weight_files(f"{name}-smollm2-135m.safetensors")
        assert path.stat().st_size < 20 * 2**20
        metadata = read_metadata(path)
        assert metadata["model"] == loaded.source.fingerprint
        made = "prompt-tokens" if name == "ppd" else f"drafter {name}"
        assert metadata["command"].startswith(f"paceline train {made}")
        assert "new_tokens" in metadata["data"]


@pytest.mark.parametrize("spec", SHIPPED)
def test_texts_are_those_of_plain_decoding_in_fewer_forwards(spec: str, loaded: Loaded) -> None:
    plain = make_engine(loaded, drafter="none").generate(ASKED, max_new_tokens=40)
    engine = make_engine(loaded, drafter=spec, controller="fixed", nodes=8, depth=4)
    drafted = engine.generate(ASKED, max_new_tokens=40)
    assert [a.token_ids for a in drafted] == [b.token_ids for b in plain]
    forwards = sum(answer.stats.target_forwards for answer in drafted)
    assert sum(len(answer.token_ids) for answer in drafted) > SHIPPED[spec] * forwards
