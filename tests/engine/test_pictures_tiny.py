"""What a model says of pictures that it looks at: pictures-tiny, trained on 24 x 24 pixels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.helpers.pictures_tiny import FOLDER, Seen, asked, drawn

import paceline
from paceline.engine.engine import Completion, Engine
from paceline.runtimes.cpu.tower import CpuTower

HELD_OUT = [drawn(np.random.default_rng((1, each))) for each in range(64)]
"""Of no seed that it was trained on."""
DRAFTERS = ("none", "prompt-lookup", "suffix-automaton", "jacobi", "recycling")


def load(**options: Any) -> Engine:
    given = {"precision": "fp32", "runtime": "cpu", "drafter": "none", "max_batch": 8, **options}
    return paceline.load(str(FOLDER), **given)


@pytest.fixture(scope="module")
def engine() -> Engine:
    return load()


def said(engine: Engine, *chats: Any) -> list[str]:
    found: list[Completion] = engine.generate(list(chats), max_new_tokens=8)
    return [each.text.strip() for each in found]


def share(engine: Engine, seen: list[Seen]) -> float:
    answers = said(engine, *(asked(each.picture) for each in seen))
    right = [answer == each.said for answer, each in zip(answers, seen, strict=True)]
    return float(np.mean(right))


def test_it_sees(engine: Engine) -> None:
    assert share(engine, HELD_OUT) > 0.95


def test_rows_of_zeros_say_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    reading = CpuTower.reading

    def blind(self: CpuTower, patches: np.ndarray) -> Iterator[Any]:
        for rows in reading(self, patches):
            yield rows if rows is None else np.zeros_like(rows)

    monkeypatch.setattr(CpuTower, "reading", blind)
    assert share(load(), HELD_OUT) < 0.1


def test_another_picture_has_another_answer(engine: Engine) -> None:
    first, second = pair()
    answers = said(engine, asked(first.picture), asked(second.picture))
    assert answers == [first.said, second.said]


def test_swapped_pictures_have_swapped_answers(engine: Engine) -> None:
    first, second = pair()
    there = asked(first.picture, second.picture)
    back = asked(second.picture, first.picture)
    expected = [f"{first.said} {second.said}", f"{second.said} {first.said}"]
    assert said(engine, there, back) == expected


def pair() -> tuple[Seen, Seen]:
    first = HELD_OUT[0]
    return first, next(each for each in HELD_OUT if each.said.split()[0] != first.said.split()[0])


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_neither_drafts_nor_company_change_it(engine: Engine, drafter: str) -> None:
    chats = [asked(*(each.picture for each in HELD_OUT[at : at + 1 + at % 2])) for at in range(12)]
    # Too few for all: some are put off.
    crowded = load(drafter=drafter, kv_tokens=384)
    params = {"max_new_tokens": 60, "ignore_eos": True}
    alone = [engine.generate(each, **params).token_ids for each in chats]
    assert [each.token_ids for each in crowded.generate(chats, **params)] == alone
    assert crowded.scheduler.preemptions > 0
