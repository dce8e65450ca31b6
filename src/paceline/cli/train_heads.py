"""`paceline train acceptance-head`, `head-preview`, `canvas-filter`: heads of what is trained."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.cli import options as o
from paceline.cli.output import progress_bar
from paceline.cli.train import train
from paceline.errors import InvalidOption
from paceline.lab.training.recipe import FilterRecipe, HeadRecipe
from paceline.registry.options import Options
from paceline.version import __version__

if TYPE_CHECKING:
    from paceline.lab.training.run import TrainingRun

_HEAD_SUFFIX = ".acceptance.safetensors"
_PREVIEW_SUFFIX = ".head-preview.safetensors"


_HEAD = ("tokens", "batch_tokens", "rejection", "rate", "seed")
_FILTER = ("block", "room", "cases", "steps", "seed")


def acceptance_head(
    weights: Annotated[Path, typer.Argument(help="Weights of a drafter, safetensors.")],
    *,
    data: o.Data = Path("data"),
    out: Annotated[
        Path | None, "Where the head goes. Default: beside the weights, .acceptance."
    ] = None,
    recipe: Annotated[HeadRecipe, o.Takes(*_HEAD)],
    asked: Annotated[Options, o.Takes("model", *o.COMPUTE)],
    as_json: o.AsJson = False,
) -> None:
    """Train a head that predicts acceptance (SpecDec++); Ctrl-C saves.

    The drafter stays as it is. Decode with NAME:weights=WEIGHTS,head=HEAD: a chain ends once the
    chance that all of it stands falls below stop=0.7.
    """
    from paceline.drafters.network.stopping_head import check_steps, save_acceptance_head
    from paceline.drafters.network.weights import digest_of
    from paceline.lab.training.acceptance import AcceptanceTask
    from paceline.lab.training.batches import hold_out
    from paceline.lab.training.module import restore_module
    from paceline.lab.training.setup import TrainingSetup
    from paceline.networks.weights import load_network

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
        f"{recipe.words(*_HEAD)} --model {setup.source.name}",
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

    def publish(_: TrainingRun[Any]) -> tuple[dict[str, Any], str]:
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


def head_preview(
    weights: Annotated[Path, typer.Argument(help="Weights of a drafter, safetensors.")],
    *,
    data: o.Folders = o.DATA,
    out: Annotated[
        Path | None, "Where both go. Default: beside the weights, .head-preview."
    ] = None,
    rank: Annotated[int, "Of the preview: less is faster, more misses less."] = 128,
    texts: Annotated[int, "Texts to fit to, spread over all."] = 200,
    asked: Annotated[Options, o.Takes("model", *o.COMPUTE)],
    as_json: o.AsJson = False,
) -> None:
    """Fit a low-rank preview of a drafter's LM head (SVD-softmax); Ctrl-C saves.

    Two thin matrices preview all logits, and the best few are then computed from the head itself.
    On the CPU chains are drafted so, which reads a fraction of the head; other runtimes, and trees,
    go on with the whole. The network stays as it is.
    """
    o.check_at_least_one(texts=texts)

    from paceline.lab.training.batches import hold_out
    from paceline.lab.training.head_preview import HeadPreviewTask, check_rank
    from paceline.lab.training.setup import TrainingSetup
    from paceline.networks.weights import load_network, save_network

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

    def publish(run: TrainingRun[Any]) -> tuple[dict[str, Any], str]:
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


def canvas_filter(
    *,
    model: Annotated[str, "Denoiser that sees every row."] = "lists-mdm",
    recipe: Annotated[FilterRecipe, o.Takes(*_FILTER)],
    out: Annotated[Path, "Where the filter goes."] = Path("canvas-filter.safetensors"),
    as_json: o.AsJson = False,
) -> None:
    """Replay a denoiser's own answers, and learn which picks of a forward are right (Learn2PD).

    One case in ten is left out and judged. Cases are never those that benchmarks hold out.
    """
    from paceline.lab.training.denoisers.confidence_filter import FilterTask, collect
    from paceline.lab.training.denoisers.files import load_denoiser
    from paceline.models.source import DirectorySource, resolve

    source = resolve(model)
    if not isinstance(source, DirectorySource):
        raise InvalidOption(f"{model} is no folder of `paceline train denoiser`: name one")
    denoiser, theirs = load_denoiser(source.path)
    if theirs.kind != "full":
        raise InvalidOption(f"{model} sees a {theirs.kind}: name a denoiser of kind full")
    cases, sizes = recipe.cases, (recipe.block, recipe.room)
    with progress_bar("{task.completed:.0f}/{task.total:.0f}") as bar:
        replayed = bar.add_task("replay", total=2)
        taught = collect(denoiser, cases, *sizes, recipe.seed)
        bar.advance(replayed)
        apart = collect(denoiser, max(1, cases // 10), *sizes, recipe.seed + 1)
        bar.advance(replayed)
    task = FilterTask(recipe, taught, apart)
    command = f"paceline train canvas-filter --model {source.name} {recipe.words(*_FILTER)}"
    metadata = {"model": source.fingerprint, "model_name": source.name, "command": command}

    def publish(_: TrainingRun[Any]) -> tuple[dict[str, Any], str]:
        judged, count = task.judge(), len(taught[0])
        task.save(out, metadata)
        line = (
            f"{out}: {count} forwards replayed; left out: of picks above 0.9, "
            f"{judged['precision']:.1%} right, {judged['recall']:.1%} of the right ones found"
        )
        figures = {"out": str(out), "examples": count, "left_out": judged, "block": recipe.block}
        return figures, line

    train(task, out, publish, as_json=as_json)


def _beside(weights: Path, suffix: str) -> Path:
    return weights.with_name(weights.name.removesuffix(".safetensors") + suffix)
