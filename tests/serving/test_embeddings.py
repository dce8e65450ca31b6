"""Embeddings: states as transformers has them, the same alone, in a batch and under load."""

from __future__ import annotations

import json
from base64 import b64decode
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tests.helpers import table_engines as engines
from tests.helpers.serving import Client, Json, run
from tests.helpers.tiny_model import save_directory, tiny_config

import paceline
from paceline.errors import InvalidOption
from paceline.models.source import resolve

PATH = "/v1/embeddings"
RANDOM = np.random.default_rng(0)
TEXTS = [RANDOM.integers(3, 300, size).tolist() for size in (1, 2, 5, 70, 200)]


@pytest.fixture(scope="module", params=["llama", "qwen2"])
def place(request: Any, tmp_path_factory: Any) -> Path:
    return save_directory(tmp_path_factory.mktemp("embed") / "m", tiny_config(request.param))


def engine_of(place: Path) -> paceline.Engine:
    return paceline.load(str(place), runtime="cpu", precision="fp32", drafter="prompt-lookup")


@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_states_are_those_of_transformers_and_alone_as_in_a_batch(
    place: Path, pooling: str
) -> None:
    judge = transformers.AutoModel.from_pretrained(place, dtype=torch.float32).eval()
    engine = engine_of(place)
    together = engine.generate(TEXTS, raw=True, pooling=pooling)
    for text, done in zip(TEXTS, together, strict=True):
        with torch.no_grad():
            states = judge(torch.tensor([text])).last_hidden_state[0].double().numpy()
        right = states[-1] if pooling == "last" else states.mean(0)
        assert done.state is not None
        np.testing.assert_allclose(done.state, right, rtol=0, atol=3e-6 * np.abs(right).max())
        alone = engine.generate(text, raw=True, pooling=pooling).state
        assert alone.tobytes() == done.state.tobytes()
    assert engine.generate(TEXTS[0], raw=True, max_new_tokens=2).state is None
    with pytest.raises(InvalidOption, match="pooling"):  # a table has no states
        engines.make().generate("dog", pooling=pooling)


def test_the_route_answers_as_openais_does(place: Path) -> None:
    engine = engine_of(place)
    alone = engine.generate(TEXTS[2], raw=True, pooling="last").state
    length_one = alone / np.sqrt(np.sum(alone * alone))

    async def asks(client: Client) -> None:
        async def rows(**fields: Any) -> list[Any]:
            answer = await client.ask(PATH, fields)
            assert answer["object"] == "list"
            assert [each["index"] for each in answer["data"]] == list(range(len(answer["data"])))
            return [each["embedding"] for each in answer["data"]]

        [one] = await rows(input=TEXTS[2])
        assert one == length_one.astype(np.float32).tolist()
        many = await rows(input=TEXTS * 5)
        assert len(many) == 25
        assert many[2] == many[12] == one
        [packed] = await rows(input=[TEXTS[2]], encoding_format="base64", dimensions=64)
        assert np.frombuffer(b64decode(packed), "<f4").tolist() == one
        two = await client.ask("/api/embed", {"model": "tables", "input": ["the quick", "dog"]})
        assert two["embeddings"] == await rows(input=["the quick", "dog"])
        answer = await client.ask(PATH, {"input": ["the quick", "dog"]})
        assert answer["usage"]["prompt_tokens"] == answer["usage"]["total_tokens"] > 2
        odd = await client.post(PATH, {"input": "a", "no_such_field": 1, "user": "u"})
        assert odd.headers["x-paceline-ignored"] == "no_such_field"
        theirs = {"model": "tables", "input": "a", "truncate": True, "keep_alive": "5m"}
        odd = await client.post("/api/embed", theirs | {"dimensions": 0, "options": {"num_ctx": 9}})
        assert odd.headers["x-paceline-ignored"] == "truncate, options, keep_alive"
        plain = await client.post("/api/embed", theirs | {"truncate": False, "keep_alive": -1})
        assert "x-paceline-ignored" not in plain.headers
        long = await client.refused(PATH, {"input": ["a", "dog " * 9000]})
        assert long["code"] == "context_length_exceeded"
        wrong: list[tuple[Json, str]] = [
            ({}, "input"),
            ({"input": []}, "input"),
            ({"input": ""}, "input"),
            ({"input": ["a", [1]]}, "input"),
            ({"input": [999_999]}, "input"),
            ({"input": [[1], [1] * 300]}, "input"),
            ({"input": "a", "dimensions": 32}, "dimensions"),
            ({"input": "a", "encoding_format": "int8"}, "encoding_format"),
        ]
        for body, param in wrong:
            assert (await client.refused(PATH, body))["param"].startswith(param)

    run(asks, engine, max_batch=4, max_waiting=0)


def test_the_models_file_says_how_states_are_pooled(tmp_path: Path) -> None:
    place = save_directory(tmp_path / "m", tiny_config())
    assert resolve(str(place)).config.pooling == "last"
    (place / "1_Pooling").mkdir()
    said = {"pooling_mode_mean_tokens": True, "pooling_mode_lasttoken": False}
    (place / "1_Pooling" / "config.json").write_text(json.dumps(said))
    assert resolve(str(place)).config.pooling == "mean"
    with pytest.raises(InvalidOption, match="pooling 'cls'"):
        engine_of(place).generate([5], raw=True, pooling="cls")
