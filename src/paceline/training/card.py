"""Model card of a trained drafter: provenance, quality, cost; as JSON and Markdown."""

from __future__ import annotations

import importlib.util
import json
import platform
import resource
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from paceline.core.cache import write_atomically
from paceline.errors import InvalidOption
from paceline.training.objective import Hits
from paceline.training.run import TrainingRun

# What a card holds, as its JSON file.
Card = Mapping[str, Any]

_SOURCE = "answers of the target to prompts from files, and to user turns of its own"


def markdown(card: Card, plot: str | None = None) -> str:
    """Render a card; `plot` is the link of the loss figure."""
    cost = card["cost"]
    parts = [
        f"# {card['drafter']} for {card['target']}",
        f"{card['parameters']:,} parameters, {card['file_bytes'] / 2**20:.1f} MiB. Target weights: "
        f"`{card['target_digest']}`.",
        f"Licence: {card['licence']}",
        f"```\n{card['command']}\n```",
        "## On held-out prompts",
        _held_out(card["held_out"]),
        "## Data",
        _data(card["data"]),
        "## Training",
        _table(card["settings"]),
        *([f"![Loss by step]({plot})"] if plot else []),
        _losses(card["losses"]),
        "## Cost",
        f"{cost['seconds'] / 3600:.2f} h on {cost['machine']}: {cost['tokens']:,} tokens, "
        f"{cost['tokens_per_second']:,.0f} tokens/s, at most {cost['peak_bytes'] / 2**30:.2f} "
        "GiB of memory.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _held_out(held_out: Card) -> str:
    depths = " | ".join(str(depth) for depth in range(1, len(held_out["acceptance"]) + 1))
    shares = " | ".join(f"{share:.1%}" for share in held_out["acceptance"])
    rule = "---|" * (len(held_out["acceptance"]) + 1)
    return (
        f"Block efficiency {held_out['block_efficiency']:.2f} tokens per forward over "
        f"{held_out['prompts']:,} prompts and {held_out['tokens']:,} tokens "
        f"({held_out['conditions']}).\n\n| depth | {depths} |\n|{rule}\n| accepted | {shares} |"
    )


def _data(data: Card) -> str:
    sources = "\n".join(f"- {source}" for source in data["sources"])
    return (
        f"{data['tokens']:,} tokens that the target wrote for {data['prompts']:,} prompts; digest "
        f"`{data['digest']}`.\n\n{sources}\n\n{_table(data['settings'])}"
    ).rstrip()


def _losses(losses: Sequence[Card]) -> str:
    if not losses:
        return ""
    first, last = losses[0], losses[-1]
    held = [point["held_out"] for point in losses if point["held_out"] is not None]
    ending = f"; held out {held[0]:.4g} to {held[-1]:.4g}" if held else ""
    return (
        f"Loss {first['training']:.4g} at step {first['step']:,}, {last['training']:.4g} at step "
        f"{last['step']:,}{ending}."
    )


def _table(values: Mapping[str, object]) -> str:
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
    settings: Mapping[str, object],
    data: Mapping[str, str],
    licence: str,
    conditions: str,
) -> None:
    """Write the card of a run next to the weights at `out`; the loss curve only with matplotlib.

    Args:
        metadata: of the weights.
        data: settings of the texts.
        conditions: of `hits`, in words.

    Raises:
        InvalidOption: a file cannot be written.
    """
    texts = (*run.texts, *run.held_out)
    course = run.course
    card = {
        "drafter": drafter,
        "target": metadata["model_name"],
        "target_digest": metadata["model"],
        "licence": licence,
        "command": metadata["command"],
        "parameters": parameters,
        "file_bytes": out.stat().st_size,
        "settings": settings,
        "data": {
            "sources": [_SOURCE],
            "prompts": len(texts),
            "tokens": sum(len(text.tokens) - text.prompt_length for text in texts),
            "digest": data["prompts"],
            "settings": dict(data),
        },
        "losses": [asdict(point) for point in course.points],
        "held_out": {
            "prompts": len(run.held_out),
            "tokens": hits.starts,
            "conditions": conditions,
            "block_efficiency": hits.block_efficiency,
            "acceptance": hits.acceptance,
        },
        "cost": {
            "machine": f"{platform.machine()}, {platform.system()}",
            "seconds": course.seconds,
            "tokens": course.tokens,
            "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            "tokens_per_second": course.tokens / course.seconds if course.seconds else 0.0,
        },
    }
    plot = None
    try:
        if importlib.util.find_spec("matplotlib") and course.points:
            from paceline.training.plots import loss_plot

            plot = out.with_suffix(".png")
            plot.write_bytes(loss_plot(course.points))
        write_atomically(out.with_suffix(".md"), markdown(card, plot.name if plot else None))
        text = json.dumps(card, indent=1)
        write_atomically(out.with_suffix(".json"), text + "\n")
    except OSError as error:
        raise InvalidOption(
            f"the weights are written, but no card beside them ({error.strerror or error}): free "
            "some space"
        ) from error
