"""Pictures in chats: what templates write for one, the words around it, and tokens for its rows."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.errors import ModelError, PromptError
from paceline.models.pictures import Picture
from paceline.models.towers import Projector, Vision

BLIND = "is a picture, and this model reads none: load it with its mmproj file (--mmproj FILE)"

_FAKE = "<fake_token_around_image>"
# By projector: the special token that templates write for a picture, and what is encoded in its
# stead; "{}" is where rows are. Of Gemma 3 as transformers has it.
_WORDS: dict[Projector, tuple[str, str]] = {
    "idefics3": ("<image>", f"{_FAKE}<global-img>{{}}{_FAKE}"),
    "gemma3": ("<start_of_image>", "\n\n<start_of_image>{}<end_of_image>\n\n"),
    "mlp": ("<image>", "{}"),
}
# Special tokens that may stand for a row: text models of Gemma 3 have no soft one.
_ROW: dict[Projector, tuple[str, ...]] = {
    "idefics3": ("<image>",),
    "gemma3": ("<image_soft_token>", "<pad>"),
    "mlp": ("<image>",),
}


@dataclass(frozen=True, slots=True)
class PictureWords:
    """What stands for a picture in a prompt.

    Attributes:
        place: special token that chat templates write for it.
        around: what is encoded in its stead, with one `row` within.
        row: special token that stands for each of its rows.
        rows: how many it has.
    """

    place: str
    around: str
    row: str
    rows: int

    @classmethod
    def of(cls, vision: Vision, special: Collection[str]) -> PictureWords:
        """Choose those of a model with these `special` tokens; ModelError if it lacks some."""
        place, around = _WORDS[vision.projector]
        rows = _ROW[vision.projector]
        if vision.token is not None:
            place, rows = vision.token, (vision.token,)
        row = next((each for each in rows if each in special), None)
        if row is None or place not in special:
            raise ModelError(
                f"the vocabulary has no special token {place} for pictures: give the text model "
                "that comes with the mmproj file"
            )
        return cls(place, around.format(row), row, vision.rows)

    def placed(
        self, messages: Sequence[Mapping[str, Any]], template: str
    ) -> list[Mapping[str, Any]]:
        """Return messages without pictures, as a template takes them.

        One that knows of none sees what it would write itself.
        """
        from paceline.models.template import OWN, traced  # it brings jinja2

        part: dict[str, Any] = {"type": "image"}
        if "image" not in template:
            part = {"type": "text", "text": traced(self.place, OWN)}
        return [
            {**each, "content": [part if _is_picture(one) else one for one in each["content"]]}
            if pictures_in([each])
            else each
            for each in messages
        ]


def pictures_in(messages: Any) -> list[Picture]:
    """Return the pictures of chat messages in their order; none of other prompts.

    PromptError: a part of type "image" holds something else.
    """
    found: list[Picture] = []
    listed = messages if isinstance(messages, list | tuple) else ()
    for at, message in enumerate(listed):
        parts = message.get("content") if isinstance(message, Mapping) else None
        for part in parts if isinstance(parts, list | tuple) else ():
            if _is_picture(part):
                if not isinstance(part.get("image"), Picture):
                    raise PromptError(
                        f"messages[{at}]: an image must be a Picture, as Picture.open(FILE) is"
                    )
                found.append(part["image"])
    return found


def _is_picture(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") == "image"
