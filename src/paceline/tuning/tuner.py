"""The plan of a tuning run: search for a while, prove the best on other prompts, and again.

Whenever the time is up or the user stops it, the finals that were held decide. A configuration is
chosen only if it beat plain decoding on prompts that took no part in finding it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from time import perf_counter
from typing import TYPE_CHECKING

from paceline.bench.report import Row
from paceline.bench.run import Stopped
from paceline.tuned import Configuration
from paceline.tuning.evidence import Evidence
from paceline.tuning.space import DEFAULT, PLAIN
from paceline.tuning.track import Track

if TYPE_CHECKING:
    from paceline.tuning.search import Candidate, Search

MARGIN = 0.02
"""A configuration must be faster than plain decoding by so much to be chosen."""

_ROUND = 120.0
_MOST_ROUNDS = 3
"""A round is a search and its final; there is one for so many seconds of the time limit."""

_SEARCH = 0.6
"""Share of a round that is for searching."""

_COHORT = 4
"""Candidates that share a run of plain decoding to be compared with."""

_FINALISTS = 3
_ENOUGH = 4
"""Held-out prompts that a finalist must have run, unless there are fewer."""


class Tuner:
    """Spends a time limit on a search and its finals."""

    def __init__(
        self,
        search: Search,
        track: Track,
        seconds: float,
        *,
        clock: Callable[[], float] = perf_counter,
        interrupted: Callable[[], object] = lambda: False,
        watch: Callable[[float, str], None] = lambda elapsed, text: None,
    ) -> None:
        """Bind the parts.

        Args:
            search: proposes, and holds the evidence.
            track: measures.
            seconds: time limit, counted from `run`.
            clock: seconds that pass.
            interrupted: whether the user wants an end.
            watch: told now and then how many seconds have passed, and what goes on.
        """
        self._search = search
        self._track = track
        self._seconds = seconds
        self._clock = clock
        self._interrupted = interrupted
        self._watch = watch
        self._begin = 0.0
        self._best = ""

    def run(self) -> Iterator[Configuration | None]:
        """Search and prove; after every final, what is to be chosen by all finals so far."""
        self._begin = self._clock()
        rounds = min(max(1, int(self._seconds // _ROUND)), _MOST_ROUNDS)
        share = self._seconds / rounds
        for number in range(rounds):
            self._explore((number + _SEARCH) * share)
            self._final((number + 1) * share)
            yield self.decision()

    def decision(self) -> Configuration | None:
        """The fastest configuration that is proven faster than plain decoding; plain decoding if
        enough was measured and there is none; None if too little was measured to tell.

        The margin is asked of held-out prompts alone. That the gain is no accident is asked of the
        bootstrap interval over all prompts: half of them, of several kinds, would tell too little.
        """
        known = [row for row in self.finals() if row["prompts"] >= self._enough]
        if not known:
            return None
        proven = [row for row in known if row["speedup"] >= 1 + MARGIN and self._surely(row) > 1]
        best = max(proven, key=lambda row: float(row["speedup"]), default=None)
        return PLAIN if best is None else self._search.space.everything[best["drafter"]]

    @property
    def elapsed(self) -> float:
        """Seconds since `run` began."""
        return self._clock() - self._begin

    @property
    def size(self) -> int:
        """Configurations that there are to try."""
        return len(self._search.space.everything)

    @property
    def pruned(self) -> set[str]:
        """Names of configurations that the search gave up early."""
        return self._search.pruned

    def searched(self) -> list[Row]:
        """A row per configuration that was tried, over the search's prompts, the best first."""
        return self._evidence.rows(self._track.searching)

    def finals(self) -> list[Row]:
        """A row per configuration that was in a final, over held-out prompts, the best first."""
        return self._evidence.rows(self._track.held_out)

    @property
    def _evidence(self) -> Evidence:
        return self._search.evidence

    @property
    def _enough(self) -> int:
        return min(_ENOUGH, len(self._track.held_out))

    def _surely(self, row: Row) -> float:
        """Lower end of the interval of a finalist's speed-up over all prompts."""
        over_all = self._evidence.row(row["drafter"])
        return 0.0 if over_all is None else float(over_all["speedup_low"])

    def _explore(self, until: float) -> None:
        """Try cohort after cohort."""
        while not self._over(until):
            cohort = self._search.cohort(_COHORT)
            if not cohort:
                return
            self._try(cohort, until)

    def _try(self, cohort: Sequence[Candidate], until: float) -> None:
        """Race a cohort prompt by prompt; the slow ones are dropped on the way."""
        play = self._track.open([each.configuration for each in cohort])
        alive = list(cohort)
        mine = Evidence()
        done = 0
        for step, prompt in enumerate(self._track.searching, 1):
            if not alive:
                return
            try:
                who = [each.configuration for each in alive]
                record = play(prompt, who, lambda: self._over(until))
            except Stopped:
                break
            done = step
            mine.add(record)
            self._evidence.add(record)
            self._best = next(iter(self._evidence.ranked()), "")
            if step == len(self._track.searching):
                break  # nothing is saved by pruning now
            # Trials are compared with those that came before them, so the best goes first.
            for each in sorted(alive, key=lambda each: -mine.speedup(each.configuration.name)):
                if self._search.prune(each, mine.speedup(each.configuration.name), step):
                    alive.remove(each)
        for each in alive:
            self._search.finish(each, mine.speedup(each.configuration.name), done)

    def _final(self, until: float) -> None:
        """Race the best few on held-out prompts, those first that need it most.

        The default takes part too, unless the search gave it up, so that it is not left for less.
        """
        good = [name for name in self._evidence.ranked() if name not in self.pruned]
        if self._over(until) or not good:
            return
        default = [name for name in good[_FINALISTS:] if name == DEFAULT.name]
        everything = self._search.space.everything
        finalists = [everything[name] for name in (*good[:_FINALISTS], *default)]
        play = self._track.open(finalists)

        def measured(prompt: int) -> int:
            return min(self._evidence.forwards(each.name, prompt) for each in finalists)

        for prompt in sorted(self._track.held_out, key=measured):
            try:
                self._evidence.add(play(prompt, finalists, lambda: self._over(until)))
            except Stopped:
                return

    def _over(self, until: float) -> bool:
        elapsed = self.elapsed
        tried = len(self._evidence.names)
        self._watch(elapsed, f"{tried} tried" + (f", best {self._best}" if self._best else ""))
        return elapsed >= until or bool(self._interrupted())
