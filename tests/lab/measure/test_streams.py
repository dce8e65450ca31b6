"""The clock of streams: nothing is heard before its time, and what is told is what was spent."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from tests.engine.histories import logits
from tests.helpers.paged_table import PagedTable
from tests.helpers.table_engines import TOKENIZER, Target, make

from paceline.core.types import SamplingParams
from paceline.engine.engine import Engine
from paceline.engine.scheduler import POLICIES
from paceline.errors import InvalidOption
from paceline.lab.measure.streams import (
    Piece,
    Prompter,
    Room,
    Stream,
    StreamClock,
    Told,
    VirtualClock,
    WallClock,
    Way,
    play,
)

PARAMS = SamplingParams(max_new_tokens=6)
WAYS: tuple[Way, ...] = get_args(Way)
PIECES = [Piece(float(at), "the quick brown fox jumps over the lazy dog ") for at in range(1, 6)]
WHOLE = "".join(piece.what for piece in PIECES)


class Witness:
    """Says what it has heard, and when; works for `busy` seconds behind every piece."""

    def __init__(self, clock: Any, busy: float = 0.0) -> None:
        self.clock, self.busy, self.left = clock, busy, 0.0
        self.heard: list[tuple[float, Piece]] = []
        self.at: float | None = None

    def hear(self, piece: Piece) -> None:
        self.heard.append((self.clock.now(), piece))
        self.left = self.busy

    def ask(self) -> None:
        self.at = self.clock.now()

    def work(self) -> bool:
        busy, self.left = self.left, 0.0
        if busy:
            self.clock.spend(busy)
        return busy > 0

    def said(self) -> Any:
        return None if self.at is None else [piece.what for _, piece in self.heard]

    @property
    def done(self) -> bool:
        return self.at is not None


def witnessed(clock: Any, busy: float) -> None:
    """Fail if anything is heard before its time, or asked before all of it was heard."""
    witness = Witness(clock, busy)
    pieces = [Piece(at, at) for at in (0.0, 0.01, 0.02, 0.02, 0.05)]
    [told] = play([Stream(witness, pieces, 0.06)], clock)
    assert told.answer == [piece.what for piece in pieces]
    assert all(at >= piece.at for at, piece in witness.heard)
    assert told.asked == 0.06 <= told.began <= told.ended


@pytest.mark.parametrize("busy", [0.0, 0.004, 0.03])
def test_nothing_is_heard_before_its_time(busy: float) -> None:
    witnessed(VirtualClock(), busy)


def test_the_wall_has_the_same_clock() -> None:
    witnessed(WallClock(), 0.0)


def test_what_is_heard_early_is_found() -> None:
    clock = _Early(VirtualClock())
    witness = Witness(clock.true)
    play([Stream(witness, [Piece(0.5, "a")], 2.0)], clock)
    assert witness.heard[0][0] < 0.5


class _Early:
    # Says that it is later than it is.
    def __init__(self, true: StreamClock) -> None:
        self.true = true

    def now(self) -> float:
        return self.true.now() + 9.0

    def wait(self, until: float) -> None:
        self.true.wait(until)


def test_pieces_out_of_order_and_behind_the_question_are_refused() -> None:
    witness = Witness(VirtualClock())
    for pieces, asked in (([Piece(2, "a"), Piece(1, "b")], 3.0), ([Piece(2, "a")], 1.0)):
        with pytest.raises(InvalidOption, match="order of time"):
            Stream(witness, pieces, asked)


def told(way: Way, engine: Engine, clients: int = 1, seconds: float = 0.004) -> list[Told]:
    """Play the pieces to clients of an engine whose rows take `seconds` each."""
    clock, room = VirtualClock(), Room(engine)
    clock.charge(engine.decoder.target, lambda rows: 0.01 + seconds * rows)
    asked = [Stream(Prompter(room, PARAMS, way, raw=True), PIECES, 5.0) for _ in range(clients)]
    return play(asked, clock)


def test_what_is_read_ahead_is_not_waited_for_and_all_ways_say_the_same() -> None:
    found = {way: told(way, paged(60))[0] for way in WAYS}
    alone = make(Target(logits)).generate(WHOLE, PARAMS, raw=True)
    assert {each.answer.token_ids for each in found.values()} == {alone.token_ids}
    delay = {way: each.began - each.asked for way, each in found.items()}
    assert delay["writing"] < delay["caching"] < delay["waiting"]
    assert found["writing"].answer.cached_tokens > found["waiting"].answer.cached_tokens == 0


def paged(blocks: int, **limits: Any) -> Engine:
    target = PagedTable(logits, 320, blocks, context=400)
    decoder = make(target).decoder  # type: ignore[arg-type]  # a target all the same
    return Engine(decoder, TOKENIZER, **limits)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("blocks", [6, 60])
def test_policies_change_times_and_no_answer(policy: str, blocks: int) -> None:
    found = told("writing", paged(blocks, prompt_policy=policy), clients=4)
    alone = make(Target(logits)).generate(WHOLE, PARAMS, raw=True)
    assert {each.answer.token_ids for each in found} == {alone.token_ids}
