"""Parser of drafter expressions.

NAME                        a registered drafter
NAME:key=value,key=value    with options
A+B                         union of both drafts in one tree, highest scores first
graft:floor=0.3+A+B         A's nodes above a score, then B's
fuse+A+B                    A's nodes, and B's that share a prefix with A's
A>B                         A, and B where A expects few accepted tokens; A, B may be merged
A|B                         bandit: one of them per step; A, B may be any of these
choose:seed=1|A|B           the same with options
"""

from __future__ import annotations

from dataclasses import replace
from typing import cast, get_args

from paceline.core.options import arguments, split_options
from paceline.drafters.base import Drafter, DrafterContext
from paceline.drafters.combine.bandit import Choose
from paceline.drafters.combine.fallback import FallbackDrafter
from paceline.drafters.combine.merged import Merged, Way
from paceline.errors import InvalidOption
from paceline.registry import table as registry

_WAYS = get_args(Way)


def check_drafter(text: str) -> None:
    """Raise InvalidOption on unknown names or empty parts, before anything is loaded."""
    for turn in _parts(text, "|"):
        for preferred in _parts(turn, ">"):
            for part in _parts(preferred, "+"):
                name = split_options(part, "drafter")[0]
                if name not in (*_WAYS, Choose.name):
                    registry.find("drafter", name)


def make_drafter(text: str, context: DrafterContext) -> Drafter:
    """Build a drafter for a target; InvalidOption if unknown, or if parts cannot work together."""
    turns = _parts(text, "|")
    if len(turns) > 1 or len(_parts(text, "+")) > 1:
        # Parts see each other's drafts and take all nodes for tokens.
        context = replace(context, add_embeddings=None)
    if len(turns) > 1:
        name, options = split_options(turns[0], "drafter")
        named = name == Choose.name
        settings = arguments(Choose, "drafter", options) if named else {}
        return Choose([make_drafter(turn, context) for turn in turns[named:]], **settings)
    preferred = _parts(text, ">")
    if len(preferred) > 1:
        return FallbackDrafter([make_drafter(part, context) for part in preferred])
    parts = _parts(text, "+")
    if len(parts) == 1:
        name, options = split_options(text, "drafter")
        factory = registry.find("drafter", name).load()
        return cast(Drafter, factory.create(replace(context, options=options)))
    way, options = split_options(parts[0], "drafter")
    if way not in _WAYS:
        return Merged([make_drafter(part, context) for part in parts])
    chosen = arguments(Merged, "drafter", options, "way")
    return Merged([make_drafter(part, context) for part in parts[1:]], way=cast(Way, way), **chosen)


def _parts(text: str, sign: str) -> list[str]:
    parts = [part.strip() for part in text.split(sign)]
    if not all(parts):
        raise InvalidOption(f"drafter {text!r} has an empty part: write A{sign}B")
    return parts
