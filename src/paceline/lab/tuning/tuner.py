"""Tuning run: rounds of search and a final on held-out prompts, within a time limit.

A configuration is chosen only if it beat the baseline on prompts that took no part in the search.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from paceline.lab.measure.machine import machine
from paceline.lab.measure.report import Row, aligned
from paceline.lab.measure.run import Stopped
from paceline.lab.tuning.space import DEFAULT, PLAIN, Evidence, Track
from paceline.registry import tuned_choice as tuned
from paceline.registry.tuned_choice import Configuration, Kind, TunedChoice

if TYPE_CHECKING:
    from paceline.drafters.resources import Loaded
    from paceline.lab.tuning.search import Candidate, Search

# Least relative speedup of a choice.
MARGIN = 0.02

_ROUND = 120.0
# A round is a search and its final; their number grows with the time limit.
_MOST_ROUNDS = 3

# Share of a round for search.
_SEARCH = 0.6

# Candidates per baseline run.
_COHORT = 4

_FINALISTS = 3
# Least held-out prompts of a finalist, if there are as many.
_ENOUGH = 4


class Tuner:
    """Spend a time limit (`seconds`, from `run` on) on a search and its finals.

    `interrupted` ends it; `watch` gets elapsed seconds and the activity.
    """

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
        self._search = search
        self._track = track
        self._seconds = seconds
        self._clock = clock
        self._interrupted = interrupted
        self._watch = watch
        self._begin = 0.0
        self._best = ""

    def run(self) -> Iterator[Configuration | None]:
        """Search and prove; yield the decision after every final."""
        self._begin = self._clock()
        rounds = min(max(1, int(self._seconds // _ROUND)), _MOST_ROUNDS)
        share = self._seconds / rounds
        for number in range(rounds):
            self._explore((number + _SEARCH) * share)
            self._final((number + 1) * share)
            yield self.decision()

    def decision(self) -> Configuration | None:
        """Return the fastest configuration proven faster than the baseline, else the baseline.

        None if too little was measured. The margin must hold on held-out prompts; the bootstrap
        interval is over all prompts, since half of them are too few.
        """
        known = [row for row in self.finals() if row["prompts"] >= self._enough]
        if not known:
            return None
        proven = [row for row in known if row["speedup"] >= 1 + MARGIN and self._surely(row) > 1]
        best = max(proven, key=lambda row: float(row["speedup"]), default=None)
        return PLAIN if best is None else self._search.space.everything[best["drafter"]]

    @property
    def elapsed(self) -> float:
        return self._clock() - self._begin

    @property
    def size(self) -> int:
        return len(self._search.space.everything)

    @property
    def pruned(self) -> set[str]:
        return self._search.pruned

    def searched(self) -> list[Row]:
        """Return a row per tried configuration over the search's prompts, the fastest first."""
        return self._evidence.rows(self._track.searching)

    def finals(self) -> list[Row]:
        """Return a row per finalist over held-out prompts, the fastest first."""
        return self._evidence.rows(self._track.held_out)

    @property
    def _evidence(self) -> Evidence:
        return self._search.evidence

    @property
    def _enough(self) -> int:
        return min(_ENOUGH, len(self._track.held_out))

    def _surely(self, row: Row) -> float:
        # Lower end of the bootstrap interval.
        over_all = self._evidence.row(row["drafter"])
        return 0.0 if over_all is None else float(over_all["speedup_low"])

    def _explore(self, until: float) -> None:
        while not self._over(until):
            cohort = self._search.cohort(_COHORT)
            if not cohort:
                return
            self._try(cohort, until)

    def _try(self, cohort: Sequence[Candidate], until: float) -> None:
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
        # The default takes part too, unless pruned, so that a worse choice cannot replace it.
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


_KEPT = (
    "drafter",
    "prompts",
    "speedup",
    "speedup_low",
    "speedup_high",
    "block_efficiency",
    "forward_cost",
    "rows_per_forward",
    "draft_share",
)
_TITLES = ("configuration", "prompts", "speed-up", "90% interval", "tokens/forward", "forward cost")


def evidence(
    loaded: Loaded, tuner: Tuner, settings: Mapping[str, Any], chosen: str
) -> dict[str, Any]:
    """Return what an explanation needs as plain values, saved with a choice."""
    finals = kept(tuner.finals())
    return {
        "when": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "seconds": round(tuner.elapsed, 1),
        "place": {"name": loaded.source.name, **loaded.place},
        "machine": machine(),
        "settings": dict(settings),
        "space": tuner.size,
        "finals": finals,
        "search": kept(tuner.searched()),
        "pruned": sorted(tuner.pruned),
        "c_n": {str(size): c for size, c in loaded.costs.curve().items()},
        "why": why(chosen, finals),
    }


def kept(rows: Sequence[Row]) -> list[Row]:
    return [{key: row[key] for key in _KEPT} for row in rows]


def why(chosen: str, finals: Sequence[Row]) -> str:
    """Explain in two sentences why a configuration won its finals."""
    order = sorted(finals, key=lambda row: -float(row["speedup"]))
    if chosen == PLAIN.name:
        near = order[0]
        return (
            "no configuration was surely faster than plain decoding; the nearest was "
            f"{near['drafter']} at {_ratio(near)}, {_work(near)}"
        )
    winner = next(row for row in order if row["drafter"] == chosen)
    text = f"{chosen} makes {_work(winner)}: {_ratio(winner)} of plain decoding"
    second = next((row for row in order if row is not winner), None)
    if second is None:
        return text
    tokens = winner["block_efficiency"] / second["block_efficiency"] - 1
    cost = winner["forward_cost"] / second["forward_cost"] - 1
    return (
        f"{text}. The next, {second['drafter']}, makes {_work(second)}: {_ratio(second)}. So the "
        f"winner has {_change(tokens, 'fewer')} tokens per forward for {_change(cost)} cost per "
        "forward"
    )


def explanation(kind: Kind, choice: TunedChoice) -> list[str]:
    """Return the explanation of a choice for one decoding kind."""
    told = choice.evidence
    place, settings, machine = told["place"], told["settings"], told["machine"]
    search, pruned = told["search"], set(told["pruned"])
    costs = ", ".join(f"c({n}) = {c:.2f}" for n, c in told["c_n"].items())
    return [
        f"drafter auto is {choice.configuration.name} where decoding is {kind}, for "
        f"{place['name']} on {place['runtime']} {place['device']}, {place['precision']}",
        f"measured {told['when']} on {machine['cpu']}, {machine['cores']} cores, in "
        f"{told['seconds']:.0f} s; prompts {settings['prompts']}, {settings['max_new_tokens']} "
        f"tokens each, temperature {settings['temperature']:g}",
        "",
        "finals, on prompts that the search did not see, against plain decoding:",
        table(told["finals"]),
        "",
        f"search, {len(search)} of {told['space']} configurations:",
        table(search, pruned),
        "",
        f"cost of a forward: {costs}",
        f"why: {told['why']}",
    ]


def table(rows: Sequence[Mapping[str, Any]], pruned: set[str] | None = None) -> str:
    """Format rows as aligned text; sizes are nodes x depth."""
    body = [
        [
            row["drafter"],
            str(row["prompts"]) + (" (pruned)" if row["drafter"] in (pruned or ()) else ""),
            f"{row['speedup']:.2f}",
            f"{row['speedup_low']:.2f} to {row['speedup_high']:.2f}",
            f"{row['block_efficiency']:.2f}",
            f"{row['forward_cost']:.2f}",
        ]
        for row in rows
    ]
    return aligned([list(_TITLES), *body])


def _ratio(row: Mapping[str, Any]) -> str:
    return f"{row['speedup']:.2f} times the speed"


def _work(row: Mapping[str, Any]) -> str:
    return (
        f"{row['block_efficiency']:.2f} tokens per forward, which costs {row['forward_cost']:.2f} "
        "times a plain one"
    )


def _change(share: float, less: str = "less") -> str:
    return f"{abs(share):.0%} {'more' if share >= 0 else less}"


@dataclass(frozen=True, slots=True)
class TuningTask:
    """Decoding kind to tune; `settings` are the user's, saved with the choice."""

    search: Search
    track: Track
    settings: Mapping[str, Any]


@dataclass(slots=True)
class Outcome:
    """Result of a task; `choice` is None if too little was measured."""

    tuner: Tuner
    choice: TunedChoice | None = None
    path: Path | None = None


def tune_kinds(
    loaded: Loaded,
    tasks: Mapping[Kind, TuningTask],
    seconds: float,
    *,
    interrupted: Callable[[], object],
    watch: Callable[[float, str], None],
    clock: Callable[[], float] = perf_counter,
) -> dict[Kind, Outcome]:
    """Tune and save each kind; kinds share the time limit evenly, and unused time goes to the rest.

    After `interrupted`, kinds not begun are left out. ModelError if a choice cannot be saved.
    """
    outcomes: dict[Kind, Outcome] = {}
    begin = clock()
    for number, (kind, task) in enumerate(tasks.items()):
        if interrupted():
            break
        spent = clock() - begin
        share = (seconds - spent) / (len(tasks) - number)

        def tell(elapsed: float, text: str, spent: float = spent, kind: Kind = kind) -> None:
            watch(spent + elapsed, f"{kind}: {text}")

        tuner = Tuner(
            task.search, task.track, share, clock=clock, interrupted=interrupted, watch=tell
        )
        outcome = outcomes[kind] = Outcome(tuner)
        for found in tuner.run():
            if found is not None:
                outcome.choice = TunedChoice(
                    found, evidence(loaded, tuner, task.settings, found.name)
                )
                outcome.path = tuned.write(loaded.place, kind, outcome.choice)
    return outcomes
