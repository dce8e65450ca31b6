"""Statistics of a generation: acceptance, block efficiency and times."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, fields
from time import perf_counter
from typing import Any


class Clock:
    """Seconds of one step by stage: `with clock("draft"): ...`; what is left is overhead."""

    __slots__ = ("_begin", "_stage", "_start", "seconds")

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._begin = perf_counter()

    def __call__(self, stage: str) -> Clock:
        self._stage = stage
        return self

    def __enter__(self) -> None:
        self._start = perf_counter()

    def __exit__(self, *error: object) -> None:
        self.seconds[self._stage] += perf_counter() - self._start

    def move(self, stage: str, to: str, share: float) -> float:
        """Give a share of a stage's seconds to another stage, and return them."""
        moved = share * self.seconds[stage]
        self.seconds[stage] -= moved
        self.seconds[to] += moved
        return moved

    def overhead(self) -> float:
        return perf_counter() - self._begin - sum(self.seconds.values())


@dataclass(slots=True)
class GenerationStats:
    """Statistics of one sequence, or summed over many. Times are wall-clock seconds.

    A batched step's time is divided equally among its sequences, so sums are right. Drafted tokens
    were proposed and verified; accepted ones were committed. By depth: steps in which a node was
    verified, or the accepted path arrived, at depth d + 1. `draft_seconds` is the drafter's `open`,
    `propose` and `observe`, `forward_seconds` the target's `forward` and `keep`. `cached_tokens` of
    the prompt were not read but shared. A drafter error leaves the sequence without drafts.
    `position_evaluations` are rows of forwards over a canvas, `log_likelihood` is that of its text
    under its sampler, in nats, where that is known; neither sum nor mean has one.
    """

    target_forwards: int = 0
    committed_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    drafted_by_depth: list[int] = field(default_factory=list)
    accepted_by_depth: list[int] = field(default_factory=list)
    prefill_seconds: float = 0.0
    draft_seconds: float = 0.0
    forward_seconds: float = 0.0
    overhead_seconds: float = 0.0
    first_token_seconds: float | None = None
    cached_tokens: int = 0
    drafter_errors: int = 0
    position_evaluations: int = 0
    log_likelihood: float | None = None

    def record(self, drafted_depth: int, drafted: int, accepted: int) -> None:
        """Count one verification: depth and size of the draft, length of the accepted path."""
        self.target_forwards += 1
        self.drafted_tokens += drafted
        self.accepted_tokens += accepted
        while len(self.drafted_by_depth) < drafted_depth:
            self.drafted_by_depth.append(0)
            self.accepted_by_depth.append(0)
        for depth in range(drafted_depth):
            self.drafted_by_depth[depth] += 1
        for depth in range(accepted):
            self.accepted_by_depth[depth] += 1

    def add_step(self, clock: Clock, share: float) -> None:
        """Add a sequence's share of a step's times."""
        self.draft_seconds += share * clock.seconds["draft"]
        self.forward_seconds += share * clock.seconds["forward"]
        self.overhead_seconds += share * clock.overhead()

    def add(self, other: GenerationStats) -> None:
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for mine, theirs in (
            (self.drafted_by_depth, other.drafted_by_depth),
            (self.accepted_by_depth, other.accepted_by_depth),
        ):
            mine.extend([0] * (len(theirs) - len(mine)))
            for depth, count in enumerate(theirs):
                mine[depth] += count

    @property
    def block_efficiency(self) -> float:
        """Committed tokens per target forward."""
        return self.committed_tokens / self.target_forwards if self.target_forwards else 0.0

    @property
    def rows_per_forward(self) -> float:
        """Mean rows of a target forward that belong to this sequence: the root and its draft."""
        return 1 + self.drafted_tokens / self.target_forwards if self.target_forwards else 0.0

    @property
    def acceptance_by_depth(self) -> list[float]:
        """Share of drafts reaching depth d + 1 whose accepted path reached it too."""
        pairs = zip(self.accepted_by_depth, self.drafted_by_depth, strict=True)
        return [accepted / drafted for accepted, drafted in pairs]

    @property
    def verify_seconds(self) -> float:
        return self.forward_seconds + self.overhead_seconds

    @property
    def decode_seconds(self) -> float:
        return self.draft_seconds + self.verify_seconds

    @property
    def tokens_per_second(self) -> float:
        """Committed tokens per second of decoding, prefill excluded."""
        return self.committed_tokens / self.decode_seconds if self.decode_seconds else 0.0

    @property
    def draft_share(self) -> float:
        return self.draft_seconds / self.decode_seconds if self.decode_seconds else 0.0

    @property
    def overhead_share(self) -> float:
        """Share of decoding time spent outside target and drafter."""
        return self.overhead_seconds / self.decode_seconds if self.decode_seconds else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return the statistics as `--json` has them."""
        return {name: getattr(self, name) for name in _TOLD}


# What sums add up; and what is told, by the names that `--json` documents.
_SUMS = [each.name for each in fields(GenerationStats) if each.default == 0]
_TOLD = [
    "target_forwards",
    "committed_tokens",
    "drafted_tokens",
    "accepted_tokens",
    "block_efficiency",
    "position_evaluations",
    "acceptance_by_depth",
    "draft_seconds",
    "verify_seconds",
    "prefill_seconds",
    "first_token_seconds",
    "overhead_share",
    "draft_share",
    "tokens_per_second",
]
