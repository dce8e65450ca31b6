"""Bodies that are forms, of which files are not copied."""

from __future__ import annotations

import re
from collections.abc import Iterator
from email.parser import BytesParser
from email.policy import HTTP
from typing import Any, TypeVar

from msgspec import Struct

from paceline.serving.protocol import BadRequest, checked

T = TypeVar("T", bound=Struct)

UPLOAD = 100 * 1024 * 1024
"""Most bytes of a form."""

_GAP, _HEAD = re.compile(rb"\r?\n\r?\n"), 16_384  # behind heads of parts, and their most bytes
_PARTS = 1000  # most of a form


def form_parts(body: bytes, kind: str) -> Iterator[tuple[str, str | None, memoryview]]:
    """Yield names, file names and values of a form's parts.

    `kind` is the content type of the body; of one that is no form there are none.
    """
    read = BytesParser(policy=HTTP).parsebytes
    boundary = read(b"content-type: " + kind.encode() + b"\r\n\r\n").get_boundary("")
    mark = b"--" + boundary.encode()
    begin = body.find(mark)
    while begin >= 0 and (top := _GAP.search(body, begin, begin + _HEAD)):
        if (end := body.find(b"\n" + mark, top.end() - 1)) < 0:
            break
        part: Any = read(body[begin + len(mark) : top.end()].lstrip())
        value = memoryview(body)[top.end() : end - (body[end - 1 : end] == b"\r")]
        name = part.get_param("name", header="content-disposition")
        yield str(name), part.get_filename(), value
        begin = end + 1


def decode_form(
    kind: type[T], body: bytes, content_type: str, strict: bool = False
) -> tuple[T, list[str]]:
    """Return the checked body of a form, as `protocol.decode` that of JSON; "file" is bytes."""
    if not content_type.lower().startswith("multipart/form-data"):
        raise BadRequest(
            "content-type: the body must be multipart/form-data: send a form with file and model",
            "content-type",
            415,
        )
    fields: dict[str, Any] = {}
    for number, (name, _, value) in enumerate(form_parts(body, content_type)):
        if number == _PARTS:
            raise BadRequest(f"the form has more than {_PARTS} parts: send fewer", status=413)
        given: Any = bytes(value)
        if name != "file":
            try:
                given = given.decode()
            except UnicodeError as error:
                raise BadRequest(f"{name[:100]}: it is no UTF-8 ({error})", name[:100]) from error
        plain = name.removesuffix("[]")
        if plain != name:
            fields.setdefault(plain, []).append(given)
        elif plain in fields:
            raise BadRequest(f"{name[:100]}: it is given twice: leave out one", name[:100])
        else:
            fields[plain] = given
    return checked(kind, fields, strict, texts=True)
