"""Padded training batches and the target's hidden-state features for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt

from paceline.core.cache import written_file
from paceline.core.target import TakesRows, Target
from paceline.core.types import IntArray, LogitArray, Needs
from paceline.drafters.base import NoDrafter
from paceline.errors import InvalidOption
from paceline.lab.training.data import Text
from paceline.sampling.generation import Generation, VerifiedDraft

Scalar = TypeVar("Scalar", bound=np.generic)

# Odd, so that the held-out texts have every temperature of the cycle.
_HELD_OUT_EVERY = 41

_HELD_OUT_MOST = 64

MORE = "with `paceline train data`"
"""How there are more texts, if there are too few."""

# Texts sorted by length together.
_STRETCH = 256


@dataclass(frozen=True, slots=True)
class Batch:
    """Right-padded texts.

    Attributes:
        features: float32 `[texts, time, 4 * hidden_size]`; zero in the padding.
        tokens: int64 `[texts, time]`; zero in the padding.
        lengths: int64 `[texts]`.
        prompt_lengths: int64 `[texts]`.
        weights: float32 `[texts, time]`, loss weight of each token; None derives it from the prompt
            lengths.
        reveal: what a network reads in place of these rows, a `training.module.Reveal`, or None.
    """

    features: LogitArray
    tokens: IntArray
    lengths: IntArray
    prompt_lengths: IntArray
    weights: LogitArray | None = None
    reveal: Any = None

    @property
    def size(self) -> int:
        return int(self.lengths.sum())


class FeatureSource:
    """Compute features by the target; with `folder`, cache them as float16 files for later runs."""

    def __init__(self, target: Target, folder: Path | None = None) -> None:
        self._target = target
        self._folder = folder
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)

    def of(self, text: Text) -> LogitArray:
        """Return float32 `[tokens, 4 * hidden_size]`; InvalidOption if the cache is unwritable."""
        if self._folder is None:
            return self._compute(text)
        path = self._folder / f"{text.index}.npy"
        if path.exists():
            kept = np.load(path, allow_pickle=False)
            if len(kept) == len(text.tokens):
                features: LogitArray = kept.astype(np.float32)
                return features
        features = self._compute(text)
        self.keep(text, features)
        return features

    def keep(self, text: Text, features: LogitArray) -> None:
        """Write features as float16; InvalidOption if the folder is unwritable."""
        assert self._folder is not None
        advice = "leave out --keep-features, or give another folder"
        path = self._folder / f"{text.index}.npy"
        with written_file(path, advice) as part, part.open("wb") as file:
            np.save(file, features.astype(np.float16))

    def _compute(self, text: Text) -> LogitArray:
        cache, ids = self._target.open(), text.tokens.tolist()
        run = store = None
        if text.picture is not None:
            store = cast(TakesRows, self._target).rows
            run = store.hold(text.picture.tobytes(), len(text.picture))
            if not run.filled:
                store.fill(run, text.picture.astype(np.float32))
            ids[text.begin : text.begin + len(run.ids)] = run.ids
        try:
            features = self._target.prefill(cache, ids, True)
        finally:
            self._target.release(cache)
            if store is not None and run is not None:
                store.drop(run)
        assert features is not None
        return features

    def batch(self, texts: Sequence[Text]) -> Batch:
        lengths = np.array([len(text.tokens) for text in texts], dtype=np.int64)
        prompts = np.array([text.prompt_length for text in texts], dtype=np.int64)
        features = padded([self.of(text) for text in texts])
        return Batch(features, padded([text.tokens for text in texts]), lengths, prompts)


class FeatureRecorder(NoDrafter):
    """Record features while the target writes, so that training need not read its texts again."""

    needs = Needs(features=True)

    def __init__(self) -> None:
        self._rows: dict[int, list[LogitArray]] = {}

    def read(self, sequence: Generation, features: LogitArray) -> None:
        # Anew if the sequence was preempted.
        self._rows[sequence.id] = [features.astype(np.float16)]

    def learn(self, verified: VerifiedDraft) -> None:
        features = verified.output.features
        assert features is not None
        self._rows.setdefault(verified.sequence.id, []).append(features.astype(np.float16))

    def take(self, request: int) -> LogitArray:
        """Return float16 `[tokens, 4 * hidden_size]` of an ended request, and forget them.

        The row of the last token, which the target has not read, is zero; no loss reads it.
        """
        rows = self._rows.pop(request)
        return np.concatenate([*rows, np.zeros_like(rows[-1][-1:])])


def feature_source(target: Target, folder: Path | None = None) -> FeatureSource:
    """Build a `FeatureSource`; InvalidOption if the target's runtime gives no features."""
    if not target.capabilities.feature_layers:
        raise InvalidOption(
            f"runtime '{target.capabilities.runtime}' gives no features: use cpu or torch"
        )
    return FeatureSource(target, folder)


def hold_out(texts: Sequence[Text], more: str = MORE) -> tuple[list[Text], list[Text]]:
    """Split into training and held-out texts, deterministically.

    InvalidOption if there are too few, which says how to have `more`.
    """
    apart = [text for i, text in enumerate(texts) if i % _HELD_OUT_EVERY == 40][:_HELD_OUT_MOST]
    if not apart:
        raise InvalidOption(
            f"{len(texts)} texts are too few to train on: write {_HELD_OUT_EVERY} or more {more}"
        )
    indices = {text.index for text in apart}
    return [text for text in texts if text.index not in indices], apart


def padded(rows: Sequence[npt.NDArray[Scalar]]) -> npt.NDArray[Scalar]:
    """Stack `[length, ...]` rows to `[texts, time, ...]`, zero-padded on the right."""
    time = max(len(each) for each in rows)
    out = np.zeros((len(rows), time, *rows[0].shape[1:]), dtype=rows[0].dtype)
    for place, each in zip(out, rows, strict=True):
        place[: len(each)] = each
    return out


def order(texts: Sequence[Text], batch_tokens: int, seed: int) -> list[list[Text]]:
    """Shuffle texts into batches of similar length, each text once.

    `batch_tokens` includes padding; a longer text is a batch of its own.
    """
    generator = np.random.default_rng(seed)
    shuffled = [texts[i] for i in generator.permutation(len(texts))]
    groups: list[list[Text]] = []
    for begin in range(0, len(shuffled), _STRETCH):
        group: list[Text] = []
        # Sorted within stretches alone, so that batches differ from one pass to the next.
        for text in sorted(shuffled[begin : begin + _STRETCH], key=lambda t: len(t.tokens)):
            if group and len(text.tokens) * (len(group) + 1) > batch_tokens:
                groups.append(group)
                group = []
            group.append(text)
        groups.append(group)
    return [groups[i] for i in generator.permutation(len(groups))]


class TokenSource(FeatureSource):
    """Zero features for token-only networks trained on labels alone, without target forwards."""

    def __init__(self, hidden_size: int) -> None:
        self._width = 4 * hidden_size

    def of(self, text: Text) -> LogitArray:
        return np.zeros((len(text.tokens), self._width), dtype=np.float32)
