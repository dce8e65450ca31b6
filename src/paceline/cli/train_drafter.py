"""`paceline train drafter`: train a drafter network on text that the target wrote."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.cli import options as o
from paceline.cli.output import remark
from paceline.cli.train import train
from paceline.core.options import require
from paceline.lab.training.recipe import DrafterRecipe
from paceline.registry.options import Options

if TYPE_CHECKING:
    from paceline.lab.training.run import TrainingRun

_RECIPE = (
    "tokens",
    "loss",
    "batch_tokens",
    "rate",
    "prompt_weight",
    "on_policy",
    "training_precision",
    "seed",
)
_KEPT = ("command", "data", "tokens")
"""Of the provenance of weights that a run starts from, what is noted beside its own."""


def drafter(
    network: Annotated[str, typer.Argument(help="Network, with sizes: hydra:steps=5.")],
    *,
    data: o.Folders = o.DATA,
    out: Annotated[Path | None, "Where the weights go. Default: NETWORK.safetensors."] = None,
    start: Annotated[
        Path | None,
        typer.Option(
            "--from",
            help="Weights to start from, instead of drawn: of the same network, or of another, of "
            "which the tensors of the same name and shape are taken.",
        ),
    ] = None,
    keep_features: o.KeepFeatures = None,
    stored: Annotated[str, "How the file holds matrices: F16, Q8_0 or Q4_0."] = "F16",
    vocabulary: Annotated[int, "Tokens that may be drafted."] = 8192,
    recipe: Annotated[DrafterRecipe, o.Takes(*_RECIPE)],
    asked: Annotated[Options, o.Takes("model", *o.COMPUTE)],
    as_json: o.AsJson = False,
) -> None:
    """Train a drafter; Ctrl-C saves, and the same command goes on.

    Beside the weights stands a card (NAME.md, NAME.json). `draft-lm` is trained twice (FastDraft):
    on all text, with --loss cross-entropy and --prompt-weight 1, and --from that on what the target
    wrote, by a divergence.
    """
    from paceline.lab.training.card import publish
    from paceline.lab.training.model import NOTHING
    from paceline.lab.training.setup import TrainingSetup, fitting
    from paceline.networks.weights import STORED

    require(stored in STORED, "--stored", stored, ", ".join(STORED))
    setup = TrainingSetup(data, asked, keep_features=keep_features)
    place = out or Path(f"{network.partition(':')[0]}.safetensors")
    command = (
        f"paceline train drafter {network} --data DATA --vocabulary {vocabulary} "
        f"{recipe.words(*_RECIPE)} --model {setup.source.name}"
    )
    more = {} if stored == "F16" else {"stored": stored}
    command += "".join(f" --{key} {value}" for key, value in more.items())
    built, begin = setup.network(network), NOTHING
    if start is not None:
        earlier = fitting(start, built, setup.source.fingerprint, place)
        begin = earlier.parameters
        if earlier.network.name != built.name:
            remark(f"{len(begin)} of {len(built.shapes())} tensors are those of {start}")
        kept = [key for key in earlier.metadata if key.split("from_")[-1] in _KEPT]
        more |= {f"from_{key}": earlier.metadata[key] for key in kept}
        command += " --from WEIGHTS"
    task = setup.drafter(built, recipe, vocabulary, begin)

    def written(run: TrainingRun[Any]) -> tuple[dict[str, Any], str]:
        figures, line = publish(run, place, setup.teacher, command, **more)
        chosen = task.vocabulary
        sizes = {"size": len(chosen.ids), "coverage": chosen.coverage}
        return {**figures, "vocabulary": sizes}, line

    train(task, place, written, as_json=as_json)
