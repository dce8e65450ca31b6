"""The audio routes over a tiny Whisper, with the client that others use."""

from __future__ import annotations

import asyncio
import io
import struct
import wave
from typing import Any

import numpy as np
import openai
import pytest
from openai.types.audio import TranscriptionStreamEvent
from pydantic import TypeAdapter
from tests.helpers.serving import CHAT, TEXT, Client, Json, events, run
from tests.helpers.tiny_whisper import freed
from tests.listening.test_windows import engine, noise

from paceline.audio.mel import RATE
from paceline.drafters.recycling import Recycling
from paceline.listening.windows import Listener

SAID, TOLD = "/v1/audio/transcriptions", "/v1/audio/translations"
EVENT: TypeAdapter[Any] = TypeAdapter(TranscriptionStreamEvent)


def wav(sound: np.ndarray, rate: int = RATE) -> bytes:
    held = io.BytesIO()
    with wave.open(held, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(np.round(sound * 32767).astype("<i2").tobytes())
    return held.getvalue()


SOUND = wav(noise(1.0))


def client(of: Client) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(api_key="none", base_url="http://tables/v1", http_client=of.http)


async def post(of: Client, data: Json | None = None, sound: Any = SOUND, path: str = SAID) -> Any:
    files = {"other": b""} if sound is None else {"file": ("a.wav", sound)}
    return await of.http.post(path, data={"model": "tables"} | (data or {}), files=files)


async def refused(of: Client, status: int, *args: Any, **more: Any) -> Json:
    response = await post(of, *args, **more)
    assert response.status_code == status, response.text
    error: Json = response.json()["error"]
    return error


def test_the_openai_client_reads_every_form() -> None:
    async def ask(of: Client) -> list[Any]:
        create = client(of).audio.transcriptions.create
        asked: Json = {"model": "tables", "file": ("a.wav", SOUND), "language": "en"}
        out: list[Any] = []
        for form in ("json", "text", "srt", "vtt"):
            out.append(await create(**asked, response_format=form))
        more = {"timestamp_granularities": ["segment"], "prompt": "w1 w2", "temperature": 0.5}
        out.append(
            await create(**asked, **more, response_format="verbose_json", extra_body={"seed": 7})
        )
        out.append([each async for each in await create(**asked, stream=True)])
        return out

    answer, text, srt, vtt, verbose, streamed = run(ask, engine())
    said = answer.text
    assert said
    assert answer.usage.seconds == 1.0
    assert text == f"{said}\n"
    assert srt.startswith("1\n00:00:0")
    assert vtt.startswith("WEBVTT\n\n00:00:0")
    assert verbose.duration == 1.0
    assert verbose.segments[0].end <= 1.0
    assert verbose.seed == 7
    deltas = [each.delta for each in streamed[:-1]]
    assert streamed[-1].type == "transcript.text.done"
    assert "".join(deltas) == streamed[-1].text == said


def test_a_transcript_is_that_of_the_library() -> None:
    async def ask(of: Client) -> Json:
        answer = await post(of, {"response_format": "verbose_json", "language": "en"})
        found: Json = answer.json()
        return found

    sound = np.round(noise(1.0) * 32767).astype("<i2").astype(np.float32) / np.float32(32768)
    wanted = list(Listener(engine()).segments(sound))
    told = run(ask, engine())["segments"]
    assert [tuple(each["tokens"]) for each in told] == [each.tokens for each in wanted]


@pytest.mark.parametrize("temperature", [0, 0.8])
def test_sounds_at_once_are_each_alone(temperature: float) -> None:
    sounds = [wav(noise(0.5 + 0.3 * i, seed=i)) for i in range(8)]

    def asked(i: int) -> Json:
        return {"language": "en", "temperature": temperature, "seed": i}

    async def one_by_one(of: Client) -> list[str]:
        return [(await post(of, asked(i), each)).json()["text"] for i, each in enumerate(sounds)]

    async def together(of: Client) -> list[str]:
        work = (post(of, asked(i), each) for i, each in enumerate(sounds))
        return [each.json()["text"] for each in await asyncio.gather(*work)]

    alone = run(one_by_one, engine())
    assert len(set(alone)) > 4
    assert run(together, engine()) == alone
    drafting = engine(Recycling(64))
    assert run(together, drafting) == alone
    assert freed(drafting)


def test_windows_come_one_after_another() -> None:
    long = wav(noise(31.0, seed=3))

    async def ask(of: Client) -> tuple[Json, list[Json]]:
        whole = await post(of, {"response_format": "verbose_json", "language": "en"}, long)
        parts = await post(of, {"stream": "true", "language": "en"}, long)
        return whole.json(), events(parts.text)

    own = engine()
    whole, parts = run(ask, own)
    assert len({each["seek"] for each in whole["segments"]}) > 1
    for each in parts:
        EVENT.validate_python(each)
    assert "".join(each.get("delta", "") for each in parts) == whole["text"]
    assert freed(own)


def truncated(of: bytes) -> bytes:
    return of[: len(of) // 2]


def floats(sound: np.ndarray) -> bytes:
    """A WAV file of floats, by hand."""
    data = sound.astype("<f4").tobytes()
    form = struct.pack("<HHIIHH", 3, 1, RATE, 4 * RATE, 4, 32)
    chunks = b"fmt " + struct.pack("<I", 16) + form + b"data" + struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WAVE" + chunks


@pytest.mark.parametrize(
    ("sound", "said"),
    [
        (b"", "file"),
        (b"RIFF", "file"),
        (b"ID3 no sound at all" * 99, "file"),
        (floats(np.full(RATE, np.nan)), "file"),
        (wav(noise(0.01)), "at least 0.1 s"),
        (wav(noise(0.0)), "file"),
    ],
)
def test_what_is_no_sound_is_named(sound: bytes, said: str) -> None:
    error = run(lambda of: refused(of, 400, None, sound), engine())
    assert error["param"] == "file"
    assert said in error["message"]


def test_a_sound_that_is_cut_off_says_what_it_has() -> None:
    answer = run(lambda of: post(of, {}, truncated(SOUND)), engine())
    assert answer.status_code == 200
    assert answer.json()["usage"]["seconds"] == 0.499  # and a head of 44 bytes


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": "diarized_json"}, "response_format"),
        ({"temperature": "2"}, "temperature"),
        ({"temperature": "warm"}, "temperature"),
        ({"timestamp_granularities[]": "word", "response_format": "verbose_json"}, "*"),
        ({"timestamp_granularities[]": "segment"}, "timestamp_granularities"),
        ({"stream": "true", "response_format": "srt"}, "stream"),
        ({"include[]": "logprobs"}, "include"),
        ({"known_speaker_names[]": "A"}, "known_speaker_names"),
        ({"language": "de"}, "language"),
        ({"seed": "x"}, "seed"),
        ({"prompt": "x" * 20_000}, "prompt"),
    ],
)
def test_a_field_that_is_wrong_is_named(fields: Json, param: str) -> None:
    error = run(lambda of: refused(of, 400, fields), engine())
    assert error["param"] == ("timestamp_granularities" if param == "*" else param)
    assert error["message"].startswith(error["param"])


def test_windows_begin_where_there_is_speech(finding: None) -> None:
    quiet = np.zeros(2 * RATE, np.float32)

    async def ask(of: Client) -> tuple[Json, Json]:
        form = {"response_format": "verbose_json", "language": "en"}
        late = await post(of, form, wav(np.concatenate([quiet, noise(1.0)])))
        return late.json(), (await post(of, form, wav(quiet))).json()

    late, silent = run(ask, own := engine())
    assert late["duration"] == 3.0
    # The window begins with the chunk of noise, and a fifth of a second before it.
    begins = [each["start"] for each in late["segments"]]
    assert begins[0] >= 1.78
    assert late["segments"][0]["seek"] == round(1.784 * 100)
    assert silent["duration"] == 2.0
    assert (silent["text"], silent["segments"]) == ("", [])  # as of a file
    assert freed(own)


def test_unknown_fields_are_told() -> None:
    async def ask(of: Client) -> Any:
        return await post(of, {"chunking_strategy": "auto", "hotwords": "a"})

    answer = run(ask, engine())
    assert answer.status_code == 200
    assert answer.headers["x-paceline-ignored"] == "chunking_strategy, hotwords"
    assert run(ask, engine(), strict=True).status_code == 400


def test_forms_are_forms() -> None:
    async def ask(of: Client) -> None:
        assert "file" in (await refused(of, 400, {}, None))["message"]
        assert (await of.post(SAID, {"model": "tables"})).status_code == 415
        assert (await refused(of, 404, {"model": "elsewhere"}))["param"] == "model"
        twice = {"seed": ["1", "2"]}
        assert (await refused(of, 400, twice))["param"] == "seed"
        answer = await of.http.post(
            SAID, content=b"no form", headers={"content-type": "multipart/form-data; boundary=x"}
        )
        assert answer.status_code == 400

    run(ask, engine())


def test_translations_need_a_model_of_several_languages() -> None:
    assert "English alone" in run(lambda of: refused(of, 400, path=TOLD), engine())["message"]


def test_a_language_is_found_out() -> None:
    async def ask(of: Client) -> list[Json]:
        model = of.service.hosting.models[0].model
        assert model is not None
        assert model.listener is not None
        ids = model.tokenizer.special_ids
        model.listener.languages = {each: ids[f"<|{each}|>"] for each in ("en", "de")}
        verbose = {"response_format": "verbose_json"}
        found = [(await post(of, verbose)).json()]
        found.append((await post(of, verbose | {"language": found[0]["language"]})).json())
        found.append((await post(of, verbose, path=TOLD)).json())
        return found

    unknown, known, translated = run(ask, engine())
    assert unknown["language"] in ("en", "de")
    assert unknown["segments"] == known["segments"]
    assert (unknown["task"], translated["task"]) == ("transcribe", "translate")
    assert translated["language"] == "en"


def test_models_and_routes_that_do_not_fit_are_refused() -> None:
    async def texts(of: Client) -> None:
        for path, body in (("/v1/chat/completions", CHAT), ("/v1/completions", TEXT)):
            error = await of.refused(path, body)
            assert error["param"] == "model"
            assert "/v1/audio/transcriptions" in error["message"]
        [told, *_] = (await of.http.get("/v1/models")).json()["data"]
        assert told["input_modalities"] == ["audio"]

    run(texts, engine())
    assert "hears no sound" in run(lambda of: refused(of, 400))["message"]


def test_sound_in_flight_is_bounded() -> None:
    assert run(lambda of: refused(of, 413), engine(), max_sound=0.5)["param"] == "file"

    async def ask(of: Client) -> list[int]:
        answers = await asyncio.gather(*(post(of) for _ in range(3)))
        assert of.service.gate.seconds == 0.0
        return sorted(each.status_code for each in answers)

    assert run(ask, engine(), max_sound=1.5)[-1] == 429
    assert run(ask, engine(), max_sound=4.0) == [200] * 3


def test_what_is_heard_is_counted() -> None:
    async def ask(of: Client) -> str:
        await post(of)
        return (await of.http.get("/metrics")).text

    found = run(ask, engine())
    assert "paceline:sound_seconds_total 1.0" in found
    assert "paceline:requests_not_answered_total 0.0" in found


def test_a_client_that_leaves_frees_its_sound() -> None:
    own = engine()
    pool, left = own.decoder.target._writer.pool, asyncio.Event()  # type: ignore[attr-defined]

    async def ask(of: Client) -> None:
        body = of.http.build_request(
            "POST", SAID, data={"model": "tables"}, files={"file": ("a.wav", SOUND)}
        )
        sent = [{"type": "http.request", "body": body.read(), "more_body": False}]

        async def receive() -> Any:
            if sent:
                return sent.pop()
            while pool.free == pool.blocks:  # until it is being heard
                await asyncio.sleep(0.001)
            left.set()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            assert message.get("status", 499) == 499

        scope = {"type": "http", "http_version": "1.1", "method": "POST", "path": SAID}
        headers = [(name.lower(), value) for name, value in body.headers.raw]
        scope |= {"headers": headers, "query_string": b"", "scheme": "http"}
        await of.service.app(scope, receive, send)
        assert left.is_set()
        while of.service.hosting.models[0].worker.core.busy:  # type: ignore[union-attr]
            await asyncio.sleep(0.01)
        assert of.service.gate.sequences == 0

    run(ask, own)
    assert freed(own)
