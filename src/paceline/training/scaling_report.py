"""What a scaling study shows, to read, as JSON and as figures."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from paceline.bench.strict_json import dumps
from paceline.training.counts import short
from paceline.training.scaling_laws import Law, laws
from paceline.training.scaling_runs import Point, write_whole


@dataclass(frozen=True, slots=True)
class Study:
    """Runs of one target on one set of texts, by one recipe.

    Attributes:
        command: that made it.
        model: name of the target.
        settings: what all runs share.
        training_tokens: of the texts that are trained on, each counted once.
        held_out: number of texts that drafts are judged on.
        asked: number of runs.
        points: those that are finished.
    """

    command: str
    model: str
    settings: Mapping[str, Any]
    training_tokens: int
    held_out: int
    asked: int
    points: Sequence[Point]

    @property
    def complete(self) -> bool:
        """Whether all runs are finished."""
        return len(self.points) == self.asked


def as_dict(study: Study, found: Sequence[Law]) -> dict[str, Any]:
    """All of a study as plain values."""
    return {
        "command": study.command,
        "complete": study.complete,
        "model": study.model,
        "settings": dict(study.settings),
        "training_tokens": study.training_tokens,
        "held_out_texts": study.held_out,
        "runs": [
            {
                "network": point.run.network,
                "parameters": point.run.parameters,
                "budget": point.run.tokens,
                "seed": point.run.seed,
                **asdict(point.outcome),
            }
            for point in study.points
        ],
        "laws": [law.as_dict() for law in found],
    }


def markdown(study: Study, found: Sequence[Law], plots: Mapping[str, str]) -> str:
    """A study to read.

    Args:
        study: what was done.
        found: its laws.
        plots: link of each figure by its title.
    """
    state = "" if study.complete else f" {len(study.points)} of {study.asked} runs are finished."
    parts = [
        f"# How drafters of {study.model} grow",
        f"Each run has a whole learning-rate schedule of its own. All are judged on the same "
        f"{study.held_out} held-out texts, walked as decoding walks them; there are "
        f"{study.training_tokens:,} different tokens to train on.{state}",
        f"```\n{study.command}\n```",
        "## Runs",
        _runs(study.points),
        "## Laws",
        _laws(found),
        *(f"![{title}]({link})" for title, link in plots.items()),
    ]
    return "\n\n".join(parts) + "\n"


def write_report(folder: Path, study: Study) -> dict[str, Any]:
    """Write scaling.json, scaling.md and, with matplotlib, the figures; the content of the first.

    Raises:
        InvalidOption: a file cannot be written.
    """
    found = laws(study.points)
    plots: dict[str, str] = {}
    if importlib.util.find_spec("matplotlib"):
        from paceline.training.scaling_plot import scaling_plot

        for size, value in dict.fromkeys((law.size, law.value) for law in found):
            shown = {law.label: law.fit for law in found if (law.size, law.value) == (size, value)}
            name = f"{value} over {size}".replace(" ", "-") + ".png"
            write_whole(folder / name, scaling_plot(shown, size, value))
            plots[f"{value} over {size}"] = name
    content = as_dict(study, found)
    write_whole(folder / "scaling.md", markdown(study, found, plots).encode())
    write_whole(folder / "scaling.json", (dumps(content, indent=1) + "\n").encode())
    return content


def _runs(points: Sequence[Point]) -> str:
    rows = [
        "| network | parameters | tokens seen | seed | block efficiency | first token accepted | "
        "loss | seconds |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for point in points:
        run, outcome = point.run, point.outcome
        rows.append(
            f"| `{run.network}` | {short(run.parameters)} | {outcome.tokens:,} | {run.seed} | "
            f"{outcome.block_efficiency:.3f} | {outcome.acceptance[0]:.1%} | {outcome.loss:.3f} | "
            f"{outcome.seconds:,.0f} |"
        )
    return "\n".join(rows)


def _laws(found: Sequence[Law]) -> str:
    if not found:
        return "A law needs three numbers of tokens, or three sizes of one kind of network."
    rows = [
        "Value = a + b log N by least squares, the form of arXiv:2505.07858. A tenfold N adds "
        "b log 10; intervals are 90%, by bootstrap of the residuals. No law is meant beyond its "
        "points.",
        "",
        "| of | value | over | from | to | value there | tenfold adds | explained |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for law in found:
        fit, ends = law.fit, (law.fit.sizes.min(), law.fit.sizes.max())
        first, last = fit.at(ends).tolist()
        slope = fit.per_tenfold
        rows.append(
            f"| `{law.of}` | {law.value} | {law.size} | {short(int(ends[0]))} | "
            f"{short(int(ends[1]))} | {first:.3f} to {last:.3f} | {slope.value:+.3f} "
            f"({slope.low:+.3f} to {slope.high:+.3f}) | {fit.explained:.0%} |"
        )
    return "\n".join(rows)
