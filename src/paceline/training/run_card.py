"""The course of a run, and the card that is written at its end."""

from __future__ import annotations

import importlib.util
import json
import platform
import resource
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import Any

from paceline.errors import InvalidOption
from paceline.networks.weights import Trained
from paceline.training.card import Card, Cost, Data, HeldOut, LossPoint, as_dict, markdown
from paceline.training.objective import Hits
from paceline.training.trainer import Recipe, Report

_EVERY = 20
"""Updates per point of the loss curve."""


class Course:
    """Losses and time of a run, over all its stretches."""

    def __init__(self, kept: Mapping[str, Any] | None = None) -> None:
        """Begin, or go on from what `as_dict` gave."""
        kept = kept or {"points": [], "seconds": 0.0, "tokens": 0}
        self.points = [LossPoint(*point) for point in kept["points"]]
        self.seconds = float(kept["seconds"])
        self.tokens = int(kept["tokens"])
        self._recent: list[float] = []
        self._clock = perf_counter()

    def add(self, report: Report) -> None:
        """Note an update."""
        now = perf_counter()
        self.seconds += now - self._clock
        self._clock = now
        self.tokens = report.tokens
        self._recent.append(report.loss)
        if len(self._recent) == _EVERY:
            self._point(report.step, None)

    def held_out(self, step: int, loss: float) -> None:
        """Note the loss on texts that are held out."""
        self._point(step, loss)

    def as_dict(self) -> dict[str, Any]:
        """Plain values that JSON holds."""
        points = [[p.step, p.training, p.held_out] for p in self.points]
        return {"points": points, "seconds": self.seconds, "tokens": self.tokens}

    def _point(self, step: int, held_out: float | None) -> None:
        last = self.points[-1].training if self.points else float("nan")
        mean = sum(self._recent) / len(self._recent) if self._recent else last
        self.points.append(LossPoint(step, mean, held_out))
        self._recent.clear()


def write_card(
    out: Path,
    trained: Trained,
    course: Course,
    recipe: Recipe,
    data: Mapping[str, str],
    texts: int,
    answer_tokens: int,
    coverage: float,
    judged: tuple[int, Hits],
) -> None:
    """Write the card beside the weights, as Markdown and JSON, and the loss curve if it can be
    drawn.

    Args:
        out: file of the weights, which is there.
        trained: what was trained.
        course: how it went.
        recipe: how it was trained.
        data: settings of the data set.
        texts: of the data set.
        answer_tokens: of the data set.
        coverage: share of the target's tokens that the draft vocabulary holds.
        judged: how many texts were held out, and how drafts fare there.

    Raises:
        InvalidOption: a file cannot be written.
    """
    held, hits = judged
    settings = {**asdict(recipe), "vocabulary": len(trained.draft_ids), "coverage": coverage}
    card = Card(
        drafter=trained.network.name,
        target=trained.metadata["model_name"],
        target_digest=trained.metadata["model"],
        licence="as the base model's, whose text and features it was trained on",
        command=trained.metadata["command"],
        parameters=sum(array.size for array in trained.parameters.values()),
        file_bytes=out.stat().st_size,
        settings=settings,
        data=Data(
            ("answers of the target to prompts from files, and to user turns of its own",),
            texts,
            answer_tokens,
            data["prompts"],
            dict(data),
        ),
        losses=tuple(course.points),
        held_out=HeldOut(
            held,
            hits.starts,
            "drafts of full depth against texts as they stand, greedy ones and sampled ones",
            hits.block_efficiency,
            hits.acceptance,
        ),
        cost=Cost(
            f"{platform.machine()}, {platform.system()}",
            course.seconds,
            course.tokens,
            resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        ),
    )
    save_card(out, card)


def save_card(out: Path, card: Card) -> None:
    """Write a card beside the weights, and the loss curve if it can be drawn.

    Args:
        out: file of the weights.
        card: what to write.

    Raises:
        InvalidOption: a file cannot be written.
    """
    plot = None
    try:
        if importlib.util.find_spec("matplotlib") and card.losses:
            from paceline.training.card_plot import loss_plot

            plot = out.with_suffix(".png")
            plot.write_bytes(loss_plot(card))
        out.with_suffix(".md").write_text(
            markdown(card, plot.name if plot else None), encoding="utf-8"
        )
        text = json.dumps(as_dict(card), indent=1)
        out.with_suffix(".json").write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise InvalidOption(
            f"the weights are written, but no card beside them ({error.strerror or error}): free "
            "some space"
        ) from error
