"""Parallel decoding, measured: accuracy, KL, forwards, positions and time of samplers, by task.

Cases are those of `parallel_tasks`; ParallelBench (arXiv:2510.04767) is their model. Settings take
turns on every cell of task, template and seed, so that slow minutes fall on all of them alike.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import permutations, product
from math import log
from time import perf_counter
from typing import Any, Literal, NamedTuple

from paceline.core.types import CanvasParams, SamplingParams
from paceline.engine.engine import Completion, Engine
from paceline.errors import InvalidOption
from paceline.lab.measure import parallel_tasks as tasks
from paceline.lab.measure.kept import Kept
from paceline.lab.measure.run import together
from paceline.registry.samplers import make_sampler

AUTOREGRESSIVE = "autoregressive"


class Setting(NamedTuple):
    """How canvases are filled: as `paceline.core.types.CanvasParams` says."""

    sampler: str
    block: int | None = None
    cache: str | None = None
    ending: Literal["fill", "cut", "hold"] = "fill"
    prompt_rows: Literal["blocks", "causal"] = "blocks"

    @property
    def label(self) -> str:
        parts = [self.sampler]
        parts += [f"block {self.block}"] if self.block is not None else []
        parts += [f"cache {self.cache}"] if self.cache is not None else []
        parts += [f"ending {self.ending}"] if self.ending != "fill" else []
        parts += ["causal prompt"] if self.prompt_rows == "causal" else []
        return ", ".join(parts)

    @property
    def denoising(self) -> CanvasParams | None:
        if self.sampler == AUTOREGRESSIVE:
            return None
        parts = (self.sampler, self.block, self.cache, self.ending)
        return CanvasParams(*parts, prompt_rows=self.prompt_rows)


class Cell(NamedTuple):
    """Cases that a setting decodes at a time."""

    task: str
    template: int
    seed: int
    batch: int


@dataclass(frozen=True, slots=True)
class CellRecord:
    """Sums over the cases of a cell under a setting.

    Attributes:
        cases: number of them.
        strict: right answers, and nothing else in them; `loose` and `score` as of `Grade`.
        tokens: of the answers, end tokens included.
        forwards: of the target; one that serves eight canvases counts for each of them.
        positions: rows of these forwards.
        seconds: of wall time, for all cases together.
        log_q: log-probability of the texts' tokens at their steps, at temperature 1: of the texts
            under the sampler, but for what was filled behind their ends, which makes the KL
            divergence a bound from above. None for samplers that look at what they draw.
        log_p: the same under the model's autoregressive stream, or None.
        texts: of the answers.
    """

    setting: str
    cell: Cell
    cases: int
    strict: int
    loose: int
    score: float
    tokens: int
    forwards: int
    positions: int
    seconds: float
    log_q: float | None
    log_p: float | None
    texts: Sequence[str] = ()


def read_record(entry: Mapping[str, Any]) -> CellRecord:
    """Return a record that was kept."""
    return CellRecord(**{**entry, "cell": Cell(*entry["cell"])})


class Bench:
    """Run settings over cells; records are appended to a file, and found there again."""

    def __init__(
        self,
        canvas: Engine,
        left: Engine | None,
        settings: Sequence[Setting],
        cells: Sequence[Cell],
        *,
        cases: int,
        room: int,
        temperature: float = 0.0,
    ) -> None:
        """Bind engines of a model; `left` decodes its autoregressive stream, if it has one."""
        if left is None and any(each.sampler == AUTOREGRESSIVE for each in settings):
            raise InvalidOption(
                f"the model cannot decode from left to right: leave out {AUTOREGRESSIVE}"
            )
        for each in settings:
            if each.denoising is not None:
                canvas.decoder.check(SamplingParams(max_new_tokens=room), each.denoising)
        self.records: dict[tuple[str, Cell], CellRecord] = {}
        self._canvas, self._left = canvas, left
        self._settings, self._cells = settings, cells
        self._cases, self._room, self._temperature = cases, room, temperature
        self._kept: Kept[CellRecord] | None = None

    def keep(self, kept: Kept[CellRecord]) -> None:
        """Take over the records of an earlier run, and append to them."""
        self._kept = kept
        self.records |= {(each.setting, each.cell): each for each in kept.entries}

    @property
    def left(self) -> int:
        """Runs that are still to come."""
        return len(self._settings) * len(self._cells) - len(self.records)

    def run(self, stop: Callable[[], bool] = lambda: False) -> Iterator[CellRecord]:
        """Measure what is left, and yield records as they come."""
        for turn, cell in enumerate(self._cells):
            shift = turn % len(self._settings)
            for setting in (*self._settings[shift:], *self._settings[:shift]):
                if (setting.label, cell) in self.records:
                    continue
                if stop():
                    return
                record = self._measure(setting, cell)
                self.records[setting.label, cell] = record
                if self._kept is not None:
                    self._kept.append(asdict(record))
                yield record

    def results(self) -> dict[str, Any]:
        """Return means of what was measured: in all, by task and by template."""
        records, tasks = list(self.records.values()), dict.fromkeys(c.task for c in self._cells)
        sizes = list(dict.fromkeys(cell.batch for cell in self._cells))
        alone = rows([each for each in records if each.cell.batch == sizes[0]])
        by_task = {name: rows([r for r in records if r.cell.task == name]) for name in tasks}
        return {
            "complete": self.left == 0,
            "rows": [each._asdict() for each in rows(records)],
            "by_task": {name: [row._asdict() for row in mine] for name, mine in by_task.items()},
            "by_template": {size: orders(records, size) for size in sizes},
            "spread": {each.setting: spread(records, each.setting, each.batch) for each in alone},
            "area": area(alone),
            "closed_forms": closed_forms(),
        }

    def _measure(self, setting: Setting, cell: Cell) -> CellRecord:
        found = list(tasks.cases(cell.task, self._cases, cell.seed, template=cell.template))
        left = setting.sampler == AUTOREGRESSIVE
        engine = self._left if left else self._canvas
        assert engine is not None
        given: dict[str, Any] = {} if left else {"denoising": setting.denoising}
        if self._temperature:
            given["logprobs"] = 0
        prepared = [
            engine.prepare(
                case.prompt,
                raw=True,
                max_new_tokens=self._room,
                temperature=self._temperature,
                seed=1000 * cell.seed + index,
                **given,
            )
            for index, case in enumerate(found)
        ]
        done: list[Completion] = []
        begin = perf_counter()
        for first in range(0, len(prepared), cell.batch):
            done += together(engine, prepared[first : first + cell.batch])
        seconds = perf_counter() - begin
        grades = [tasks.grade(case, each.text) for case, each in zip(found, done, strict=True)]
        rows = sum(each.stats.position_evaluations for each in done)
        if left:  # its prompts are read in rows, too
            rows = sum(each.prompt_tokens - 1 + len(each.token_ids) for each in done)
        told = self._temperature and (left or make_sampler(setting.sampler).ignores_draws)
        likely = sum(each.logprob for one in done for each in one.logprobs) if told else None
        return CellRecord(
            setting.label,
            cell,
            len(found),
            sum(each.strict for each in grades),
            sum(each.loose for each in grades),
            sum(each.score for each in grades),
            sum(len(each.token_ids) for each in done),
            sum(each.stats.target_forwards for each in done),
            rows,
            seconds,
            likely,
            self._teacher(prepared, done),
            [each.text for each in done],
        )

    def _teacher(self, prepared: Sequence[Any], done: Sequence[Completion]) -> float | None:
        # Log-probability of texts under the autoregressive stream of the same weights.
        if not self._temperature or self._left is None:
            return None
        total = 0.0
        for asked, each in zip(prepared, done, strict=True):
            ids = [*asked.tokens, *each.token_ids]
            scored = self._left.generate(ids, max_new_tokens=0, prompt_logprobs=0)
            total += sum(s.logprob for s in scored.prompt_logprobs[len(asked.tokens) - 1 :])
        return total


class Row(NamedTuple):
    """A setting's means over some cells: shares in [0, 1], the rest per answer."""

    setting: str
    batch: int
    strict: float
    loose: float
    score: float
    tokens: float
    forwards: float
    positions: float
    milliseconds: float
    kl: float | None

    @property
    def per_forward(self) -> float:
        return self.tokens / self.forwards


def rows(records: Sequence[CellRecord]) -> list[Row]:
    """Return the means by setting and batch, in the order of the records."""
    groups: dict[tuple[str, int], list[CellRecord]] = {}
    for each in records:
        groups.setdefault((each.setting, each.cell.batch), []).append(each)
    return [_row(setting, batch, mine) for (setting, batch), mine in groups.items()]


def _row(setting: str, batch: int, mine: Sequence[CellRecord]) -> Row:
    cases = sum(each.cases for each in mine)

    def mean(name: str) -> float:
        return float(sum(getattr(each, name) for each in mine)) / cases

    known = all(None not in (each.log_p, each.log_q) for each in mine)
    return Row(
        setting,
        batch,
        mean("strict"),
        mean("loose"),
        mean("score"),
        mean("tokens"),
        mean("forwards"),
        mean("positions"),
        1000 * mean("seconds"),
        mean("log_q") - mean("log_p") if known else None,
    )


def spread(records: Sequence[CellRecord], setting: str, batch: int) -> float:
    """Return the standard deviation of the strict share over seeds; 0 for one seed."""
    by_seed: dict[int, list[int]] = {}
    for each in records:
        if each.setting == setting and each.cell.batch == batch:
            sums = by_seed.setdefault(each.cell.seed, [0, 0])
            sums[0] += each.strict
            sums[1] += each.cases
    shares = [strict / cases for strict, cases in by_seed.values()]
    if len(shares) < 2:
        return 0.0
    mean = sum(shares) / len(shares)
    return float((sum((each - mean) ** 2 for each in shares) / (len(shares) - 1)) ** 0.5)


def orders(records: Sequence[CellRecord], batch: int) -> dict[int, list[str]]:
    """Return by template the settings from the most accurate on: where they differ, ranks do."""
    out = {}
    for template in sorted({each.cell.template for each in records}):
        mine = [e for e in records if (e.cell.template, e.cell.batch) == (template, batch)]
        found = rows(mine)
        out[template] = [each.setting for each in sorted(found, key=lambda r: -r.strict)]
    return out


def area(found: Sequence[Row]) -> float:
    """Return the area under the frontier of accuracy over tokens per forward, from 1 on.

    After AUP (arXiv:2601.07568): without its weight for losses of accuracy.
    """
    points = sorted((max(each.per_forward, 1.0), each.strict) for each in found)
    total, reached = 0.0, 1.0
    while points:
        best = max(points, key=lambda point: (point[1], point[0]))
        total += (best[0] - reached) * best[1]
        reached = best[0]
        points = [point for point in points if point[0] > reached]
    return total


def ideal(task: str, n: int) -> list[tuple[str, ...]]:
    """Return the right answers, equally likely, to a task over `n` names; empty if there is one."""
    line = tuple(map(str, range(n)))
    if task == "shuffle":
        return [each for each in permutations(line) if each != line]
    if task == "insert-random":
        return [(*line[:i], "x", *line[i:]) for i in range(n + 1)]
    if task == "remove-random":
        return [(*line[:i], *line[i + 1 :]) for i in range(n)]
    if task == "replace-random":
        return [(*line[:i], "x", *line[i + 1 :]) for i in range(n)]
    if task == "latin-square":
        return [tuple(map(str, square)) for square in tasks.latin_squares().tolist()]
    return []


def total_correlation(answers: Sequence[Sequence[str]]) -> float:
    """Return nats between the joint of equally likely answers and the product of its marginals.

    No sampler that fills all places at once has a lower KL divergence (arXiv:2510.04767).
    """
    marginal = 0.0
    for place in zip(*answers, strict=True):
        shares = [count / len(answers) for count in Counter(place).values()]
        marginal -= sum(share * log(share) for share in shares)
    return marginal - log(len(answers))


def closed_forms() -> list[tuple[str, int, float, float]]:
    """Return task, names, chance of a right answer in one step at T=1, and total correlation."""
    out = []
    for task, n in product(
        ("shuffle", "insert-random", "remove-random", "replace-random", "latin-square"), range(3, 7)
    ):
        if task == "latin-square" and n != 4:
            continue
        answers = ideal(task, n)
        out.append((task, n, tasks.one_step_chance(answers), total_correlation(answers)))
    return out
