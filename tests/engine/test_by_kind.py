"""Two drafters and two controllers, each with the requests of its own kind alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from tests.helpers.steps import step_of

from paceline.core import tree as trees
from paceline.core.types import Budget, Needs, SamplingParams, TokenTree
from paceline.drafters.base import Drafter
from paceline.engine.by_temperature import ControllersByKind, DraftersByKind
from paceline.policy.controller import Controller
from paceline.sampling.generation import Generation, VerifiedDraft

Calls = list[tuple[Any, ...]]


def sequence(id: int, temperature: float) -> Generation:
    return Generation.start(id, [1, 2], SamplingParams(temperature=temperature))


GREEDY, WARM, HOT, COLD = (sequence(i, t) for i, t in enumerate((0.0, 0.2, 1.0, 0.0)))
MIXED = [GREEDY, WARM, HOT, COLD]


def ids(sequences: Sequence[Generation]) -> tuple[int, ...]:
    return tuple(each.id for each in sequences)


class Noted(Drafter):
    """Drafts its own token, and notes who it hears of."""

    name = "noted"

    def __init__(self, token: int, features: bool) -> None:
        self.token = token
        self.needs = Needs(features=features, hidden=not features)
        self.calls: Calls = []

    def open(self, sequence: Generation) -> None:
        self.calls.append(("open", sequence.id))

    def read(self, sequence: Generation, features: Any) -> None:
        self.calls.append(("read", sequence.id))

    def propose(
        self, sequences: Sequence[Generation], budgets: Sequence[Budget]
    ) -> list[TokenTree]:
        self.calls.append(("propose", ids(sequences), [b.nodes for b in budgets]))
        return [trees.chain([self.token, s.id]) for s in sequences]

    def observe(self, step: Sequence[VerifiedDraft]) -> None:
        self.calls.append(("observe", *map(list, zip(*step, strict=True))))

    def close(self, sequence: Generation) -> None:
        self.calls.append(("close", sequence.id))


class Ruled(Controller):
    """Gives its own budget, keeps the first node, and notes what it hears."""

    name = "ruled"

    def __init__(self, nodes: int) -> None:
        self.nodes = nodes
        self.calls: Calls = []

    def budgets(self, sequences: Sequence[Generation]) -> list[Budget]:
        self.calls.append(("budgets", ids(sequences), self.beside))
        return [Budget(self.nodes, 1)] * len(sequences)

    def select(
        self, sequences: Sequence[Generation], drafts: Sequence[TokenTree]
    ) -> list[TokenTree]:
        return [trees.chain(draft.tokens[:1].tolist()) for draft in drafts]

    def observe(self, step: Sequence[VerifiedDraft], draft: float, forward: float) -> None:
        mine, verdicts = [each.sequence.id for each in step], [each.verdict for each in step]
        self.calls.append(("observe", mine, verdicts, draft, forward))

    def close(self, sequence: Generation) -> None:
        self.calls.append(("close", sequence.id))


def test_each_drafter_hears_of_its_own_requests_alone() -> None:
    one, other = Noted(7, features=False), Noted(8, features=True)
    both = DraftersByKind(one, other)
    assert both.needs == Needs(features=True, hidden=True)
    for each in MIXED:
        both.open(each)
        both.read(each, None)  # type: ignore[arg-type]
    assert one.calls == [("open", 0), ("open", 3)]
    assert other.calls == [("open", 1), ("read", 1), ("open", 2), ("read", 2)]
    one.calls.clear()
    other.calls.clear()
    drafts = both.propose(MIXED, [Budget(n, 1) for n in (10, 11, 12, 13)])
    assert [d.tokens.tolist() for d in drafts] == [[7, 0], [8, 1], [8, 2], [7, 3]]
    both.observe(step_of(MIXED, drafts, list("abcd"), list("efgh")))  # type: ignore[arg-type]
    both.close(HOT)
    assert one.calls == [
        ("propose", (0, 3), [10, 13]),
        ("observe", [GREEDY, MIXED[3]], [drafts[0], drafts[3]], ["a", "d"], ["e", "h"]),
    ]
    assert other.calls == [
        ("propose", (1, 2), [11, 12]),
        ("observe", [WARM, HOT], [drafts[1], drafts[2]], ["b", "c"], ["f", "g"]),
        ("close", 2),
    ]


def test_each_controller_rules_its_own_requests_beside_the_others() -> None:
    one, other = Ruled(3), Ruled(5)
    both = ControllersByKind(one, other)
    both.beside = 6
    budgets = both.budgets([GREEDY, WARM, HOT])
    assert [b.nodes for b in budgets] == [3, 5, 5]
    drafts = [trees.chain([n, n]) for n in (1, 2, 3)]
    kept = both.select([GREEDY, WARM, HOT], drafts)
    assert [d.tokens.tolist() for d in kept] == [[1], [2], [3]]
    both.observe(step_of([GREEDY, WARM, HOT], kept, list("abc")), 0.3, 0.9)  # type: ignore[arg-type]
    both.close(WARM)
    assert one.calls == [
        ("budgets", (0,), 8),
        ("observe", [0], ["a"], pytest.approx(0.1), 0.9),
    ]
    assert other.calls == [
        ("budgets", (1, 2), 7),
        ("observe", [1, 2], ["b", "c"], pytest.approx(0.2), 0.9),
        ("close", 1),
    ]


@pytest.mark.parametrize("kind", [(GREEDY, COLD), (WARM, HOT)])
def test_a_batch_of_one_kind_is_its_controller_s_as_if_there_were_no_other(
    kind: tuple[Generation, ...],
) -> None:
    parts = Ruled(3), Ruled(5)
    both = ControllersByKind(*parts)
    both.beside = 2
    both.budgets(kind)
    both.select(kind, [trees.EMPTY] * 2)
    mine = parts[kind == (WARM, HOT)]
    assert mine.calls == [("budgets", ids(kind), 2)]


def test_a_step_needs_what_the_drafters_of_its_requests_need() -> None:
    """Each sees its own requests alone, so a lone one beside others of another kind is alone."""

    class Sparing(Noted):
        def needs_of(self, sequences: Sequence[Generation]) -> Needs:
            return self.needs if len(sequences) == 1 else Needs()

    both = DraftersByKind(Sparing(7, features=False), Sparing(8, features=True))
    assert both.needs == Needs(features=True, hidden=True)
    assert both.needs_of([WARM]) == Needs(features=True)
    assert both.needs_of([WARM, HOT]) == Needs()
    assert both.needs_of([GREEDY, WARM, HOT]) == Needs(hidden=True)
    assert both.needs_of([GREEDY, COLD, HOT]) == Needs(features=True)
    assert both.needs_of(MIXED) == Needs()
