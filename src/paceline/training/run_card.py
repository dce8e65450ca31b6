"""Loss course of a training run, and the model card written at its end."""

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

# Updates per point of the loss curve.
_EVERY = 20


class Course:
    """Losses and seconds of a run over all its sessions; `kept` continues from `as_dict`."""

    def __init__(self, kept: Mapping[str, Any] | None = None) -> None:
        kept = kept or {"points": [], "seconds": 0.0, "tokens": 0}
        self.points = [LossPoint(*point) for point in kept["points"]]
        self.seconds = float(kept["seconds"])
        self.tokens = int(kept["tokens"])
        self._recent: list[float] = []
        self._clock = perf_counter()

    def add(self, report: Report) -> None:
        now = perf_counter()
        self.seconds += now - self._clock
        self._clock = now
        self.tokens = report.tokens
        self._recent.append(report.loss)
        if len(self._recent) == _EVERY:
            self._point(report.step, None)

    def held_out(self, step: int, loss: float) -> None:
        self._point(step, loss)

    def as_dict(self) -> dict[str, Any]:
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
    """Write the card next to the weights at `out`, as Markdown and JSON, with the loss curve.

    Args:
        coverage: share of the target's tokens that the draft vocabulary holds.
        judged: number of held-out texts, and greedy hits there.

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
    """Write a card next to the weights at `out`; the loss curve only with matplotlib.

    Raises:
        InvalidOption: a file cannot be written.
    """
    plot = None
    try:
        if importlib.util.find_spec("matplotlib") and card.losses:
            from paceline.training.plots import loss_plot

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
