"""One engine in several threads: the texts of each alone, and no thread waits for ever."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from tests.helpers.table_engines import PROMPTS, SAMPLED, Target, drafters, key, make

from paceline.core.types import SamplingParams
from paceline.engine.engine import Engine, Event
from paceline.engine.turns import Turns
from paceline.errors import EngineFailed, PacelineError


@pytest.fixture(autouse=True)
def often() -> Iterator[None]:
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def together(*works: Callable[[], Any], seconds: float = 60) -> list[Any]:
    """What works in threads of their own return, or raise."""
    found: list[Any] = [None] * len(works)

    def run(index: int) -> None:
        try:
            found[index] = works[index]()
        except BaseException as error:
            found[index] = error

    threads = [threading.Thread(target=run, args=(n,), daemon=True) for n in range(len(works))]
    for each in threads:
        each.start()
    for each in threads:
        each.join(seconds)
        assert not each.is_alive(), "a thread waits for ever"
    return found


def in_each_step(target: Target, act: Callable[[], Any]) -> None:
    genuine = target.forward

    def forward(passes: Any) -> Any:
        act()
        return genuine(passes)

    target.forward = forward  # type: ignore[method-assign]


def params(seed: int) -> SamplingParams:
    return SamplingParams(temperature=1.0, seed=seed, max_new_tokens=30)


def nothing_left(engine: Engine, target: Target) -> bool:
    held = engine._mail, engine._kept, engine._turns._waiting, target.live
    return not engine.pending and not any(held)


@pytest.mark.parametrize("name", ["none", *drafters()])
def test_texts_are_those_of_each_alone(name: str) -> None:
    engine = make(Target(), drafters().get(name))
    expected = [[make().generate(p, params(n)).text for p in PROMPTS] for n in range(4)]

    def whole(seed: int) -> list[str]:
        return [engine.generate(prompt, params(seed)).text for prompt in PROMPTS]

    def batch(seed: int) -> list[str]:
        return [each.text for each in engine.generate(list(PROMPTS), params(seed))]

    def streams(seed: int) -> list[str]:
        return ["".join(engine.stream(prompt, params(seed))) for prompt in PROMPTS]

    def events(seed: int) -> list[str]:
        return ["".join(e.text for e in engine.events(p, params(seed))) for p in PROMPTS]

    kinds = whole, batch, streams, events
    found = together(*(lambda n=n, kind=kind: kind(n) for n, kind in enumerate(kinds)))
    assert found == expected
    assert engine.pending == 0


def test_a_server_that_steps_beside_them_gets_its_own_events() -> None:
    engine = make(Target())
    expected = key(make().generate(PROMPTS[0], params(9)))

    def serve() -> Any:
        done = []
        for _ in range(5):
            request = engine.add(PROMPTS[0], params(9))
            mine: list[Event] = []
            while not mine or mine[-1].completion is None:
                mine += [event for event in engine.step() if event.request == request]
            assert "".join(event.text for event in mine) == mine[-1].completion.text
            done.append(key(mine[-1].completion))
            left = engine.add(PROMPTS[1], params(9))
            engine.cancel(left)
        return done

    found = together(serve, lambda: [engine.generate(PROMPTS[1], params(1)).text for _ in range(9)])
    assert found[0] == [expected] * 5
    assert found[1] == [make().generate(PROMPTS[1], params(1)).text] * 9


def test_streams_that_are_held_closed_or_forgotten_elsewhere() -> None:
    engine = make(Target())
    expected = make().generate(PROMPTS[0], params(1)).text
    held = engine.stream(PROMPTS[0], params(1))
    first = next(held)
    [found] = together(lambda: [engine.generate(PROMPTS[0], params(1)).text for _ in range(3)])
    assert found == [expected] * 3, "an open stream holds no other thread up"
    closed = engine.stream(PROMPTS[1], params(2))
    next(closed)
    forgotten = [engine.stream(PROMPTS[2], params(3))]
    next(forgotten[0])

    def forget() -> None:
        forgotten.clear()
        gc.collect()

    texts = together(lambda: engine.generate(PROMPTS[0], params(1)).text, closed.close, forget)
    assert texts == [expected, None, None]
    assert first + "".join(held) == expected
    assert engine.pending == 0


def test_a_stream_that_ends_in_the_midst_of_a_step() -> None:
    """As when Python collects it there: the step goes on, and then the request is gone."""
    target = Target()
    engine = make(target)
    stream = engine.stream(PROMPTS[1], params(2))
    next(stream)
    in_each_step(target, stream.close)
    expected = make().generate(PROMPTS[0], params(1)).text
    assert engine.generate(PROMPTS[0], params(1)).text == expected
    assert engine.pending == 0
    assert target.live == []


def test_what_a_step_tells_of_a_stream_that_is_gone_is_told_to_nobody() -> None:
    """Its last event may be made in the very step in which the stream ends."""
    target = Target()
    engine = make(target)
    genuine, streams = target.forward, list[Any]()

    def forward(passes: Any) -> Any:
        out = genuine(passes)
        while streams:
            streams.pop().close()
        return out

    target.forward = forward  # type: ignore[method-assign]
    events = engine.events(PROMPTS[1], SAMPLED, max_new_tokens=2)
    assert next(events).completion is None
    streams.append(events)
    request = engine.add(PROMPTS[0], params(1))
    told = {event.request for _ in range(99) for event in engine.step()}
    assert told == {request}
    assert nothing_left(engine, target)


def test_a_request_ends_with_its_stream_though_another_thread_has_the_turn() -> None:
    """Which then hands the turn on, and itself goes on reading what it has."""
    target = Target()
    engine = make(target)
    genuine, closing = target.forward, list[Any]()

    def forward(passes: Any) -> Any:
        while closing:
            together(closing.pop())
        return genuine(passes)

    target.forward = forward  # type: ignore[method-assign]
    held, closed = (engine.events(prompt, SAMPLED) for prompt in PROMPTS[:2])
    next(held)
    next(closed)
    closing.append(closed.close)  # type: ignore[attr-defined]
    while closing:
        next(held)
    assert len(target.live) == 1, "nobody steps, and yet the request is gone"
    held.close()  # type: ignore[attr-defined]
    assert nothing_left(engine, target)


@pytest.mark.parametrize("ask", ["generate", "stream", "add"])
def test_ctrl_c_while_a_request_is_queued_leaves_none(ask: str) -> None:
    target = Target()
    engine = make(target)
    genuine = engine.scheduler.add

    def queue(request: Any) -> None:
        genuine(request)
        signal.raise_signal(signal.SIGINT)

    engine.scheduler.add = queue  # type: ignore[method-assign]
    asked = getattr(engine, ask)
    with pytest.raises(KeyboardInterrupt):
        next(asked(PROMPTS[0], SAMPLED)) if ask == "stream" else asked(PROMPTS[0], SAMPLED)
    assert nothing_left(engine, target)
    engine.scheduler.add = genuine  # type: ignore[method-assign]
    assert engine.generate(PROMPTS[0], SAMPLED).text == make().generate(PROMPTS[0], SAMPLED).text


def test_an_error_in_one_thread_leaves_the_others() -> None:
    target = Target()
    engine = make(target)
    expected = make().generate(PROMPTS[0], SAMPLED).text

    def fails() -> None:
        for _ in range(10):
            with pytest.raises(PacelineError):
                engine.generate("", SAMPLED)

    def leaves() -> None:
        for _ in range(10):
            stream = engine.stream(PROMPTS[1], SAMPLED)
            next(stream)
            with pytest.raises(KeyboardInterrupt):
                stream.throw(KeyboardInterrupt)  # type: ignore[attr-defined]

    texts = together(
        fails, leaves, lambda: [engine.generate(PROMPTS[0], SAMPLED).text for _ in range(5)]
    )
    assert texts == [None, None, [expected] * 5]
    assert engine.pending == 0


def test_ctrl_c_waits_for_the_end_of_a_step() -> None:
    target = Target()
    engine = make(target)
    bystander = engine.stream(PROMPTS[0], SAMPLED)
    begun = next(bystander)
    genuine, seen = target.forward, []

    def forward(passes: Any) -> Any:
        out = genuine(passes)
        if not seen:
            signal.raise_signal(signal.SIGINT)
        seen.append(len(passes))
        return out

    target.forward = forward  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        engine.generate(PROMPTS[1], SAMPLED)
    assert seen
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert begun + "".join(bystander) == make().generate(PROMPTS[0], SAMPLED).text
    assert engine.pending == 0


def test_prepare_waits_for_nobody() -> None:
    target = Target()
    engine = make(target)
    genuine, stuck, free = target.forward, threading.Event(), threading.Event()

    def forward(passes: Any) -> Any:
        stuck.set()
        assert free.wait(30)
        return genuine(passes)

    target.forward = forward  # type: ignore[method-assign]
    thread = threading.Thread(target=engine.generate, args=(PROMPTS[0], SAMPLED))
    thread.start()
    assert stuck.wait(30)
    prepared = engine.prepare(PROMPTS[1], SAMPLED)
    free.set()
    thread.join(30)
    assert key(engine.generate(prepared)) == key(make().generate(PROMPTS[1], SAMPLED))


def test_turns_go_by_the_order_of_asking() -> None:
    """A thread that steps without a pause does not keep the others from a turn."""
    engine = make(Target())
    begin = time.perf_counter()
    stop = threading.Event()

    def restless() -> None:
        while not stop.is_set():
            engine.step()

    def patient() -> float:
        for _ in range(50):
            engine.cancel(engine.add(PROMPTS[0], SAMPLED))
        stop.set()
        return time.perf_counter() - begin

    _, seconds = together(restless, patient)
    assert seconds < 20


def test_a_step_cannot_call_its_own_engine() -> None:
    target = Target()
    engine = make(target)
    in_each_step(target, engine.step)
    with pytest.raises(PacelineError, match="its own engine"):
        engine.generate(PROMPTS[0], SAMPLED)


def test_from_asyncio() -> None:
    engine = make(Target())

    async def all_of_them() -> list[str]:
        asked = [asyncio.to_thread(engine.generate, p, params(1)) for p in PROMPTS]
        return [each.text for each in await asyncio.gather(*asked)]

    assert asyncio.run(all_of_them()) == [make().generate(p, params(1)).text for p in PROMPTS]


def test_tasks_of_one_thread_read_streams_by_turns() -> None:
    """One that is cancelled half-way takes its request along."""
    target = Target()
    engine = make(target)

    async def read(prompt: str, seed: int) -> str:
        text = ""
        for piece in engine.stream(prompt, params(seed)):
            text += piece
            await asyncio.sleep(0)
        return text

    async def all_of_them() -> list[Any]:
        tasks = [asyncio.create_task(read(p, n)) for n in range(2) for p in PROMPTS]
        await asyncio.sleep(0)
        tasks[1].cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    found = asyncio.run(all_of_them())
    expected = [make().generate(p, params(n)).text for n in range(2) for p in PROMPTS]
    assert isinstance(found.pop(1), asyncio.CancelledError)
    del expected[1]
    assert found == expected
    gc.collect()
    assert nothing_left(engine, target)


def test_a_text_inside_the_loop_over_another() -> None:
    """To any depth; an error in such a loop ends its own request."""
    target = Target()
    engine = make(target)
    expected = [make().generate(p, params(n)).text for n, p in enumerate(PROMPTS)]

    def nested(depth: int) -> str:
        text = ""
        for piece in engine.stream(PROMPTS[depth], params(depth)):
            text += piece
            if depth + 1 < len(PROMPTS) and len(text) < 6:
                assert nested(depth + 1) == expected[depth + 1]
                assert engine.generate(PROMPTS[0], params(0)).text == expected[0]
        return text

    assert nested(0) == expected[0]
    with pytest.raises(ZeroDivisionError):
        max(engine.stream(PROMPTS[0], params(0)), key=lambda piece: 1 // 0)
    gc.collect()
    assert nothing_left(engine, target)


class Late:
    """Asks when Python collects it."""

    def __init__(self, engine: Engine, told: list[str]) -> None:
        self.engine, self.told = engine, told

    def __del__(self) -> None:
        try:
            self.told.append(self.engine.generate(PROMPTS[0], params(1)).text)
        except EngineFailed as error:
            self.told.append(str(error))


def test_from_a_finaliser() -> None:
    """Between steps it gets its text; in the midst of one, a line."""
    target = Target()
    engine = make(target)
    told: list[str] = []
    late = [Late(engine, told), Late(engine, told)]
    del late[0]
    in_each_step(target, late.clear)
    expected = make().generate(PROMPTS[0], params(1)).text
    assert engine.generate(PROMPTS[0], params(1)).text == expected
    assert told == [expected, "a step cannot call its own engine: use another engine"]
    assert nothing_left(engine, target)


def test_what_comes_between_asking_for_a_turn_and_having_it_does_not_wait() -> None:
    """As a finaliser that runs just there, in the thread that asks: it would wait for itself."""
    turns = Turns()
    genuine = turns._turn
    told: list[str] = []

    class Between:
        def acquire(self) -> bool:
            turns.later(lambda: told.append("later"))
            assert not told
            with pytest.raises(EngineFailed, match="its own engine"), turns:
                pass
            return genuine.acquire()

        release = genuine.release

    turns._turn = Between()  # type: ignore[assignment]
    with turns:
        assert not told
    assert told == ["later"]
    turns._turn = genuine
    turns.later(lambda: told.append("now"))
    assert told == ["later", "now"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_after_a_fork() -> None:
    """The child goes on from the last whole step; one that was forked in a step is told so."""
    target = Target()
    engine = make(target)
    expected = make().generate(PROMPTS[0], params(1)).text

    def child() -> str:
        read, write = os.pipe()
        if os.fork() == 0:
            try:
                said = engine.generate(PROMPTS[0], params(1)).text
            except EngineFailed as error:
                said = str(error)
            os.write(write, said.encode())
            os._exit(0)
        os.close(write)
        with open(read, "rb") as pipe:
            said = pipe.read().decode()
        os.wait()
        return said

    assert child() == expected
    assert engine.generate(PROMPTS[0], params(1)).text == expected
    genuine, told = target.forward, []

    def forward(passes: Any) -> Any:
        if not told:
            told.append("")
            told.append(child())
        return genuine(passes)

    target.forward = forward  # type: ignore[method-assign]
    assert engine.generate(PROMPTS[0], params(1)).text == expected
    assert "forked in the midst of a step" in told[1]


def test_the_runtime_that_dies_in_a_fork_says_so() -> None:
    turns = Turns(survives_fork=False)
    turns.forked()
    with pytest.raises(EngineFailed, match="load an engine in the new process"), turns:
        pass
    assert isinstance(make(), Engine)


@pytest.mark.parametrize("seed", range(4))
def test_whatever_threads_do_in_whatever_order(seed: int) -> None:
    """Two engines on one target; texts are those of each alone, and nothing is left behind.

    Seeds 0 to 199 were tried by hand.
    """
    target = Target()
    engines = [make(target, max_batch=3), make(target, depth=2)]
    alone = {(p, n): make().generate(p, params(n)).text for p in PROMPTS for n in range(3)}

    def work(number: int) -> None:
        draw = random.Random(f"{seed} {number}")
        kept: list[Iterator[str]] = []
        for _ in range(12):
            engine, prompt, n = draw.choice(engines), draw.choice(PROMPTS), draw.randrange(3)
            expected, what = alone[prompt, n], draw.randrange(6)
            if what == 0:
                assert engine.generate(prompt, params(n)).text == expected
                continue
            if what == 1:
                assert engine.cancel(engine.add(prompt, params(n))) is not None
                continue
            stream = engine.stream(prompt, params(n))
            text = "".join(itertools.islice(stream, draw.randrange(9)))
            assert expected.startswith(text)
            if what == 2:
                assert text + "".join(stream) == expected
            elif what == 3:
                stream.close()  # type: ignore[attr-defined]
            elif what == 4:
                with suppress(ZeroDivisionError, StopIteration):
                    stream.throw(ZeroDivisionError)  # type: ignore[attr-defined]
            else:
                kept.append(stream)  # collected when the thread ends, or before
                kept[: draw.randrange(2)] = []

    assert together(*(lambda n=n: work(n) for n in range(4))) == [None] * 4
    gc.collect()
    assert all(nothing_left(engine, target) for engine in engines)
