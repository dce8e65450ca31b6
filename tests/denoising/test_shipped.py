"""The shipped denoisers: what they know, and that every lossless sampler keeps their text."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

import paceline
from paceline.core.types import CanvasParams
from paceline.engine.engine import Completion, Engine
from paceline.errors import InvalidOption
from paceline.lab.measure.parallel_tasks import cases, grade

MODELS = ("lists-bd", "lists-mdm", "lists-order")
TASKS = ("copy", "sort", "remove-random", "shuffle", "insert-index")
CASES = [case for task in TASKS for case in cases(task, 6, 3)]
ROOM = 16


@cache
def engine(model: str, **options: Any) -> Engine:
    return paceline.load(model, max_batch=8, **options)


def decode(model: str, sampler: str, temperature: float = 0.0, **options: Any) -> list[Completion]:
    return [
        engine(model).generate(
            case.prompt,
            raw=True,
            max_new_tokens=ROOM,
            temperature=temperature,
            seed=index,
            denoising=CanvasParams(sampler, **options),
        )
        for index, case in enumerate(CASES)
    ]


def ids(found: list[Completion]) -> list[tuple[int, ...]]:
    return [each.token_ids for each in found]


def forwards(found: list[Completion]) -> list[int]:
    """Forwards by task."""
    counts = [each.stats.target_forwards for each in found]
    return [sum(counts[i : i + 6]) for i in range(0, len(counts), 6)]


def plain(model: str) -> str:
    return "wedlm>counts:by=leftmost" if model == "lists-order" else "counts"


@pytest.mark.parametrize("model", MODELS)
def test_they_know_their_tasks(model):
    found = decode(model, plain(model))
    right = [grade(case, each.text).strict for case, each in zip(CASES, found, strict=True)]
    assert sum(right[:6]) >= 5, "copies"
    assert sum(right) >= 0.5 * len(CASES)


@pytest.mark.parametrize("model", ["lists-bd", "lists-mdm"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_freedave_has_the_text_of_static_decoding_in_fewer_forwards_on_all_tasks(
    model, temperature
):
    static = decode(model, "counts", temperature)
    ahead = decode(model, "freedave:width=4>counts", temperature)
    assert ids(ahead) == ids(static)
    assert all(few < many for few, many in zip(forwards(ahead), forwards(static), strict=True))


def test_the_filter_in_the_package_saves_forwards_and_keeps_answers():
    def right(found: list[Completion]) -> int:
        return sum(grade(case, each.text).strict for case, each in zip(CASES, found, strict=True))

    single, filtered = decode("lists-mdm", "counts"), decode("lists-mdm", "filter")
    assert sum(forwards(filtered)) < 0.2 * sum(forwards(single))
    assert right(filtered) >= right(single) - 1
    # It is for what it was trained for.
    with pytest.raises(InvalidOption, match="trained for lists-mdm"):
        decode("lists-bd", "filter")
    asked: dict[str, Any] = {"raw": True, "denoising": CanvasParams("filter")}
    with pytest.raises(InvalidOption, match="blocks of 20 places, not 32"):
        engine("lists-mdm").generate(CASES[0].prompt, max_new_tokens=32, **asked)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_tidar_has_the_text_of_the_autoregressive_stream(temperature):
    stream = engine("lists-bd", sampler="autoregressive", drafter="none")
    own = [
        stream.generate(
            case.prompt, raw=True, max_new_tokens=ROOM, temperature=temperature, seed=index
        )
        for index, case in enumerate(CASES)
    ]
    for sampler in ("tidar", "linear-spec"):
        assert ids(decode("lists-bd", sampler, temperature)) == ids(own)
    assert sum(forwards(decode("lists-bd", "tidar"))) < sum(len(each.token_ids) for each in own)


def test_the_exact_cache_changes_no_text_of_the_block_causal_model():
    for sampler in ("counts", "threshold:tau=0.9"):
        for block in (4, 8, 16):
            kept = decode("lists-bd", sampler, block=block)
            assert ids(kept) == ids(decode("lists-bd", sampler, block=block, cache="none"))


def test_assd_needs_no_more_forwards_than_tokens():
    found = decode("lists-order", "assd", 1.0)
    assert all(each.stats.target_forwards <= len(each.token_ids) for each in found)
    assert sum(forwards(found)) < sum(len(each.token_ids) for each in found)


@pytest.mark.parametrize("model", MODELS)
def test_eight_together_have_the_texts_of_each_alone(model):
    samplers = ["counts", "threshold:tau=0.8", "counts:per_step=2", "freedave>counts"]
    if model == "lists-order":
        samplers = ["assd", plain(model), "wedlm>entropy", "assd"]
    made = engine(model)

    def asked(index: int) -> dict[str, Any]:
        return {
            "raw": True,
            "max_new_tokens": ROOM,
            "temperature": float(index % 2),
            "seed": index,
            "denoising": CanvasParams(samplers[index % 4]),
        }

    alone = [made.generate(CASES[i].prompt, **asked(i)).token_ids for i in range(24)]
    wanted = dict(enumerate(alone))
    numbers = {made.add(CASES[i].prompt, **asked(i)): i for i in range(24)}
    while made.pending:
        for event in made.step():
            if event.completion is not None:
                assert event.completion.token_ids == wanted.pop(numbers[event.request])
    assert wanted == {}
