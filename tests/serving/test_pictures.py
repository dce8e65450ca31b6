"""Pictures in requests: answers as in Python, known ones found, bad ones refused by name."""

from __future__ import annotations

import asyncio
import io
import json
import struct
import zlib
from base64 import b64encode
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
from PIL import Image
from tests.helpers.serving import CHAT, Client, Json, served, serving
from tests.helpers.tiny_vision import talking

import paceline
from paceline.engine.engine import Engine
from paceline.models import pictures
from paceline.models.pictures import Picture
from paceline.serving.batch import BatchRun, open_output, read_lines

T = TypeVar("T")
CHATS, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
SAMPLED: Json = {"temperature": 1.0, "seed": 11, "ignore_eos": True}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("smolvlm")
    talking("smolvlm", made)
    return made


@pytest.fixture
def engine(folder: Path) -> Engine:
    return paceline.load(str(folder), precision="fp32", runtime="cpu", threads=1)


@pytest.fixture
def run(engine: Engine) -> Callable[[Callable[[Client], Awaitable[Any]]], Any]:
    def run(work: Callable[[Client], Awaitable[T]]) -> T:
        async def whole() -> T:
            async with serving(engine, keep_responses=4) as client:
                return await work(client)

        return asyncio.run(asyncio.wait_for(whole(), 60))

    return run


def file_of(seed: int, kind: str = "PNG", size: tuple[int, int] = (50, 40), **how: Any) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (*size[::-1], 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, kind, **how)
    return out.getvalue()


def url(data: bytes, kind: str = "png") -> str:
    return f"data:image/{kind};base64,{b64encode(data).decode()}"


def part(of: bytes | str, **more: Any) -> Json:
    given = of if isinstance(of, str) else url(of)
    return {"type": "image_url", "image_url": {"url": given, **more}}


def chat(*parts: Json, text: str = "what is it?", **more: Any) -> Json:
    said = {"role": "user", "content": [*parts, {"type": "text", "text": text}]}
    return {"messages": [said], "max_tokens": 12, **SAMPLED, **more}


def text_of(answer: Json) -> str:
    text: str = answer["choices"][0]["message"]["content"]
    return text


def alone(folder: Path, *files: bytes, text: str = "what is it?") -> str:
    engine = paceline.load(str(folder), precision="fp32", runtime="cpu", threads=1, drafter="none")
    parts = [{"type": "image", "image": Picture.of(each)} for each in files]
    said = [{"role": "user", "content": [*parts, {"type": "text", "text": text}]}]
    return engine.generate(said, max_new_tokens=12, **SAMPLED).text


def test_every_api_gives_pythons_text(run: Any, folder: Path) -> None:
    first, second = file_of(0), file_of(1)
    data = [b64encode(each).decode() for each in (first, second)]
    expected, ask = alone(folder, first, second), {"type": "text", "text": "what is it?"}
    inputs = [{"type": "input_image", "image_url": url(each)} for each in (first, second)]
    asked = {"type": "input_text", "text": "what is it?"}
    blocks = [{"type": "image", "source": {"type": "base64", "data": each}} for each in data]

    async def work(client: Client) -> None:
        answer = await client.ask(CHATS, chat(part(first, detail="low"), part(second)))
        assert text_of(answer) == expected
        assert answer["usage"]["prompt_tokens_details"]["image_tokens"] == 8
        tokens = answer["usage"]["prompt_tokens"]
        said = {"role": "user", "content": [*inputs, asked]}
        body = {"input": [said], "max_output_tokens": 12, "store": True, **SAMPLED}
        answer = await client.ask(RESPONSES, body)
        assert answer["output"][0]["content"][0]["text"] == expected
        more = {"previous_response_id": answer["id"], "max_output_tokens": 4}
        again = await client.ask(RESPONSES, {"input": "and now?", **more})
        details = again["usage"]["input_tokens_details"]
        assert details["cached_tokens"] >= 32  # behind both pictures
        said = {"role": "user", "content": [*blocks, ask]}
        answer = await client.ask(MESSAGES, {"messages": [said], "max_tokens": 12, **SAMPLED})
        assert answer["content"][0]["text"] == expected
        said = {"role": "user", "content": "what is it?", "images": data}
        body = {"model": "tables", "messages": [said], "stream": False}
        answer = await client.ask("/api/chat", body | {"options": {"num_predict": 3}})
        assert answer["prompt_eval_count"] == tokens
        events = await client.stream(CHATS, chat(part(first), part(second)))
        assert "".join(e["choices"][0]["delta"].get("content") or "" for e in events) == expected
        models = (await client.http.get("/v1/models")).json()["data"]
        assert models[0]["input_modalities"] == ["text", "image"]
        metrics = (await client.http.get("/metrics")).text
        assert "paceline:pictures_read_total 2.0" in metrics
        shown = (await client.post("/api/show", {"model": "tables"})).json()
        assert "vision" in shown["capabilities"]

    run(work)


def test_eight_clients_get_the_texts_of_one(run: Any, folder: Path) -> None:
    files = [file_of(seed) for seed in range(4)]
    asked = [chat(part(files[i % 4]), part(files[(i + 1) % 4])) for i in range(6)]
    asked += [chat(text=f"say {i}") for i in range(2)]
    expected = [alone(folder, files[i % 4], files[(i + 1) % 4]) for i in range(6)]
    expected += [alone(folder, text=f"say {i}") for i in range(2)]

    async def work(client: Client) -> None:
        for _ in range(2):  # and from the cache
            answers = await asyncio.gather(*(client.ask(CHATS, each) for each in asked))
            assert list(map(text_of, answers)) == expected

    run(work)


def test_batches_read_pictures(engine: Engine, folder: Path, tmp_path: Path) -> None:
    lines = [
        {"custom_id": str(i), "method": "POST", "url": CHATS, "body": chat(part(file_of(i)))}
        for i in range(3)
    ]
    lines[2]["body"] = chat(part("https://example.com/a.png"))
    (tmp_path / "in").write_text("".join(json.dumps(each) + "\n" for each in lines))
    file, _ = open_output(tmp_path / "out")
    with file:
        list(BatchRun(served(engine), file).run(read_lines(tmp_path / "in"), lambda: False))
    made = {each["custom_id"]: each for each in map(json.loads, (tmp_path / "out").open())}
    for i in range(2):
        assert text_of(made[str(i)]["response"]["body"]) == alone(folder, file_of(i))
    assert "nothing is fetched" in made["2"]["response"]["body"]["error"]["message"]


# Odd pictures, which are read:


def png(width: int, height: int, data: bytes = b"") -> bytes:
    def chunk(name: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        )

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    made = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + made


def saved(image: Image.Image, kind: str = "PNG", **how: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **how)
    return out.getvalue()


def turned() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6
    return file_of(0, "JPEG", exif=exif)


ODD: dict[str, Callable[[], bytes]] = {
    "1x1": partial(file_of, 0, size=(1, 1)),
    "narrow": partial(file_of, 0, size=(1, 3000)),
    "webp": partial(file_of, 0, "WEBP"),
    "cmyk": lambda: saved(Image.new("CMYK", (9, 9), (1, 2, 3, 4)), "JPEG"),
    "sixteen bits": lambda: saved(Image.fromarray(np.full((9, 9), 40_000, np.uint16))),
    "turned by EXIF": turned,
    "transparent": lambda: saved(Image.new("RGBA", (9, 9), (255, 0, 0, 100))),
    "animated": lambda: saved(
        Image.new("RGB", (9, 9)), "WEBP", save_all=True, append_images=[Image.new("RGB", (9, 9), 9)]
    ),
    "named PNG, but JPEG": partial(file_of, 0, "JPEG"),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_pictures_are_read(run: Any, folder: Path, name: str) -> None:
    data = ODD[name]()
    assert text_of(run(lambda client: client.ask(CHATS, chat(part(data))))) == alone(folder, data)


# Bad ones, each of which is told by name, and ends no request but its own:

BAD: dict[str, tuple[Callable[[], Json], str]] = {
    "a URL": (lambda: chat(part("https://example.com/a.png")), "nothing is fetched"),
    "one of a file": (lambda: chat(part("file:///etc/passwd")), "nothing is fetched"),
    "a path": (lambda: chat(part("/etc/passwd")), "nothing is fetched"),
    "no base64": (lambda: chat(part("data:image/png,abc")), "nothing is fetched"),
    "broken base64": (lambda: chat(part("data:image/png;base64,a*b")), "is no base64"),
    "nothing": (lambda: chat(part("data:image/png;base64,")), "no PNG, JPEG or WebP"),
    "text": (lambda: chat(part(b"hello" * 9)), "no PNG, JPEG or WebP"),
    "a GIF": (lambda: chat(part(file_of(0, "GIF"))), "no PNG, JPEG or WebP"),
    "half a file": (lambda: chat(part(file_of(0, "JPEG")[:900])), "is damaged"),
    "a header": (lambda: chat(part(png(9, 9))), "is damaged"),
    "20,000 pixels of a side": (lambda: chat(part(png(20_000, 20_000))), "has more than"),
    "a bomb": (lambda: chat(part(png(2**31 - 1, 2**31 - 1))), "has more than"),
    "nine": (lambda: chat(*[part(file_of(0))] * 9), "picture 9: 8 are the most"),
    "no string": (lambda: chat({"type": "image_url", "image_url": {"url": 7}}), "must be text"),
    "no picture": (lambda: chat({"type": "image_url"}), "image_url must be text"),
    "with log-probabilities": (
        lambda: chat(part(file_of(0)), prompt_logprobs=0),
        "leave out prompt_logprobs",
    ),
    "cut": (lambda: chat(part(file_of(0)), truncate_prompt_tokens=12), "of 4 rows"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_pictures_are_refused_by_name(run: Any, folder: Path, name: str) -> None:
    make, match = BAD[name]
    body = make()

    async def work(client: Client) -> None:
        good = asyncio.ensure_future(client.ask(CHATS, chat(part(file_of(0)))))
        error = await client.refused(CHATS, body)
        assert match in error["message"]
        assert "\n" not in error["message"]
        assert text_of(await good) == alone(folder, file_of(0))

    run(work)


def test_all_pixels_of_a_request_count(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.serving.messages.MOST_PIXELS", 5000)
    body = chat(part(file_of(0)), part(file_of(1)), part(file_of(2)))  # of 2,000 each
    error = run(lambda client: client.refused(CHATS, body))
    assert "content[2].image_url.url has more than 1000 pixels" in error["message"]
    monkeypatch.setattr(pictures, "MOST_BYTES", 100)
    with pytest.raises(paceline.PacelineError, match="more than 100 bytes"):
        Picture.of(file_of(0), most_bytes=100)


def test_a_text_model_refuses_pictures() -> None:
    async def work() -> None:
        async with serving() as client:
            for route, body in (
                (CHATS, chat(part(file_of(0)))),
                (CHATS, chat(part("https://example.com/a.png"))),
            ):
                error = await client.refused(route, body)
                assert "messages[0].content[0] is a picture" in error["message"]
                assert "--mmproj FILE" in error["message"]
            assert (await client.ask(CHATS, CHAT))["usage"]["prompt_tokens_details"] == {
                "cached_tokens": 0
            }
            models = (await client.http.get("/v1/models")).json()["data"]
            assert models[0]["input_modalities"] == ["text"]

    asyncio.run(asyncio.wait_for(work(), 60))


def test_a_client_names_no_rows(run: Any) -> None:
    async def work(client: Client) -> None:
        await client.ask(CHATS, chat(part(file_of(0))))
        error = await client.refused(
            "/v1/completions", {"prompt": [40, 336 + 4096], "max_tokens": 1}
        )
        assert "vocabulary has ids 0 to 335" in error["message"]

    run(work)
