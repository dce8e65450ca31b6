"""Training text on disk, in safetensors files with their settings."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from paceline.core.cache import whole_file
from paceline.errors import InvalidOption
from paceline.training.writing import Text

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
