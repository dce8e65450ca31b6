"""Captions over a WebSocket, as OpenAI's realtime API has transcriptions."""

from __future__ import annotations

import asyncio
import base64
import math
import uuid
from collections import deque
from contextlib import suppress
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import UNSET, Meta, Struct, UnsetType
from starlette.websockets import WebSocket, WebSocketDisconnect

from paceline.audio.mel import RATE
from paceline.audio.resample import Resampler
from paceline.audio.silence import CHUNK, SpeechFinder
from paceline.core.types import LogitArray
from paceline.engine.engine import Completion, Prepared
from paceline.errors import InvalidOption, PacelineError
from paceline.listening.live import AHEAD, Live, LiveCaption, LiveCaptions
from paceline.listening.windows import Listening
from paceline.serving.admission import Busy
from paceline.serving.http import described
from paceline.serving.model import ServedModel
from paceline.serving.protocol import BadRequest
from paceline.serving.worker import Job, Outbox, Worker

Json = dict[str, Any]
_TEXT = "conversation.item.input_audio_transcription."
_OFFERED = "sec-websocket-protocol"
_TURNS = 100  # that wait to be written down
_STEP = 0.05  # seconds of sound in which turns are looked for at once
_PART = RATE // 10  # samples of which pieces that wait are made, if they come in smaller ones
_SHARE = 4  # of the sound that the server takes on, what waits of a session is a quarter at most
_WAIT = 15.0  # seconds between looks at an outbox
_GOODBYE = 1.0  # seconds in which one who is left takes notice


class Format(Struct, forbid_unknown_fields=True):
    """Numbers of 16 bits, little-endian, of one channel."""

    type: Literal["audio/pcm"] = "audio/pcm"
    rate: Annotated[int, Meta(ge=8000, le=192_000)] = 24_000


class Wanted(Struct, forbid_unknown_fields=True):
    model: str | None = None
    language: str | None = None
    prompt: Annotated[str, Meta(max_length=10_000)] = ""


class TurnDetection(Struct, forbid_unknown_fields=True):
    """A turn begins where somebody speaks, and ends where nobody has for a while.

    `threshold` is the probability of speech that begins one, and `prefix_padding_ms` what belongs
    to it before that.
    """

    type: Literal["server_vad"] = "server_vad"
    threshold: Annotated[float, Meta(ge=0.2, le=0.99)] = 0.5
    prefix_padding_ms: Annotated[int, Meta(ge=0, le=5_000)] = 300
    silence_duration_ms: Annotated[int, Meta(ge=100, le=60_000)] = 500


class AudioInput(Struct, forbid_unknown_fields=True):
    """There are no filters: `noise_reduction` must be null. Without turns clients commit."""

    format: Format | None = None
    transcription: Wanted | None = None
    turn_detection: TurnDetection | UnsetType | None = UNSET
    noise_reduction: None = None


class AudioSettings(Struct, forbid_unknown_fields=True):
    input: AudioInput = msgspec.field(default_factory=AudioInput)


class SessionSettings(Struct, forbid_unknown_fields=True):
    type: Literal["transcription"] = "transcription"
    audio: AudioSettings = msgspec.field(default_factory=AudioSettings)


class UpdateEvent(Struct, tag_field="type", tag="session.update"):
    session: SessionSettings
    event_id: str | None = None


class AppendEvent(Struct, tag_field="type", tag="input_audio_buffer.append"):
    audio: str
    event_id: str | None = None


class CommitEvent(Struct, tag_field="type", tag="input_audio_buffer.commit"):
    event_id: str | None = None


class ClearEvent(Struct, tag_field="type", tag="input_audio_buffer.clear"):
    event_id: str | None = None


_READ = msgspec.json.Decoder(UpdateEvent | AppendEvent | CommitEvent | ClearEvent).decode


class Item:
    """Sound from one commit to the next: `waiting` is what its captions have not taken.

    One that is `cleared` is forgotten. In one that is `quiet` nobody has spoken yet.
    """

    def __init__(self, rate: int, quiet: bool = False, wanted: Wanted | None = None) -> None:
        self.wanted = wanted or Wanted()
        self.id = f"item_{uuid.uuid4().hex}"
        self.waiting: deque[LogitArray] = deque()
        self._came = self._given = 0  # samples; each is counted by one thread
        self.committed = self.cleared = False
        self.quiet = quiet
        self.seconds = 0.0
        self.said = ""
        self._resampler = None if rate == RATE else Resampler(rate, 1)

    def add(self, samples: npt.NDArray[np.float64]) -> LogitArray:
        """Add samples of its rate; return what is new at `RATE`."""
        own = self._resampler
        return self._take(samples.astype(np.float32) if own is None else own.feed(samples))

    def give(self, live: LiveCaptions) -> None:
        """Give captions as much as they may hold."""
        parts = []
        room = AHEAD - live.waiting
        with suppress(IndexError):  # what comes meanwhile may be put to the last part
            while room > 0:
                parts.append(self.waiting.popleft())
                self._given += len(parts[-1])
                room -= len(parts[-1]) / RATE
        if parts:
            live.push(np.concatenate(parts))

    @property
    def behind(self) -> float:
        """Seconds of sound that waits."""
        return (self._came - self._given) / RATE

    def keep(self, most: int) -> None:
        """Forget all samples at `RATE` but the last ones."""
        whole = np.concatenate([np.zeros(0, np.float32), *self.waiting])
        last = whole[max(0, len(whole) - most) :]
        self.waiting, self._came = deque([last]), len(last)
        self.seconds = len(last) / RATE

    def commit(self) -> None:
        if self._resampler is not None:
            self._take(self._resampler.end())
        self.committed = True

    def _take(self, samples: LogitArray) -> LogitArray:
        # An array takes more memory than a few samples, so these are put together.
        waiting, whole = self.waiting, samples
        with suppress(IndexError):  # it may be given to captions meanwhile
            if len(samples) and len(waiting[-1]) < _PART:
                whole = np.concatenate([waiting.pop(), samples])
        if len(samples):
            waiting.append(whole)
        self._came += len(samples)
        self.seconds += len(samples) / RATE
        return samples


class SpokenTurns:
    """Who speaks when: `speaking` tells whether somebody does."""

    def __init__(self, finder: SpeechFinder, asked: TurnDetection) -> None:
        self.asked, self.speaking = asked, False
        self._stream, self._still = finder.stream(asked.threshold), 0

    def hear(self, samples: LogitArray) -> list[bool]:
        """Take float32 samples at `RATE`; return of each change whether a turn begins there."""
        changes = []
        for said in self._stream.feed(samples):
            self._still = 0 if said else self._still + CHUNK
            ends = self._still * 1000 >= self.asked.silence_duration_ms * RATE
            if (said and not self.speaking) or (self.speaking and ends):
                self.speaking = bool(said)
                changes.append(self.speaking)
        return changes


class Session:
    """One connection: what it says makes items, which are written down one after another."""

    def __init__(self, service: Any, socket: WebSocket) -> None:
        """`service` is an `app.Service`."""
        self._service, self._socket = service, socket
        self._settings = service.settings
        self._format, self._wanted = Format(), Wanted()
        self._items = deque([Item(self._format.rate)])
        self._turns: SpokenTurns | None = None
        self._milliseconds = 0.0  # of sound
        self._more = asyncio.Event()
        self._outbox = Outbox()
        self._sending = asyncio.Lock()
        self._live: LiveCaptions | None = None
        self._last: str | None = None  # item that was committed

    async def run(self) -> None:
        """Serve until either side ends it."""
        service, socket = self._service, self._socket
        origin, host = (socket.headers.get(name, "") for name in ("origin", "host"))
        allowed = self._settings.cors_origin or []
        if origin and urlsplit(origin).netloc != host and not {origin, "*"} & {*allowed}:
            await socket.close(1008)  # a page of elsewhere
            return
        asked = [each.strip() for each in socket.headers.get(_OFFERED, "").split(",")]
        await socket.accept("realtime" if "realtime" in asked else None)
        try:
            self.ticket = service.gate.enter()
            hosted = service.hosting.find(socket.query_params.get("model"))
        except PacelineError as error:
            await self._fail(error)
            await socket.close(1013)
            return
        held = False
        try:
            model = await service.hosting.take(hosted)
            held = True
            if model.listener is None:
                raise BadRequest(f"model: {model.name} hears no sound: name a Whisper", "model")
            self._model, self._hosted, self._worker = model, hosted, hosted.worker
            await self._tell("session.created", session=self._told())
            writing = asyncio.ensure_future(self._write())
            reading = asyncio.ensure_future(self._listen())
            try:
                await asyncio.wait((writing, reading), return_when=asyncio.FIRST_COMPLETED)
            finally:
                for each in (writing, reading):
                    each.cancel()
                await asyncio.wait((writing, reading))
            for each in (reading, writing):
                if not each.cancelled():
                    each.result()
        except PacelineError as error:
            with suppress(RuntimeError, WebSocketDisconnect):  # the client may have gone
                await self._fail(error)
                await socket.close(1011)
        except TimeoutError:
            seconds = self._settings.read_timeout
            with suppress(RuntimeError, WebSocketDisconnect, TimeoutError):
                async with asyncio.timeout(_GOODBYE):
                    await socket.close(1008, f"nothing was sent, or read, for {seconds:g} s")
        except WebSocketDisconnect:
            pass
        finally:
            self._close(hosted, held)

    def _close(self, hosted: Any, held: bool) -> None:
        if held:
            if hosted.worker is not None:
                hosted.worker.cancel(self._outbox.jobs)
            self._service.hosting.give(hosted)
        if self._live is not None:
            self._live.let_go()
        self._service.leave(self.ticket)

    # What the client says:

    async def _listen(self) -> None:
        while True:
            async with asyncio.timeout(self._settings.read_timeout):
                message = await self._socket.receive()
            if message["type"] == "websocket.disconnect":
                return
            event_id = None
            try:
                if message.get("text") is None:
                    raise BadRequest("the event is not read: it has bytes, and events are texts")
                try:
                    event = _READ(message["text"])
                except (msgspec.MsgspecError, RecursionError) as error:
                    raise BadRequest(f"the event is not read: {error}") from error
                event_id = event.event_id
                await self._take(event)
            except PacelineError as error:
                await self._fail(error, event_id)

    async def _take(self, event: UpdateEvent | AppendEvent | CommitEvent | ClearEvent) -> None:
        item = self._items[-1]
        if isinstance(event, AppendEvent):
            await self._append(event.audio)
        elif isinstance(event, UpdateEvent):
            self._update(event.session.audio.input)
            await self._tell("session.updated", session=self._told())
        elif isinstance(event, ClearEvent):
            item.cleared = True
            if len(self._items) > 1:  # no step has begun with it
                self._items.pop()
            if self._turns is not None:
                self._turns = SpokenTurns(self._finder, self._turns.asked)
            self._begin()
            await self._tell("input_audio_buffer.cleared")
        elif item.quiet or not item.seconds:
            raise BadRequest("input_audio_buffer: it is empty: append sound before a commit")
        elif len(self._items) > _TURNS:
            raise BadRequest(f"input_audio_buffer: {_TURNS} turns wait: commit more seldom")
        else:
            await self._commit(item)
        self._more.set()

    @property
    def _waiting(self) -> float:
        # Seconds of sound that no step has heard.
        live = 0.0 if self._live is None else self._live.waiting
        return live + sum(each.behind for each in self._items)

    def _begin(self) -> None:
        quiet = self._turns is not None and not self._turns.speaking
        self._items.append(Item(self._format.rate, quiet, self._wanted))

    async def _commit(self, item: Item) -> None:
        item.commit()
        self._begin()
        before, self._last = self._last, item.id
        told: Json = {"previous_item_id": before, "item_id": item.id}
        await self._tell("input_audio_buffer.committed", **told)

    async def _append(self, audio: str) -> None:
        try:
            raw = base64.b64decode(audio, validate=True)
        except ValueError as error:
            raise BadRequest(f"audio: it is no base64 ({error})", "audio") from error
        if len(raw) % 2:
            raise BadRequest("audio: numbers have two bytes: send whole ones", "audio")
        if self._model.live_by is not None and not self._wanted.language:
            raise BadRequest(
                "language: these captions do not find it out: name it in session.update",
                "language",
            )
        rate, most = self._format.rate, (self._settings.max_sound or math.inf) / _SHARE
        seconds = len(raw) / 2 / rate
        held = self._waiting
        if held + seconds > most:
            raise BadRequest(
                f"audio: {held:.0f} of {most:g} s wait to be heard: send it more slowly, or start "
                "the server with a larger --max-sound",
                "audio",
            )
        self.ticket.hold(1, 0, math.ceil(held + seconds))
        samples = np.frombuffer(raw, "<i2").astype(np.float64) / 32768
        if self._turns is None:
            await asyncio.to_thread(self._items[-1].add, samples)
            self._milliseconds += seconds * 1000
            return
        step = round(rate * _STEP)
        for begin in range(0, len(samples), step):
            part = samples[begin : begin + step]
            self._milliseconds += len(part) / rate * 1000
            await self._turn(self._turns, part)

    async def _turn(self, turns: SpokenTurns, samples: npt.NDArray[np.float64]) -> None:
        # Sound of a moment, in which turns may begin and end.
        item, asked = self._items[-1], turns.asked
        changes = await asyncio.to_thread(lambda: turns.hear(item.add(samples)))
        if item.quiet:
            item.keep(round(asked.prefix_padding_ms * RATE / 1000))
        for begins in changes:
            item = self._items[-1]
            if begins:
                item.quiet = False
                at = max(0, round(self._milliseconds - item.seconds * 1000))
                told: Json = {"audio_start_ms": at, "item_id": item.id}
                await self._tell("input_audio_buffer.speech_started", **told)
            else:
                at = round(self._milliseconds - asked.silence_duration_ms)
                told = {"audio_end_ms": at, "item_id": item.id}
                await self._tell("input_audio_buffer.speech_stopped", **told)
                await self._commit(item)
            self._more.set()

    def _update(self, asked: AudioInput) -> None:
        item, wanted = self._items[-1], asked.transcription or self._wanted
        form = asked.format or self._format
        turns = None if self._turns is None else self._turns.asked
        turned = turns if asked.turn_detection is UNSET else asked.turn_detection
        same = (form, wanted, turned) == (self._format, self._wanted, turns)
        if item.seconds and not item.quiet and not same:
            raise BadRequest("session: there is sound that is not committed: commit it before")
        named = wanted.model
        if named is not None and self._service.hosting.find(named) is not self._hosted:
            raise BadRequest("model: it stays: name another in the address", "model")
        if wanted.prompt and self._model.live_by is not None:
            raise BadRequest("prompt: these captions read none: leave it out", "prompt")
        try:
            self._model.listener.begin(np.zeros(0, np.float32), Listening(wanted.language))
        except InvalidOption as error:
            raise BadRequest(f"language: {error}", "language") from error
        if turned is not None and self._model.finder is None:
            raise BadRequest(
                "turn_detection: nothing here finds speech: leave it out, or start the server with "
                "the weights of --silence",
                "turn_detection",
            )
        if same:
            return
        self._format, self._wanted = form, wanted
        self._turns = None if turned is None else SpokenTurns(self._finder, turned)
        self._items.pop()
        self._begin()

    # What is told:

    async def _write(self) -> None:
        while True:
            await self._more.wait()
            self._more.clear()
            while await self._step(self._items[0]):
                with suppress(Busy):  # what came meanwhile was taken on, whoever came since
                    self.ticket.hold(1, 0, math.ceil(self._waiting))

    async def _step(self, item: Item) -> bool:
        # Whether there may be more to do.
        if item.cleared or (item.committed and not item.seconds):
            self._leave()
            return True
        if item.quiet or not item.seconds:
            return False
        self._live = live = self._live or self._captions(item.wanted)
        ended = item.committed  # of a sound that ends later more may come
        request: Prepared | None = None
        caption: LiveCaption | None = None
        if not isinstance(live, Live):
            caption = await asyncio.to_thread(self._stepped, item, live, ended)
        elif request := await asyncio.to_thread(self._asked, item, live, ended):
            done = await self._decoded(request)
            caption = await asyncio.to_thread(self._heard, item, live, done)
        if caption is not None and not item.cleared:
            text = " ".join(caption.final)
            text = f" {text}" if item.said and text else text
            item.said += text
            lag = round(caption.lag + item.behind, 3)
            told = {"draft": " ".join(caption.draft), "lag": lag}
            await self._tell(f"{_TEXT}delta", item=item, delta=text, paceline=told)
        if request is not None or caption is not None:
            return True
        if ended and not item.waiting:
            self._leave()
            self._hosted.counts.counts["sound_seconds"] += math.ceil(item.seconds)
            usage = {"type": "duration", "seconds": round(item.seconds, 3)}
            said = {"transcript": item.said, "usage": usage}
            await self._tell(f"{_TEXT}completed", item=item, **said)
            return True
        return bool(item.waiting)  # what was silent has made room

    def _captions(self, wanted: Wanted) -> LiveCaptions:
        model: ServedModel = self._model
        assert model.listener is not None  # or there is no session
        asked = Listening(wanted.language, False, wanted.prompt)
        if model.live_by is not None:
            return model.live_by(model.listener, asked)
        return Live(model.listener, asked, finder=model.finder)

    def _leave(self) -> None:
        self._items.popleft()
        if self._live is not None:
            self._live.let_go()
        self._live = None

    def _asked(self, item: Item, live: Live, ended: bool) -> Prepared | None:
        self._give(item, live, ended)
        return live.next()

    def _stepped(self, item: Item, live: LiveCaptions, ended: bool) -> LiveCaption | None:
        # Captions of a method take turns with requests by themselves.
        self._give(item, live, ended)
        return live.step(lambda: item.give(live))

    def _give(self, item: Item, live: LiveCaptions, ended: bool) -> None:
        item.give(live)
        if ended and not item.waiting:
            live.end()

    def _heard(self, item: Item, live: Live, done: Completion) -> LiveCaption | None:
        item.give(live)
        return live.heard(done)

    async def _decoded(self, request: Prepared) -> Completion:
        worker: Worker = self._worker
        self._outbox.jobs = [Job(request, self._outbox)]
        worker.submit(self._outbox.jobs)
        while True:
            for _, event in await self._outbox.get(_WAIT):
                if event.error is not None:
                    raise event.error
                if event.completion is not None:
                    return event.completion

    @property
    def _finder(self) -> SpeechFinder:
        model: ServedModel = self._model
        assert model.finder is not None  # or there are no turns
        return model.finder

    def _told(self) -> Json:
        model: ServedModel = self._model
        asked = msgspec.to_builtins(self._wanted) | {"model": model.name}
        sound = {"format": msgspec.to_builtins(self._format), "transcription": asked}
        turns = None if self._turns is None else msgspec.to_builtins(self._turns.asked)
        sound |= {"turn_detection": turns, "noise_reduction": None}
        head = {"type": "transcription", "object": "realtime.transcription_session"}
        return head | {"id": "sess", "audio": {"input": sound}}

    async def _fail(self, error: PacelineError, event_id: str | None = None) -> None:
        told = described(error)[1]["error"] | {"event_id": event_id}
        await self._tell("error", error=told)

    async def _tell(self, kind: str, item: Item | None = None, **more: Any) -> None:
        head: Json = {"type": kind, "event_id": f"event_{uuid.uuid4().hex}"}
        if item is not None:
            head |= {"item_id": item.id, "content_index": 0}
        data = msgspec.json.encode(head | more).decode()
        async with self._sending, asyncio.timeout(self._settings.read_timeout):
            await self._socket.send_text(data)
