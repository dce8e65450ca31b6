"""Model card of a trained drafter: provenance, quality, cost; as JSON and Markdown."""

from __future__ import annotations

import importlib.util
import json
import platform
import resource
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from paceline.errors import InvalidOption
from paceline.training.objective import Hits
from paceline.training.run import LossPoint, TrainingRun

Plain = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class Data:
    """Training data; `tokens` are those that the target wrote."""

    sources: tuple[str, ...]
    prompts: int
    tokens: int
    digest: str
    settings: Mapping[str, Plain]


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Quality on held-out prompts.

    Attributes:
        tokens: committed tokens.
        conditions: runtime, precision, controller and draft size, in words.
        block_efficiency: committed tokens per target forward.
        acceptance: per depth, the share of drafts at least that deep that were accepted down to it.
    """

    prompts: int
    tokens: int
    conditions: str
    block_efficiency: float
    acceptance: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Cost:
    """Training cost: machine, seconds (pauses excluded), tokens (repeats counted), peak bytes."""

    machine: str
    seconds: float
    tokens: int
    peak_bytes: int

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True)
class Card:
    """Model card of a training run.

    Attributes:
        target_digest: fingerprint of the target's weights.
        licence: of the base model, in a line.
        command: of the training, as typed.
        parameters: trained numbers.
        file_bytes: size of the shipped weights.
    """

    drafter: str
    target: str
    target_digest: str
    licence: str
    command: str
    parameters: int
    file_bytes: int
    settings: Mapping[str, Plain]
    data: Data
    losses: tuple[LossPoint, ...]
    held_out: HeldOut
    cost: Cost


def as_dict(card: Card) -> dict[str, Any]:
    whole = asdict(card)
    whole["cost"]["tokens_per_second"] = card.cost.tokens_per_second
    return whole


def markdown(card: Card, plot: str | None = None) -> str:
    """Render a card; `plot` is the link of the loss figure."""
    parts = [
        f"# {card.drafter} for {card.target}",
        f"{card.parameters:,} parameters, {card.file_bytes / 2**20:.1f} MiB. Target weights: "
        f"`{card.target_digest}`.",
        f"Licence: {card.licence}",
        f"```\n{card.command}\n```",
        "## On held-out prompts",
        _held_out(card.held_out),
        "## Data",
        _data(card.data),
        "## Training",
        _table(card.settings),
        *([f"![Loss by step]({plot})"] if plot else []),
        _losses(card.losses),
        "## Cost",
        f"{card.cost.seconds / 3600:.2f} h on {card.cost.machine}: {card.cost.tokens:,} tokens, "
        f"{card.cost.tokens_per_second:,.0f} tokens/s, at most {card.cost.peak_bytes / 2**30:.2f} "
        "GiB of memory.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _held_out(held_out: HeldOut) -> str:
    depths = " | ".join(str(depth) for depth in range(1, len(held_out.acceptance) + 1))
    shares = " | ".join(f"{share:.1%}" for share in held_out.acceptance)
    rule = "---|" * (len(held_out.acceptance) + 1)
    return (
        f"Block efficiency {held_out.block_efficiency:.2f} tokens per forward over "
        f"{held_out.prompts:,} prompts and {held_out.tokens:,} tokens ({held_out.conditions})."
        f"\n\n| depth | {depths} |\n|{rule}\n| accepted | {shares} |"
    )


def _data(data: Data) -> str:
    sources = "\n".join(f"- {source}" for source in data.sources)
    return (
        f"{data.tokens:,} tokens that the target wrote for {data.prompts:,} prompts; digest "
        f"`{data.digest}`.\n\n{sources}\n\n{_table(data.settings)}"
    ).rstrip()


def _losses(losses: tuple[LossPoint, ...]) -> str:
    if not losses:
        return ""
    first, last = losses[0], losses[-1]
    held = [point.held_out for point in losses if point.held_out is not None]
    ending = f"; held out {held[0]:.4g} to {held[-1]:.4g}" if held else ""
    return (
        f"Loss {first.training:.4g} at step {first.step:,}, {last.training:.4g} at step "
        f"{last.step:,}{ending}."
    )


def _table(values: Mapping[str, Plain]) -> str:
    if not values:
        return ""
    rows = "\n".join(f"| {_cell(key)} | {_cell(value)} |" for key, value in values.items())
    return f"| setting | value |\n|---|---|\n{rows}"


def _cell(value: object) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ")


def write_card(
    out: Path,
    run: TrainingRun[Any],
    hits: Hits,
    *,
    drafter: str,
    metadata: Mapping[str, str],
    parameters: int,
    settings: Mapping[str, Plain],
    data: Mapping[str, str],
    licence: str,
    conditions: str,
) -> None:
    """Write the card of a run next to the weights at `out`.

    Args:
        metadata: of the weights.
        data: settings of the texts.
        conditions: of `hits`, in words.

    Raises:
        InvalidOption: a file cannot be written.
    """
    texts = (*run.texts, *run.held_out)
    card = Card(
        drafter=drafter,
        target=metadata["model_name"],
        target_digest=metadata["model"],
        licence=licence,
        command=metadata["command"],
        parameters=parameters,
        file_bytes=out.stat().st_size,
        settings=settings,
        data=Data(
            ("answers of the target to prompts from files, and to user turns of its own",),
            len(texts),
            sum(len(text.tokens) - text.prompt_length for text in texts),
            data["prompts"],
            dict(data),
        ),
        losses=tuple(run.course.points),
        held_out=HeldOut(
            len(run.held_out), hits.starts, conditions, hits.block_efficiency, hits.acceptance
        ),
        cost=Cost(
            f"{platform.machine()}, {platform.system()}",
            run.course.seconds,
            run.course.tokens,
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
            plot.write_bytes(loss_plot(card.losses))
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
