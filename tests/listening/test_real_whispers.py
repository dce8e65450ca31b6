"""Whispers that people run, beside transformers with the same numbers, and with drafts.

`$PACELINE_MODELS/whisper` has directories of CTranslate2, and WAV files anywhere below.
"""

from __future__ import annotations

import os
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import paceline
from paceline.audio.mel import HOP, RATE, log_mel
from paceline.core.types import LogitArray, SamplingParams
from paceline.engine.hearing import Speech
from paceline.listening.windows import Listener
from paceline.models.ct2 import CT2File

FOLDER = Path(os.environ.get("PACELINE_MODELS", "/nowhere"), "whisper")
MODELS = [path.parent for path in sorted(FOLDER.glob("*/model.bin"))]
SOUNDS = sorted(FOLDER.rglob("*.wav"))

pytestmark = [
    pytest.mark.models,
    pytest.mark.skipif(not MODELS, reason="PACELINE_MODELS names no folder of Whispers"),
]


def read(path: Path) -> LogitArray:
    """Return some samples at 16 kHz, at other rates roughly."""
    with wave.open(str(path)) as file:
        raw = np.frombuffer(file.readframes(file.getnframes()), np.int16)
        sound = raw.reshape(-1, file.getnchannels())[:, 0].astype(np.float32) / 2**15
        at = np.arange(0, len(sound), file.getframerate() / RATE)
    return np.interp(at, np.arange(len(sound)), sound).astype(np.float32)


def theirs(path: Path) -> Any:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    file = CT2File(path / "model.bin")
    config = transformers.WhisperConfig(**file.config, suppress_tokens=None)
    model = transformers.WhisperForConditionalGeneration(config).eval()
    known = {name: file.read(name) for name in model.state_dict() if name in file}
    missing, unknown = model.load_state_dict(
        {name: torch.tensor(each) for name, each in known.items()}, strict=False
    )
    assert (missing, unknown) == (["proj_out.weight"], [])
    model.tie_weights()
    return model


def greedy(model: Any, frames: LogitArray, prompt: list[int], listener: Listener) -> list[int]:
    """Decode by transformers' model and its rules."""
    import torch
    from transformers.generation import logits_process as rules

    own, begin = listener.rules, len(prompt)
    asked = transformers_config(own.end, own.times)
    processors = [
        rules.SuppressTokensAtBeginLogitsProcessor(list(own.first), begin),
        rules.SuppressTokensLogitsProcessor(list(own.suppressed)),
        rules.WhisperTimeStampLogitsProcessor(asked, begin_index=begin),
    ]
    with torch.inference_mode():
        memory = model.model.encoder(torch.tensor(frames.T[None]))
        said, new, cache = list(prompt), prompt, None
        while len(said) < begin + 224:
            out = model(
                encoder_outputs=memory,
                decoder_input_ids=torch.tensor([new]),
                past_key_values=cache,
                use_cache=True,
            )
            cache, scores = out.past_key_values, out.logits[:, -1]
            for each in processors:
                scores = each(torch.tensor([said]), scores)
            new = [int(scores.argmax())]
            said += new
            if new == [own.end]:
                break
    return said[begin:]


def transformers_config(end: int, times: int) -> Any:
    from types import SimpleNamespace

    return SimpleNamespace(
        no_timestamps_token_id=times - 1,
        eos_token_id=end,
        bos_token_id=end,
        max_initial_timestamp_index=50,
        forced_decoder_ids=None,
    )


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.name)
def test_texts_are_those_of_transformers(path: Path) -> None:
    engine = paceline.load(str(path), drafter="none", precision="fp32")
    listener, model = Listener(engine), theirs(path)
    names = ("en", "transcribe") if listener.languages else ()
    prompt = [listener.ids[f"<|{each}|>"] for each in ("startoftranscript", *names)]
    for sound in map(read, SOUNDS):
        for at in range(0, len(sound), 30 * RATE):
            window = sound[at : at + 30 * RATE]
            frames = log_mel(np.pad(window, (0, 30 * RATE - len(window))))
            assert len(frames) * HOP == 30 * RATE
            speech = Speech(frames)
            params = SamplingParams(temperature=0.0, max_new_tokens=224)
            found = engine.generate(prompt, params, speech=speech, constraint=listener.rules)
            engine.let_go(speech)
            assert list(found.token_ids) == greedy(model, frames, prompt, listener)


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.name)
def test_drafts_change_nothing(path: Path) -> None:
    plain = Listener(paceline.load(str(path), drafter="none"))
    wanted = [[*plain.segments(read(sound))] for sound in SOUNDS[:2]]
    assert any(wanted)
    for drafter in ("auto", "recycling"):
        drafted = Listener(paceline.load(str(path), drafter=drafter))
        assert [[*drafted.segments(read(sound))] for sound in SOUNDS[:2]] == wanted
