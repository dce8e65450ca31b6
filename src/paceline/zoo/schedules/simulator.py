"""A simulator of schedules: jobs on devices that may share a memory, and what a token takes.

A schedule is a generator that starts jobs, waits for them, and yields how many tokens it has
committed. Acceptance is independent from token to token. Check it against runs on the machine at
hand (`python -m benchmarks.schedules`), then ask it for another one.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from paceline.core.options import require

Forward = Callable[[int], float]
"""Seconds of a forward over some rows."""


@dataclass(eq=False)
class Job:
    """Work on a device, in seconds that it takes alone; `done` once it is finished."""

    device: str
    left: float
    done: bool = False


class Machine:
    """Devices that work at the same time, each at one job after another.

    `slowdown` says by device how much longer a job takes while another device is busy: 1, or
    nothing, for devices with memories of their own.
    """

    def __init__(self, slowdown: Mapping[str, float] | None = None) -> None:
        self._slowdown = dict(slowdown or {})
        for device, factor in self._slowdown.items():
            require(factor >= 1, f"slowdown of {device}", factor, "1 or more")
        self.now = 0.0
        self.busy: dict[str, float] = {}
        self._queues: dict[str, list[Job]] = {}

    def start(self, device: str, seconds: float) -> Job:
        """Queue a job."""
        job = Job(device, seconds)
        self._queues.setdefault(device, []).append(job)
        return job

    def wait(self, *jobs: Job) -> None:
        """Let time pass until all of them are done."""
        while not all(job.done for job in jobs):
            heads = [queue[0] for queue in self._queues.values() if queue]
            shared = len(heads) > 1
            factors = [self._slowdown.get(job.device, 1.0) if shared else 1.0 for job in heads]
            passed = min(job.left * factor for job, factor in zip(heads, factors, strict=True))
            self.now += passed
            for job, factor in zip(heads, factors, strict=True):
                self.busy[job.device] = self.busy.get(job.device, 0.0) + passed
                job.left -= passed / factor
                if job.left <= 1e-15:
                    job.done = True
                    self._queues[job.device].pop(0)

    def cancel(self, job: Job) -> float:
        """Drop a job; return the share of it that was not done."""
        queue = self._queues[job.device]
        if job in queue:
            queue.remove(job)
        job.done = True
        return job.left

    def sleep(self, seconds: float) -> None:
        """Let time pass on all devices: a link's latency."""
        if seconds:
            self.wait(self.start("link", seconds))


@dataclass(frozen=True)
class Setting:
    """Costs and chances of a pair of models.

    Attributes:
        target: seconds of its forward, by rows.
        draft: seconds of a drafted token.
        chance: that a drafted token stands.
        length: tokens of a draft.
        link: seconds from one device to the other, one way.
        exit: of Mirror-SD: share of the target's layers before its early exit.
        hit: of Mirror-SD: chance that the token after a draft is among those of the early exit.
        fuzzy: of EasySpec: time of a drafted token with groups of layers in parallel, of `draft`.
        fuzzy_chance: of EasySpec: chance that its token stands; calibration is `draft` a round.
    """

    target: Forward
    draft: float
    chance: float
    length: int = 4
    link: float = 0.0
    exit: float = 0.5
    hit: float = 0.9
    fuzzy: float = 0.6
    fuzzy_chance: float = 0.0


Schedule = Callable[["Run"], Generator[int, None, None]]


@dataclass
class Run:
    """A schedule's machine, setting and luck."""

    setting: Setting
    machine: Machine
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def right(self, drafted: int, chance: float | None = None) -> int:
        """Draw how many of the drafted tokens stand."""
        chance = self.setting.chance if chance is None else chance
        for count in range(drafted):
            if self.random.random() >= chance:
                return count
        return drafted


def plain(run: Run) -> Generator[int, None, None]:
    """One token a forward."""
    while True:
        run.machine.wait(run.machine.start("target", run.setting.target(1)))
        yield 1


def sequential(run: Run) -> Generator[int, None, None]:
    """Draft, then verify."""
    s = run.setting
    while True:
        run.machine.wait(run.machine.start("draft", s.length * s.draft))
        run.machine.wait(run.machine.start("target", s.target(s.length + 1)))
        yield run.right(s.length) + 1


def dovetail(run: Run) -> Generator[int, None, None]:
    """Draft on one device, verify on another, with a link between."""
    s = run.setting
    while True:
        run.machine.wait(run.machine.start("draft", s.length * s.draft))
        run.machine.sleep(s.link)
        run.machine.wait(run.machine.start("target", s.target(s.length + 1)))
        run.machine.sleep(s.link)
        yield run.right(s.length) + 1


def pearl(run: Run) -> Generator[int, None, None]:
    """PEARL with windows: the next window is drafted while the last is verified."""
    s, pending = run.setting, 0
    while True:
        drafting = run.machine.start("draft", s.length * s.draft)
        verifying = run.machine.start("target", s.target(pending + 1))
        run.machine.wait(drafting, verifying)
        right = run.right(pending + 1)  # the window's tokens, and the first of the next
        if right > pending:
            yield pending + 1
            pending = s.length - 1
        else:
            yield right + 1
            pending = 0


def pearl_adaptive(run: Run) -> Generator[int, None, None]:
    """Drafter `pearl`: drafting ends with the target's forward, or with a window."""
    s, pending = run.setting, 0
    while True:
        verifying = run.machine.start("target", s.target(pending + 1))
        drafted = 0
        while not verifying.done and drafted < s.length:
            run.machine.wait(run.machine.start("draft", s.draft))
            drafted += 1
        run.machine.wait(verifying)
        right = run.right(pending + min(drafted, 1))
        if right > pending:
            yield pending + 1
            pending = drafted - 1
        else:
            yield right + 1
            pending = 0


def mirror(run: Run) -> Generator[int, None, None]:
    """Mirror-SD: branches behind the early exit's tokens are drafted during the later layers."""
    s, ready = run.setting, False
    while True:
        if not ready:
            run.machine.wait(run.machine.start("draft", s.length * s.draft))
        whole = s.target(s.length + 1)
        run.machine.wait(run.machine.start("target", s.exit * whole))
        branches = run.machine.start("draft", s.length * s.draft)
        run.machine.wait(run.machine.start("target", (1 - s.exit) * whole))
        right = run.right(s.length)
        # Branches hang behind the whole draft: they are of use if it stands.
        ready = right == s.length and bool(run.random.random() < s.hit)
        if ready:
            run.machine.wait(branches)
        else:
            run.machine.cancel(branches)
        yield right + 1


def easyspec(run: Run) -> Generator[int, None, None]:
    """EasySpec: fuzzy drafts, and an exact forward over what was accepted to calibrate them."""
    s = run.setting
    while True:
        run.machine.wait(run.machine.start("draft", s.length * s.draft * s.fuzzy + s.draft))
        run.machine.wait(run.machine.start("target", s.target(s.length + 1)))
        yield run.right(s.length, s.fuzzy_chance or s.chance) + 1


SCHEDULES: dict[str, Schedule] = {
    "plain": plain,
    "sequential": sequential,
    "Dovetail": dovetail,
    "PEARL": pearl,
    "PEARL, adaptive": pearl_adaptive,
    "Mirror-SD": mirror,
    "EasySpec": easyspec,
}


def seconds_per_token(
    schedule: Schedule,
    setting: Setting,
    *,
    slowdown: Mapping[str, float] | None = None,
    tokens: int = 20_000,
) -> float:
    """Simulate so many tokens and return the mean time of one."""
    run = Run(setting, Machine(slowdown))
    done = 0
    for count in schedule(run):
        done += count
        if done >= tokens:
            break
    return run.machine.now / done


def best_length(
    schedule: Schedule,
    setting: Setting,
    *,
    slowdown: Mapping[str, float] | None = None,
    longest: int = 16,
) -> tuple[int, float]:
    """Return the draft length of least time per token, and that time."""
    found = [
        (seconds_per_token(schedule, replace(setting, length=n), slowdown=slowdown, tokens=4000), n)
        for n in range(1, longest + 1)
    ]
    seconds, length = min(found)
    return length, seconds
