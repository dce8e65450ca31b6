"""Texts on disk: safetensors shards of flat token ids, each with the settings that made it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from paceline.errors import InvalidOption
from paceline.models.whole_file import whole_file
from paceline.training.data.writing import Text

SHARD = 256
"""Texts per shard, by index: shard k holds those of [k SHARD, (k + 1) SHARD) that came about."""


class Shards:
    """A folder of shards, which all come from one plan."""

    def __init__(self, folder: Path, settings: Mapping[str, str] | None = None) -> None:
        """Open a folder.

        Args:
            folder: made if missing, when `settings` are given.
            settings: what the texts are made from; None reads what is there.

        Raises:
            InvalidOption: the folder holds shards of other settings, or none to read.
        """
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
        """Indices below `texts` whose shard is not written yet."""
        for shard in range(-(-texts // SHARD)):
            if not self._path(shard).exists():
                yield from range(shard * SHARD, min(texts, (shard + 1) * SHARD))

    def write(self, shard: int, texts: Sequence[Text]) -> None:
        """Write a shard as a whole: it is there completely or not at all.

        Raises:
            InvalidOption: the folder cannot be written.
        """
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
        """All texts, in order.

        Raises:
            InvalidOption: a shard is damaged.
        """
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
        """Tokens of all shards, prompts included."""
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
