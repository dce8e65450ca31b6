"""Several models in one server: loaded when asked for, let go within a budget, nothing lost."""

from __future__ import annotations

import asyncio
import inspect
import json
import threading
import time
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from tests.helpers import table_engines as engines
from tests.helpers.serving import CHAT, Client, Json, events, serving
from tests.helpers.serving import TEXT as _TEXT

from paceline.errors import ModelError
from paceline.proof.tabular import TabularModel
from paceline.serving import hosting
from paceline.serving.app import Service
from paceline.serving.hosting import Hosted
from paceline.serving.model import ServedModel
from paceline.serving.settings import GIB, Settings
from paceline.serving.worker import ShutDown

TEXT = _TEXT | {"seed": 1}
PATIENCE = [60.0]
TABLES = {name: TabularModel(engines.VOCABULARY, 1, seed=i, sharpness=2.5)
          for i, name in enumerate(("a", "b", "c"))}  # fmt: skip


class Slow(engines.Target):
    def forward(self, passes: Any) -> Any:
        time.sleep(0.001)
        return super().forward(passes)


class World:
    """Models of 1 GiB each, and what happened to them."""

    def __init__(self) -> None:
        self.loads: list[str] = []
        self.broken: dict[str, BaseException] = {}
        self.gate = threading.Event()
        self.gate.set()
        self.at_once = self.most = 0

    def load(self, name: str) -> ServedModel:
        self.loads.append(name)
        self.at_once += 1
        assert self.at_once == 1, "two load at once"
        assert self.gate.wait(20)
        self.at_once -= 1
        if name in self.broken:
            raise self.broken[name]
        engine = engines.make(Slow(TABLES[name].logits))
        return ServedModel(engine, [name], f"weights of {name}", f"/models/{name}")

    def hosted(self, name: str) -> Hosted:
        return Hosted([name], f"/models/{name}", lambda: self.load(name), GIB)


@asynccontextmanager
async def several(
    world: World, names: str = "ab", memory: float | None = 1.5, **settings: Any
) -> AsyncIterator[Client]:
    models = [world.hosted(name) for name in names]
    service = Service(Settings(memory=memory, **settings), (), models)
    service.begin()
    transport = httpx.ASGITransport(service.app, raise_app_exceptions=False)
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://tables") as http:
            yield Client(service, http)
    finally:
        service.stop()
    assert all(each.users == 0 and not each.waiting for each in models)
    assert service.idle


def run(work: Callable[[World, Client], Awaitable[None]], **options: Any) -> World:
    world = World()

    async def whole() -> None:
        async with several(world, **options) as client:
            await work(world, client)

    asyncio.run(asyncio.wait_for(whole(), PATIENCE[0]))
    return world


def state(client: Client) -> dict[str, str]:
    return {each.names[0]: each.state for each in client.service.hosting.models}


async def alone(name: str, path: str, body: Json) -> Json:
    """The answer of a server of one model."""
    async with serving(engines.make(engines.Target(TABLES[name].logits))) as client:
        return await client.ask(path, {each: body[each] for each in body if each != "model"})


def text(answer: Json) -> str:
    [choice] = answer["choices"]
    return str(choice.get("text", choice.get("message", {}).get("content")))


@pytest.mark.parametrize("memory", [1.5, 2.0, None])
def test_texts_under_load_with_switches_are_those_of_servers_of_one_model(
    memory: float | None,
) -> None:
    asked = [
        (("/v1/chat/completions", CHAT) if i % 2 else ("/v1/completions", TEXT), "abc"[i % 3], i)
        for i in range(36)
    ]

    async def work(world: World, client: Client) -> None:
        async def one(way: tuple[str, Json], name: str, seed: int) -> None:
            body = way[1] | {"model": name, "seed": seed, "temperature": 1.0, "max_tokens": 24}
            await asyncio.sleep(0.01 * (seed % 12))
            if seed % 4 == 0 and way[0] == "/v1/completions":
                chunks = await client.stream(way[0], body)
                found = "".join(each["choices"][0]["text"] for each in chunks if each["choices"])
            else:
                found = text(await client.ask(way[0], body))
            assert found == text(await alone(name, way[0], body)), (name, seed)

        await asyncio.gather(*(one(*each) for each in asked))
        loaded = [name for name, each in state(client).items() if each == "loaded"]
        assert len(loaded) == (3 if memory is None else int(memory))

    world = run(work, names="abc", memory=memory)
    assert (len(world.loads) > 3) == (memory is not None)


async def until(state_of: Callable[[], str], wanted: str) -> None:
    while state_of() != wanted:
        await asyncio.sleep(0.01)


def test_a_model_stays_as_long_as_requests_say() -> None:
    """Ollama's `keep_alive`: 0 lets go at once, a later use begins the time anew."""

    async def work(world: World, client: Client) -> None:
        def of_a() -> str:
            return state(client)["a"]

        async def ask(keep: Any, name: str = "a") -> None:
            body = {"model": name, "prompt": "a", "raw": True, "stream": False}
            response = await client.post("/api/generate", body | {"keep_alive": keep})
            assert response.status_code == 200, response.text
            assert "x-paceline-ignored" not in response.headers

        await ask("10m", "b")
        await ask(0)
        await until(of_a, "unloaded")
        assert state(client)["b"] == "loaded"
        await ask("200ms")
        await asyncio.sleep(0.1)
        await ask(0.4)
        await asyncio.sleep(0.2)
        assert of_a() == "loaded"  # the first time does not count any more
        await until(of_a, "unloaded")
        await ask("-1s")
        await asyncio.sleep(0.05)
        assert of_a() == "loaded"
        for wrong in ("5 minutes", "", "--1", "1.2.3s", "nan"):
            body = {"model": "a", "prompt": "a", "raw": True, "keep_alive": wrong}
            response = await client.post("/api/generate", body)
            assert response.status_code == 400
            assert "keep_alive" in response.text

    assert run(work, memory=None).loads == ["b", "a", "a", "a"]


def test_a_model_is_not_let_go_under_another_request() -> None:
    async def work(world: World, client: Client) -> None:
        body = TEXT | {"model": "a", "max_tokens": 200, "ignore_eos": True, "stream": True}
        stream = asyncio.ensure_future(client.stream("/v1/completions", body))
        while client.service.hosting.models[0].users == 0:
            await asyncio.sleep(0.001)
        ended = {"model": "a", "prompt": "", "stream": False, "keep_alive": 0}
        assert (await client.post("/api/generate", ended)).status_code == 200
        await asyncio.sleep(0.02)
        assert state(client)["a"] == "loaded"
        assert (await stream)[-1]["choices"]
        await until(lambda: state(client)["a"], "unloaded")

    run(work, memory=None)


def test_a_stream_ends_before_its_model_is_let_go() -> None:
    async def work(world: World, client: Client) -> None:
        body = TEXT | {"model": "a", "max_tokens": 200, "ignore_eos": True, "stream": True}
        ended: list[str] = []

        async def first() -> None:
            response = await client.post("/v1/completions", body)
            assert response.text.rstrip().endswith("[DONE]")
            assert len(events(response.text)) > 1
            ended.append("a")

        async def second(name: str) -> None:
            while not client.service.hosting.models[0].users:
                await asyncio.sleep(0.002)
            await client.ask("/v1/completions", TEXT | {"model": name})
            ended.append(name)

        async def third() -> None:  # what comes while it leaves waits for it to be loaded again
            while not client.service.hosting.models[0].leaving:
                await asyncio.sleep(0.002)
            await client.ask("/v1/completions", TEXT | {"model": "a"})
            ended.append("a again")

        await asyncio.gather(first(), second("b"), third())
        assert ended == ["a", "b", "a again"]

    assert run(work).loads == ["a", "b", "a"]


def test_of_idle_models_that_used_longest_ago_goes() -> None:
    async def work(world: World, client: Client) -> None:
        for name in "abac":
            await client.ask("/v1/completions", TEXT | {"model": name})
        assert state(client) == {"a": "loaded", "b": "unloaded", "c": "loaded"}

    run(work, names="abc", memory=2.0)


def test_an_engine_that_was_let_go_is_freed() -> None:
    """A busy machine may hold a frame of one answer longer: not of three."""
    left: list[bool] = []

    async def work(world: World, client: Client) -> None:
        await client.ask("/v1/completions", TEXT | {"model": "a"})
        model = client.service.hosting.models[0].model
        assert model is not None
        engine = weakref.ref(model.engine)
        del model
        await client.ask("/v1/completions", TEXT | {"model": "b"})
        left.append(engine() is not None)

    for _ in range(3):
        run(work)
    assert not all(left)


def test_models_are_listed_with_their_states_and_metrics() -> None:
    async def work(world: World, client: Client) -> None:
        await client.ask("/v1/completions", TEXT | {"model": "A:latest"})
        world.broken["b"] = ModelError("it is damaged: download it again")
        await client.refused("/v1/completions", TEXT | {"model": "b"}, 503)
        found = (await client.http.get("/v1/models")).json()["data"]
        assert [each["id"] for each in found] == ["a", "b", "c"]
        assert [each["status"]["value"] for each in found] == ["loaded", "failed", "unloaded"]
        assert found[1]["status"]["error"] == "it is damaged: download it again"
        assert [each["max_model_len"] for each in found] == [400, None, None]
        assert (await client.http.get("/v1/models/c")).json()["id"] == "c"
        theirs = await client.http.get("/v1/models", headers={"anthropic-version": "2023-06-01"})
        assert [each["id"] for each in theirs.json()["data"]] == ["a", "b", "c"]
        tags = (await client.http.get("/api/tags")).json()["models"]
        assert [(each["name"], each["size"]) for each in tags] == [(n, GIB) for n in "abc"]
        shown = (await client.http.get("/api/ps")).json()["models"]
        assert [each["name"] for each in shown] == ["a"]
        page = (await client.http.get("/metrics")).text
        assert 'paceline:generation_tokens_total{model_name="a"} 12.0' in page
        assert 'paceline:generation_tokens_total{model_name="b"} 0.0' in page
        assert 'request_success_total{finished_reason="length",model_name="a"} 1.0' in page
        assert "paceline:requests_not_answered_total 1.0" in page
        assert world.loads == ["a", "b"]  # to be listed loads nothing

    run(work, names="abc", memory=None)


def test_unknown_and_missing_names_are_refused_in_the_form_of_each_api() -> None:
    async def work(world: World, client: Client) -> None:
        error = await client.refused("/v1/chat/completions", CHAT | {"model": "x"}, 404)
        assert (error["code"], error["param"]) == ("model_not_found", "model")
        assert error["message"] == "model: there is no 'x' here: ask for 'a' or 'b'"
        error = await client.refused("/v1/chat/completions", CHAT)
        assert error["message"] == "model: it is missing: ask for 'a' or 'b'"
        theirs = await client.post("/api/chat", {"model": "x", "messages": CHAT["messages"]})
        assert (theirs.status_code, set(theirs.json())) == (404, {"error"})
        assert (await client.http.get("/v1/models/x")).status_code == 404
        assert (await client.http.get("/tokenizer_info")).status_code == 400
        told = await client.http.get("/tokenizer_info", params={"model": "b"})
        assert told.json()["vocab_size"] > 300
        ids = await client.ask("/tokenize", {"prompt": "dog", "model": "b"})
        assert ids["count"] > 0
        loaded = await client.post("/api/generate", {"model": "b", "stream": False})
        assert loaded.json()["done_reason"] == "load"

    assert run(work).loads == ["b"]


@pytest.mark.parametrize("error", [ModelError("no file"), MemoryError(), ValueError("odd")])
def test_a_model_that_does_not_load_says_why_and_others_go_on(error: Exception) -> None:
    async def work(world: World, client: Client) -> None:
        world.broken["b"] = error
        asks = [client.refused("/v1/completions", TEXT | {"model": "b"}, 503) for _ in range(3)]
        good, *bad = await asyncio.gather(
            client.ask("/v1/completions", TEXT | {"model": "a"}), *asks
        )
        assert text(good) == text(await alone("a", "/v1/completions", TEXT))
        reason = str(error) or type(error).__name__
        for each in bad:
            assert each["message"] == f"model b cannot be loaded: {reason}"
        del world.broken["b"]  # it is tried again
        await client.ask("/v1/completions", TEXT | {"model": "b"})

    run(work, memory=None)


def test_a_client_that_leaves_while_its_model_loads_loses_nothing_of_others() -> None:
    async def work(world: World, client: Client) -> None:
        world.gate.clear()
        ask = client.ask("/v1/completions", TEXT | {"model": "a"})
        gone = asyncio.ensure_future(client.ask("/v1/completions", TEXT | {"model": "a"}))
        stays = asyncio.ensure_future(ask)
        other = asyncio.ensure_future(client.ask("/v1/completions", TEXT | {"model": "b"}))
        while not world.loads:
            await asyncio.sleep(0.01)
        gone.cancel()
        await asyncio.sleep(0.02)
        world.gate.set()
        assert text(await stays) == text(await alone("a", "/v1/completions", TEXT))
        assert text(await other) == text(await alone("b", "/v1/completions", TEXT))

    assert run(work).loads == ["a", "b"]


def test_what_nobody_waits_for_any_more_is_not_loaded() -> None:
    async def work(world: World, client: Client) -> None:
        world.gate.clear()
        first = asyncio.ensure_future(client.ask("/v1/completions", TEXT | {"model": "a"}))
        gone = asyncio.ensure_future(client.ask("/v1/completions", TEXT | {"model": "b"}))
        while client.service.hosting.models[1].coming is None:
            await asyncio.sleep(0.01)
        gone.cancel()
        world.gate.set()
        await first
        while client.service.hosting.models[1].coming is not None:
            await asyncio.sleep(0.01)

    assert run(work).loads == ["a"]


def test_a_drain_answers_what_waits_and_its_end_refuses_it() -> None:
    async def work(world: World, client: Client) -> None:
        world.gate.clear()
        ask = [client.post("/v1/completions", TEXT | {"model": name}) for name in "ab"]
        waits = [asyncio.ensure_future(each) for each in ask]
        while not world.loads:
            await asyncio.sleep(0.01)
        client.service.drain()
        await client.refused("/v1/completions", TEXT | {"model": "a"}, 503)
        world.gate.set()
        assert (await waits[0]).status_code == 200
        world.gate.clear()
        client.service.abort(ShutDown("the server is shutting down"))
        assert (await waits[1]).status_code == 503
        await client.service.emptied()
        world.gate.set()

    run(work)


def test_an_engine_that_ends_is_loaded_anew() -> None:
    async def work(world: World, client: Client) -> None:
        await client.ask("/v1/completions", TEXT | {"model": "a"})
        worker = client.service.hosting.models[0].worker
        assert worker is not None
        worker.core.turn = None  # type: ignore[method-assign, assignment]
        await client.refused("/v1/completions", TEXT | {"model": "a"}, 500)
        await client.ask("/v1/completions", TEXT | {"model": "a"})
        assert (await client.http.get("/health")).status_code == 200

    assert run(work).loads == ["a", "a"]


def test_a_batch_names_a_model_in_each_line(tmp_path: Any) -> None:
    lines = []
    for i, named in enumerate(({"model": "a"}, {"model": "b"}, {"model": "x"}, {})):
        body = {"prompt": "dog", "max_tokens": 6, "seed": 1, **named}
        line = {"custom_id": str(i), "method": "POST", "url": "/v1/completions", "body": body}
        lines.append(json.dumps(line))

    async def work(world: World, client: Client) -> None:
        made = await client.http.post(
            "/v1/files",
            data={"purpose": "batch"},
            files={"file": ("in.jsonl", "\n".join(lines).encode())},
        )
        body = {"input_file_id": made.json()["id"], "endpoint": "/v1/completions"}
        id = (await client.ask("/v1/batches", body | {"completion_window": "24h"}))["id"]
        while (told := (await client.http.get(f"/v1/batches/{id}")).json())[
            "status"
        ] != "completed":
            await asyncio.sleep(0.02)
        assert told["request_counts"] == {"total": 4, "completed": 2, "failed": 2}
        wrong = await client.http.get(f"/v1/files/{told['error_file_id']}/content")
        assert "there is no 'x' here" in wrong.text
        assert "it is missing" in wrong.text

    run(work, files=str(tmp_path))


def test_a_response_goes_on_from_one_of_another_model() -> None:
    async def work(world: World, client: Client) -> None:
        first = await client.ask(
            "/v1/responses", {"model": "a", "input": "the quick", "max_output_tokens": 8}
        )
        then = {
            "model": "b",
            "input": "dog",
            "max_output_tokens": 8,
            "previous_response_id": first["id"],
        }
        await client.ask("/v1/responses", then)
        kept = await client.http.get(f"/v1/responses/{first['id']}")
        assert kept.json()["id"] == first["id"]

    run(work)


@pytest.mark.parametrize(
    ("shipped", "broken", "finds"),
    [
        ("while old.users:", "while False:", test_a_stream_ends_before_its_model_is_let_go),
        ("each.used)", "-each.used)", test_of_idle_models_that_used_longest_ago_goes),
        ("<= self._room", "<= 9 * self._room", test_of_idle_models_that_used_longest_ago_goes),
    ],
)
def test_mistakes_are_found(
    shipped: str, broken: str, finds: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = inspect.getsource(hosting)
    assert source.count(shipped) == 1
    scope: dict[str, Any] = {"__name__": "paceline.serving.broken"}
    exec(compile(source.replace(shipped, broken), hosting.__file__, "exec"), scope)
    monkeypatch.setattr("paceline.serving.app.Hosting", scope["Hosting"])
    monkeypatch.setattr("tests.serving.test_hosting.PATIENCE", [4.0])
    with pytest.raises((AssertionError, TimeoutError)):
        finds()
