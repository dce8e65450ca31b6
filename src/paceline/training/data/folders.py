"""Texts of several folders as one data set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from paceline.errors import InvalidOption
from paceline.training.data.shards import Shards
from paceline.training.data.writing import Text


def read_folders(folders: Sequence[Path]) -> tuple[list[Text], dict[str, str]]:
    """All texts, and the settings that made them; of several folders numbered anew.

    Args:
        folders: of `paceline train data`, at least one.

    Returns:
        The texts, folder by folder, and each setting: its value, or those of the folders.

    Raises:
        InvalidOption: a folder holds no text or a damaged shard, is named twice, or another model
            wrote it than the first.
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
