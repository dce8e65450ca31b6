"""Speech to text: OpenAI's routes for transcriptions and translations."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from io import BytesIO
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta, Struct
from starlette.responses import Response

from paceline.audio.mel import RATE
from paceline.audio.read import LONGEST, TooLong, read_sound
from paceline.core.types import LogitArray
from paceline.engine.engine import Event, Prepared
from paceline.errors import InvalidOption
from paceline.listening.captions import FORMATS, HEADS
from paceline.listening.timestamps import Segment
from paceline.listening.windows import LEAST, HeardWindow, Listening, Transcription
from paceline.serving.answers.parser import Delta
from paceline.serving.http import json_response
from paceline.serving.model import ServedModel
from paceline.serving.objects import Answer
from paceline.serving.plan import Plan
from paceline.serving.protocol import BadRequest, Seed, Share

Json = dict[str, Any]
_MEDIA = {"vtt": "text/vtt; charset=utf-8"}


class TranslationRequest(Struct, kw_only=True):
    """A form: `file` is the sound."""

    refused: ClassVar[Mapping[str, str]] = {
        "include": "log-probabilities are not given here: leave it out",
        "keywords": "names go into prompt",
        "languages": "give one language, or none to have it found out",
        "known_speaker_names": "speakers are not told apart: leave it out",
        "known_speaker_references": "speakers are not told apart: leave it out",
    }
    file: Annotated[Any, Meta(extra_json_schema={"type": "string", "format": "binary"})]
    model: str | None = None
    prompt: Annotated[str, Meta(max_length=10_000)] = ""
    response_format: Literal["json", "text", "srt", "verbose_json", "vtt"] = "json"
    temperature: Share = 0.0
    seed: Seed | None = None
    stream: bool = False

    def listening(self, seed: int) -> Listening:
        return Listening(None, True, self.prompt, self.temperature, seed)


class TranscriptionRequest(TranslationRequest, kw_only=True):
    language: Annotated[str, Meta(max_length=20)] | None = None
    timestamp_granularities: list[Literal["segment", "word"]] | None = None

    def listening(self, seed: int) -> Listening:
        return Listening(self.language, False, self.prompt, self.temperature, seed)


@dataclass(slots=True, kw_only=True)
class TranscriptPlan(Plan):
    """A plan whose prompts come one after another. Of a sound without speech no words count."""

    transcription: Transcription
    sound: LogitArray
    speechless: bool


def plan_transcript(model: ServedModel, body: TranslationRequest) -> TranscriptPlan:
    """Return the plan of a transcript; BadRequest names the field that is wrong."""
    listener = model.listener
    assert listener is not None  # or the route refuses the model
    form = body.response_format
    if body.stream and form != "json":
        raise BadRequest(
            f"stream: events are JSON, and {form} is none: leave out one of them", "stream"
        )
    times = getattr(body, "timestamp_granularities", None) or []
    if "word" in times:
        raise BadRequest(
            "timestamp_granularities: there are no times of words: ask for segment",
            "timestamp_granularities",
        )
    if times and form != "verbose_json":
        raise BadRequest(
            f"timestamp_granularities: {form} has none: ask for response_format verbose_json",
            "timestamp_granularities",
        )
    sound = _sound(body.file, model.longest_sound)
    seed = secrets.randbits(53) if body.temperature else 0  # else a sound has one transcript
    seed = seed if body.seed is None else body.seed
    spoken = None if model.finder is None else model.finder.speech(sound)
    speechless = spoken is not None and spoken.begin(0) is None
    heard = sound
    if speechless:  # an answer needs a prompt: that of its beginning
        spoken, heard = None, sound[:LEAST]
    try:
        transcription = listener.begin(heard, body.listening(seed), spoken=spoken)
    except InvalidOption as error:
        field = "model" if type(body) is TranslationRequest else "language"
        raise BadRequest(f"{field}: {error}", field) from error
    first = transcription.next()
    assert first is not None  # the sound is long enough
    return TranscriptPlan(
        [first],
        seed,
        stream=body.stream,
        seconds=len(sound) / RATE,
        transcription=transcription,
        sound=sound,
        speechless=speechless,
    )


def _sound(data: bytes, longest: float | None) -> LogitArray:
    try:
        sound = read_sound(BytesIO(data), LONGEST if longest is None else longest)
    except TooLong as error:
        raise BadRequest(
            f"file: {error}, or start the server with a larger --max-sound", "file", 413
        ) from error
    except InvalidOption as error:
        raise BadRequest(f"file: {error}", "file") from error
    if len(sound) < LEAST:
        raise BadRequest(
            f"file: the sound lasts {len(sound) / RATE:g} s: give at least {LEAST / RATE:g} s",
            "file",
            code="audio_too_short",
        )
    return sound


class TranscriptAnswer(Answer):
    """A transcript as it becomes final, segment by segment."""

    object = "transcription"
    prefix = "transcr"
    goes_on = True
    plan: TranscriptPlan

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self._asked: TranslationRequest = parts[2]
        self._segments: list[tuple[Segment, HeardWindow, str]] = []
        self._rows = self._read = 0  # of sound, and of prompts
        self._ended = False

    @property
    def done(self) -> bool:
        return self._ended

    def feed(self, place: int, event: Event) -> list[Delta]:
        choice = self.choices[place]
        choice.token_ids += event.token_ids
        if event.completion is None:
            return []
        going, new = self.plan.transcription, []
        self._read += event.completion.prompt_tokens
        segments = going.heard(event.completion)
        for segment in () if self.plan.speechless else segments:
            text = self.model.tokenizer.decode(segment.tokens)
            text = text if self._segments else text.lstrip()
            self._segments.append((segment, going.window, text))
            new.append(Delta("content", text))
        return new

    def then(self) -> Prepared | None:
        request = self.plan.transcription.next()
        self._ended = request is None
        return request

    def let_go(self) -> None:
        self.plan.transcription.let_go()

    def chunks(self, place: int, event: Event) -> list[Json]:
        deltas = self.feed(place, event)
        return [{"type": "transcript.text.delta", "delta": each.text} for each in deltas]

    def closing(self) -> list[Json]:
        count = self.usage()
        usage = {
            "type": "tokens",
            "input_tokens": count["prompt_tokens"],
            "output_tokens": count["completion_tokens"],
            "total_tokens": count["total_tokens"],
        }
        return [{"type": "transcript.text.done", "text": self.text, "usage": usage} | self._facts()]

    @property
    def text(self) -> str:
        return "".join(text for _, _, text in self._segments)

    def usage(self) -> Json:
        answer = len(self.choices[0].token_ids)
        return {
            "prompt_tokens": self._read,
            "completion_tokens": answer,
            "total_tokens": self._read + answer,
        }

    def _facts(self) -> Json:
        return {name: self._head[name] for name in ("model", "system_fingerprint", "seed")}

    def whole(self) -> Json:
        usage = {"type": "duration", "seconds": round(self.plan.seconds, 3)}
        out = {"text": self.text, "usage": usage} | self._facts()
        if self._asked.response_format != "verbose_json":
            return out
        translates = type(self._asked) is TranslationRequest
        task = "translate" if translates else "transcribe"
        return out | {
            "task": task,
            "language": "en" if translates else self.plan.transcription.language,
            "duration": round(self.plan.seconds, 3),
            "segments": [self._told(i, *each) for i, each in enumerate(self._segments)],
            "samples_sha256": sha256(self.plan.sound.tobytes()).hexdigest(),
        }

    def _told(self, number: int, segment: Segment, window: HeardWindow, text: str) -> Json:
        return {
            "id": number,
            "seek": round(100 * window.begin),
            "start": round(segment.begin, 3),
            "end": round(segment.end, 3),
            "text": text,
            "tokens": segment.tokens,
            "temperature": window.temperature,
            "avg_logprob": window.logprob,
            "compression_ratio": window.circles,
            **({} if window.silence is None else {"no_speech_prob": window.silence}),
        }

    def response(self, headers: Mapping[str, str]) -> Response:
        form = self._asked.response_format
        if form not in FORMATS or form == "json":
            return json_response(self.whole(), headers=headers)
        if form == "text":
            said = f"{self.text}\n"
        else:
            said = HEADS.get(form, "") + "".join(
                FORMATS[form](number, segment.begin, segment.end, text.strip())
                for number, (segment, _, text) in enumerate(self._segments, 1)
            )
        seed = {"x-paceline-seed": str(self.plan.seed)}
        return Response(said, 200, {**headers, **seed}, _MEDIA.get(form, "text/plain"))
