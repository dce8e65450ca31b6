"""The HTTP application: routes, and the way of a request through the server."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
import re
import uuid
from base64 import b64encode
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from pathlib import Path
from time import perf_counter
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket

from paceline.audio.mel import RATE
from paceline.errors import PacelineError
from paceline.serving import anthropic, http, ollama, openapi
from paceline.serving.admission import Busy, Gate, Ticket
from paceline.serving.anthropic import CountRequest, plan_messages
from paceline.serving.audio import TranslationRequest
from paceline.serving.dialects import refusal
from paceline.serving.files import Batches, BatchRequest, Files
from paceline.serving.forms import UPLOAD, decode_form
from paceline.serving.hosting import Hosted, Hosting
from paceline.serving.http import Gone, json_response
from paceline.serving.kept import KeptAnswers, listed
from paceline.serving.logs import RequestIds
from paceline.serving.messages import Notes
from paceline.serving.metrics import Metrics, ModelCounts
from paceline.serving.model import ServedModel
from paceline.serving.objects import Answer
from paceline.serving.pieces import Pieces, written
from paceline.serving.plan import guarded, tokenize
from paceline.serving.protocol import BadRequest, DetokenizeRequest, TokenizeRequest, decode
from paceline.serving.realtime import Session
from paceline.serving.routes import INFO, ROUTES, Way
from paceline.serving.settings import GIB, Settings
from paceline.serving.worker import ENDED, Delivery, Job, Load, Outbox, ServingCore, Worker
from paceline.version import __version__

_log = logging.getLogger("paceline.serving")
PING_SECONDS = 15.0
PAGE = Path(__file__).parent / "page" / "index.html"


class Service:
    """The state behind the routes. All but the engines' threads is in one event loop."""

    worker_type = Worker  # a simulation has one without a thread

    def __init__(
        self, settings: Settings, keys: tuple[str, ...] = (), models: Sequence[Hosted] = ()
    ) -> None:
        """Every request is refused until `open`, for one model, or `begin`, for several."""
        self.settings = settings
        room = math.inf if settings.memory is None else settings.memory * GIB
        self.hosting = Hosting(models, room, self._start)
        self.kept = KeptAnswers(settings.keep_responses)
        limits = settings.max_prompt_tokens, settings.max_sound
        self.gate = Gate(settings.max_batch + settings.max_waiting, *limits)
        self.metrics = Metrics(self.gate, self._loads, settings.vllm_metrics)
        self._left = asyncio.Event()
        self.files = Files(settings.files)
        self.batches = Batches(self, self.files)
        self.app = _application(self, keys)

    def open(self, model: ServedModel) -> None:
        """Take requests for the one model from now on. Called in the event loop."""
        hosted = Hosted(model.names, model.path, lambda: model)
        self.hosting.add(hosted)
        self._start(hosted, model)
        self.begin()

    def begin(self) -> None:
        """Take requests from now on. Called in the event loop."""
        self.gate.closed = None
        self.batches.open()

    def _start(self, hosted: Hosted, model: ServedModel) -> None:
        soon = asyncio.get_running_loop().call_soon_threadsafe
        hosted.model, model.kept = model, self.kept
        model.longest_sound = self.settings.max_sound
        hosted.worker = worker = self.worker_type(
            ServingCore(model.engine),
            lambda deliveries: soon(self._deliver, hosted, deliveries),
            lambda: soon(self._lost, hosted, worker),
        )
        worker.start()

    def drain(self) -> None:
        """Refuse new requests; those that were accepted go on."""
        self.gate.closed = "the server is shutting down"
        self.batches.close()

    @staticmethod
    def spare(worker: Worker, answer: Answer, place: int, outbox: Outbox) -> None:
        """End a choice that says a call again: what follows is not told."""
        if answer.choices[place].repeats:
            worker.end(outbox.jobs[place])

    def abort(self, error: PacelineError) -> None:
        """End all answers with an error, and all that wait for a model."""
        self.hosting.abort(error)
        for worker in self.hosting.workers:
            worker.abort(error)

    def leave(self, ticket: Ticket) -> None:
        ticket.leave()
        self._left.set()

    @property
    def idle(self) -> bool:
        return self.gate.sequences == 0

    async def emptied(self) -> None:
        """Wait until no request is left."""
        while not self.idle:
            self._left.clear()
            await self._left.wait()

    def stop(self) -> None:
        for worker in self.hosting.workers:
            worker.stop()

    def _lost(self, hosted: Hosted, worker: Worker) -> None:
        if not self.hosting.lose(hosted):
            self.gate.closed = ENDED
        self._deliver(hosted, worker.give_up())

    def _loads(self) -> list[tuple[str, ModelCounts, Load]]:
        return [
            (each.names[0], each.counts, Load() if each.worker is None else each.worker.core.load)
            for each in self.hosting.models
        ]

    def _deliver(self, hosted: Hosted, deliveries: list[Delivery]) -> None:
        for job, event, _ in deliveries:
            hosted.counts.saw(event)
            if not job.outbox.put(job.place, event) and hosted.worker is not None:
                hosted.worker.cancel(job.outbox.jobs)

    def unheeded(self, hosted: Hosted, body: Any) -> list[str]:
        """Let a model stay as long as a request says; return the field's name if it cannot go."""
        seconds = ollama.keep_seconds(body)
        if seconds is None or self.hosting.keep(hosted, seconds) or seconds < 0:
            return []
        return ["keep_alive"]


class Exchange:
    """One request for text, from its admission until all of its answer is sent."""

    def __init__(self, service: Service, request: Request) -> None:
        """Raises Busy or Closed before anything is read."""
        self.service = service
        self.request = request
        self.ticket = service.gate.enter()
        self.began = perf_counter()
        self.outbox = Outbox()
        self.answer: Answer | None = None
        self.hosted: Hosted | None = None  # from when the request holds it
        self.worker: Worker | None = None
        self._later: list[Job] = []  # jobs that wait for others of this request

    async def respond(self, way: Way) -> Response:
        """Return the whole answer or its stream.

        Raises:
            PacelineError: the request is refused, or failed.
            Gone: the client has closed the connection.
        """
        service, settings, (kind, plan, answer) = self.service, self.service.settings, way
        body, ignored = await self._body(way)
        model = await self._take(body, kind)
        assert self.worker is not None  # it is held
        assert self.hosted is not None
        self.ticket.hold(getattr(body, "n", None) or 1, 0)  # the rest is known after tokenising
        # Many may wait for a thread: those whose client leaves meanwhile give their place back.
        planning = asyncio.to_thread(guarded, plan, model, body)
        planned = await http.unless_gone(self.request.receive, planning)
        planned.notes.left[:0] = service.unheeded(self.hosted, body)
        headers = _left(ignored, planned.notes, settings.strict)
        places = len(planned.prompts) * planned.n
        if planned.waves:
            places = min(places, settings.max_batch)
        self.ticket.hold(places, sum(len(each.tokens) for each in planned.prompts), planned.seconds)
        self.hosted.counts.counts["sound_seconds"] += math.ceil(planned.seconds)
        self.answer = made = answer(model, planned, body, uuid.uuid4().hex, self.outbox.accepted)
        jobs, opened = planned.jobs(self.outbox), list(self.outbox.jobs)
        if opened:  # what has been read of its prompt
            self.worker.replace(opened[0], jobs[0].prepared)
        self.outbox.jobs = jobs = [*opened, *jobs[len(opened) :]]
        self.worker.submit(jobs[len(opened) : places])
        self._later = jobs[places:]
        if planned.stream:
            headers |= {"content-type": self.answer.media}
            return http.EventStream(
                self._stream(self.answer), headers, self.close, settings.read_timeout
            )
        await http.unless_gone(self.request.receive, self._collect(self.answer))
        return await asyncio.to_thread(made.response, headers)

    async def _body(self, way: Way) -> tuple[Any, list[str]]:
        settings, (kind, *_) = self.service.settings, way
        if pieces := written(self.request, kind):
            data = await self._written(way, pieces)
            return await asyncio.to_thread(decode, kind, data, settings.strict)
        form = issubclass(kind, TranslationRequest)
        most = max(UPLOAD, settings.max_body) if form else settings.max_body
        if form:  # as if it were plain numbers, until it is known how long it lasts
            length = self.request.headers.get("content-length", "")
            self.ticket.hold(1, 0, (int(length) if length.isdigit() else most) / (2 * RATE))
        data = await http.read_body(self.request, most, settings.body_timeout)
        if not form:
            return await asyncio.to_thread(decode, kind, data, settings.strict)
        sent = self.request.headers.get("content-type", "")
        return await asyncio.to_thread(decode_form, kind, data, sent, settings.strict)

    async def _take(self, body: Any, kind: type[Any], written: bool = False) -> ServedModel:
        # Holds the model of a request; that of the first piece stays for the others.
        hosted = self.hosted or self.service.hosting.find(body.model)
        if self.hosted is None:
            # A model that is not loaded may take a while. Who still writes is heard when it reads.
            taking = self.service.hosting.take(hosted)
            ready = written or (hosted.model is not None and not hosted.leaving)
            await (taking if ready else http.unless_gone(self.request.receive, taking))
            self.hosted, self.worker = hosted, hosted.worker
        model = hosted.model
        assert model is not None  # it is held
        sounds = issubclass(kind, TranslationRequest)
        if sounds != (model.listener is not None):
            said = "writes down sound: ask /v1/audio/transcriptions, or name a model of texts"
            if sounds:
                said = "hears no sound: name a Whisper, which `paceline serve --model` loads"
            raise BadRequest(f"model: {model.name} {said}", "model")
        if template := getattr(body, "chat_template", None):
            model = await asyncio.to_thread(guarded, model.under, template)
        return model

    async def _written(self, way: Way, pieces: Pieces) -> bytes:
        # Returns a body that comes in lines, and has its prompt read meanwhile.
        settings, (kind, plan, _) = self.service.settings, way
        lines = http.read_lines(self.request, settings.max_body, settings.body_timeout)
        async with aclosing(lines):
            async for some in lines:
                data = await asyncio.to_thread(guarded, pieces.add, some)
                body, _ = await asyncio.to_thread(decode, kind, data, settings.strict)
                model = await self._take(body, kind, written=True)
                assert self.worker is not None
                for _, event in self.outbox.take():
                    if event.error is not None:
                        raise event.error
                begun = await asyncio.to_thread(guarded, pieces.begun, model, plan, body)
                if begun is None:
                    continue
                with suppress(Busy):  # told of the whole, if it is still so
                    self.ticket.hold(1, len(begun.tokens))
                    if self.outbox.jobs:
                        self.worker.replace(self.outbox.jobs[0], begun)
                    else:
                        job = Job(begun, self.outbox, 0, pieces.progress)
                        self.outbox.jobs = [job]
                        self.worker.submit([job])
        return pieces.whole

    def close(self) -> None:
        """Give back what the request holds; jobs that have not ended are cancelled."""
        answer, seconds = self.answer, perf_counter() - self.began
        answered = answer is not None and answer.done
        if not answered and self.worker is not None:
            self.worker.cancel(self.outbox.jobs)
        if answer is not None:
            answer.let_go()
        counts = None
        if self.hosted is not None:
            counts = self.hosted.counts
            self.service.hosting.give(self.hosted)
        self.service.leave(self.ticket)
        self.service.metrics.ended(counts, answered, seconds)
        usage = answer.usage() if answer is not None else {}
        _log.info(
            "answered" if answered else "not answered",
            extra={
                "path": self.request.url.path,
                "seconds": round(seconds, 4),
                "prompt_tokens": usage.get("prompt_tokens"),
                "completion_tokens": usage.get("completion_tokens"),
            },
        )

    async def _collect(self, answer: Answer) -> None:
        assert self.worker is not None
        while not answer.done:
            for place, event in await self.outbox.get(PING_SECONDS):
                if event.error is not None:
                    raise event.error
                answer.feed(place, event)
                self.service.spare(self.worker, answer, place, self.outbox)
                if event.completion is not None:
                    await self._go_on(answer)

    async def _go_on(self, answer: Answer) -> None:
        # What waits, or is only known now that a job has ended.
        assert self.worker is not None
        if self._later:
            self.worker.submit([self._later.pop(0)])
        elif answer.goes_on and (request := await asyncio.to_thread(answer.then)) is not None:
            self.outbox.jobs = [Job(request, self.outbox)]
            self.worker.submit(self.outbox.jobs)

    async def _stream(self, answer: Answer) -> AsyncGenerator[bytes, None]:
        assert self.worker is not None
        encode, sent = answer.encode, perf_counter()
        if opening := answer.opening():
            yield encode(opening)
        while not answer.done:
            events = await self.outbox.get(PING_SECONDS)
            chunks: list[Any] = []
            large = any(
                event.completion and event.completion.prompt_logprobs for _, event in events
            )
            run: Callable[..., Awaitable[Any]] = asyncio.to_thread if large else _here
            for place, event in events:
                if event.error is not None:
                    yield encode([*chunks, *self._failing(answer, event.error)]) + answer.end
                    return
                chunks += await run(answer.chunks, place, event)
                self.service.spare(self.worker, answer, place, self.outbox)
            late = not events or perf_counter() - sent >= PING_SECONDS
            if late and not chunks:
                chunks = answer.waiting()
            if chunks or late:
                sent = perf_counter()
                yield await run(encode, chunks) or http.PING
            try:
                if any(event.completion for _, event in events):
                    await self._go_on(answer)
            except PacelineError as error:
                yield encode(self._failing(answer, error)) + answer.end
                return
        yield await asyncio.to_thread(lambda: encode(answer.closing())) + answer.end

    def _failing(self, answer: Answer, error: PacelineError) -> list[Any]:
        status, failed = http.described(error)
        failed["error"]["code"] = failed["error"]["code"] or str(status)
        return answer.failing(failed)


async def _here(work: Callable[..., Any], *args: Any) -> Any:
    return work(*args)


Handler = Callable[[Request], Awaitable[Response]]


def _generating(service: Service, way: Way) -> Handler:
    async def handler(request: Request) -> Response:
        exchange = Exchange(service, request)
        try:
            response = await exchange.respond(way)
        except BaseException:
            exchange.close()
            raise
        if not isinstance(response, http.EventStream):  # which closes when it is sent
            exchange.close()
        return response

    return handler


def _left(ignored: list[str], notes: Notes, strict: bool) -> dict[str, str]:
    # Headers that name what is left out of a request.
    if notes.left and strict:
        place = notes.left[0]
        raise BadRequest(f"{place}: the server cannot use it: leave it out", place)
    return http.ignoring([*ignored, *notes.left])


def _application(service: Service, keys: tuple[str, ...]) -> Starlette:
    settings = service.settings
    text, rules = _page()

    async def page(request: Request) -> Response:
        return Response(text, 200, rules, "text/html")

    def asking(kind: type[Any], tell: Callable[[ServedModel, Any, Notes], Any]) -> Handler:
        # A route that answers a body without decoding; what of it is left out is named.
        async def handler(request: Request) -> Response:
            service.hosting.all()
            data = await http.read_body(request, settings.max_body, settings.body_timeout)
            body, ignored = await asyncio.to_thread(decode, kind, data, settings.strict)
            hosted = service.hosting.find(body.model)
            notes = Notes(left=service.unheeded(hosted, body))
            async with service.hosting.using(body.model) as model:
                told = await asyncio.to_thread(guarded, tell, model, body, notes)
            return json_response(told, headers=_left(ignored, notes, settings.strict))

        return handler

    async def begin_batch(request: Request) -> Response:
        service.hosting.all()
        data = await http.read_body(request, settings.max_body, settings.body_timeout)
        body, ignored = await asyncio.to_thread(decode, BatchRequest, data, settings.strict)
        told = await asyncio.to_thread(service.batches.create, body)
        return json_response(told, headers=_left(ignored, Notes(), settings.strict))

    def about(tell: Callable[[ServedModel], Any]) -> Handler:
        # A route that tells of the model that its query names.
        async def handler(request: Request) -> Response:
            async with service.hosting.using(request.query_params.get("model")) as model:
                return json_response(tell(model))

        return handler

    def telling(tell: Callable[[Request], Any], apart: bool = False) -> Handler:
        # `apart` from the event loop, for what takes its time.
        async def handler(request: Request) -> Response:
            told = await asyncio.to_thread(tell, request) if apart else tell(request)
            return json_response(told)

        return handler

    async def health(request: Request) -> Response:
        closed = service.gate.closed
        return json_response({"status": closed or "ok"}, 503 if closed else 200)

    def models(request: Request) -> Any:
        hosted = service.hosting.all()
        if "anthropic-version" in request.headers:
            return anthropic.model_list(hosted)
        return {"object": "list", "data": [_entry(each, n) for each in hosted for n in each.names]}

    def one_model(request: Request) -> Any:
        name = request.path_params["name"]
        entry = anthropic.model_entry if "anthropic-version" in request.headers else _entry
        return entry(service.hosting.find(name), name)

    def one_response(request: Request) -> Any:
        service.hosting.all()
        kept, id = service.kept, request.path_params["id"]
        return kept.drop(id) if request.method == "DELETE" else kept.get(id).response

    def its_input(request: Request) -> Any:
        service.hosting.all()
        turn = service.kept.get(request.path_params["id"])
        return listed(turn.items, request.query_params)

    async def upload(request: Request) -> Response:
        service.files.path("")
        data = await http.read_body(request, UPLOAD, settings.body_timeout)
        kind = request.headers.get("content-type", "")
        return json_response(await asyncio.to_thread(service.files.upload, data, kind))

    def files(request: Request) -> Any:
        kept, query = service.files.all("file"), request.query_params
        wanted = [f for f in kept if query.get("purpose") in (None, "", f["purpose"])]
        return listed(wanted, query)

    def one_file(request: Request) -> Any:
        id = request.path_params["id"]
        return (service.files.delete if request.method == "DELETE" else service.files.get)(id)

    async def content(request: Request) -> Response:
        service.files.get(id := request.path_params["id"])
        return FileResponse(service.files.path(f"{id}.data"), media_type="text/plain")

    def batches(request: Request) -> Any:
        now = [service.batches.get(each["id"]) for each in service.files.all("batch")]
        return listed(now, request.query_params)

    def counted(model: ServedModel, body: CountRequest, notes: Notes) -> Any:
        plan = plan_messages(model, body)
        notes.left += plan.notes.left
        return {"input_tokens": len(plan.prompts[0].tokens)}

    def model_info(model: ServedModel) -> Any:
        return {
            "model_path": model.path,
            "served_model_name": model.name,
            "tokenizer_path": model.path,
            "is_generation": True,
            "max_model_len": model.context,
            "system_fingerprint": model.fingerprint,
            "version": __version__,
        }

    def tokenizer_info(model: ServedModel) -> Any:
        tokenizer = model.tokenizer
        ends = [tokenizer.core.id_to_token(token) for token in tokenizer.eos_token_ids]
        return {
            **{"eos_token": ends[0] if ends else None, "bos_token": None, "pad_token": None},
            **tokenizer.special_tokens,
            "chat_template": tokenizer.chat_template,
            "eos_token_ids": list(tokenizer.eos_token_ids),
            "vocab_size": tokenizer.vocab_size,
        }

    def tokenized(model: ServedModel, body: TokenizeRequest, notes: Notes) -> Any:
        ids = tokenize(model, body, notes)
        out = {"tokens": ids, "count": len(ids), "max_model_len": model.context}
        if body.return_token_strs:
            out["token_strs"] = [model.tokens[token][0] for token in ids]
        return out

    def detokenized(model: ServedModel, body: DetokenizeRequest, notes: Notes) -> Any:
        if max(body.tokens, default=0) >= model.tokenizer.vocab_size:
            raise BadRequest("tokens: there are ids that the vocabulary has not", "tokens")
        return {"prompt": model.tokenizer.decode(body.tokens, False)}

    async def metrics(request: Request) -> Response:
        return Response(service.metrics.page(), media_type="text/plain; version=0.0.4")

    def plainly(request: Request) -> Any:
        raise BadRequest(
            "upgrade: this route is a WebSocket: ask it by one, and install paceline[realtime] "
            "where the server runs",
            "upgrade",
            426,
        )

    async def talk(socket: WebSocket) -> None:
        await Session(service, socket).run()

    def post(path: str, handler: Handler) -> Route:
        return Route(path, handler, methods=["POST"])

    routes: list[BaseRoute] = [
        *(post(path, _generating(service, way)) for path, way in ROUTES.items()),
        post("/v1/messages/count_tokens", asking(CountRequest, counted)),
        Route("/v1/responses/{id}", telling(one_response), methods=["GET", "DELETE"]),
        Route("/v1/responses/{id}/input_items", telling(its_input)),
        post("/v1/files", upload),
        Route("/v1/files", telling(files, apart=True)),
        Route("/v1/files/{id}", telling(one_file), methods=["GET", "DELETE"]),
        Route("/v1/files/{id}/content", content),
        post("/v1/batches", begin_batch),
        Route("/v1/batches", telling(batches, apart=True)),
        Route("/v1/batches/{id}", telling(lambda r: service.batches.get(r.path_params["id"]))),
        post(
            "/v1/batches/{id}/cancel",
            telling(lambda r: service.batches.cancel(r.path_params["id"])),
        ),
        Route("/v1/realtime", telling(plainly)),
        Route("/api/tags", telling(lambda _: ollama.tags(service.hosting.all()))),
        Route("/api/ps", telling(lambda _: ollama.running(service.hosting.all()))),
        Route("/api/version", telling(lambda _: {"version": __version__})),
        post("/api/show", asking(ollama.ShowRequest, lambda model, *_: ollama.shown(model))),
        post("/tokenize", asking(TokenizeRequest, tokenized)),
        post("/detokenize", asking(DetokenizeRequest, detokenized)),
        Route("/v1/models", telling(models)),
        Route("/v1/models/{name:path}", telling(one_model)),
        Route("/tokenizer_info", about(tokenizer_info)),
        *(Route(path, about(model_info)) for path in INFO),
        Route("/health", health),
        Route("/metrics", metrics),
        Route("/openapi.json", telling(lambda _: openapi.document())),
        Route("/", page),
    ]
    routes += [WebSocketRoute(path, talk) for path in ("/v1/realtime", "/realtime")]
    # Also without /v1, which some clients' base URLs leave out.
    routes += [
        Route(each.path[3:], each.endpoint, methods=each.methods)
        for each in routes
        if isinstance(each, Route) and each.path.startswith("/v1/")
    ]
    middleware = [Middleware(RequestIds), Middleware(http.PlainPaths)]
    if settings.cors_origin:
        middleware.append(
            Middleware(
                CORSMiddleware,
                allow_origins=settings.cors_origin,
                allow_methods=["GET", "POST", "DELETE"],
                allow_headers=["*"],
                expose_headers=["x-request-id", "x-paceline-ignored"],
            )
        )
    middleware.append(Middleware(http.Keys, keys=keys, refusal=refusal))
    handlers: dict[Any, Any] = {
        PacelineError: _refused,
        HTTPException: _unrouted,
        Gone: _gone,
        Exception: _failed,
    }
    return Starlette(routes=routes, middleware=middleware, exception_handlers=handlers)


def _page() -> tuple[str, dict[str, str]]:
    # The page and its headers: it runs and loads what stands in it, whatever a model writes.
    text = PAGE.read_text(encoding="utf-8")
    rules = ["default-src 'none'", "connect-src 'self'", "img-src data:"]
    rules += ["base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'"]
    for name in ("script", "style"):
        [part] = re.findall(f"<{name}>(.*?)</{name}>", text, re.DOTALL)
        hashed = b64encode(hashlib.sha256(part.encode()).digest()).decode()
        rules.append(f"{name}-src 'sha256-{hashed}'")
    headers = {"content-security-policy": "; ".join(rules), "cache-control": "no-cache"}
    headers |= {"referrer-policy": "no-referrer", "x-content-type-options": "nosniff"}
    return text, headers


def _entry(hosted: Hosted, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": hosted.created,
        "owned_by": "paceline",
        "root": hosted.path,
        "max_model_len": None if hosted.model is None else hosted.model.context,
        "input_modalities": None if hosted.model is None else hosted.model.reads,
        "status": {"value": hosted.state} | ({"error": hosted.fault} if hosted.fault else {}),
    }


async def _refused(request: Request, error: PacelineError) -> Response:
    status, body = http.described(error)
    headers = {"retry-after": "1"} if status in (429, 503) else None
    named = body["error"]
    return refusal(request.scope, status, str(error), named["param"], named["code"], headers)


async def _unrouted(request: Request, error: HTTPException) -> Response:
    hints = {404: f"there is no {request.url.path}", 405: f"{request.method} is not served here"}
    message = f"{hints.get(error.status_code, error.detail)}: see /openapi.json"
    return refusal(request.scope, error.status_code, message, headers=error.headers)


async def _gone(request: Request, error: Gone) -> Response:
    return Response(status_code=499)  # without a reader


async def _failed(request: Request, error: Exception) -> Response:
    return refusal(request.scope, 500, "the server failed: see its log")
