"""How a model may write a call of a tool; the forms of families stand in `serving.answers`."""

from __future__ import annotations

from typing import NamedTuple


class Notation(NamedTuple):
    """How arguments are written that are no JSON object.

    Attributes:
        key: text before the name of an argument.
        value: text between its name and its value.
        close: text behind its value.
        comma: text between arguments.
        stops: texts of which none is in an argument that is a string, which is written as it is.
            If there are none it stands between quotes. Other arguments are JSON.
        quote: text around strings, which are written as they are unless it is JSON's.
        words: of null, true and false.
    """

    key: str = ""
    value: str = ""
    close: str = ""
    comma: str = ""
    stops: tuple[str, ...] = ()
    quote: str = '"'
    words: tuple[str, str, str] = ("null", "true", "false")


class CallForm(NamedTuple):
    """How one call is written.

    Attributes:
        head: text before the name.
        neck: text between the name and the arguments.
        tail: text behind the arguments.
        notation: of the arguments; None is a JSON object.
        mark: text between the name and an id of nine letters and digits, which stands before the
            neck; empty if calls have no ids.
    """

    head: str = ""
    neck: str = ""
    tail: str = ""
    notation: Notation | None = None
    mark: str = ""


CALL_ID = "[a-zA-Z0-9]{9}"
"""Expression of a call's id, as Mistral's templates demand."""
OBJECT = CallForm('{"name": "', '", "arguments": ', "}")
PYTHON = CallForm("", "(", ")", Notation(value="=", comma=", ", words=("None", "True", "False")))
