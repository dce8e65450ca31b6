"""Report of a scaling study: JSON, Markdown and figures."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

from paceline.measure.machine import dumps
from paceline.training.plots import COLOURS, png
from paceline.training.scaling import Law, LogLinear, Point, laws, write_whole
from paceline.training.trainer import short


@dataclass(frozen=True, slots=True)
class Study:
    """Runs of one target on one set of texts, by one recipe.

    Attributes:
        training_tokens: of the training texts, each counted once.
        held_out: number of held-out texts.
        asked: planned runs; `points` are the finished ones.
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
        return len(self.points) == self.asked


def as_dict(study: Study, found: Sequence[Law]) -> dict[str, Any]:
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
    """Write scaling.json, scaling.md and, with matplotlib, the figures; return the JSON content.

    Raises:
        InvalidOption: a file cannot be written.
    """
    found = laws(study.points)
    plots: dict[str, str] = {}
    if importlib.util.find_spec("matplotlib"):
        pass

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


# The figure of a scaling study:


@dataclass(frozen=True, slots=True)
class PublishedLaw:
    """Published scaling law, drawn next to the fits.

    `per_tenfold` is its slope per factor of ten in the unit of the points; None if only its form is
    known.
    """

    label: str = "law of arXiv:2505.07858, end to end"
    per_tenfold: float | None = None

    def line(self, fit: LogLinear) -> tuple[list[float], list[float]]:
        """Return sizes and values of the line's two ends.

        With a slope the line passes through the middle of the points, since intercepts depend on
        the model. Without one it joins the ends, to show how far the points bend from the form.
        """
        ends = np.array([fit.sizes.min(), fit.sizes.max()])
        if self.per_tenfold is None:
            values = [float(fit.values[fit.sizes == end].mean()) for end in ends]
            return ends.tolist(), values
        middle = np.log10(fit.sizes).mean()
        shift = self.per_tenfold * (np.log10(ends) - middle)
        return ends.tolist(), (fit.values.mean() + shift).tolist()


def scaling_plot(
    fits: Mapping[str, LogLinear],
    size_name: str,
    value_name: str,
    published: PublishedLaw | None = None,
) -> bytes:
    """Plot fits on a logarithmic axis that ends where the points do."""
    law = published or PublishedLaw()
    alone = len(fits) == 1
    rows = len(fits) + 1

    def draw(axes: Axes) -> None:
        for index, (name, fit) in enumerate(fits.items()):
            colour = COLOURS[0] if alone else f"C{index}"
            slope = fit.per_tenfold
            label = (
                f"{name}: {slope.value:+.3g} per tenfold ({slope.low:+.3g} to {slope.high:+.3g})"
            )
            grid = np.geomspace(fit.sizes.min(), fit.sizes.max(), 50)
            grid[[0, -1]] = fit.sizes.min(), fit.sizes.max()  # rounding may not lead outside
            axes.fill_between(grid, *fit.band(grid), color=colour, alpha=0.15, linewidth=0)
            axes.plot(grid, fit.at(grid), color=colour, label=label)
            axes.plot(fit.sizes, fit.values, "o", color=colour)
        for index, fit in enumerate(fits.values()):
            colour = COLOURS[1] if alone else "black"
            once = law.label if index == 0 else None
            axes.plot(*law.line(fit), color=colour, linestyle="--", linewidth=1, label=once)
        sizes = np.concatenate([fit.sizes for fit in fits.values()])
        axes.set_xscale("log")
        narrow = sizes.max() < 50 * sizes.min()  # then powers of ten are too few
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if narrow else (1,)))
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_xlabel(size_name)
        axes.set_ylabel(value_name)
        low, high = axes.get_ylim()
        axes.set_ylim(low, high + 0.12 * rows * (high - low))  # the legend hides no point

    return png(draw, 3 + 0.2 * rows)
