"""The HTTP application: routes, and the way of a request through the server."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
import uuid
from base64 import b64encode
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute, Route

from paceline.errors import PacelineError
from paceline.serving import anthropic, http, ollama, openapi
from paceline.serving.admission import Closed, Gate, Ticket
from paceline.serving.anthropic import (
    CountRequest,
    MessageAnswer,
    MessagesRequest,
    plan_messages,
)
from paceline.serving.dialects import Dialects
from paceline.serving.embeddings import EmbeddingAnswer, EmbeddingsRequest, plan_embeddings
from paceline.serving.files import UPLOAD, Batches, BatchRequest, Files
from paceline.serving.fill import InfillAnswer, InfillRequest, plan_filling, plan_infill
from paceline.serving.http import Gone, error_body, json_response
from paceline.serving.kept import KeptAnswers, listed
from paceline.serving.logs import RequestIds
from paceline.serving.metrics import Metrics
from paceline.serving.model import ServedModel
from paceline.serving.objects import Answer, ChatAnswer, TextAnswer
from paceline.serving.plan import Plan, plan_chat, plan_response, tokenize
from paceline.serving.protocol import (
    BadRequest,
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    ResponsesRequest,
    TokenizeRequest,
    decode,
)
from paceline.serving.responses import ResponseAnswer
from paceline.serving.settings import Settings
from paceline.serving.worker import ENDED, Delivery, Job, Load, Outbox, ServingCore, Worker
from paceline.version import __version__

_log = logging.getLogger("paceline.serving")
PING_SECONDS = 15.0
# What SGLang's router asks a replica for, by its names of now and of before.
_INFO = ("model_info", "get_model_info", "server_info", "get_server_info")
PAGE = Path(__file__).parent / "page" / "index.html"


class Service:
    """The state behind the routes. All but the engine's thread is in one event loop."""

    worker_type = Worker  # a simulation has one without a thread

    def __init__(self, settings: Settings, keys: tuple[str, ...] = ()) -> None:
        """Without a model at first: every request is refused until `open`."""
        self.settings = settings
        self.gate = Gate(settings.max_batch + settings.max_waiting, settings.max_prompt_tokens)
        self.metrics = Metrics(self.gate, self._load, settings.vllm_metrics)
        self.worker: Worker | None = None
        self._model: ServedModel | None = None
        self._left = asyncio.Event()
        self.files = Files(settings.files)
        self.batches = Batches(self, self.files)
        self.app = _application(self, keys)

    def asked_for(self, name: str | None) -> ServedModel:
        """Return the model, by any of its names or none; Closed while it loads, or BadRequest."""
        model = self._model
        if model is None:
            raise Closed("the model is loading: try again later")
        model.check_name(name)
        return model

    def open(self, model: ServedModel) -> None:
        """Take requests for a model from now on. Called in the event loop."""
        soon = asyncio.get_running_loop().call_soon_threadsafe
        self._model = model
        model.kept = KeptAnswers(self.settings.keep_responses)
        self.worker = self.worker_type(
            ServingCore(model.engine),
            lambda deliveries: soon(self._deliver, deliveries),
            lambda: soon(self._lost),
        )
        self.worker.start()
        self.gate.closed = None
        self.batches.open()

    def drain(self) -> None:
        """Refuse new requests; those that were accepted go on."""
        self.gate.closed = "the server is shutting down"
        self.batches.close()

    def submit(self, jobs: Sequence[Job]) -> None:
        assert self.worker is not None  # the gate is closed before
        self.worker.submit(jobs)

    def cancel(self, jobs: Sequence[Job]) -> None:
        assert self.worker is not None  # as above
        self.worker.cancel(jobs)

    def abort(self, error: PacelineError) -> None:
        """End all answers with an error."""
        if self.worker is not None:
            self.worker.abort(error)

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
        if self.worker is not None:
            self.worker.stop()

    def _lost(self) -> None:
        assert self.worker is not None  # which calls this
        self.gate.closed = ENDED
        self._deliver(self.worker.give_up())

    def _load(self) -> Load:
        return Load() if self.worker is None else self.worker.core.load

    def _deliver(self, deliveries: list[Delivery]) -> None:
        for job, event, _ in deliveries:
            self.metrics.saw(event)
            if not job.outbox.put(job.place, event):
                self.cancel(job.outbox.jobs)


# The way of a request for text.


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
        self._later: list[Job] = []  # jobs that wait for others of this request

    async def respond(
        self,
        kind: type[Any],
        plan: Callable[[ServedModel, Any], Plan],
        answer: type[Answer],
    ) -> Response:
        """Return the whole answer or its stream.

        Raises:
            PacelineError: the request is refused, or failed.
            Gone: the client has closed the connection.
        """
        service, settings = self.service, self.service.settings
        data = await http.read_body(self.request, settings.max_body, settings.body_timeout)
        body, ignored = await asyncio.to_thread(decode, kind, data, settings.strict)
        model = service.asked_for(body.model)
        self.ticket.hold(getattr(body, "n", None) or 1, 0)  # the rest is known after tokenising
        # Many may wait for a thread: those whose client leaves meanwhile give their place back.
        planning = asyncio.to_thread(_planned, plan, model, body)
        planned = await http.unless_gone(self.request.receive, planning)
        left = planned.notes.left
        if left and settings.strict:
            raise BadRequest(f"{left[0]}: the server cannot use it: leave it out", left[0])
        headers = http.ignoring([*ignored, *left])
        places = len(planned.prompts) * planned.n
        if planned.waves:
            places = min(places, settings.max_batch)
        self.ticket.hold(places, sum(len(each.tokens) for each in planned.prompts))
        self.answer = answer(model, planned, body, uuid.uuid4().hex, self.outbox.accepted)
        self.outbox.jobs = planned.jobs(self.outbox)
        jobs = list(self.outbox.jobs)
        service.submit(jobs[:places])
        self._later = jobs[places:]
        if planned.stream:
            headers |= {"content-type": self.answer.media}
            return http.EventStream(
                self._stream(self.answer), headers, self.close, settings.read_timeout
            )
        whole = await http.unless_gone(self.request.receive, self._collect(self.answer))
        return json_response(whole, headers=headers)

    def close(self) -> None:
        """Give back what the request holds; jobs that have not ended are cancelled."""
        answer, seconds = self.answer, perf_counter() - self.began
        answered = answer is not None and answer.done
        if not answered:
            self.service.cancel(self.outbox.jobs)
        self.service.leave(self.ticket)
        self.service.metrics.ended(answered, seconds)
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

    async def _collect(self, answer: Answer) -> Any:
        while not answer.done:
            for place, event in await self.outbox.get(PING_SECONDS):
                if event.error is not None:
                    raise event.error
                answer.feed(place, event)
                if event.completion is not None and self._later:
                    self.service.submit([self._later.pop(0)])
        return answer.whole()

    async def _stream(self, answer: Answer) -> AsyncGenerator[bytes, None]:
        encode = answer.encode
        if opening := answer.opening():
            yield encode(opening)
        while not answer.done:
            events = await self.outbox.get(PING_SECONDS)
            chunks: list[Any] = []
            for place, event in events:
                if event.error is not None:
                    status, failed = http.described(event.error)
                    failed["error"]["code"] = failed["error"]["code"] or str(status)
                    yield encode([*chunks, *answer.failing(failed)]) + answer.end
                    return
                chunks += answer.chunks(place, event)
            if chunks or not events:
                yield encode(chunks) or http.PING
        yield encode(answer.closing()) + answer.end


Handler = Callable[[Request], Awaitable[Response]]


def _generating(
    service: Service,
    kind: type[Any],
    plan: Callable[[ServedModel, Any], Plan],
    answer: type[Answer],
) -> Handler:
    async def handler(request: Request) -> Response:
        exchange = Exchange(service, request)
        try:
            response = await exchange.respond(kind, plan, answer)
        except BaseException:
            exchange.close()
            raise
        if not isinstance(response, http.EventStream):  # which closes when it is sent
            exchange.close()
        return response

    return handler


def _planned(plan: Callable[[ServedModel, Any], Plan], model: ServedModel, body: Any) -> Plan:
    try:
        return plan(model, body)
    except RecursionError as error:
        raise BadRequest("the JSON is nested too deeply: flatten it") from error


# The other routes.


def _application(service: Service, keys: tuple[str, ...]) -> Starlette:
    settings = service.settings
    text, rules = _page()

    async def page(request: Request) -> Response:
        return Response(text, 200, rules, "text/html")

    async def body_of(request: Request, kind: type[Any]) -> Any:
        data = await http.read_body(request, settings.max_body, settings.body_timeout)
        body, request.state.ignored = await asyncio.to_thread(decode, kind, data, settings.strict)
        return body

    async def health(request: Request) -> Response:
        closed = service.gate.closed
        return json_response({"status": closed or "ok"}, 503 if closed else 200)

    async def models(request: Request) -> Response:
        model = service.asked_for(None)
        if "anthropic-version" in request.headers:
            return json_response(anthropic.model_list(model))
        entries = [_entry(model, name) for name in model.names]
        return json_response({"object": "list", "data": entries})

    async def one_model(request: Request) -> Response:
        name = request.path_params["name"]
        entry = anthropic.model_entry if "anthropic-version" in request.headers else _entry
        return json_response(entry(service.asked_for(name), name))

    async def one_response(request: Request) -> Response:
        kept, id = service.asked_for(None).kept, request.path_params["id"]
        if request.method != "DELETE":
            return json_response(kept.get(id).response)
        kept.drop(id)
        return json_response({"id": id, "object": "response", "deleted": True})

    async def its_input(request: Request) -> Response:
        turn = service.asked_for(None).kept.get(request.path_params["id"])
        return json_response(listed(turn.items, request.query_params))

    async def upload(request: Request) -> Response:
        service.files.path("")
        data = await http.read_body(request, UPLOAD, settings.body_timeout)
        kind = request.headers.get("content-type", "")
        return json_response(await asyncio.to_thread(service.files.upload, data, kind))

    async def files(request: Request) -> Response:
        kept, query = await asyncio.to_thread(service.files.all, "file"), request.query_params
        wanted = [f for f in kept if query.get("purpose") in (None, "", f["purpose"])]
        return json_response(listed(wanted, query))

    async def one_file(request: Request) -> Response:
        id = request.path_params["id"]
        found = service.files.delete if request.method == "DELETE" else service.files.get
        return json_response(found(id))

    async def content(request: Request) -> Response:
        service.files.get(id := request.path_params["id"])
        return FileResponse(service.files.path(f"{id}.data"), media_type="text/plain")

    async def new_batch(request: Request) -> Response:
        service.asked_for(None)
        made = service.batches.create(await body_of(request, BatchRequest))
        return json_response(made, headers=http.ignoring(request.state.ignored))

    async def batches(request: Request) -> Response:
        kept = await asyncio.to_thread(service.files.all, "batch")
        return json_response(listed(kept, request.query_params))

    async def one_batch(request: Request) -> Response:
        return json_response(service.files.get(request.path_params["id"], "batch"))

    async def cancelled(request: Request) -> Response:
        return json_response(service.batches.cancel(request.path_params["id"]))

    def about(tell: Callable[[ServedModel], Any]) -> Handler:
        async def handler(request: Request) -> Response:
            return json_response(tell(service.asked_for(None)))

        return handler

    async def show(request: Request) -> Response:
        service.asked_for(None)
        body = await body_of(request, ollama.ShowRequest)
        return json_response(ollama.shown(service.asked_for(body.model)))

    async def counted(request: Request) -> Response:
        service.asked_for(None)
        body = await body_of(request, CountRequest)
        model = service.asked_for(body.model)
        plan = await asyncio.to_thread(plan_messages, model, body)
        headers = http.ignoring([*request.state.ignored, *plan.notes.left])
        return json_response({"input_tokens": len(plan.prompts[0].tokens)}, headers=headers)

    async def model_info(request: Request) -> Response:
        model = service.asked_for(None)
        return json_response(
            {
                "model_path": model.path,
                "served_model_name": model.name,
                "tokenizer_path": model.path,
                "is_generation": True,
                "max_model_len": model.context,
                "system_fingerprint": model.fingerprint,
                "version": __version__,
            }
        )

    async def tokenizer_info(request: Request) -> Response:
        tokenizer = service.asked_for(None).tokenizer
        ends = [tokenizer.core.id_to_token(token) for token in tokenizer.eos_token_ids]
        special = {"eos_token": ends[0] if ends else None, "bos_token": None, "pad_token": None}
        return json_response(
            special
            | dict(tokenizer.special_tokens)
            | {
                "chat_template": tokenizer.chat_template,
                "eos_token_ids": list(tokenizer.eos_token_ids),
                "vocab_size": tokenizer.vocab_size,
            }
        )

    async def tokenized(request: Request) -> Response:
        model = service.asked_for(None)
        body = await body_of(request, TokenizeRequest)
        ids = await asyncio.to_thread(tokenize, model, body)
        out = {"tokens": ids, "count": len(ids), "max_model_len": model.context}
        if body.return_token_strs:
            out["token_strs"] = [model.tokens[token][0] for token in ids]
        return json_response(out)

    async def detokenized(request: Request) -> Response:
        model = service.asked_for(None)
        body = await body_of(request, DetokenizeRequest)
        if max(body.tokens, default=0) >= model.tokenizer.vocab_size:
            raise BadRequest("tokens: there are ids that the vocabulary has not", "tokens")
        text = await asyncio.to_thread(model.tokenizer.decode, body.tokens, False)
        return json_response({"prompt": text})

    async def metrics(request: Request) -> Response:
        return Response(service.metrics.page(), media_type="text/plain; version=0.0.4")

    async def document(request: Request) -> Response:
        return json_response(openapi.document())

    def post(path: str, handler: Handler) -> Route:
        return Route(path, handler, methods=["POST"])

    def generating(path: str, *parts: Any) -> Route:
        return post(path, _generating(service, *parts))

    routes: list[BaseRoute] = [
        generating("/v1/chat/completions", ChatRequest, plan_chat, ChatAnswer),
        generating("/v1/completions", CompletionRequest, plan_filling, TextAnswer),
        generating("/infill", InfillRequest, plan_infill, InfillAnswer),
        generating("/v1/responses", ResponsesRequest, plan_response, ResponseAnswer),
        generating("/v1/messages", MessagesRequest, plan_messages, MessageAnswer),
        post("/v1/messages/count_tokens", counted),
        generating("/v1/embeddings", EmbeddingsRequest, plan_embeddings, EmbeddingAnswer),
        Route("/v1/responses/{id}", one_response, methods=["GET", "DELETE"]),
        Route("/v1/responses/{id}/input_items", its_input),
        post("/v1/files", upload),
        Route("/v1/files", files),
        Route("/v1/files/{id}", one_file, methods=["GET", "DELETE"]),
        Route("/v1/files/{id}/content", content),
        post("/v1/batches", new_batch),
        Route("/v1/batches", batches),
        Route("/v1/batches/{id}", one_batch),
        post("/v1/batches/{id}/cancel", cancelled),
        *(generating(f"/api/{name}", *parts) for name, parts in ollama.ASKED.items()),
        *(Route(f"/api/{name}", about(tell)) for name, tell in ollama.ABOUT.items()),
        post("/api/show", show),
        post("/tokenize", tokenized),
        post("/detokenize", detokenized),
        Route("/v1/models", models),
        Route("/v1/models/{name:path}", one_model),
        Route("/tokenizer_info", tokenizer_info),
        *(Route(f"/{name}", model_info) for name in _INFO),
        Route("/health", health),
        Route("/metrics", metrics),
        Route("/openapi.json", document),
        Route("/", page),
    ]
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
    middleware += [Middleware(Dialects), Middleware(http.Keys, keys=keys)]
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


def _entry(model: ServedModel, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": model.created,
        "owned_by": "paceline",
        "root": model.path,
        "max_model_len": model.context,
    }


async def _refused(request: Request, error: PacelineError) -> Response:
    return http.error_response(error)


async def _unrouted(request: Request, error: HTTPException) -> Response:
    hints = {404: f"there is no {request.url.path}", 405: f"{request.method} is not served here"}
    message = f"{hints.get(error.status_code, error.detail)}: see /openapi.json"
    body = error_body(message, error.status_code)
    return json_response(body, error.status_code, error.headers)


async def _gone(request: Request, error: Gone) -> Response:
    return Response(status_code=499)  # without a reader


async def _failed(request: Request, error: Exception) -> Response:
    return json_response(error_body("the server failed: see its log", 500), 500)
