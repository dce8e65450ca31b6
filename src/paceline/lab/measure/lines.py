"""Make lines of the table, those that are missing or old first by what they take."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from paceline.drafters.resources import Loaded
from paceline.errors import InvalidOption, PacelineError
from paceline.lab.measure import methods, results, systems
from paceline.lab.measure.claims import CanvasClaim, Claim, every_line
from paceline.lab.measure.machine import Others
from paceline.lab.measure.parallel import AUTOREGRESSIVE, Bench, Cell, CellRecord, rows
from paceline.lab.measure.parallel_tasks import TASKS
from paceline.registry import loading
from paceline.registry.options import Options

Made = Claim | CanvasClaim
"""A line that is made here."""

CANVAS = "methods-canvas"
"""Result file of the lines of canvases."""

_FILLED = ("right", "right beside", "tokens/forward", "forwards", "fewer forwards", "fewer rows")
_CANVAS_TITLES = (*systems.COMMON, "mode", *_FILLED, "speed-up", "identical", "note")
_NOTE = (
    "Ten list tasks, three templates, five seeds of two cases each; means per answer. *Fewer "
    "forwards*, *fewer rows* and *speed-up*: of the sampler that stands beside over the line's "
    "own, with 90% intervals over the 150 groups. *Identical*: texts that are those of the sampler "
    "beside."
)
_CASES, _ROOM, _RESAMPLES = 2, 20, 1000
_GUESS = 60.0
"""Seconds of a line, where none was timed."""


class Work(NamedTuple):
    """A line to make, why, and about how many seconds it takes."""

    line: Made
    state: str
    seconds: float


@dataclass(frozen=True)
class About:
    """What lines that draft are measured with; `given` is what `with_options` takes."""

    asked: Options
    draft_model: str | None
    given: Sequence[str]
    batch: int
    limit: int
    tokens: int

    def told(self, loaded: Loaded) -> str:
        """Return what a figure depends on, and no digest of code has."""
        draft = f", draft model {Path(self.draft_model).name}" if self.draft_model else ""
        return (
            f"{loaded.source.name} {loaded.source.fingerprint}, {self.limit} prompts of "
            f"{self.tokens} tokens, batch {self.batch}{draft}"
        )

    @property
    def command(self) -> str:
        draft = f" --draft-model {Path(self.draft_model).name}" if self.draft_model else ""
        draft += "".join(f" --with {methods.folders(each)}" for each in self.given)
        return (
            f"paceline bench methods --model {Path(self.asked.model).name}{draft} "
            f"--batch {self.batch} --limit {self.limit} --max-new-tokens {self.tokens}"
        )


class Lines:
    """Measures lines over models that stay loaded; each is kept as soon as it is there.

    Attributes:
        cells: figures of this run, by line and measurement.
        differing: systems whose text differs where it must not.
        failed: errors by system.
    """

    def __init__(self, of: Sequence[Made], about: About, folder: Path | None, name: str) -> None:
        """Take over the lines of `folder`, whose file `name` has those that draft.

        InvalidOption: they were measured with something else.
        """
        self.cells: list[dict[str, Any]] = []
        self.differing: list[str] = []
        self.failed: dict[str, str] = {}
        self._of, self._about, self._folder, self._name = of, about, folder, name
        self._loaded: dict[str, Loaded] = {}
        self._made: set[str] = set()
        self._results: dict[str, results.Result] = {}
        self._kept = kept = results.load(folder) if folder else {}
        for file in dict.fromkeys(map(self._file, of)):
            given = f"{_CASES} cases, {_ROOM} places"
            if file != CANVAS:
                given = about.told(self._model(about.asked.model))
            titles = _CANVAS_TITLES if file == CANVAS else methods.TITLES
            empty = {"with": given, "columns": [*titles, *systems.STATE], "rows": []}
            self._results[file] = found = kept.get(file, empty)
            if found.get("with") != given:
                raise InvalidOption(
                    f"{file} in {folder} has lines of {found.get('with')}, not of {given}: give "
                    "another --name"
                )

    def left(self) -> list[Work]:
        """Return the lines that are missing or old, or did not run, what takes least first.

        A line that another file has of today, of the same model, is not missing.
        """
        out = []
        for line in self._of:
            result = self._results[self._file(line)]
            found = systems.rows_of(result)
            ran = [row["seconds"] for row in found.values() if row["identical"] and row["seconds"]]
            row = found.get(line.system)
            state = systems.state(line, row, result["with"])
            if state and line.system not in self._made and not self._elsewhere(line):
                seconds = (row and row["seconds"]) or median(ran or [_GUESS])
                out.append(Work(line, state, seconds))
        return sorted(out, key=lambda work: work.seconds)

    def make(self, line: Made, stop: Callable[[], object]) -> bool:
        """Measure a line and keep its row; False if `stop` became true.

        A line that fails, or whose text differs where it must not, is told and not kept. A busy
        machine has no speed: those of the last time stay, with their date.
        """
        begin, result = time.perf_counter(), self._results[self._file(line)]
        row = self._drafted(line, stop) if isinstance(line, Claim) else self._filled(line, stop)
        if row is None:
            return False
        self._made.add(line.system)
        if line.system in (*self.differing, *self.failed):
            return True
        found = dict(systems.rows_of(result))
        earlier, same = found.get(line.system, {}), ("configuration", "mode")
        today = datetime.date.today().isoformat()
        speeds = [key for key in systems.SPEEDS if key in row]
        row["timed"] = today if any(row[key] for key in speeds) else ""
        if not row["timed"] and all(earlier.get(key) == row[key] for key in same):
            row |= {key: earlier[key] for key in (*speeds, "timed") if row["identical"]}
        row["measured"] = f"{today} {results.commit() or ''}".strip()
        row["seconds"] = round(time.perf_counter() - begin, 1)
        row["digest"] = systems.made_from(line, row["configuration"].strip("`"), result["with"])
        found[line.system] = row
        order = [each.system for each in every_line() if each.system in found]
        columns = result["columns"]
        result["rows"] = [[found[system][key] for key in columns] for system in order]
        if self._folder is not None:
            path = self._folder / f"{self._file(line)}.json"
            title, command, note = "Every method on canvases", "paceline bench methods", _NOTE
            if isinstance(line, Claim):
                title = f"Every method on {result['with'].split(' ')[0]}"
                command, note = self._about.command, methods.NOTE
            if result.get("title", title) != title:  # by hand, as where weights do not ship
                title, command, note = (result.get(key, "") for key in ("title", "command", "note"))
            rows, told, given = result["rows"], note or None, result["with"]
            results.record(path, title, results.TABLE, command, columns, rows, told, given=given)
        return True

    def _elsewhere(self, line: Made) -> bool:
        mine = self._file(line)
        model = self._results[mine]["with"].partition(",")[0]
        others = (each for name, each in self._kept.items() if name != mine)
        return any(
            not systems.state(line, systems.rows_of(each).get(line.system), each["with"])
            for each in others
            if each.get("with", "").partition(",")[0] == model
        )

    def table(self) -> list[list[str]]:
        """Return the rows of `systems.COLUMNS` for lines that were measured, now or earlier."""
        names = {line.system for line in self._of}
        every = [row for rows in systems.table(self._results).values() for row in rows]
        return [row for row in every if row[0] in names and row[-1] != systems.NEVER]

    def _file(self, line: Made) -> str:
        return CANVAS if isinstance(line, CanvasClaim) else self._name

    def _model(self, name: str) -> Loaded:
        if name not in self._loaded:
            self._loaded[name] = loading.load_model(replace(self._about.asked, model=name))
        return self._loaded[name]

    def _drafted(self, line: Claim, stop: Callable[[], object]) -> dict[str, Any] | None:
        about, found = self._about, dict[methods.Measurement, dict[str, Any]]()
        for cell in methods.cells([line], sorted({1, about.batch})):
            others = Others()
            figures = methods.measure(
                self._model(about.asked.model),
                line,
                cell,
                draft_model=about.draft_model,
                limit=about.limit,
                tokens=about.tokens,
                stop=stop,
            )
            if figures is None:
                return None
            busy = others.busy
            found[cell] = {**figures, "speedup": None, "cost": None} if busy else figures
            if busy or "error" in figures:
                break  # the other cells are there for their speeds
        verdict = methods.verdict([line], found)
        self.differing += verdict["differing"]
        self.failed |= verdict["failed"]
        self.cells += verdict["cells"]
        [cells] = methods.rows([line], found, about.draft_model is not None)
        return dict(zip(methods.TITLES, cells, strict=True))

    def _filled(self, line: CanvasClaim, stop: Callable[[], object]) -> dict[str, Any] | None:
        row: dict[str, Any] = dict.fromkeys(_CANVAS_TITLES, "")
        row |= {"system": line.system, "configuration": f"`{line.shown(False)}`", "mode": line.mode}
        others = Others()
        try:
            bench = self._bench(line)
        except PacelineError as error:
            return row | {"note": f"{systems.NOT_RUN}: {error}"}
        for _ in bench.run(lambda: bool(stop())):
            pass
        if bench.left:
            return None
        theirs, mine = (
            [each for each in bench.records.values() if each.setting == setting.label]
            for setting in line.settings
        )
        [beside], [own] = rows(theirs), rows(mine)
        self.cells += [{"system": line.system, **each._asdict()} for each in (beside, own)]
        texts = [[text for each in some for text in each.texts] for some in (theirs, mine)]
        same = sum(one == other for one, other in zip(*texts, strict=True))
        return row | {
            "right": f"{own.strict:.1%}",
            "right beside": f"{beside.strict:.1%}",
            "tokens/forward": f"{own.per_forward:.2f}",
            "forwards": f"{own.forwards:.2f}",
            "fewer forwards": _ratio(theirs, mine, "forwards"),
            "fewer rows": _ratio(theirs, mine, "positions"),
            "speed-up": "" if others.busy else _ratio(theirs, mine, "seconds"),
            "identical": f"{same / len(texts[0]):.0%}",
        }

    def _bench(self, line: CanvasClaim) -> Bench:
        loaded, stream = self._model(line.model), None
        if line.beside == AUTOREGRESSIVE:
            stream = loading.make_engine(loaded, sampler=AUTOREGRESSIVE, drafter="none")
        lists = [name for name, task in TASKS.items() if task.words == TASKS["copy"].words]
        return Bench(
            loading.make_engine(loaded),
            stream,
            line.settings,
            [Cell(*each) for each in product(lists, range(3), range(5), [1])],
            cases=_CASES,
            room=_ROOM,
            temperature=line.temperature,
        )


def _ratio(theirs: Sequence[CellRecord], mine: Sequence[CellRecord], name: str) -> str:
    """Return theirs over mine with a 90% interval, by bootstrap over groups of cases."""
    pairs = np.array([[getattr(each, name) for each in some] for some in (theirs, mine)], float)
    picks = np.random.default_rng(0).integers(0, len(mine), (_RESAMPLES, len(mine)))
    sums = pairs[:, picks].sum(axis=2)
    low, high = np.quantile(sums[0] / sums[1], [0.05, 0.95])
    return f"{pairs[0].sum() / pairs[1].sum():.2f} [{low:.2f}, {high:.2f}]"
