"""The order of requests: places, limits, and who gives way."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers.table_engines import TOKENIZER

from paceline.core.types import SamplingParams
from paceline.engine.scheduler import Limits, QueueFull, Request, Scheduler
from paceline.engine.stopping import Transcript
from paceline.errors import ContextExceeded, InvalidOption
from paceline.runtimes.kv_cache import BlockPool, PagedCache
from paceline.sampling.generation import Generation


def request(id: int, length: int = 5) -> Request:
    sequence = Generation.start(id, [1] * length, SamplingParams())
    return Request(sequence, Transcript(TOKENIZER, ()))


def admit(scheduler: Scheduler, memory: BlockPool) -> None:
    while (each := scheduler.candidate()) is not None:
        each.sequence.cache = PagedCache(memory)
        if not scheduler.place(each):
            return


def ids(requests: Any) -> list[int]:
    return [each.sequence.id for each in requests]


def test_places_go_in_order_and_nobody_overtakes_a_long_prompt() -> None:
    memory = BlockPool(1, 1, 1, 10)
    scheduler = Scheduler(Limits(running=4), memory)
    for id, length in enumerate([60, 250, 5, 5]):
        scheduler.add(request(id, length))
    admit(scheduler, memory)
    assert ids(scheduler.placed) == [0]  # the second waits for memory, the rest behind it
    scheduler.placed[0].sequence.cache.release()
    scheduler.remove(scheduler.placed[0])
    admit(scheduler, memory)
    assert ids(scheduler.placed) == [1]


@given(
    st.integers(1, 6), st.lists(st.sampled_from(["add", "admit", "preempt", "end"]), max_size=60)
)
def test_every_running_request_is_older_than_every_waiting_one(
    places: int, steps: list[str]
) -> None:
    scheduler, count = Scheduler(Limits(running=places), None), 0
    for step in steps:
        if step == "add":
            scheduler.add(request(count))
            count += 1
        elif step == "admit":
            while (each := scheduler.candidate()) is not None:
                assert scheduler.place(each)
        elif step == "preempt" and len(scheduler.placed) > 1:
            newest = max(ids(scheduler.placed))
            given_way = scheduler.preempt()
            assert given_way is not None
            assert given_way.sequence.id == newest
            assert scheduler.candidate() is None  # until somebody leaves
        elif step == "end" and scheduler.placed:
            scheduler.remove(scheduler.placed[0])
        running = ids(scheduler.placed)
        waiting = ids(scheduler)[len(running) :]
        assert waiting == sorted(waiting)
        assert not running or not waiting or max(running) < min(waiting)
        assert len(running) <= places


def test_who_runs_alone_is_not_preempted() -> None:
    scheduler = Scheduler(Limits(), None)
    assert scheduler.preempt() is None
    scheduler.add(request(0))
    only = scheduler.candidate()
    assert only is not None
    scheduler.place(only)
    assert scheduler.preempt() is None
    assert scheduler.preemptions == 0


def test_limits_are_stated_and_checked() -> None:
    scheduler = Scheduler(Limits(running=1, waiting=1), BlockPool(1, 1, 1, 4))
    scheduler.check_prompt(127)
    with pytest.raises(ContextExceeded, match=r"has 128 tokens .* holds 128: shorten"):
        scheduler.check_prompt(128)
    for id in range(2):
        scheduler.check_queue()
        scheduler.add(request(id))
    with pytest.raises(QueueFull, match=r"2 requests .* max_batch 1 and max_waiting 1 allow"):
        scheduler.check_queue()


@pytest.mark.parametrize(
    ("name", "limits"),
    [
        ("max_batch", {"running": 0}),
        ("max_waiting", {"waiting": -1}),
        ("step_tokens", {"step_tokens": 0}),
        ("pool", {"pool": 0}),
    ],
)
def test_limits_out_of_range_are_named(name: str, limits: dict[str, int]) -> None:
    with pytest.raises(InvalidOption, match=f"{name} must be"):
        Limits(**limits)


def test_pools_are_of_equal_length_and_leave_nobody_behind() -> None:
    scheduler = Scheduler(Limits(pool=2), None)
    for id, length in enumerate([5, 7, 5, 9, 5]):
        scheduler.add(request(id, length))
    while (each := scheduler.candidate()) is not None:
        scheduler.place(each)
    running, waited = scheduler.placed, dict.fromkeys(range(5), 0)
    for _ in range(40):
        step = scheduler.pooled(running)
        lengths = {len(each.sequence.tokens) for each in step}
        assert len(lengths) == 1 or step == running
        for id in waited:
            waited[id] = 0 if id in ids(step) else waited[id] + 1
        assert max(waited.values()) <= 4
        for each in step:
            each.sequence.tokens.append(1)
    assert ids(Scheduler(Limits(pool=4), None).pooled(running)) == [0, 1, 2, 3, 4]
    assert Scheduler(Limits(), None).pooled(running) == running
