"""`paceline train acceptance-head` and `head-preview`: when a drafter stops, and a faster head."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.cli import options as o
from paceline.cli.train import train
from paceline.errors import InvalidOption
from paceline.registry.options import Options
from paceline.training.recipe import HeadRecipe
from paceline.version import __version__

if TYPE_CHECKING:
    from paceline.training.run import TrainingRun

_HEAD_SUFFIX = ".acceptance.safetensors"
_PREVIEW_SUFFIX = ".head-preview.safetensors"


_RECIPE = ("tokens", "batch_tokens", "rejection", "rate", "seed")


@o.spread_options
def acceptance_head(
    weights: Annotated[Path, typer.Argument(help="Weights of a drafter, safetensors.")],
    *,
    data: o.Data = Path("data"),
    out: Annotated[
        Path | None,
        typer.Option(help="Where the head goes. Default: beside the weights, .acceptance."),
    ] = None,
    recipe: Annotated[HeadRecipe, o.Takes(*_RECIPE)],
    asked: Annotated[Options, o.Takes("model", *o.COMPUTE)],
    as_json: o.AsJson = False,
) -> None:
    """Train a head that predicts acceptance (SpecDec++); a few minutes.

    Ctrl-C saves, and the same command goes on.
    The drafter stays as it is. Decode with NAME:weights=WEIGHTS,head=HEAD: a chain ends once the
    chance that all of it stands falls below stop=0.7.
    """
    from paceline.drafters.network.stopping_head import check_steps, save_acceptance_head
    from paceline.drafters.network.weights import digest_of
    from paceline.networks.weights import load_network
    from paceline.training.acceptance import AcceptanceTask
    from paceline.training.batches import hold_out
    from paceline.training.module import restore_module
    from paceline.training.setup import TrainingSetup

    check_steps(load_network(weights))
    place = out or _beside(weights, _HEAD_SUFFIX)
    if place.exists() and place.samefile(weights):
        raise InvalidOption(f"the head would take the place of {weights}: give another --out")
    setup = TrainingSetup([data], asked)
    trained = setup.restored(weights)
    metadata = {
        "model": setup.source.fingerprint,
        "network": trained.network.name,
        "weights": digest_of(weights),
        "command": "paceline train acceptance-head WEIGHTS --data DATA "
        f"{recipe.words(*_RECIPE)} --model {setup.source.name}",
        "paceline": __version__,
    }
    task = AcceptanceTask(
        restore_module(trained, setup.source),
        *hold_out(setup.teacher.texts),
        setup.features(trained.network),
        trained.draft_ids,
        recipe,
        metadata,
    )

    def publish(_: TrainingRun) -> tuple[dict[str, Any], str]:
        judged = task.judge()
        save_acceptance_head(place, task.result())
        held_out = {
            "tokens": judged.examples,
            "accepted": judged.accepted,
            "auc": judged.auc,
            "calibration_error": judged.error,
            "auc_of_the_drafter": judged.own_auc,
            "calibration_error_of_the_drafter": judged.own_error,
        }
        line = (
            f"{place}: held out: {judged.examples} drafted tokens, {judged.accepted:.1%} accepted; "
            f"AUC {judged.auc:.3f} (the drafter's own probabilities: {judged.own_auc:.3f}), "
            f"calibration error {judged.error:.3f} ({judged.own_error:.3f})"
        )
        return {"head": str(place), "held_out": held_out, "recipe": asdict(recipe)}, line

    train(task, place, publish, as_json=as_json)


@o.spread_options
def head_preview(
    weights: Annotated[Path, typer.Argument(help="Weights of a drafter, safetensors.")],
    *,
    data: o.Folders = o.DATA,
    out: Annotated[
        Path | None,
        typer.Option(help="Where both go. Default: beside the weights, .head-preview."),
    ] = None,
    rank: Annotated[
        int, typer.Option(help="Of the preview: less is faster, more misses less.")
    ] = 128,
    texts: Annotated[int, typer.Option(help="Texts to fit to, spread over all.")] = 200,
    asked: Annotated[Options, o.Takes("model", *o.COMPUTE)],
    as_json: o.AsJson = False,
) -> None:
    """Fit a low-rank preview of a drafter's LM head (SVD-softmax); some minutes.

    Two thin matrices preview all logits, and the best few are then computed from the head itself.
    On the CPU chains are drafted so, which reads a fraction of the head; other runtimes, and trees,
    go on with the whole. The network stays as it is. Ctrl-C saves, and the same command goes on.
    """
    o.check_at_least_one(texts=texts)

    from paceline.networks.weights import load_network, save_network
    from paceline.training.batches import hold_out
    from paceline.training.head_preview import HeadPreviewTask, check_rank
    from paceline.training.setup import TrainingSetup

    check_rank(load_network(weights), rank)
    place = out or _beside(weights, _PREVIEW_SUFFIX)
    setup = TrainingSetup(data, asked)
    kept, apart = hold_out(setup.teacher.texts)
    trained = setup.restored(weights)
    count = min(texts, len(kept))
    chosen = [kept[i * len(kept) // count] for i in range(count)]
    features = setup.features(trained.network)
    task = HeadPreviewTask(trained, setup.source, features, chosen, apart, rank)
    metadata = {
        **trained.metadata,
        "screen_command": f"paceline train head-preview WEIGHTS --data DATA --rank {rank} "
        f"--texts {texts} --model {setup.source.name}",
        "screen_data": json.dumps(setup.teacher.settings, sort_keys=True),
        "screen_paceline": __version__,
    }

    def publish(run: TrainingRun) -> tuple[dict[str, Any], str]:
        judged = task.judge()
        save_network(place, replace(trained, head_preview=task.fit(rank), metadata=metadata))
        agreement = judged.kept / max(1, judged.places)
        held_out = {
            "texts": len(apart),
            "tokens": judged.places,
            "agreement": agreement,
            "block_efficiency": judged.previewed.block_efficiency,
            "block_efficiency_without": judged.without.block_efficiency,
            "acceptance": judged.previewed.acceptance,
        }
        line = (
            f"{place}: rank {rank}; held out: the whole head's token in {agreement:.1%} of "
            f"{judged.places} drafted, block efficiency {judged.previewed.block_efficiency:.3f} "
            f"({judged.without.block_efficiency:.3f} without)"
        )
        found = {"weights": str(place), "rank": rank, "texts": run.step, "held_out": held_out}
        return found, line

    train(task, place, publish, as_json=as_json)


def _beside(weights: Path, suffix: str) -> Path:
    return weights.with_name(weights.name.removesuffix(".safetensors") + suffix)
