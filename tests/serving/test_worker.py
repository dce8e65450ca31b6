"""The engine's owner, simulated: no thread, no clock, every run replayed by its seed."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from typing import Any

import pytest
from tests.helpers import table_engines as engines

from paceline.core.types import UNLIMITED, SamplingParams, TokenLogprob
from paceline.engine.engine import Event
from paceline.errors import EngineFailed, PromptError, RequestFailed
from paceline.serving.worker import (
    Delivery,
    Job,
    Outbox,
    ServingCore,
    ShutDown,
    SlowReader,
    Worker,
)

TOKENIZER = engines.TOKENIZER
ENGINE = engines.make()  # prepares jobs for any other


def job(prompt: str = "dog", outbox: Outbox | None = None, **fields: Any) -> Job:
    asked = {"speculation": fields.pop("speculation", UNLIMITED)}
    params = SamplingParams(**{"max_new_tokens": 8, "ignore_eos": True, **fields})
    return Job(ENGINE.prepare(TOKENIZER.encode(prompt), params, **asked), outbox or Outbox())


def turns(core: ServingCore, most: int = 2000) -> list[Delivery]:
    out: list[Delivery] = []
    while core.busy:
        out += core.turn()
        most -= 1
        assert most, "the core goes round without an end"
    return out


def last(deliveries: list[Delivery], of: Job) -> Event:
    [*_, event] = [event for job, event, _ in deliveries if job is of]
    return event


def test_a_job_is_decoded_as_the_engine_alone_does() -> None:
    core, one = ServingCore(engines.make()), job(temperature=1.0, seed=3)
    events = [each.event for each in _submit(core, one)]
    alone = engines.make().generate(list(one.prepared.tokens), one.prepared.params)
    assert events[-1].completion is not None
    assert engines.key(events[-1].completion) == engines.key(alone)
    assert "".join(event.text for event in events) == alone.text
    assert not core.busy


def _submit(core: ServingCore, *jobs: Job) -> list[Delivery]:
    for each in jobs:
        core.submit(each)
    return turns(core)


def test_a_refused_job_gets_an_event() -> None:
    core, bad = ServingCore(engines.make()), job()
    bad = replace(bad, prepared=replace(bad.prepared, resume=(engines.EOS,) * 8))
    [delivery] = _submit(core, bad)
    assert isinstance(delivery.event.error, PromptError)


def test_a_cancelled_job_gets_no_more_events() -> None:
    core, one, two = ServingCore(engines.make()), job(), job("the")
    core.submit(one)
    core.submit(two)
    core.turn()
    core.cancel(one)
    core.cancel(one)
    out = turns(core)
    assert all(each.job is two for each in out)
    assert last(out, two).completion is not None
    assert core.engine.pending == 0


def test_a_job_can_be_ended_with_what_it_has() -> None:
    core, one, two = ServingCore(engines.make()), job(), job("the")
    core.submit(one)
    core.submit(two)
    first = core.turn() + core.turn()
    core.end(one)
    core.end(one)
    out = first + turns(core)
    done = last(out, one).completion
    assert done is not None
    assert done.finish_reason == "cancelled"
    assert done.token_ids == sum((e.token_ids for j, e, _ in out if j is one), ())
    assert 0 < len(done.token_ids) < 8
    assert last(out, two).completion is not None
    assert core.engine.pending == 0


def test_a_job_that_cannot_be_ended_fails(caplog: pytest.LogCaptureFixture) -> None:
    core, one = ServingCore(engines.make()), job()
    core.submit(one)
    core.turn()

    def failing(request: int) -> None:
        raise RuntimeError("a bug")

    core.engine.cancel = failing  # type: ignore[method-assign,assignment]
    core.end(one)
    [delivery] = core.turn()
    assert isinstance(delivery.event.error, EngineFailed)
    assert "could not be cancelled" in caplog.text


def test_a_job_that_was_to_be_ended_is_told_that_the_thread_has_ended() -> None:
    core, one, two = ServingCore(engines.make()), job(), job("the")
    core.submit(one)
    core.submit(two)
    core.turn()
    core.end(one)
    core.cancel(two)
    [delivery] = core.give_up(EngineFailed("over"))
    assert delivery.job is one


def test_an_abort_ends_all_with_its_error() -> None:
    core, jobs = ServingCore(engines.make()), [job(), job("the")]
    for each in jobs:
        core.submit(each)
    core.turn()
    core.abort(ShutDown("over"))
    out = turns(core)
    assert [str(event.error) for _, event, _ in out] == ["over", "over"]
    assert core.engine.pending == 0


def test_a_broken_step_ends_what_runs_and_nothing_else() -> None:
    engine = engines.make()
    core, one = ServingCore(engine), job()
    core.submit(one)
    core.turn()
    step = engine.step

    def broken() -> list[Event]:
        engine.step = step  # type: ignore[method-assign]
        raise RuntimeError("a bug")

    engine.step = broken  # type: ignore[method-assign]
    assert isinstance(last(turns(core), one).error, EngineFailed)
    again = job()
    assert last(_submit(core, again), again).completion is not None


def test_an_error_while_a_job_is_added_is_its_own(caplog: pytest.LogCaptureFixture) -> None:
    core, bad, good = ServingCore(engines.make()), job(), job("the")
    add, calls = core.engine.add, iter([True, False])

    def failing(*args: Any) -> int:
        if next(calls):
            raise ValueError("a bug")
        return add(*args)

    core.engine.add = failing  # type: ignore[method-assign]
    out = _submit(core, bad, good)
    assert isinstance(last(out, bad).error, RequestFailed)
    assert last(out, good).completion is not None
    assert "a request could not be added" in caplog.text


def test_an_error_while_a_job_is_cancelled_ends_nobody_else(
    caplog: pytest.LogCaptureFixture,
) -> None:
    core, one, two = ServingCore(engines.make()), job(), job("the")
    for each in (one, two):
        core.submit(each)
    core.turn()
    cancel = core.engine.cancel

    def failing(request: int) -> None:
        cancel(request)
        raise ValueError("a bug")

    core.engine.cancel = failing  # type: ignore[method-assign]
    core.cancel(one)
    assert last(turns(core), two).completion is not None
    assert "request 0 could not be cancelled" in caplog.text


def test_a_core_that_is_given_up_names_all_that_is_left() -> None:
    core, jobs = ServingCore(engines.make()), [job() for _ in range(5)]
    for each in jobs[:3]:
        core.submit(each)
    core.turn()
    core.submit(jobs[3])
    core.submit(jobs[4])
    for each in (jobs[0], jobs[3], jobs[3]):
        core.cancel(each)
    core.abort(ShutDown("over"))
    out = core.give_up(EngineFailed("gone"))
    assert [each.job for each in out] == [jobs[1], jobs[2], jobs[4]]
    assert {str(each.event.error) for each in out} == {"gone"}
    assert not core.busy


def test_events_of_a_job_that_was_cancelled_meanwhile_are_dropped() -> None:
    engine = engines.make()
    core = ServingCore(engine)
    engine.add([5], SamplingParams(max_new_tokens=1))  # of nobody here
    one = job()
    assert {each.job for each in _submit(core, one)} == {one}


# The outbox:


def event(text: str, size: int = 1, **fields: Any) -> Event:
    return Event(0, text, tuple(range(size)), (None,) * size, **fields)


def test_an_outbox_merges_what_was_not_read() -> None:
    box = Outbox()
    for text in "ab":
        assert box.put(0, event(text, logprobs=(TokenLogprob(1, -1.0),)))
    assert box.put(1, event("c"))
    first, second = box.take()
    assert (first[0], first[1].text, first[1].token_ids) == (0, "ab", (0, 0))
    assert len(first[1].logprobs) == 2
    assert (second[0], second[1].text) == (1, "c")
    assert (box.take(), box.size) == ([], 0)


def test_an_outbox_counts_accepted_tokens_by_step() -> None:
    box = Outbox()
    box.put(0, Event(0, "", (1, 2, 3), ("a", "a", None)))
    box.put(0, Event(0, "", (1,), (None,)))
    assert box.accepted[0] == {2: 1, 0: 1}


def test_a_full_outbox_holds_one_error_and_takes_no_more() -> None:
    box = Outbox(limit=1000)
    assert box.put(0, event("a"))
    assert not box.put(0, event("x" * 300))
    assert box.put(0, event("y" * 300))  # it was said once
    [(_, only)] = box.take()
    assert isinstance(only.error, SlowReader)


def test_waiting_for_an_outbox_ends_with_an_event_or_the_time() -> None:
    async def wait() -> None:
        box = Outbox()
        assert await box.get(0.0) == []
        asyncio.get_running_loop().call_soon(box.put, 0, event("a"))
        [(_, found)] = await box.get(60)
        assert found.text == "a"

    asyncio.run(wait())


def test_the_thread_hands_events_over_until_it_is_stopped() -> None:
    async def whole() -> None:
        loop = asyncio.get_running_loop()
        inbox: asyncio.Queue[list[Delivery]] = asyncio.Queue()
        engine = engines.make()
        worker = Worker(
            ServingCore(engine),
            lambda batch: loop.call_soon_threadsafe(inbox.put_nowait, batch),
            lambda: None,
        )
        worker.start()
        one, endless = job(), job()
        worker.submit([one])
        while (await inbox.get())[-1].event.completion is None:
            pass
        engine.step = list  # type: ignore[method-assign,assignment]  # never comes to an end
        worker.submit([endless])
        worker.abort(ShutDown("over"))
        while (await inbox.get())[-1].event.error is None:
            pass
        worker.cancel([one])
        worker.stop()
        assert not worker._thread.is_alive()

    asyncio.run(asyncio.wait_for(whole(), 60))


def test_the_end_of_the_thread_by_an_error_is_told(caplog: pytest.LogCaptureFixture) -> None:
    lost = threading.Event()
    worker = Worker(ServingCore(engines.make()), lambda _: None, lost.set)
    worker.core.turn = None  # type: ignore[method-assign,assignment]  # cannot be called
    worker.start()
    one = job()
    worker.submit([one])
    assert lost.wait(10)
    worker._thread.join(10)
    assert [each.job for each in worker.give_up()] == [one]
    with pytest.raises(EngineFailed, match="restart the server"):
        worker.submit([job()])
    assert "the engine's thread has ended" in caplog.text


def test_a_thread_that_ends_after_the_event_loop_ends_quietly() -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    core = ServingCore(engines.make())
    worker = Worker(
        core,
        lambda batch: loop.call_soon_threadsafe(print, batch),
        lambda: loop.call_soon_threadsafe(print),
    )
    failures: list[Any] = []
    before, threading.excepthook = threading.excepthook, failures.append
    try:
        worker.start()
        worker.submit([job()])
        worker._thread.join(10)
    finally:
        threading.excepthook = before
    assert not worker._thread.is_alive()
    assert failures == []
