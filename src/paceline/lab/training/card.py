"""Cards of what was trained: provenance, quality, cost; as JSON and Markdown."""

from __future__ import annotations

import importlib.util
import io
import json
import platform
import resource
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeVar

from paceline.core.cache import write_atomically
from paceline.errors import InvalidOption
from paceline.lab.training.data import Text, prompts_digest, read_folders
from paceline.lab.training.objective import Hits
from paceline.lab.training.recipe import Recipe
from paceline.lab.training.run import LossPoint, TrainingRun, TrainingTask
from paceline.models.source import ModelSource
from paceline.version import __version__

# What a card holds, as its JSON file.
Card = Mapping[str, Any]

Chosen = TypeVar("Chosen", bound=Recipe)

# Of training, and of held-out texts.
_COLOURS = ("#0b84c6", "#d95f02")

_STYLE: Any = {  # its type is every known key, by version
    "font.size": 10,
    "text.parse_math": False,  # names may hold dollar signs
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "lines.markersize": 5.5,
}


def card_of(
    run: TrainingRun[Any], command: str, licence: str, held_out: Mapping[str, Any], **more: Any
) -> dict[str, Any]:
    """Return what every card holds, and `more`; JSON-serialisable."""
    course = run.course
    return {
        **more,
        "licence": licence,
        "command": command,
        "parameters": sum(each.numel() for each in run.task.module.parameters()),
        "settings": run.task.chosen,
        "held_out": dict(held_out),
        "losses": [asdict(point) for point in course.points],
        "cost": {
            "machine": f"{platform.machine()}, {platform.system()}",
            "seconds": course.seconds,
            "tokens": course.tokens,
            "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            "tokens_per_second": course.tokens / course.seconds if course.seconds else 0.0,
        },
    }


def page(card: Card, title: str, size: str, middle: Sequence[str], plot: str | None = None) -> str:
    """Render a card, with parts of its own in the `middle`; `plot` links the loss curve."""
    cost = card["cost"]
    parts = [
        f"# {title}",
        f"{card['parameters']:,} parameters{size}",
        f"Licence: {card['licence']}",
        f"```\n{card['command']}\n```",
        *middle,
        "## Training",
        table(("setting", "value"), card["settings"].items()),
        f"![Loss by step]({plot})" if plot else "",
        _losses(card["losses"]),
        "## Cost",
        f"{cost['seconds'] / 3600:.2f} h on {cost['machine']}: {cost['tokens']:,} tokens, "
        f"{cost['tokens_per_second']:,.0f} tokens/s, at most {cost['peak_bytes'] / 2**30:.2f} "
        "GiB of memory.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def table(columns: Sequence[object], rows: Any) -> str:
    """Render a table; nothing without rows."""
    lines = [" | ".join(str(x).replace("|", "\\|").replace("\n", " ") for x in r) for r in rows]
    head = [f"| {' | '.join(map(str, columns))} |", "|" + "---|" * len(columns)]
    return "\n".join([*head, *(f"| {line} |" for line in lines)]) if lines else ""


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


def markdown(card: Card, plot: str | None = None) -> str:
    """Render the card of a drafter."""
    held_out, data = card["held_out"], card["data"]
    shares = [f"{share:.1%}" for share in held_out["acceptance"]]
    sources = "\n".join(f"- {source}" for source in data["sources"])
    size = f", {card['file_bytes'] / 2**20:.1f} MiB. Target weights: `{card['target_digest']}`."
    middle = [
        "## On held-out prompts",
        f"Block efficiency {held_out['block_efficiency']:.2f} tokens per forward over "
        f"{held_out['prompts']:,} prompts and {held_out['tokens']:,} tokens "
        f"({held_out['conditions']}).",
        table(("depth", *range(1, len(shares) + 1)), [("accepted", *shares)]),
        "## Data",
        f"{data['tokens']:,} tokens that the target wrote for {data['prompts']:,} prompts; digest "
        f"`{data['digest']}`.",
        sources,
        table(("setting", "value"), data["settings"].items()),
    ]
    return page(card, f"{card['drafter']} for {card['target']}", size, middle, plot)


def loss_plot(losses: Sequence[LossPoint]) -> bytes:
    """Plot the training and held-out loss by step, as a PNG; equal input gives equal bytes."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_STYLE):
        figure = Figure((4.6, 2.8), dpi=160, layout="constrained")
        axes = figure.add_subplot()
        steps = [point.step for point in losses]
        axes.plot(steps, [point.training for point in losses], color=_COLOURS[0], label="training")
        held = [(each.step, each.held_out) for each in losses if each.held_out is not None]
        if held:
            axes.plot(*zip(*held, strict=True), "o-", color=_COLOURS[1], label="held out")
        axes.set_xlabel("step")
        axes.set_ylabel("loss")
        axes.legend(fontsize=9)
        out = io.BytesIO()
        figure.savefig(out, format="png", metadata={"Software": None})
    return out.getvalue()


@dataclass(frozen=True, slots=True)
class Teacher:
    """A target, and texts that it wrote with their settings."""

    source: ModelSource
    texts: Sequence[Text]
    settings: Mapping[str, str]

    @classmethod
    def of(cls, folders: Sequence[Path], source: ModelSource) -> Teacher:
        """Read folders of `paceline train data`.

        Raises:
            InvalidOption: there are no texts, or another model wrote them.
        """
        texts, settings = read_folders(folders)
        if settings["model"] != source.fingerprint:
            raise InvalidOption(
                f"{folders[0]} was written by another model: write text of {source.name} with "
                "`paceline train data`"
            )
        return cls(source, texts, settings)


class Judged(NamedTuple):
    """Loss and greedy hits on held-out texts."""

    loss: float
    hits: Hits


class TaughtTask(TrainingTask[Chosen, Judged]):
    """A task whose teacher is a target: it drafts what that wrote.

    Attributes:
        name: of what drafts.
        taught: how the base model, whose licence holds, took part.
        source: of its texts, in words.
        conditions: of the hits, in words.
    """

    name: str
    taught: ClassVar[str]
    source: ClassVar[str] = "answers of the target to prompts from files, and to its own user turns"
    conditions: ClassVar[str]

    def figures(self) -> dict[str, Any]:
        """Return more figures on held-out texts, once they are judged."""
        return {}

    @abstractmethod
    def save(self, out: Path, metadata: dict[str, str]) -> Path:
        """Write what was trained and judged; return the file of the weights."""
        ...


def publish(
    run: TrainingRun[TaughtTask[Any]], out: Path, teacher: Teacher, command: str, **more: str
) -> tuple[dict[str, Any], str]:
    """Judge a run, write weights and card, and return its figures and a line for people.

    The loss curve is drawn with matplotlib alone.

    Args:
        command: for the provenance.
        more: metadata of the weights.

    Raises:
        InvalidOption: a file cannot be written.
    """
    task, course = run.task, run.course
    loss, hits = task.judge()
    course.held_out(run.step, loss)
    settings = dict(teacher.settings)
    metadata = {
        "model": teacher.source.fingerprint,
        "model_name": teacher.source.name,
        "command": command,
        "data": json.dumps(settings, sort_keys=True),
        "tokens": str(run.tokens),
        "paceline": __version__,
        "block_efficiency": f"{hits.block_efficiency:.4f}",
        **more,
    }
    weights = task.save(out, metadata)
    texts = (*task.texts, *task.held_out)
    card = card_of(
        run,
        command,
        f"as the base model's, {task.taught}",
        {
            "prompts": len(task.held_out),
            "tokens": hits.starts,
            "conditions": task.conditions,
            "block_efficiency": hits.block_efficiency,
            "acceptance": hits.acceptance,
        },
        drafter=task.name,
        target=teacher.source.name,
        target_digest=teacher.source.fingerprint,
        file_bytes=weights.stat().st_size,
        data={
            "sources": [task.source],
            "prompts": len(texts),
            "tokens": sum(len(text.tokens) - text.prompt_length for text in texts),
            "digest": prompts_digest(
                [metadata["data"], *(t.tokens.tobytes().hex() for t in texts)]
            ),
            "settings": settings,
        },
    )
    plot = None
    try:
        if importlib.util.find_spec("matplotlib") and course.points:
            plot = weights.with_suffix(".png")
            plot.write_bytes(loss_plot(course.points))
        write_atomically(weights.with_suffix(".md"), markdown(card, plot.name if plot else None))
        write_atomically(weights.with_suffix(".json"), json.dumps(card, indent=1) + "\n")
    except OSError as error:
        raise InvalidOption(
            f"the weights are written, but no card beside them ({error.strerror or error}): free "
            "some space"
        ) from error
    figures = {
        "weights": str(out),
        "finished": run.finished,
        "steps": run.step,
        "tokens": run.tokens,
        "held_out": {
            "texts": len(task.held_out),
            "loss": loss,
            "block_efficiency": hits.block_efficiency,
            "acceptance": hits.acceptance,
            **task.figures(),
        },
        "seconds": round(course.seconds, 1),
        "tokens_per_second": round(course.tokens_per_second, 1),
        "recipe": asdict(task.recipe),
    }
    share = " ".join(f"{each:.2f}" for each in hits.acceptance)
    line = (
        f"{out}: {run.tokens} tokens in {course.seconds:.0f} s; held out: block efficiency "
        f"{hits.block_efficiency:.3f}, acceptance by depth {share}"
    )
    return figures, line
