"""Conversations about pictures with a server: silent on ours, and each fault is found."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from benchmarks.serving import pictures
from tests.helpers.serving import Client, run
from tests.helpers.tiny_vision import talking

import paceline
from paceline.engine.engine import Engine
from paceline.errors import EngineFailed


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("smolvlm")
    talking("smolvlm", made)
    return made


def load(folder: Path, drafter: str) -> Engine:
    return paceline.load(
        str(folder), precision="fp32", runtime="cpu", threads=1, drafter=drafter, max_batch=8
    )


def test_eight_clients_have_the_texts_of_one(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alone, draw = load(folder, "none"), random.Random(2)
    files = [pictures.png(seed) for seed in range(4)]
    talks = [pictures.talk(alone, files, draw) for _ in range(6)]
    assert any(turn.pictures_end for each in talks for turn in each)
    assert not all(turn.pictures_end for each in talks for turn in each)

    async def work(client: Client) -> None:
        found = await pictures.clients(client.http, talks, 8, 24, draw)
        assert found.answers >= 24
        assert 0 < found.second_turns < found.with_pictures < found.answers
        assert (found.differences, found.not_cached) == ([], 0)
        # An answer to something else, and more to be cached than there is.
        one, two = next(each for each in talks if each[0].pictures_end)
        wrong = (one._replace(tokens=one.tokens[::-1]), two._replace(pictures_end=10**6))
        found = await pictures.clients(client.http, [wrong], 1, 2, draw)
        assert (len(found.differences), found.not_cached) == (1, 1)
        for stream in (False, True):
            with pytest.raises(EngineFailed, match="messages"):
                await pictures.ask(client.http, {"messages": [], "stream": stream})

    run(work, load(folder, "suffix-automaton+recycling"))
    assert "different" in capsys.readouterr().err
