"""Events of a schedule on devices with costs: what decoding would take on another machine.

Verification is that of a text: which tokens the draft model would get right behind the true text,
and which the target's early exit would guess. So forwards are exact for a recorded text; times
are as good as the costs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np


@dataclass(frozen=True)
class Curve:
    """Seconds of a forward by rows: linear between the points given, and beyond the last two."""

    rows: Sequence[int]
    seconds: Sequence[float]

    def __call__(self, rows: int) -> float:
        x, y = np.asarray(self.rows, float), np.asarray(self.seconds, float)
        if len(x) > 1 and rows > x[-1]:
            slope = (y[-1] - y[-2]) / (x[-1] - x[-2])
            return float(y[-1] + slope * (rows - x[-1]))
        return float(np.interp(rows, x, y))

    def times(self, factor: float) -> Curve:
        return Curve(self.rows, [each * factor for each in self.seconds])


@dataclass(frozen=True)
class Costs:
    """Seconds of each device's work while the other rests.

    Attributes:
        target: forward of the target.
        draft: forward of the draft model.
        link: one way between the two.
        step: per forward of the target: sampling, bookkeeping.
        slowed: by what the target's and the draft model's work takes longer while both work.
        exit: share of the target's layers before its early exit.
        head: seconds of the head at the exit.
        fuzzy: a draft forward with grouped layers over an exact one.
    """

    target: Curve
    draft: Curve
    link: float = 0.0
    step: float = 0.0
    slowed: tuple[float, float] = (1.0, 1.0)
    exit: float = 0.5
    head: float = 0.0
    fuzzy: float = 1.0


@dataclass(frozen=True)
class Truth:
    """What verification will say of a text, by output position.

    Attributes:
        right: the draft model's token there is the target's.
        bonus: the early exit's guesses there hold the target's token.
        correction: so do those that leave the draft model's token out.
    """

    right: Sequence[bool]
    bonus: Sequence[bool] = ()
    correction: Sequence[bool] = ()

    @classmethod
    def drawn(cls, tokens: int, right: float, guessed: float = 0.0, seed: int = 0) -> Truth:
        """Draw each independently with these probabilities."""
        draws = np.random.default_rng(seed).random((3, tokens))
        return cls((draws[0] < right).tolist(), *(draws[1:] < guessed).tolist())


class Event(NamedTuple):
    """A device's work, from begin to end in seconds."""

    device: str
    begin: float
    end: float


# Work that is done one after another: device and seconds alone.
Lane = tuple[tuple[str, float], ...]


@dataclass
class Machine:
    """Devices that slow each other down, and the events so far."""

    slowed: dict[str, float] = field(default_factory=dict)
    now: float = 0.0
    events: list[Event] = field(default_factory=list)

    def run(self, *lanes: Lane) -> None:
        """Run lanes side by side until all have ended."""
        work = [list(lane) for lane in lanes]
        begun = [self.now] * len(work)
        while busy := [at for at, each in enumerate(work) if each]:
            devices = {work[at][0][0] for at in busy}
            shared = bool(self.slowed) and devices >= self.slowed.keys()
            slow = {at: self.slowed.get(work[at][0][0], 1.0) if shared else 1.0 for at in busy}
            after = min(work[at][0][1] * slow[at] for at in busy)
            for at in busy:
                device, seconds = work[at][0]
                left = seconds - after / slow[at]
                if left > 1e-12:
                    work[at][0] = device, left
                    continue
                del work[at][0]
                self.events.append(Event(device, begun[at], self.now + after))
                begun[at] = self.now + after
            self.now += after


class Run(NamedTuple):
    """A text decoded: seconds, forwards and rows of the target, accepted tokens, and events.

    `waited` counts the drafts that the target waited for.
    """

    seconds: float
    tokens: int
    forwards: int
    rows: int
    accepted: int
    waited: int
    events: list[Event]

    @property
    def per_token(self) -> float:
        return self.seconds / self.tokens


class _Decoding:
    # The text and its machine; `left` is what the request still wants.

    def __init__(self, truth: Truth, costs: Costs) -> None:
        slowed = dict(zip(("target", "draft"), costs.slowed, strict=True))
        self.machine = Machine(slowed)
        self.truth, self.costs = truth, costs
        self.at = self.forwards = self.rows = self.accepted = self.waited = 0

    @property
    def left(self) -> int:
        return len(self.truth.right) - self.at

    def target(self, rows: int, share: float = 1.0) -> Lane:
        self.rows += rows * (share == 1.0)
        return (("target", self.costs.target(rows) * share), ("target", self.costs.step))

    def drafts(self, count: int, first: int = 1, rows: int = 1, factor: float = 1.0) -> Lane:
        costs = self.costs
        work = [("draft", costs.draft(max(first, rows)))]
        work += [("draft", costs.draft(rows) * factor)] * (count - 1)
        link = (("link", costs.link),) if costs.link else ()
        return (*link, *work, *link) if count else ()

    def verify(self, drafted: int) -> bool:
        """Commit what is right of a draft, and one token more; return whether all was right."""
        found = 0
        while found < drafted and self.truth.right[self.at + found]:
            found += 1
        self.at += found + 1
        self.accepted += found
        self.forwards += 1
        return found == drafted

    def done(self) -> Run:
        run = self.machine
        tokens = len(self.truth.right)
        counts = self.forwards, self.rows, self.accepted, self.waited
        return Run(run.now, tokens, *counts, run.events)


def plain(truth: Truth, costs: Costs, window: int = 0) -> Run:
    """One token a forward."""
    run = _Decoding(truth, costs)
    while run.left:
        run.machine.run(run.target(1))
        run.verify(0)
    return run.done()


def sequential(truth: Truth, costs: Costs, window: int) -> Run:
    """Draft, then verify: `dovetail` with a link between the devices, `easyspec` if fuzzy."""
    run, unread = _Decoding(truth, costs), 1
    while run.left:
        count, before = min(window, run.left - 1), run.at
        run.waited += count > 0
        run.machine.run(run.drafts(count, unread, factor=costs.fuzzy))
        run.machine.run(run.target(1 + count))
        whole = run.verify(count)
        # Calibration reads all committed tokens again, an exact cache the newest alone.
        unread = run.at - before if costs.fuzzy != 1.0 else 1 + (whole and count > 0)
    return run.done()


def pearl(truth: Truth, costs: Costs, window: int) -> Run:
    """Draft the next window beside each forward."""
    run, ahead = _Decoding(truth, costs), 0
    while run.left:
        pending = min(ahead, run.left - 1)
        count = min(window, 2 * window - 1 - ahead, run.left - ahead - 1)
        run.machine.run(run.target(1 + pending), run.drafts(max(0, count)))
        whole = run.verify(pending)
        known = ahead + max(0, count) - pending - 1
        last = run.at - 1  # the window goes on if its next token is the one that was committed
        ahead = known if whole and known >= 0 and truth.right[last] else 0
    return run.done()


def mirror(truth: Truth, costs: Costs, window: int, branches: int = 1) -> Run:
    """Draft behind the early exit's guesses while the other layers run."""
    run, ready = _Decoding(truth, costs), False
    while run.left:
        count = min(window, run.left - 1)
        if not ready:
            run.waited += count > 0
            run.machine.run(run.drafts(count))
        run.machine.run((*run.target(1 + count, costs.exit), ("target", costs.head)))
        rows = (count + 1) * branches
        suffix = (("target", costs.target(1 + count) * (1 - costs.exit)),)
        ahead = run.drafts(window, rows, rows)
        run.machine.run(suffix, ahead)
        run.rows += 1 + count
        whole = run.verify(count)
        guessed = truth.bonus if whole else truth.correction
        ready = bool(guessed) and guessed[run.at - 1]
    return run.done()


SCHEDULES: dict[str, Callable[[Truth, Costs, int], Run]] = {
    "plain": plain,
    "sequential": sequential,
    "pearl": pearl,
    "mirror-sd": mirror,
}
