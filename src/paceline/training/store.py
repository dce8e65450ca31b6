"""Labelled mismatches on disk, so that labelling resumes where it stopped."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.errors import InvalidOption
from paceline.models.whole_file import whole_file
from paceline.training.collect import Labelled
from paceline.types import IntArray, LogitArray, ProbArray


class ExampleStore:
    """One safetensors file: features, losses and prompt of every example, and the settings."""

    def __init__(self, path: Path, settings: Mapping[str, Any]) -> None:
        """Open a file, new or left by a run with the same settings.

        Raises:
            InvalidOption: the file is no such store, or of a run with other settings.
        """
        self.path = path
        self._settings = json.dumps(settings, sort_keys=True)
        self._parts: list[Labelled] = []
        self._prompts: list[int] = []
        self.done = 0
        """How many prompts were labelled, from the first on."""
        if path.exists():
            self._read()

    def add(self, labelled: Labelled) -> None:
        """Take the examples of the next prompt; `save` writes them."""
        self._parts.append(labelled)
        self._prompts += [self.done] * len(labelled.losses)
        self.done += 1

    def examples(self) -> tuple[LogitArray, ProbArray, IntArray]:
        """Features, losses and prompt index of all examples.

        Raises:
            InvalidOption: there are none.
        """
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
        """Write the file, whole or not at all.

        Raises:
            InvalidOption: it cannot be written.
        """
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
