"""One time limit for several kinds of decoding: each is tuned in turn, and saved as it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from paceline import tuned
from paceline.tuned import Choice, Kind
from paceline.tuning.explain import evidence
from paceline.tuning.tuner import Tuner

if TYPE_CHECKING:
    from paceline.loading import Loaded
    from paceline.tuning.search import Search
    from paceline.tuning.track import Track


@dataclass(frozen=True, slots=True)
class Task:
    """One kind of decoding to tune.

    Attributes:
        search: proposes, and holds the evidence.
        track: measures.
        settings: what the user asked for, to be saved with the choice.
    """

    search: Search
    track: Track
    settings: Mapping[str, Any]


@dataclass(slots=True)
class Outcome:
    """What came of a task.

    Attributes:
        tuner: what ran.
        choice: what was saved; None if too little was measured to tell.
        path: the file that it was saved in.
    """

    tuner: Tuner
    choice: Choice | None = None
    path: Path | None = None


def tune_kinds(
    loaded: Loaded,
    tasks: Mapping[Kind, Task],
    seconds: float,
    *,
    interrupted: Callable[[], object],
    watch: Callable[[float, str], None],
    clock: Callable[[], float] = perf_counter,
) -> dict[Kind, Outcome]:
    """Tune and save kind after kind.

    Args:
        loaded: the model.
        tasks: what to tune; kinds share the time evenly, and what one leaves goes to the others.
        seconds: time limit of all.
        interrupted: whether the user wants an end; kinds that have not begun are left out.
        watch: told how many seconds have passed, and what goes on.
        clock: seconds that pass.

    Raises:
        ModelError: a choice cannot be saved.
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
            *(task.search, task.track, share), clock=clock, interrupted=interrupted, watch=tell
        )
        outcome = outcomes[kind] = Outcome(tuner)
        for found in tuner.run():
            if found is not None:
                outcome.choice = Choice(found, evidence(loaded, tuner, task.settings, found.name))
                outcome.path = tuned.write(loaded.place, kind, outcome.choice)
    return outcomes
