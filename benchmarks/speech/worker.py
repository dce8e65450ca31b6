"""What runs in the environment "speech": other engines, a voice, and word error rates.

Answers a JSON line with a JSON line; the kinds of requests are the functions below. Nothing of
paceline is imported here. Whatever the packages print goes to standard error.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

_ENGINES: dict[str, Callable[[str], str]] = {}


def speak(text: str, path: str, seed: int) -> dict[str, Any]:
    """Write a text as a WAV file of 16 kHz, mono, 16 bits, and say how many seconds it has."""
    import soundfile
    from hibari import Hibari
    from scipy.signal import resample_poly

    voice = _ENGINES.setdefault("voice", Hibari(threads=1))  # type: ignore[arg-type]
    sound = resample_poly(voice(text, seed=seed), 2, 3).clip(-1, 1)
    soundfile.write(path, sound, 16_000, subtype="PCM_16")
    return {"seconds": len(sound) / 16_000}


def load(engine: str, model: str, threads: int) -> dict[str, Any]:
    """Load `faster-whisper int8`, `faster-whisper float32` or `whisper.cpp`."""
    if engine == "whisper.cpp":
        from pywhispercpp.model import Model

        peer = Model(model, n_threads=threads, print_progress=False, print_realtime=False)

        def write(path: str) -> str:
            found = peer.transcribe(path, language="en", temperature_inc=0.0, no_context=True)
            return " ".join(each.text for each in found)

    else:
        from faster_whisper import WhisperModel

        other = WhisperModel(model, "cpu", compute_type=engine.split()[1], cpu_threads=threads)

        def write(path: str) -> str:
            found, _ = other.transcribe(
                path,
                language="en",
                beam_size=1,
                temperature=[0.0, 0.2, 0.4, 0.6, 0.8, 1.0],
                condition_on_previous_text=False,
            )
            return " ".join(each.text for each in found)

    _ENGINES[engine] = write
    return {"loaded": engine}


def transcribe(engine: str, path: str) -> dict[str, Any]:
    """Write a sound down, and say how long that took."""
    begun = time.perf_counter()
    text = _ENGINES[engine](path)
    return {"text": text, "seconds": time.perf_counter() - begun}


def errors(references: list[str], texts: list[str]) -> dict[str, Any]:
    """Count wrong words by Whisper's own normaliser: of all words, and by text."""
    import jiwer
    from whisper_normalizer.english import EnglishTextNormalizer

    normal = EnglishTextNormalizer()
    wrong, words = [], []
    for reference, text in zip(references, texts, strict=True):
        found = jiwer.process_words(normal(reference), normal(text) or " ")
        wrong.append(found.substitutions + found.deletions + found.insertions)
        words.append(found.hits + found.substitutions + found.deletions)
    return {"wrong": wrong, "words": words}


KINDS = {each.__name__: each for each in (speak, load, transcribe, errors)}


def main() -> None:
    """Answer until the input ends."""
    lines = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = KINDS[request.pop("kind")](**request)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        lines.write(json.dumps(answer) + "\n")
        lines.flush()


if __name__ == "__main__":
    main()
