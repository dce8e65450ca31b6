"""Grammar of names: which methods, with which options, and how several go together.

    method   NAME or NAME:key=value,key=value
    merge    A+B                  union of both drafts in one tree, highest scores first
             graft:floor=0.3+A+B  A's nodes above a score, then B's
             fuse+A+B             A's nodes, and B's that share a prefix with A's
    cascade  A>B                  A, and B where A expects few accepted tokens
    choice   A|B                  bandit: one of them per step
             choose:seed=1|A|B    the same with options

"+" binds closest and "|" loosest: A+B>C|D is ((A+B)>C)|D. Of these a sampler has the cascade
alone, as wrapper>rule, and all other kinds are one method, so that signs are text in their options.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from paceline.errors import InvalidOption

Way = Literal["blend", "graft", "fuse"]

# Signs of a kind, the loosest first, and names that may stand first to say how parts combine.
_SIGNS = {"drafter": "|>+", "sampler": ">"}
_HEADS = {"|": ("choose",), "+": get_args(Way)}


@dataclass(frozen=True, slots=True)
class Expression:
    """A method, or `parts` with a `sign` between them, and perhaps a name for how they combine."""

    text: str
    name: str = ""
    options: Mapping[str, str] = field(default_factory=dict, hash=False)
    sign: str = ""
    parts: tuple[Expression, ...] = ()

    @property
    def names(self) -> list[str]:
        return [method.name for method in self.methods()]

    def methods(self) -> list[Expression]:
        """Return all methods, from left to right."""
        return [each for part in self.parts for each in part.methods()] if self.parts else [self]


def parse(text: str, kind: str) -> Expression:
    """Read a name of a kind; InvalidOption if a part is empty, or options are malformed."""
    for sign in _SIGNS.get(kind, ""):
        texts = [part.strip() for part in text.split(sign)]
        if kind == "drafter" and not all(texts):
            raise InvalidOption(f"{kind} {text!r} has an empty part: write A{sign}B")
        if len(texts) > 1:
            first, *others = (parse(part, kind) for part in texts)
            if first.name in _HEADS.get(sign, ()):
                return Expression(text, first.name, first.options, sign, tuple(others))
            return Expression(text, sign=sign, parts=(first, *others))
        [text] = texts
    name, colon, rest = text.partition(":")
    options: dict[str, str] = {}
    for entry in rest.split(",") if colon else ():
        key, equals, value = (part.strip() for part in entry.partition("="))
        if not key or not equals or key in options:
            raise InvalidOption(
                f"{kind} option {entry!r} is no key=value, or is given twice: write "
                f"{name}:key=value,key=value"
            )
        options[key] = value
    return Expression(text, name, options)


def split_lists(texts: Iterable[str], option: str) -> list[str]:
    """Split lists at the commas between names: "a:x=1,y=2,b" is two, since y=2 follows a colon.

    InvalidOption if a name is empty or given twice in `option`.
    """
    names: list[str] = []
    for text in texts:
        mine: list[str] = []
        for item in text.split(","):
            if mine and ":" in mine[-1] and re.match(r"\s*[\w-]+\s*=", item):
                mine[-1] += f",{item.strip()}"
            else:
                mine.append(item.strip())
        if not all(mine):
            raise InvalidOption(f"{option} {text!r} has an empty name: separate names by one comma")
        names += mine
    for name in names:
        if names.count(name) > 1:
            raise InvalidOption(f"{option} names {name} twice: name it once")
    return names
