"""Bench results: rows with speed-ups, remarks, results.md, report.html, the directory of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from paceline.core.metrics import GenerationStats
from paceline.lab.measure.kept import Kept
from paceline.lab.measure.page import HINT, Plot, Table, can_plot, render
from paceline.lab.measure.results import table
from paceline.lab.measure.run import Record

# The drafter that all others are compared with.
BASELINE = "none"

_RESAMPLES = 2000
# Titles of columns, and their figures of a row: names and how each is written.
_COLUMNS: dict[str, dict[str, str]] = {
    "drafter": {"drafter": "{}"},
    "category": {"category": "{}"},
    "prompts": {"prompts": "{}"},
    "tokens/s": {"tokens_per_second": "{:.1f}"},
    "speed-up": {"speedup": "{:.2f}"},
    "90% interval": {"speedup_low": "{:.2f}", "speedup_high": "{:.2f}"},
    "tokens/forward": {"block_efficiency": "{:.2f}"},
    "rows/forward": {"rows_per_forward": "{:.1f}"},
    "drafting": {"draft_share": "{:.1%}"},
    "overhead": {"overhead_share": "{:.1%}"},
    "identical": {"identical": "{:.0%}"},
}

Row = dict[str, Any]


def rows(records: Sequence[Record], lossless: Mapping[str, bool]) -> list[Row]:
    """Return a row per drafter and category, and per drafter over all prompts.

    `lossless` says by drafter whether its verifier is.
    """
    categories = list(dict.fromkeys(record.category for record in records))
    out = []
    for drafter, exact in lossless.items():
        for category in ("all", *categories):
            chosen = [r for r in records if category in ("all", r.category)]
            if chosen:
                out.append({**_row(drafter, category, chosen), "lossless": exact})
    return out


def remarks(rows: Sequence[Row]) -> list[str]:
    """Warn of rows that are lossy or compare different texts."""
    out = []
    for row in rows:
        if row["category"] == "all" and not row["lossless"]:
            out.append(
                f"{row['drafter']}: lossy, its verifier does not keep the target's distribution"
            )
        if row["category"] == "all" and row["identical"] < 1:
            out.append(
                f"{row['drafter']}: {1 - row['identical']:.0%} of the texts differ from those of "
                f"{BASELINE}, so its speed-up compares different texts"
            )
    return out


def plain(results: Mapping[str, Any]) -> str:
    """Format results as lines of text."""
    shown = aligned([titles(), *map(cells, results["rows"])])
    return "\n".join([shown, *facts(results), *results["remarks"]])


def aligned(lines: Sequence[Sequence[str]]) -> str:
    """Align lines of cells in columns."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def titles() -> list[str]:
    """Return the titles of the columns."""
    return list(_COLUMNS)


def cells(row: Row) -> list[str]:
    """Format one row, in the order of `titles`."""

    def number(name: str, form: str) -> str:
        return "-" if row[name] is None else form.format(row[name])

    return [" to ".join(number(*each) for each in of.items()) for of in _COLUMNS.values()]


def _row(drafter: str, category: str, records: Sequence[Record]) -> Row:
    mine, base = _total(records, drafter), _total(records, BASELINE)
    pace = base.tokens_per_second
    speedup = mine.tokens_per_second / pace if pace else None
    low, high = _interval(records, drafter)
    same = [r.runs[drafter].token_ids == r.runs[BASELINE].token_ids for r in records]
    return {
        "drafter": drafter,
        "category": category,
        "prompts": len(records),
        "tokens_per_second": mine.tokens_per_second,
        "speedup": speedup,
        "speedup_low": low,
        "speedup_high": high,
        "block_efficiency": mine.block_efficiency,
        "rows_per_forward": mine.rows_per_forward,
        "acceptance_by_depth": mine.acceptance_by_depth,
        "draft_share": mine.draft_share,
        "overhead_share": mine.overhead_share,
        "identical": sum(same) / len(same),
    }


def _total(records: Sequence[Record], drafter: str) -> GenerationStats:
    total = GenerationStats()
    for record in records:
        total.add(record.runs[drafter].stats)
    return total


def _interval(records: Sequence[Record], drafter: str) -> tuple[float | None, float | None]:
    # Bootstrap over prompts, 90%.
    figures = np.array(
        [
            [figure for name in (drafter, BASELINE) for figure in _figures(record, name)]
            for record in records
        ]
    )
    picks = np.random.default_rng(0).integers(0, len(records), (_RESAMPLES, len(records)))
    tokens, seconds, base_tokens, base_seconds = figures[picks].sum(axis=1).T
    usable = (seconds > 0) & (base_tokens > 0)
    if not usable.any():
        return None, None
    ratios = (tokens * base_seconds)[usable] / (seconds * base_tokens)[usable]
    low, high = np.quantile(ratios, [0.05, 0.95])
    return float(low), float(high)


def _figures(record: Record, drafter: str) -> tuple[float, float]:
    stats = record.runs[drafter].stats
    return stats.committed_tokens, stats.decode_seconds


# Settings that are shown elsewhere, or not at all.
_UNSHOWN = ("cpu", "cores", "drafters", "prompts_sha256", "fingerprint")


def settings(results: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that a reader should see."""
    return {
        key: value
        for key, value in results["settings"].items()
        if value not in (None, False) and key not in _UNSHOWN
    }


def measured_on(results: Mapping[str, Any]) -> str:
    """Name the machine."""
    return f"{results['machine']['cpu']}, {results['machine']['cores']} cores"


def facts(results: Mapping[str, Any]) -> list[str]:
    """Return the lines that belong under every table."""
    costs = ", ".join(f"c({n}) = {c:.2f}" for n, c in results["c_n"].items())
    noise = ", ".join(f"{kind} {value:.2g}" for kind, value in results["noise_floor"].items())
    lines = [f"cost of a forward: {costs}", f"largest logit difference to plain steps: {noise}"]
    if results["fidelity"]:
        lines.append(f"against fp32: {fidelity_text(results['fidelity'])}")
    return lines


def fidelity_text(figures: Mapping[str, Any]) -> str:
    """Format the figures of `measure.doctor.Fidelity`."""
    return (
        f"KL {figures['kl']:.4f} nats per token, same argmax token at "
        f"{figures['top1_agreement']:.1%}, perplexity {figures['perplexity']:.3f} against "
        f"{figures['reference_perplexity']:.3f}"
    )


def resumption(results: Mapping[str, Any]) -> list[str]:
    """Say what an interruption cost the drafters, if anything."""
    places = ", ".join(map(str, results["resumed_after"]))
    if not places or results["settings"]["cold"]:
        return []
    return [f"resumed after {places} prompts, where drafters that learn began anew"]


def loops(records: Sequence[Record]) -> list[str]:
    """Say how many texts repeated themselves and were ended."""
    plain = [record.runs[BASELINE] for record in records]
    count = sum(run.loops for run in plain)
    if not count:
        return []
    texts = sum(len(run.token_ids) for run in plain)
    return [f"{count} of {texts} texts of {BASELINE} repeated themselves and were ended"]


def results_page(results: Mapping[str, Any]) -> str:
    """Format results.md."""
    conditions = ", ".join(f"{key} {value}" for key, value in settings(results).items())
    lines = "\n".join(f"- {line}" for line in [*facts(results), *results["remarks"]])
    shown = table(titles(), [cells(row) for row in results["rows"]])
    return f"# Bench\n\n{conditions}\n\n{measured_on(results)}\n\n{shown}\n{lines}\n"


def page(results: Mapping[str, Any]) -> str:
    """Return report.html, of what results.json holds; without matplotlib it has no plots."""
    given, found, plotted = results["settings"], results["rows"], can_plot()
    strong = [number for number, row in enumerate(found) if row["category"] == "all"]
    figures = Table("Figures", titles(), [cells(row) for row in found], strong=strong)
    nothing = [] if found else ["No prompt was finished: there is nothing to show."]
    return render(
        f"Bench of {given['model']}",
        [
            f"{given['runtime']}, {given['precision']}, {measured_on(results)}. Methods: "
            f"{', '.join(given['drafters'])}."
        ],
        [figures] if found else [],
        notes=[*results["remarks"], *([] if plotted else [HINT]), *nothing],
        figures=_plots(found, results["c_n"]) if plotted else [],
        conditions=facts(results),
        settings=settings(results),
    )


def _plots(rows: Sequence[Row], curve: Mapping[int, float]) -> list[Plot]:
    from paceline.lab.measure import plots

    shown = plots.methods(rows)
    if not shown:
        return []
    return [
        Plot(
            "Speed-up by method and category",
            plots.speedups(shown),
            "Tokens per second of decoding over those of plain decoding, prefill excluded. Left "
            "of the line a method loses. Bars: 90% interval over prompts.",
        ),
        Plot(
            "Acceptance by depth",
            plots.acceptance(shown),
            "Of the drafts that reach a depth, the share whose accepted path reaches it too. Few "
            "drafts are deep, so the right-hand end rests on few cases.",
        ),
        Plot(
            "Cost of a forward and operating points",
            plots.costs(shown, curve),
            "Line: time of a forward over n rows, in units of one over a single row. Each method "
            "stands at its mean rows per forward and sequence: hollow its cost on the line, "
            "filled its tokens per forward. Filled over hollow is its gain before drafting time.",
        ),
        Plot(
            "Draft cost against block efficiency",
            plots.pareto(shown),
            "Up and left is better. No method beats one on the line in both.",
        ),
    ]


_RESUMED = "resumed_after"


class Store(Kept[Record | int]):
    """`prompts.jsonl`: settings, a record per finished prompt, and a line per resumption."""

    def __init__(self, directory: Path | None, settings: Mapping[str, Any]) -> None:
        """Open a directory as `Kept` does; None keeps nothing."""
        super().__init__(directory and directory / "prompts.jsonl", settings, _entry)
        self.records = {each.index: each for each in self.entries if isinstance(each, Record)}
        # Finished prompts at each resumption.
        self.resumed_after = [each for each in self.entries if isinstance(each, int)]
        self._resumes = bool(self.records)

    def add(self, records: Sequence[Record]) -> None:
        """Append finished records; InvalidOption if the disk refuses."""
        if self._resumes:
            self.resumed_after.append(len(self.records))
            self.append({_RESUMED: len(self.records)})
            self._resumes = False
        self.append(*(record.as_dict() for record in records))
        self.records.update((record.index, record) for record in records)

    def outcome(
        self, results: Mapping[str, Any], lossless: Mapping[str, bool], wanted: int
    ) -> dict[str, Any]:
        """Return what is added to `results` at the end of a run over `wanted` prompts."""
        records = [self.records[index] for index in sorted(self.records)]
        found, resumed = rows(records, lossless), self.resumed_after
        complete = len(records) == wanted
        interrupted = [] if complete else [f"interrupted after {len(records)} of {wanted} prompts"]
        notes = [
            *interrupted,
            *resumption({**results, "resumed_after": resumed}),
            *loops(records),
            *remarks(found),
        ]
        return {"resumed_after": resumed, "rows": found, "complete": complete, "remarks": notes}


def _entry(found: dict[str, Any]) -> Record | int:
    return int(found[_RESUMED]) if _RESUMED in found else Record.from_dict(found)
