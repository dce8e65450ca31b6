"""Sounds whose words are known, and when each ends: what a causal encoder learns from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from paceline.audio.mel import HOP, RATE, MelStream
from paceline.audio.read import read_sound
from paceline.core.cache import read_text
from paceline.core.types import LogitArray
from paceline.errors import InvalidOption
from paceline.models.text import Tokenizer

_QUIET = 0.05  # of the loudest frame: what is quieter is a pause
_LATE = 0.1  # seconds that a word ends after its share of the sound: it must have been heard


class Spoken(NamedTuple):
    """A sound and its words.

    Attributes:
        path: a WAV file.
        tokens: of its text.
        ends: float64 `[tokens]`, the second in which the word of each ends.
        seconds: of the whole sound.
    """

    path: Path
    tokens: tuple[int, ...]
    ends: npt.NDArray[np.float64]
    seconds: float


def read_spoken(folder: Path, tokenizer: Tokenizer, longest: float) -> list[Spoken]:
    """Return the sounds of a folder but those longer than so many seconds; see `with_texts`."""
    found = []
    for path, text in with_texts(folder):
        sound, words = read_sound(path), text.split()
        if len(sound) / RATE > longest:
            continue
        pieces = [tokenizer.plain(f" {word}") for word in words]
        ends = np.repeat(word_ends(sound, words), [len(each) for each in pieces])
        tokens = tuple(token for each in pieces for token in each)
        found.append(Spoken(path, tokens, ends, len(sound) / RATE))
    return found


def with_texts(folder: Path) -> list[tuple[Path, str]]:
    """Return the sounds `NAME.wav` of a folder that have a text `NAME.txt`, in order of names.

    InvalidOption if there are none.
    """
    paths = [path for path in sorted(folder.glob("*.wav")) if path.with_suffix(".txt").is_file()]
    if not paths:
        raise InvalidOption(f"{folder} has no NAME.wav with a NAME.txt: give sounds and texts")
    return [(each, read_text(each.with_suffix(".txt"), str(each), "give it")) for each in paths]


def played(path: Path, speed: float, stream: MelStream) -> LogitArray:
    """Return the frames of a sound that is played at a speed, which is another voice."""
    sound = read_sound(path)
    at = np.arange(round(len(sound) / speed)) * speed
    sound = np.interp(at, np.arange(len(sound)), sound).astype(np.float32)
    return np.concatenate([stream.push(sound), stream.end()])


def word_ends(sound: LogitArray, words: Sequence[str]) -> npt.NDArray[np.float64]:
    """Return about when each word ends, in seconds: words share what is no pause by their letters.

    That is a weak alignment; the paper's is forced, by a model of phones.
    """
    frames = sound[: len(sound) // HOP * HOP].reshape(-1, HOP)
    loud = np.sqrt(np.square(frames, dtype=np.float64).mean(axis=1))
    spoken = np.cumsum(loud > _QUIET * loud.max(initial=0.0))
    letters = np.cumsum([1 + sum(map(str.isalnum, word)) for word in words])
    at = np.searchsorted(spoken, letters / letters[-1] * spoken[-1])
    ends: npt.NDArray[np.float64] = np.minimum((at + 1) * HOP / RATE + _LATE, len(sound) / RATE)
    return ends
