"""Training text and labelled mismatches on disk, in safetensors files with their settings."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from paceline.core.cache import whole_file
from paceline.core.types import IntArray, LogitArray, ProbArray
from paceline.errors import InvalidOption
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
        path = self._path(shard)
        metadata = {"settings": json.dumps(self.settings, sort_keys=True)}
        try:
            with whole_file(path) as part:
                save_file(tensors, part, metadata)
        except (OSError, SafetensorError) as error:
            raise InvalidOption(
                f"cannot write {path} ({error}): free some space, and repeat the command to go on"
            ) from error

    def read(self) -> list[Text]:
        """Return all texts in order; InvalidOption if a shard is damaged."""
        texts = []
        for path in self._paths():
            try:
                with safe_open(path, framework="numpy") as file:
                    tokens, begins = file.get_tensor("tokens"), file.get_tensor("begins")
                    prompts = file.get_tensor("prompt_lengths").tolist()
                    indices = file.get_tensor("indices").tolist()
            except (SafetensorError, OSError) as error:
                raise InvalidOption(
                    f"{path} is damaged ({error}): delete it, and repeat `paceline train data`"
                ) from error
            spans = zip(begins[:-1].tolist(), begins[1:].tolist(), strict=True)
            texts += [
                Text(index, tokens[a:b].astype(np.int64), prompt)
                for index, prompt, (a, b) in zip(indices, prompts, spans, strict=True)
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
    try:
        with safe_open(path, framework="numpy") as file:
            settings = json.loads((file.metadata() or {})["settings"])
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise InvalidOption(
            f"{path} is damaged or no training text ({error}): delete it, and write it again"
        ) from error
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
        from safetensors.numpy import save

        if not self._prompts:
            return
        features, losses, prompts = self.examples()
        tensors: dict[str, npt.NDArray[Any]] = {
            "features": features,
            "losses": losses,
            "prompts": prompts,
        }
        metadata = {"settings": self._settings, "done": str(self.done)}
        try:
            with whole_file(self.path) as part:
                part.write_bytes(save(tensors, metadata=metadata))
        except OSError as error:
            raise InvalidOption(
                f"cannot write {self.path} ({error.strerror or error}): give another --examples"
            ) from error

    def _read(self) -> None:
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(self.path, framework="numpy") as file:
                metadata = file.metadata() or {}
                settings, done = metadata["settings"], int(metadata["done"])
                labelled = Labelled(file.get_tensor("features"), file.get_tensor("losses"))
                prompts = file.get_tensor("prompts").tolist()
        except (OSError, SafetensorError, KeyError, ValueError) as error:
            raise InvalidOption(
                f"{self.path} holds no labelled examples: give another --examples or remove it"
            ) from error
        if settings != self._settings:
            mine, theirs = json.loads(self._settings), json.loads(settings)
            different = sorted(k for k in mine.keys() | theirs if mine.get(k) != theirs.get(k))
            raise InvalidOption(
                f"{self.path} was labelled with other settings ({', '.join(different)}): give "
                "another --examples, or the same settings to resume"
            )
        self._parts, self._prompts, self.done = [labelled], prompts, done
