"""Transcripts by an engine: windows, drafts that change nothing, memories that are given back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from tests.helpers.table_engines import TOKENIZER
from tests.helpers.tiny_whisper import WhisperWeights, freed, sound, tiny_whisper

from paceline.audio.mel import RATE
from paceline.core.metrics import GenerationStats
from paceline.core.types import SamplingParams, TokenLogprob
from paceline.drafters.base import Drafter, NoDrafter
from paceline.drafters.recycling import Recycling
from paceline.engine.engine import Completion, Engine
from paceline.engine.hearing import Speech
from paceline.engine.loop import AutoregressiveDecoder
from paceline.engine.stopping import StopRules
from paceline.errors import InvalidOption, ModelError, PromptError
from paceline.listening import windows
from paceline.listening.timestamps import Segment
from paceline.listening.windows import HeardWindow, Listener, Listening
from paceline.models.text import Tokenizer
from paceline.policy.controller import Fixed
from paceline.proof.tabular import TabularModel, TabularTarget
from paceline.runtimes.cpu.target import CpuTarget
from paceline.verifiers.matching import Coupled

WORDS, END = 40, 40
MARKS = (
    "endoftext",
    "startoftranscript",
    "en",
    "de",
    "translate",
    "transcribe",
    "startofprev",
    "nospeech",
    "notimestamps",
)
MARKED = {name: WORDS + place for place, name in enumerate(MARKS)}
TIMES = WORDS + len(MARKS)


def words() -> Tokenizer:
    vocabulary = {f"w{i}": i for i in range(WORDS)}
    core = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="w0"))
    core.add_special_tokens([f"<|{each}|>" for each in MARKS])
    core.add_tokens([f"<|{0.02 * i:.2f}|>" for i in range(64 - TIMES)])
    return Tokenizer(core, eos_token_ids=(END,))


def engine(drafter: Drafter | None = None, rows: int = 1500, **limits: Any) -> Engine:
    config = tiny_whisper(max_source_positions=rows, encoder_layers=1)
    target = CpuTarget(config, WhisperWeights(config), "fp32", kv_tokens=1024, threads=2)
    parts = target, drafter or NoDrafter(), Coupled(), Fixed(6, 4), StopRules((END,), 64)
    return Engine(AutoregressiveDecoder(*parts), words(), **limits)


def noise(seconds: float, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (rng.normal(size=round(seconds * RATE)) * 0.1).astype(np.float32)


def test_drafts_and_batches_do_not_change_a_transcript() -> None:
    own = engine(rows=75)
    plain = []
    for temperature in (0.0, 1.0):
        params = SamplingParams(temperature=temperature, seed=4, max_new_tokens=20, ignore_eos=True)
        for seed in range(3):
            heard = Speech(sound(seed))
            plain.append(own.generate([41, 42], params, speech=heard).token_ids)
            own.let_go(heard)
    assert len(set(plain)) == len(plain)  # a sound has a say
    for drafter, batch in ((Recycling(64), 1), (Recycling(64), 3), (NoDrafter(), 3)):
        other = engine(drafter, rows=75, max_batch=batch)
        sounds = [Speech(sound(seed)) for seed in range(3)]
        found = []
        for temperature in (0.0, 1.0):
            params = SamplingParams(
                temperature=temperature, seed=4, max_new_tokens=20, ignore_eos=True
            )
            asked = [other.add([41, 42], params, speech=each) for each in sounds]
            done = {}
            while len(done) < len(asked):
                done |= {e.request: e.completion for e in other.step() if e.completion}
            found += [done[each].token_ids for each in asked]
        assert found == plain
        for each in sounds:
            other.let_go(each)
        assert freed(other)


def test_the_tokenizer_of_another_whisper_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    own = engine()
    vocabulary = own.decoder.target.capabilities.vocab_size
    monkeypatch.setattr(windows, "_OPENAI", (vocabulary,))
    monkeypatch.setattr(windows, "_TIMES", vocabulary - TIMES)
    Listener(own)
    for times in (vocabulary - TIMES - 1, vocabulary - TIMES + 1):
        monkeypatch.setattr(windows, "_TIMES", times)
        with pytest.raises(ModelError, match="another Whisper"):
            Listener(own)


def test_segments_lie_in_the_sound_one_behind_another() -> None:
    own = engine()
    listener = Listener(own)
    found = list(listener.segments(noise(1.0)))
    assert found
    at = 0.0
    for begin, end, tokens in found:
        assert at <= begin <= end <= 1.0
        assert all(token < WORDS for token in tokens)
        at = begin
    assert found == list(Listener(engine(Recycling(64))).segments(noise(1.0)))
    assert freed(own)


def test_what_is_too_short_says_nothing() -> None:
    assert list(Listener(engine(rows=75)).segments(noise(0.05))) == []


def test_a_model_without_ears_is_refused() -> None:
    table = TabularModel(64, 1, seed=7)
    target = TabularTarget(table.logits, 64)
    parts = target, NoDrafter(), Coupled(), Fixed(6, 4), StopRules((END,), 64)
    with pytest.raises(InvalidOption, match="hears nothing"):
        Listener(Engine(AutoregressiveDecoder(*parts), TOKENIZER))


def test_a_tokenizer_of_another_model_is_refused() -> None:
    own = engine(rows=75)
    own.tokenizer = TOKENIZER
    with pytest.raises(ModelError, match=r"no <\|startoftranscript\|>"):
        Listener(own)


def test_what_files_suppress_is_never_said(tmp_path: Path) -> None:
    own = engine(rows=75)
    silent, first = Listener(own).rules.suppressed, Listener(own).rules.first
    assert Listener(own, tmp_path).rules == Listener(own, tmp_path / "model.bin").rules
    marks = {each for each in MARKED.values() if each != END}
    for file, suppressed, begins in (
        ("config.json", "suppress_ids", "suppress_ids_begin"),
        ("generation_config.json", "suppress_tokens", "begin_suppress_tokens"),
    ):
        (tmp_path / file).write_text(json.dumps({suppressed: [3, 5], begins: [7]}))
        rules = Listener(own, tmp_path).rules
        assert rules.suppressed == tuple(sorted({3, 5} | marks))
        assert rules.first == (7,)
    # The list of how to generate counts; one that is empty too, and -1 is Whisper's own.
    told = tmp_path / "generation_config.json"
    told.write_text(json.dumps({"suppress_tokens": [], "begin_suppress_tokens": None}))
    assert Listener(own, tmp_path).rules.suppressed == tuple(sorted(marks))
    assert Listener(own, tmp_path).rules.first == (7,)
    (tmp_path / "config.json").unlink()
    told.write_text(json.dumps({"suppress_tokens": [-1]}))
    assert Listener(own, tmp_path).rules.suppressed == silent
    assert Listener(own, tmp_path).rules.first == first
    for wrong, why in (([99], "has 99, no token"), ("7", "no list"), ([True], "no list")):
        told.write_text(json.dumps({"suppress_tokens": wrong}))
        with pytest.raises(ModelError, match=f"suppress_tokens.*{why}"):
            Listener(own, tmp_path)


def test_a_prompt_without_a_sound_is_refused() -> None:
    with pytest.raises(PromptError, match="writes down sound"):
        engine(rows=75).generate([41, 42])


@pytest.mark.parametrize("asked", [Listening("de"), Listening(translate=True)])
def test_an_english_model_hears_english(asked: Listening) -> None:
    with pytest.raises(InvalidOption, match="English alone"):
        list(Listener(engine(rows=75)).segments(noise(1.0), asked))


def test_the_first_window_tells_the_language(monkeypatch: pytest.MonkeyPatch) -> None:
    own = engine(rows=1500)
    listener = Listener(own)
    listener.languages = {"en": 42, "de": 43}
    transcript = listener.begin(noise(40.0), Listening(None, translate=True))
    request = transcript.next()
    assert request is not None
    assert (request.tokens, request.params.allowed_tokens) == ((41,), (42, 43))
    assert transcript.heard(completion(43)) == []
    assert transcript.language == "de"
    for _ in range(2):  # of windows
        request = transcript.next()
        assert request is not None
        assert request.tokens == (41, 43, MARKED["translate"])
        assert transcript.heard(completion(TIMES, 5, END))
    assert transcript.next() is None


def test_a_code_in_capitals_or_empty_is_understood() -> None:
    listener = Listener(engine(rows=75))
    listener.languages = {"en": 42, "de": 43}
    for code, known in (("DE", "de"), ("", None), (None, None)):
        assert listener.begin(noise(1.0), Listening(code)).language == known
    with pytest.raises(InvalidOption, match="language 'xx' is unknown"):
        listener.begin(noise(1.0), Listening("XX"))


def test_a_transcript_that_goes_on_has_the_language_of_its_first_window() -> None:
    listener = Listener(engine(rows=1500))
    listener.languages = {"en": 42, "de": 43}
    sound = noise(40.0)
    transcript = listener.begin(sound, Listening(None), 30 * RATE)
    first = listener.begin(sound, Listening(None)).next()
    for wanted in (first, listener.begin(sound, Listening("de"), 30 * RATE).next()):
        request = transcript.next()
        assert request is not None
        assert wanted is not None
        assert request.tokens == wanted.tokens
        assert request.speech is not None
        assert wanted.speech is not None
        assert np.array_equal(request.speech.frames, wanted.speech.frames)
        assert transcript.at == 30 * RATE
        transcript.heard(completion(43) if wanted is first else completion(TIMES, 5, END))
    assert transcript.next() is None


# Texts that are tried again.

GOOD, CIRCLES = (7, 3, 9, 1), (5, 6) * 40
SILENCE = (MARKED["nospeech"],)


def completion(*tokens: int, logprob: float = -0.1) -> Completion:
    """A completion of such tokens; those of times are improbable."""
    said = [TokenLogprob(each, -9.0 if each >= TIMES else logprob, ()) for each in tokens]
    return Completion("", tokens, tuple(said), (), 1, "stop", GenerationStats())


def tried(
    texts: list[tuple[tuple[int, ...], float]], silence: float = 0.0, temperature: float = 0.0
) -> tuple[list[float], list[Segment], HeardWindow]:
    """Answer a window by texts; return their temperatures, segments, and what is told of it."""
    listener = Listener(engine(rows=1500))
    asked = Listening(temperature=temperature, seed=7)
    transcript, left, temperatures = listener.begin(noise(1.0), asked), [*texts], list[float]()
    segments: list[Segment] = []
    seeds = set()
    while (request := transcript.next()) is not None:
        assert not segments
        if request.params.allowed_tokens:
            assert (request.tokens, request.params.allowed_tokens) == ((41,), SILENCE)
            done = completion(*SILENCE, logprob=float(np.log(silence)))
        else:
            words, logprob = left.pop(0)
            temperatures.append(request.params.temperature)
            seeds.add(request.params.seed)
            done = completion(TIMES, *words, TIMES + 9, END, logprob=logprob)
        segments += transcript.heard(done)
    assert not left
    assert len(seeds) == 1
    return temperatures, segments, transcript.window


UP = [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]


@pytest.mark.parametrize(
    ("texts", "silence", "kept"),
    [
        ([(GOOD, -0.5)], 0.9, 0),
        ([(GOOD, -1.5), ((8,), -0.9)], 0.5, 1),
        ([(CIRCLES, -0.1), (CIRCLES, -0.2), (GOOD, -0.9)], 0.9, 2),
        ([(GOOD, -1.5)], 0.7, None),
        ([((each,), -2.0 + each / 10) for each in range(6)], 0.1, 5),
        ([((each,), -2.0 - each / 10) for each in range(6)], 0.1, 0),
        ([*[(CIRCLES, -0.1)] * 5, (GOOD, -3.0)], 0.1, 5),
    ],
)
def test_texts_are_tried_again_until_one_stands(
    texts: list[tuple[tuple[int, ...], float]], silence: float, kept: int | None
) -> None:
    temperatures, segments, window = tried(texts, silence)
    assert temperatures == UP[: len(texts)]
    if kept is None:
        assert segments == []
        assert window.silence == pytest.approx(silence)
        return
    assert [each.tokens for each in segments] == [texts[kept][0]]
    assert (window.temperature, window.logprob) == (UP[kept], pytest.approx(texts[kept][1]))


def test_a_temperature_that_is_asked_for_is_taken_once() -> None:
    temperatures, segments, _ = tried([(CIRCLES, -2.0)], 0.1, temperature=0.7)
    assert temperatures == [0.7]
    assert len(segments) == 1


def test_a_transcript_is_a_function_of_its_seed() -> None:
    """Of this model all texts are tried again; windows and seeds draw apart."""
    own = Listener(engine())
    found = [list(own.segments(noise(1.0), Listening(seed=seed))) for seed in (1, 1, 2)]
    assert found[0] == found[1] != found[2]
    assert found[0] == list(Listener(engine(Recycling(64))).segments(noise(1.0), Listening(seed=1)))
