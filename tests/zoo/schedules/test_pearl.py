"""PEARL: texts of plain decoding, drafts that overlap, caches that follow, errors in the thread."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as List
from threading import Event, current_thread

import numpy as np
import pytest
from tests.helpers.decoding_loop import decode

from paceline.core.target import Output, Pass, Target
from paceline.core.types import LogitArray, SamplingParams
from paceline.drafters.base import Drafter, DrafterContext, NoDrafter
from paceline.engine.loop import AutoregressiveDecoder
from paceline.engine.stopping import StopRules
from paceline.errors import InvalidOption
from paceline.policy.controller import Fixed
from paceline.proof.tabular import TabularModel, TabularTarget
from paceline.verifiers.matching import Coupled
from paceline.zoo.schedules.pearl import Pearl

VOCABULARY = 6
BIG, OTHER = (TabularModel(VOCABULARY, 2, seed=s, sharpness=2.0) for s in (1, 2))
PROMPTS = [[0, 3], [1, 2, 5, 1], [4]]


def near(text: tuple[int, ...]) -> LogitArray:
    """Logits of a draft model that often agrees with the target."""
    return (BIG.logits(text) + 0.4 * OTHER.logits(text)).astype(np.float32)


class Slow(TabularTarget):
    """A target whose forwards last until the draft model has made some tokens in the meantime."""

    def __init__(self, tokens: int = 0) -> None:
        super().__init__(BIG.logits, VOCABULARY)
        self.wanted, self.draft = tokens, Drafts(near)

    def forward(self, passes: List[Pass]) -> list[Output]:
        goal = self.draft.forwards + self.wanted
        while self.draft.forwards < goal and self.draft.moved.wait(0.02):
            self.draft.moved.clear()
        return super().forward(passes)


class Drafts(TabularTarget):
    """The draft model, counting what it does outside of the main thread."""

    def __init__(self, logits: Callable[[tuple[int, ...]], LogitArray]) -> None:
        super().__init__(logits, VOCABULARY)
        self.forwards, self.moved, self.fails = 0, Event(), False
        self.check: Callable[[list[list[int]]], None] = lambda read: None

    def forward(self, passes: List[Pass]) -> list[Output]:
        assert current_thread().name == "paceline-pearl"
        if self.fails:
            raise MemoryError("no room to draft")
        self.check([[*each.cache.tokens, *each.pending] for each in passes])
        out = super().forward(passes)
        self.forwards += 1
        self.moved.set()
        return out


def decoder(target: Target, drafter: Drafter, nodes: int = 8) -> AutoregressiveDecoder:
    return AutoregressiveDecoder(
        target, drafter, Coupled(), Fixed(nodes, nodes), StopRules((), 4096)
    )


def params(temperature: float, tokens: int = 30) -> SamplingParams:
    return SamplingParams(temperature=temperature, max_new_tokens=tokens, seed=5)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(("least", "waits"), [(0, 0), (0, 3), (4, 0), (1, 2)])
def test_texts_are_those_of_plain_decoding(temperature: float, least: int, waits: int) -> None:
    """Together and preempted by budgets of every size; nothing of a text depends on time."""
    plain = decoder(TabularTarget(BIG.logits, VOCABULARY), NoDrafter())
    expected = [each.generated for each in decode(plain, PROMPTS, params(temperature))]
    target = Slow(waits)
    drafter = Pearl(target.draft, VOCABULARY, least=least, most=7)
    found = decode(decoder(target, drafter), PROMPTS, params(temperature))
    assert [each.generated for each in found] == expected
    if least or waits:
        assert sum(each.stats.accepted_tokens for each in found) > 10
        assert all(each.stats.target_forwards < 30 for each in found)


def test_a_perfect_draft_model_is_always_right() -> None:
    """Post-verification: after the first step every forward brings a window and one token."""
    target = Slow()
    target.draft = Drafts(BIG.logits)
    drafter = Pearl(target.draft, VOCABULARY, least=5, most=5)
    [done] = decode(decoder(target, drafter), [[0, 3]], params(1.0))
    assert done.stats.accepted_tokens == done.stats.drafted_tokens
    # The first token, then windows of five: the first token behind a draft is checked with it.
    assert done.stats.target_forwards == 1 + -(-29 // 5)


def test_the_cache_of_the_draft_model_holds_what_it_should() -> None:
    """Every draft forward reads the text and what was drafted behind it; control: no rollback."""
    target = Slow()
    drafter = Pearl(target.draft, VOCABULARY, least=4)
    wrong = 0

    def check(read: list[list[int]]) -> None:
        nonlocal wrong
        known = [[*each.tokens, *drafter._ahead[each.id][1]] for each in drafter._sequences]
        wrong += sum(text not in known for text in read)

    target.draft.check = check
    decode(decoder(target, drafter), PROMPTS, params(1.0))
    assert wrong == 0
    drafter._shorten = lambda sequence, length: None  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="pending"):
        decode(decoder(target, drafter), PROMPTS, params(1.0))


def test_an_error_while_drafting_costs_drafts_alone(survived: list[str]) -> None:
    plain = decoder(TabularTarget(BIG.logits, VOCABULARY), NoDrafter())
    expected = [each.generated for each in decode(plain, PROMPTS, params(1.0))]
    target = Slow()
    target.draft.fails = True
    running = decoder(target, Pearl(target.draft, VOCABULARY, least=4))
    running.isolate()
    found = decode(running, PROMPTS, params(1.0))
    assert [each.generated for each in found] == expected
    assert [each.stats.drafter_errors for each in found] == [1, 1, 1]
    [note] = survived
    assert "no room to draft" in note
    survived.clear()


def test_options() -> None:
    context = DrafterContext(
        TabularTarget(BIG.logits, VOCABULARY).capabilities, lambda: Drafts(near)
    )
    assert Pearl.create(context).kind is None
    for wrong in ({"least": -1}, {"least": 9, "most": 8}, {"most": 0}):
        with pytest.raises(InvalidOption):
            Pearl(Drafts(near), VOCABULARY, **wrong)
    with pytest.raises(InvalidOption, match="no q"):
        Pearl.create(DrafterContext(context.target, context.draft_model, frozenset({"iid"})))
