"""Both kinds of automata, and all that can be seen of one."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.drafters.suffix.automaton import (
    ROOT_STATE,
    Automaton,
    NativeAutomaton,
    PlainAutomaton,
)
from paceline.native.library import library

NATIVE = library() is not None

TEMPERATURE_KINDS: list[type[Automaton]] = [PlainAutomaton, *([NativeAutomaton] if NATIVE else [])]
"""Those that are to be had here."""


def built(kind: type[Automaton], texts: Sequence[Sequence[int]], depth: int = 32) -> Automaton:
    """An automaton of some texts, the last of which may go on."""
    automaton = kind(depth)
    for index, text in enumerate(texts):
        if index:
            automaton.begin()
        automaton.extend(text)
    return automaton


def seen(automaton: Automaton) -> list[object]:
    """What it knows: the texts, the match, and state by state the rest."""
    states = range(len(automaton.count))
    tokens = sorted(set(automaton.log))
    return [
        *(automaton.depth, list(automaton.log), automaton.match),
        *(list(automaton.count), list(automaton.end)),
        [automaton.followers(state) for state in states],
        [automaton.followed(state) for state in states],
        [automaton.back_off(state) for state in states if state != ROOT_STATE],
        [automaton.step(state, t) for state in states for t in tokens if t >= 0],
    ]
