"""Training text and labelled mismatches on disk, in safetensors files with their settings."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.core.types import IntArray, LogitArray, ProbArray
from paceline.errors import InvalidOption
from paceline.networks.weights import read_metadata, read_tensors, write_tensors
from paceline.training.writing import Text
from paceline.zoo.heads.training import Labelled

# Texts on disk:

# Texts per shard: shard k holds the texts that exist of indices [k SHARD, (k + 1) SHARD).
SHARD = 256


class Shards:
    """Folder of shards of one plan: made if missing with `settings`; None reads what is there.

    Raises:
        InvalidOption: the folder holds shards of other settings, or none to read.
    """

    def __init__(self, folder: Path, settings: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        if settings is not None:
            folder.mkdir(parents=True, exist_ok=True)
        paths = self._paths()
        if settings is None and not paths:
            raise InvalidOption(
                f"{folder} holds no training text: write some with `paceline train data`"
            )
        self.settings = dict(settings) if settings is not None else _read_settings(paths[0])
        for path in paths:
            if _read_settings(path) != self.settings:
                raise InvalidOption(
                    f"{path} was made with other settings: choose another folder, or repeat the "
                    "settings to go on"
                )

    def missing(self, texts: int) -> Iterator[int]:
        """Yield indices below `texts` whose shard is not written yet."""
        for shard in range(-(-texts // SHARD)):
            if not self._path(shard).exists():
                yield from range(shard * SHARD, min(texts, (shard + 1) * SHARD))

    def write(self, shard: int, texts: Sequence[Text]) -> None:
        """Write a shard atomically; InvalidOption if the folder cannot be written."""
        ordered = sorted(texts, key=lambda text: text.index)
        lengths = [len(text.tokens) for text in ordered]
        tensors: dict[str, np.ndarray] = {
            "tokens": np.concatenate([np.zeros(0, np.int32), *(t.tokens for t in ordered)]).astype(
                np.int32
            ),
            "begins": np.cumsum([0, *lengths]).astype(np.int64),
            "prompt_lengths": np.array([t.prompt_length for t in ordered], dtype=np.int64),
            "indices": np.array([t.index for t in ordered], dtype=np.int64),
        }
        metadata = {"settings": json.dumps(self.settings, sort_keys=True)}
        advice = "free some space, and repeat the command to go on"
        write_tensors(self._path(shard), tensors, metadata, advice)

    def read(self) -> list[Text]:
        """Return all texts in order; InvalidOption if a shard is damaged."""
        texts = []
        for path in self._paths():
            advice = "delete it, and repeat `paceline train data`"
            found = read_tensors(path, "training text", advice).tensors
            try:
                tokens, begins = found["tokens"], found["begins"].tolist()
                spans = pairwise(begins)
                rows = zip(found["indices"], found["prompt_lengths"], spans, strict=True)
            except KeyError as error:
                raise InvalidOption(f"{path} holds no training text: {advice}") from error
            texts += [
                Text(int(index), tokens[a:b].astype(np.int64), int(prompt))
                for index, prompt, (a, b) in rows
            ]
        return texts

    @property
    def tokens(self) -> int:
        return sum(len(text.tokens) for text in self.read())

    def _path(self, shard: int) -> Path:
        return self.folder / f"shard-{shard:05d}.safetensors"

    def _paths(self) -> list[Path]:
        return sorted(self.folder.glob("shard-*.safetensors"))


def _read_settings(path: Path) -> dict[str, str]:
    advice = "delete it, and write it again"
    metadata = read_metadata(path, "training text", advice)
    try:
        settings = json.loads(metadata["settings"])
    except (KeyError, ValueError) as error:
        raise InvalidOption(f"{path} holds no training text ({error}): {advice}") from error
    return {str(key): str(value) for key, value in settings.items()}


def read_folders(folders: Sequence[Path]) -> tuple[list[Text], dict[str, str]]:
    """Read texts of several `paceline train data` folders, renumbered, with their merged settings.

    Raises:
        InvalidOption: a folder is empty, damaged, named twice, or of another model than the first.
    """
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise InvalidOption("a folder of training text is named twice: name each once")
    shards = [Shards(folder) for folder in folders]
    first = shards[0]
    for other in shards[1:]:
        if other.settings["model"] != first.settings["model"]:
            raise InvalidOption(
                f"{first.folder} and {other.folder} were written by different models: train on "
                "text of one"
            )
    if len(shards) == 1:
        return first.read(), first.settings
    texts = [text for each in shards for text in each.read()]
    settings: dict[str, str] = {}
    for key in dict.fromkeys(key for each in shards for key in each.settings):
        values = [each.settings.get(key, "") for each in shards]
        settings[key] = values[0] if len(set(values)) == 1 else "; ".join(values)
    return [replace(text, index=place) for place, text in enumerate(texts)], settings


# Labelled mismatches on disk, so that labelling resumes where it stopped.


class ExampleStore:
    """Labelled mismatches in one file, for resumable labelling.

    Raises:
        InvalidOption: the file is no such store, or of a run with other settings.
    """

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        self.path = path
        self._settings = json.dumps(settings, sort_keys=True)
        self._parts: list[Labelled] = []
        self._prompts: list[int] = []
        # Prompts labelled, from the first on.
        self.done = 0
        if path.exists():
            self._read()

    def add(self, labelled: Labelled) -> None:
        self._parts.append(labelled)
        self._prompts += [self.done] * len(labelled.losses)
        self.done += 1

    def examples(self) -> tuple[LogitArray, ProbArray, IntArray]:
        """Return features, losses and prompt index of all examples; InvalidOption if none."""
        parts = [part for part in self._parts if len(part.losses)]
        if not parts:
            raise InvalidOption(
                "no drafted token missed the target's own: give more prompts or other drafters"
            )
        return (
            np.concatenate([part.features for part in parts]),
            np.concatenate([part.losses for part in parts]),
            np.array(self._prompts, dtype=np.int64),
        )

    def save(self) -> None:
        """Write the file atomically; InvalidOption if it cannot be written."""
        if not self._prompts:
            return
        features, losses, prompts = self.examples()
        tensors: dict[str, npt.NDArray[Any]] = {
            "features": features,
            "losses": losses,
            "prompts": prompts,
        }
        metadata = {"settings": self._settings, "done": str(self.done)}
        write_tensors(self.path, tensors, metadata, "give another --examples")

    def _read(self) -> None:
        advice = "give another --examples or remove it"
        tensors, metadata = read_tensors(self.path, "labelled examples", advice)
        try:
            settings, done = metadata["settings"], int(metadata["done"])
            labelled = Labelled(tensors["features"], tensors["losses"])
            prompts = tensors["prompts"].tolist()
        except (KeyError, ValueError) as error:
            raise InvalidOption(f"{self.path} holds no labelled examples: {advice}") from error
        if settings != self._settings:
            mine, theirs = json.loads(self._settings), json.loads(settings)
            different = sorted(k for k in mine.keys() | theirs if mine.get(k) != theirs.get(k))
            raise InvalidOption(
                f"{self.path} was labelled with other settings ({', '.join(different)}): give "
                "another --examples, or the same settings to resume"
            )
        self._parts, self._prompts, self.done = [labelled], prompts, done
