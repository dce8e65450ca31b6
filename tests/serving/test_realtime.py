"""Captions over a WebSocket: events, order, errors, and what is freed."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest
from tests.helpers.serving import Json, serving
from tests.helpers.tiny_whisper import freed
from tests.listening.test_windows import engine, noise
from tests.serving.test_audio import wav

from paceline.audio.mel import RATE
from paceline.listening.live import Live
from paceline.listening.windows import Listener, Listening
from paceline.methods.careless.captions import CausalCaptions
from paceline.runtimes.cpu import encoder
from paceline.serving import realtime
from paceline.serving.model import ServedModel
from paceline.serving.realtime import Item, Session

TEXT = "conversation.item.input_audio_transcription."


class Socket:
    """A client's end, without a network."""

    def __init__(self, app: Any, **headers: str) -> None:
        self._out: asyncio.Queue[Any] = asyncio.Queue()
        self._in: asyncio.Queue[Any] = asyncio.Queue()
        given = [(name.replace("_", "-").encode(), text.encode()) for name, text in headers.items()]
        scope = {"type": "websocket", "path": "/v1/realtime", "query_string": b"", "headers": given}
        scope |= {"subprotocols": [], "scheme": "ws", "http_version": "1.1"}
        self._out.put_nowait({"type": "websocket.connect"})
        self.task = asyncio.ensure_future(app(scope, self._out.get, self._in.put))

    async def told(self) -> Any:
        """The next event, or the code of the end."""
        message = await asyncio.wait_for(self._in.get(), 30)
        if message["type"] == "websocket.accept":
            return await self.told()
        if message["type"] == "websocket.close":
            return message["code"]
        return json.loads(message["text"])

    async def until(self, kind: str) -> list[Json]:
        out = [await self.told()]
        while out[-1]["type"] != kind:
            out.append(await self.told())
        return out

    def say(self, kind: str, **more: Any) -> None:
        self.text(json.dumps({"type": kind} | more))

    def text(self, text: str) -> None:
        self._out.put_nowait({"type": "websocket.receive", "text": text})

    def append(self, sound: np.ndarray, **more: Any) -> None:
        raw = np.round(sound * 32767).astype("<i2").tobytes()
        self.say("input_audio_buffer.append", audio=base64.b64encode(raw).decode(), **more)

    def rate(self, rate: int, **more: Any) -> None:
        sound = {"format": {"type": "audio/pcm", "rate": rate}} | more
        self.say("session.update", session={"type": "transcription", "audio": {"input": sound}})

    async def leave(self) -> None:
        self._out.put_nowait({"type": "websocket.disconnect", "code": 1000})
        await asyncio.wait_for(self.task, 30)


def talk(
    work: Callable[[Socket], Awaitable[Any]], own: Any = None, keys: Any = (), **more: Any
) -> Any:
    own = own or engine()
    headers = {name: more.pop(name) for name in ("origin", "host", "authorization") if name in more}

    async def whole() -> Any:
        async with serving(own, keys, **more) as client:
            socket = Socket(client.service.app, **headers)
            try:
                return await work(socket)
            finally:
                await socket.leave()
                assert client.service.gate.sequences == 0
                while client.service.hosting.models[0].worker.core.busy:
                    await asyncio.sleep(0.01)

    found = asyncio.run(asyncio.wait_for(whole(), 60))
    if hasattr(own.decoder.target, "_writer"):
        assert freed(own)
    return found


def offline(sound: np.ndarray) -> str:
    live, said = Live(Listener(own := engine()), Listening(None)), list[str]()
    grid = np.round(sound * 32767).astype("<i2").astype(np.float32) / np.float32(32768)
    live.push(grid)
    live.end()
    while (request := live.next()) is not None:
        caption = live.heard(own.generate(request))
        said += [] if caption is None else caption.final
    return " ".join(said)


def test_a_turn_is_written_down() -> None:
    sounds = [noise(1.5, seed=1), noise(0.8, seed=2)]

    async def work(socket: Socket) -> list[list[Json]]:
        out = [await socket.until("session.created")]
        socket.rate(RATE, transcription={"model": "tables", "language": "en"})
        out.append(await socket.until("session.updated"))
        for sound in sounds:
            socket.append(sound)
            socket.say("input_audio_buffer.commit")
        out += [await socket.until(f"{TEXT}completed") for _ in sounds]
        return out

    created, updated, first, second = talk(work)
    assert created[0]["session"]["audio"]["input"]["format"]["rate"] == 24_000
    assert updated[0]["session"]["audio"]["input"]["transcription"]["language"] == "en"
    told = first + second
    committed = [each for each in told if each["type"] == "input_audio_buffer.committed"]
    assert [each["previous_item_id"] for each in committed] == [None, committed[0]["item_id"]]
    for sound, each in zip(sounds, committed, strict=True):
        mine = [event for event in told if event.get("item_id") == each["item_id"]]
        done = mine[-1]
        assert done["type"] == f"{TEXT}completed"
        deltas = "".join(event.get("delta", "") for event in mine)
        assert deltas == done["transcript"] == offline(sound)
        assert done["usage"]["seconds"] == len(sound) / RATE


@pytest.mark.parametrize("code", ["EN", "", None])
def test_a_language_in_capitals_or_empty_is_understood(code: str | None) -> None:
    async def work(socket: Socket) -> Json:
        socket.rate(RATE, transcription={"language": code})
        socket.append(noise(1.5))
        socket.say("input_audio_buffer.commit")
        done: Json = (await socket.until(f"{TEXT}completed"))[-1]
        return done

    assert talk(work)["transcript"] == offline(noise(1.5))


def test_captions_come_before_the_end() -> None:
    async def work(socket: Socket) -> Json:
        socket.rate(RATE)
        socket.append(noise(1.2))
        [*_, delta] = await socket.until(f"{TEXT}delta")
        found: Json = delta
        return found

    delta = talk(work)
    assert delta["delta"] == ""  # of one caption nothing is final
    assert delta["paceline"]["draft"]
    assert delta["paceline"]["lag"] == 0


def test_sound_of_another_rate_lasts_as_long() -> None:
    async def work(socket: Socket) -> Json:
        for part in np.split(noise(1.5), 12):  # 24,000 numbers are a second
            socket.append(part)
        socket.say("input_audio_buffer.commit")
        [*_, done] = await socket.until(f"{TEXT}completed")
        found: Json = done
        return found

    assert talk(work)["usage"]["seconds"] == 1.0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("no JSON", "not read"),
        ('{"type": "response.create"}', "response.create"),
        ('{"type": "input_audio_buffer.append", "audio": "?"}', "base64"),
        ('{"type": "input_audio_buffer.append", "audio": "\N{MICRO SIGN}AAA"}', "base64"),
        pytest.param('{"type": "x", "deep": ' + "[" * 100_000 + "}", "not read", id="deep"),
        ('{"type": "input_audio_buffer.append", "audio": "AAAA"}', "two bytes"),
        ('{"type": "input_audio_buffer.commit"}', "empty"),
        (
            '{"type": "session.update", "session": {"audio": {"input": {"turn_detection": {}}}}}',
            "turn_detection",
        ),
        (
            '{"type": "session.update", "session": {"audio": {"input": {"transcription": '
            '{"language": "de"}}}}}',
            "English alone",
        ),
    ],
)
def test_an_event_that_is_wrong_is_told_and_the_session_goes_on(text: str, said: str) -> None:
    async def work(socket: Socket) -> Json:
        socket.text(text[:-1] + ', "event_id": "mine"}' if text.startswith("{") else text)
        [*_, error] = await socket.until("error")
        socket.rate(RATE)
        socket.append(noise(0.5))
        socket.say("input_audio_buffer.commit")
        await socket.until(f"{TEXT}completed")
        found: Json = error["error"]
        return found

    assert said in talk(work)["message"]


def test_what_is_cleared_is_not_written_down() -> None:
    async def work(socket: Socket) -> Json:
        socket.rate(RATE)
        socket.append(noise(2.0, seed=5))
        socket.say("input_audio_buffer.clear")
        await socket.until("input_audio_buffer.cleared")
        socket.append(noise(0.8, seed=2))
        socket.say("input_audio_buffer.commit")
        [*_, done] = await socket.until(f"{TEXT}completed")
        found: Json = done
        return found

    assert talk(work)["transcript"] == offline(noise(0.8, seed=2))


def test_a_flood_is_refused() -> None:
    async def work(socket: Socket) -> Json:
        socket.rate(RATE)
        for _ in range(50):  # many more than are heard meanwhile
            socket.append(noise(2.0))
        [*_, error] = await socket.until("error")
        found: Json = error["error"]
        return found

    error = talk(work, max_sound=20.0)
    assert error["param"] == "audio"
    assert "of 5 s wait" in error["message"]


def test_a_flood_holds_no_more_than_its_share_and_harms_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sessions, ran, decoded = list[Session](), Session.run, Session._decoded
    begun, go_on = asyncio.Event(), asyncio.Event()
    monkeypatch.setattr(Session, "run", lambda own: sessions.append(own) or ran(own))

    async def slowly(own: Session, request: Any) -> Any:
        if own is sessions[0]:
            begun.set()
            await go_on.wait()
        return await decoded(own, request)

    monkeypatch.setattr(Session, "_decoded", slowly)
    first, piece, spoken = noise(1.2, seed=1), noise(0.2, seed=2), noise(0.8, seed=3)

    async def whole() -> None:
        async with serving(engine(), (), max_sound=16.0) as client:
            flood, other = (Socket(client.service.app) for _ in range(2))
            for each in (flood, other):
                each.rate(RATE)
                await each.until("session.updated")
            flood.append(first)
            await begun.wait()
            for number in range(500):  # 25 times what it may hold
                flood.append(piece, event_id=f"{number}")
            flood.say("session.update", session={})  # changes nothing: the flood is over
            [*errors, _] = await flood.until("session.updated")
            held = sum(part.nbytes for item in sessions[0]._items for part in item.waiting)
            assert 3.7 * RATE * 4 < held <= 4 * RATE * 4
            other.append(spoken)
            other.say("input_audio_buffer.commit")
            [*_, done] = await other.until(f"{TEXT}completed")
            assert done["transcript"] == offline(spoken)
            # What was refused is told by its name, and the rest is written down.
            assert all("of 4 s wait to be heard" in each["error"]["message"] for each in errors)
            refused = {int(each["error"]["event_id"]) for each in errors}
            assert refused == {*range(500 - len(errors), 500)}
            go_on.set()
            flood.say("input_audio_buffer.commit")
            [*_, done] = await flood.until(f"{TEXT}completed")
            assert done["usage"]["seconds"] == pytest.approx(1.2 + 0.2 * (500 - len(errors)))
            await flood.leave()
            await other.leave()
            assert client.service.gate.seconds == client.service.gate.sequences == 0

    asyncio.run(asyncio.wait_for(whole(), 60))


def test_a_flood_of_small_pieces_takes_no_more_memory() -> None:
    rng, item, pieces = np.random.default_rng(5), Item(RATE), list[np.ndarray]()
    for _ in range(8000):
        pieces.append(rng.normal(size=rng.integers(0, 4)))
        item.add(pieces[-1])
    assert len(item.waiting) < 20
    whole = np.concatenate(pieces).astype(np.float32)
    assert np.array_equal(np.concatenate(item.waiting), whole)
    item = Item(48_000)
    for _ in range(1000):
        item.add(np.zeros(0))
    assert not item.waiting


def test_what_captions_have_taken_and_not_heard_waits_too(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = asyncio.Event()

    async def never(*_: Any) -> None:
        begun.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(Session, "_decoded", never)

    async def work(socket: Socket) -> str:
        socket.rate(RATE)
        socket.append(noise(40.0))
        await begun.wait()
        socket.append(noise(28.0))
        socket.append(noise(5.0))
        [*_, error] = await socket.until("error")
        found: str = error["error"]["message"]
        return found

    # The window of the step is heard, and what came with it beyond that is not.
    assert "38 of 40 s wait" in talk(work, max_sound=160.0)


@pytest.mark.parametrize("sound", [noise(7.0), np.zeros(7 * RATE, np.float32)])
def test_captions_hold_no_more_than_they_need(
    sound: np.ndarray, finding: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(realtime, "AHEAD", 2.0)
    held, due = list[float](), Live.next
    monkeypatch.setattr(Live, "next", lambda own: held.append(own.waiting) or due(own))

    async def work(socket: Socket) -> list[Json]:
        socket.rate(RATE)
        for part in np.split(sound, 14):
            socket.append(part)
        socket.say("input_audio_buffer.commit")
        return await socket.until(f"{TEXT}completed")

    told = talk(work)
    assert told[-1]["usage"]["seconds"] == 7.0
    assert bool(told[-1]["transcript"]) == sound.any()
    assert max(held) <= 2.5
    # The lag is that of all that came, and no more than there was.
    lags = [each["paceline"]["lag"] for each in told if each["type"] == f"{TEXT}delta"]
    assert all(lag <= 6.0 for lag in lags)
    assert not lags or lags[-1] == 0


def test_all_sessions_together_hold_so_much_sound() -> None:
    async def whole() -> None:
        async with serving(engine(), (), max_sound=20.0) as client:
            first, second = (Socket(client.service.app) for _ in range(2))
            for each in (first, second):
                await each.until("session.created")
                each.rate(RATE, turn_detection=None)
                await each.until("session.updated")
            first.append(noise(15.0)[:1000])
            gate = client.service.gate
            gate.take(0, 0, 19.0)
            second.append(noise(5.0))
            [*_, error] = await second.until("error")
            assert error["error"]["code"] == "rate_limit_exceeded"
            assert "seconds of sound" in error["error"]["message"]
            gate.take(0, 0, -19.0)
            second.append(noise(0.5))
            second.say("input_audio_buffer.commit")
            await second.until(f"{TEXT}completed")
            await first.leave()
            await second.leave()
            assert gate.seconds == gate.sequences == 0

    asyncio.run(asyncio.wait_for(whole(), 60))


def test_sound_that_was_taken_on_is_heard_when_the_server_is_full(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sessions, ran, decoded = list[Session](), Session.run, Session._decoded
    begun, go_on = asyncio.Event(), asyncio.Event()
    monkeypatch.setattr(Session, "run", lambda own: sessions.append(own) or ran(own))

    async def later(own: Session, request: Any) -> Any:
        begun.set()
        await go_on.wait()
        return await decoded(own, request)

    monkeypatch.setattr(Session, "_decoded", later)

    async def work(socket: Socket) -> Json:
        socket.rate(RATE)
        socket.append(noise(1.2))
        await begun.wait()
        socket.append(noise(2.5))
        socket.say("session.update", session={})
        await socket.until("session.updated")
        ticket, gate = sessions[0].ticket, sessions[0].ticket._gate
        ticket.hold(1, 0, 0.0)  # as if a step had ended while the last piece was taken
        gate.take(0, 0, 20.0)
        go_on.set()
        await socket.until(f"{TEXT}delta")
        socket.say("input_audio_buffer.commit")
        [*told, done] = await socket.until(f"{TEXT}completed")
        assert all(each["type"] != "error" for each in told)
        gate.take(0, 0, -20.0)
        found: Json = done
        return found

    assert talk(work, max_sound=20.0)["usage"]["seconds"] == pytest.approx(3.7)


def test_turns_without_end_are_refused_or_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(realtime, "_TURNS", 5)
    begun, go_on = asyncio.Event(), asyncio.Event()
    decoded = Session._decoded

    async def later(own: Session, request: Any) -> Any:
        begun.set()
        await go_on.wait()
        return await decoded(own, request)

    monkeypatch.setattr(Session, "_decoded", later)

    async def work(socket: Socket) -> tuple[Json, list[Json]]:
        socket.rate(RATE)
        socket.append(noise(1.0))
        await begun.wait()
        for _ in range(9):
            socket.append(noise(0.2))
            socket.say("input_audio_buffer.clear")
            await socket.until("input_audio_buffer.cleared")
        for _ in range(9):
            socket.append(noise(0.2))
            socket.say("input_audio_buffer.commit")
        [*told, error] = await socket.until("error")
        go_on.set()
        done = [*told, *await socket.until(f"{TEXT}completed")]
        return error["error"], [each for each in done if each["type"].endswith("committed")]

    error, committed = talk(work)
    assert "5 turns wait" in error["message"]
    assert len(committed) == 4  # behind the sound that is written down and was cleared


def test_an_event_of_bytes_is_told() -> None:
    async def work(socket: Socket) -> Json:
        await socket.until("session.created")
        socket._out.put_nowait({"type": "websocket.receive", "bytes": b"\0\1"})
        [*_, error] = await socket.until("error")
        socket.rate(RATE)
        await socket.until("session.updated")
        found: Json = error["error"]
        return found

    assert "events are texts" in talk(work)["message"]


def test_a_client_that_says_nothing_is_left() -> None:
    async def work(socket: Socket) -> Any:
        await socket.until("session.created")
        await asyncio.wait_for(socket.task, 30)
        return await socket.told()

    assert talk(work, read_timeout=0.2) == 1008


@pytest.mark.parametrize(
    ("headers", "good"),
    [
        ({"authorization": "Bearer k"}, True),
        ({"authorization": "Bearer x"}, False),
        ({}, False),
        ({"authorization": "Bearer k", "origin": "http://evil", "host": "tables"}, False),
        ({"authorization": "Bearer k", "origin": "http://tables", "host": "tables"}, True),
    ],
)
def test_keys_and_origins_are_asked_for(headers: Json, good: bool) -> None:
    async def work(socket: Socket) -> Any:
        return await socket.told()

    found = talk(work, keys=("k",), **headers)
    assert (found["type"] == "session.created") if good else found == 1008


def test_a_model_of_texts_is_refused() -> None:
    from tests.helpers import table_engines as engines

    async def work(socket: Socket) -> list[Any]:
        return [await socket.told(), await socket.told()]

    error, code = talk(work, engines.make())
    assert "hears no sound" in error["error"]["message"]
    assert code == 1011


def test_a_plain_request_is_told_what_the_route_is() -> None:
    async def whole() -> str:
        async with serving(engine()) as client:
            answer = await client.http.get("/v1/realtime")
            assert answer.status_code == 426
            said: str = answer.json()["error"]["message"]
            return said

    assert "paceline[realtime]" in asyncio.run(asyncio.wait_for(whole(), 60))


def test_a_full_server_says_so() -> None:
    async def whole() -> None:
        async with serving(engine(), max_batch=1, max_waiting=0) as client:
            first, second = Socket(client.service.app), Socket(client.service.app)
            await first.until("session.created")
            assert (await second.told())["error"]["code"] == "rate_limit_exceeded"
            assert await second.told() == 1013
            await first.leave()
            assert client.service.gate.sequences == 0

    asyncio.run(asyncio.wait_for(whole(), 60))


def causal(sound: np.ndarray, own: Any = None) -> str:
    """The words of a causal encoder that a sound has in a file."""
    listener = Listener(own or engine())
    live, said = CausalCaptions.live(listener, Listening("en")), list[str]()
    grid = np.round(sound * 32767).astype("<i2").astype(np.float32) / np.float32(32768)
    live.push(grid)
    live.end()
    while (caption := live.step(lambda: None)) is not None:
        said += caption.final
    live.let_go()
    return " ".join(said)


@pytest.fixture
def by_careless(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = ServedModel.__init__

    def begin(own: ServedModel, *parts: Any) -> None:
        begun(own, *parts)
        own.live_by = CausalCaptions.live

    monkeypatch.setattr(ServedModel, "__init__", begin)


@pytest.mark.parametrize("piece", [0.02, 0.31, 9.0])
def test_a_causal_encoder_says_live_what_it_says_of_the_file(
    by_careless: None, piece: float
) -> None:
    sounds = [noise(2.0, seed=1), noise(0.8, seed=2)]

    async def work(socket: Socket) -> list[list[Json]]:
        socket.rate(RATE, transcription={"language": "en"})
        await socket.until("session.updated")
        size, out = round(piece * RATE), []
        for sound in sounds:
            for begin in range(0, len(sound), size):
                socket.append(sound[begin : begin + size])
            socket.say("input_audio_buffer.commit")
            out.append(await socket.until(f"{TEXT}completed"))
        return out

    for sound, told in zip(sounds, talk(work), strict=True):
        deltas = [each for each in told if each["type"] == f"{TEXT}delta"]
        assert "".join(each["delta"] for each in deltas) == told[-1]["transcript"] == causal(sound)
        assert len(deltas) >= len(sound) // (0.3 * RATE)  # one a chunk
        assert causal(sound) != offline(sound)  # it is another encoder


def test_causal_captions_stand_beside_files(by_careless: None) -> None:
    """Two sessions at once, and a file by the plain encoder, each as if alone."""
    sounds = [noise(2.0, seed=1), noise(1.5, seed=2)]

    async def whole() -> tuple[list[str], str, str]:
        async with serving(own := engine(), ()) as client:
            sockets = [Socket(client.service.app) for _ in sounds]
            for socket, sound in zip(sockets, sounds, strict=True):
                socket.rate(RATE, transcription={"language": "en"})
                await socket.until("session.updated")
                for part in np.array_split(sound, 9):
                    socket.append(part)
                socket.say("input_audio_buffer.commit")
            form = {"file": ("a.wav", wav(noise(1.0, seed=7)))}
            beside, *done = await asyncio.gather(
                client.http.post("/v1/audio/transcriptions", files=form),
                *(each.until(f"{TEXT}completed") for each in sockets),
            )
            for each in sockets:
                await each.leave()
            alone = await client.http.post("/v1/audio/transcriptions", files=form)
            assert freed(own)
        return (
            [each[-1]["transcript"] for each in done],
            beside.json()["text"],
            alone.json()["text"],
        )

    live, beside, alone = asyncio.run(asyncio.wait_for(whole(), 60))
    assert live == [causal(each) for each in sounds]
    assert beside == alone != ""


def test_more_causal_captions_than_there_is_room_for_are_each_as_if_alone(
    by_careless: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Room for two sounds: five turns are open at once, wait, and go on."""
    sounds = [noise(1.4, seed) for seed in range(5)]
    wanted = [causal(each) for each in sounds]
    monkeypatch.setattr(encoder, "_MEMORIES", 2)

    async def whole() -> list[str]:
        async with serving(own := engine(rows=75), ()) as client:
            sockets = [Socket(client.service.app) for _ in sounds]
            for socket, sound in zip(sockets, sounds, strict=True):
                socket.rate(RATE, transcription={"language": "en"})
                await socket.until("session.updated")
                socket.append(sound[:RATE])
                await socket.until(f"{TEXT}delta")
            for socket, sound in zip(sockets, sounds, strict=True):
                socket.append(sound[RATE:])
                socket.say("input_audio_buffer.commit")
            done = [await each.until(f"{TEXT}completed") for each in sockets]
            for each in sockets:
                await each.leave()
            assert freed(own)
        return [each[-1]["transcript"] for each in done]

    assert asyncio.run(asyncio.wait_for(whole(), 60)) == wanted


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ({}, "language: these captions"),
        ({"language": ""}, "language: these captions"),
        ({"language": "en", "prompt": "x"}, "prompt: these"),
    ],
)
def test_what_causal_captions_do_not_do_is_refused(
    by_careless: None, wanted: Json, said: str
) -> None:
    async def work(socket: Socket) -> Json:
        socket.rate(RATE, transcription=wanted)
        socket.append(noise(0.5))
        [*_, error] = await socket.until("error")
        found: Json = error["error"]
        return found

    assert said in talk(work)["message"]


def test_a_client_of_causal_captions_that_leaves_frees_them(by_careless: None) -> None:
    async def work(socket: Socket) -> None:
        socket.rate(RATE, transcription={"language": "en"})
        socket.append(noise(9.0))
        await socket.until(f"{TEXT}delta")

    talk(work)


def test_a_turn_is_asked_for_as_it_was_when_it_began(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, begin = list[str](), Listener.begin

    def begun(own: Listener, sound: np.ndarray, wanted: Listening, *more: Any) -> Any:
        if len(sound):
            asked.append(wanted.prompt.split()[0])
        return begin(own, sound, wanted, *more)

    monkeypatch.setattr(Listener, "begin", begun)
    go_on, decoded = asyncio.Event(), Session._decoded

    async def later(own: Session, request: Any) -> Any:
        await go_on.wait()
        return await decoded(own, request)

    monkeypatch.setattr(Session, "_decoded", later)

    async def work(socket: Socket) -> None:
        for prompt in ("w1", "w2", "w3"):
            socket.rate(RATE, transcription={"prompt": prompt})
            await socket.until("session.updated")
            socket.append(noise(0.5))
            socket.say("input_audio_buffer.commit")
            await socket.until("input_audio_buffer.committed")
        go_on.set()
        for _ in range(3):
            await socket.until(f"{TEXT}completed")

    talk(work)
    assert list(dict.fromkeys(asked)) == ["w1", "w2", "w3"]


def silent(seconds: float) -> np.ndarray:
    return np.zeros(round(seconds * RATE), np.float32)


@pytest.mark.parametrize("piece", [0.02, 0.1, 7.0])
def test_turns_begin_and_end_with_speech(finding: None, piece: float) -> None:
    spoken = [noise(1.2, seed=1), noise(0.9, seed=2)]
    sound = np.concatenate([silent(1), spoken[0], silent(1.5), spoken[1], silent(1)])

    async def work(socket: Socket) -> list[Json]:
        turns = {"type": "server_vad", "prefix_padding_ms": 200, "silence_duration_ms": 600}
        socket.rate(RATE, turn_detection=turns)
        out = await socket.until("session.updated")
        size = round(piece * RATE)
        for begin in range(0, len(sound), size):
            socket.append(sound[begin : begin + size])
        for _ in spoken:
            out += await socket.until(f"{TEXT}completed")
        return out

    told = talk(work)
    updated = next(each for each in told if each["type"] == "session.updated")
    turns = updated["session"]["audio"]["input"]["turn_detection"]
    assert turns["silence_duration_ms"] == 600
    kinds = ("speech_started", "speech_stopped", "committed")
    events = [each for each in told if each["type"].rpartition(".")[2] in kinds]
    assert [each["type"].rpartition(".")[2] for each in events] == [*kinds] * 2
    for first, begin, end in ((0, 1.0, 2.2), (3, 3.7, 4.6)):
        started, stopped, committed = events[first : first + 3]
        assert started["item_id"] == stopped["item_id"] == committed["item_id"]
        assert started["audio_start_ms"] == pytest.approx(1000 * begin - 200, abs=120)
        assert stopped["audio_end_ms"] == pytest.approx(1000 * end, abs=120)
        done = [each for each in told if each.get("item_id") == started["item_id"]][-1]
        assert done["type"] == f"{TEXT}completed"
        assert done["transcript"]
        assert done["usage"]["seconds"] == pytest.approx(end - begin + 0.2 + 0.6, abs=0.15)


def test_silence_is_not_written_down(finding: None, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[Any] = []
    whole = Live.heard
    monkeypatch.setattr(Live, "heard", lambda own, done: steps.append(done) or whole(own, done))

    async def work(socket: Socket) -> Json:
        socket.rate(RATE)
        socket.append(silent(5.0))
        socket.say("input_audio_buffer.commit")
        [*_, done] = await socket.until(f"{TEXT}completed")
        found: Json = done
        return found

    done = talk(work)
    assert done["transcript"] == ""
    assert done["usage"]["seconds"] == 5.0
    assert not steps


def test_a_quiet_buffer_is_empty_and_what_is_cleared_ends_a_turn(finding: None) -> None:
    async def work(socket: Socket) -> list[Json]:
        socket.rate(RATE, turn_detection={"type": "server_vad"})
        socket.append(silent(1.0))
        socket.say("input_audio_buffer.commit")
        out = await socket.until("error")
        socket.append(noise(1.0))
        out += await socket.until("input_audio_buffer.speech_started")
        socket.say("input_audio_buffer.clear")
        out += await socket.until("input_audio_buffer.cleared")
        socket.append(silent(2.0))
        socket.append(noise(1.0))
        out += await socket.until("input_audio_buffer.speech_started")
        return out

    told = talk(work)
    assert (
        "it is empty" in next(each for each in told if each["type"] == "error")["error"]["message"]
    )
    assert not any(each["type"].endswith("stopped") for each in told)
    starts = [each["item_id"] for each in told if each["type"].endswith("started")]
    assert len({*starts}) == 2


@pytest.mark.parametrize("rate", [RATE, 24_000])
def test_what_waits_is_counted_and_not_looked_for(rate: int) -> None:
    class Taking:
        waiting = 0.0

        def push(self, samples: np.ndarray) -> None:
            self.waiting += len(samples) / RATE

    item, live, rng = Item(rate, quiet=True), Taking(), np.random.default_rng(3)
    for step in range(300):
        item.add(rng.normal(size=rng.integers(1, 4000)))
        if step == 40:
            item.keep(3000)
        if step > 40 and rng.random() < 0.1:
            item.give(live)  # type: ignore[arg-type]
        assert item.behind == sum(map(len, item.waiting)) / RATE
        assert item.behind + live.waiting == pytest.approx(item.seconds)
    assert live.waiting > 0
