"""`paceline train acceptance-head` and `head-preview`: when a drafter stops, and a faster head."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer

from paceline.cli import options as o
from paceline.cli.output import report, train_with_bar
from paceline.errors import InvalidOption
from paceline.registry.options import Options
from paceline.version import __version__

_HEAD_SUFFIX = ".acceptance.safetensors"
_PREVIEW_SUFFIX = ".head-preview.safetensors"


@o.spread_options
def acceptance_head(
    weights: Annotated[Path, typer.Argument(help="Weights of a drafter, safetensors.")],
    *,
    data: o.Data = Path("data"),
    out: Annotated[
        Path | None,
        typer.Option(help="Where the head goes. Default: beside the weights, .acceptance."),
    ] = None,
    tokens: Annotated[int, typer.Option(help="Tokens to train on, repeats counted.")] = 200_000,
    batch_tokens: Annotated[int, typer.Option(help="Tokens per batch.")] = 2048,
    rejection: Annotated[
        float, typer.Option(help="Weight of tokens that were wrongly trusted.")
    ] = 6.0,
    rate: Annotated[float, typer.Option(help="Highest learning rate.")] = 5e-4,
    seed: o.Seed = 0,
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
    from paceline.training.acceptance import AcceptanceTraining, HeadRecipe
    from paceline.training.batches import hold_out
    from paceline.training.module import restore_module
    from paceline.training.setup import TrainingSetup

    recipe = HeadRecipe(tokens, batch_tokens, rejection=rejection, rate=rate, seed=seed)
    check_steps(load_network(weights))
    out = out or weights.with_name(weights.name.removesuffix(".safetensors") + _HEAD_SUFFIX)
    if out.exists() and out.samefile(weights):
        raise InvalidOption(f"the head would take the place of {weights}: give another --out")
    setup = TrainingSetup([data], asked)
    kept, apart = hold_out(setup.texts)
    trained = setup.restored(weights)
    command = (
        f"paceline train acceptance-head WEIGHTS --data DATA --tokens {tokens} --batch-tokens "
        f"{batch_tokens} --rejection {rejection} --rate {rate} --seed {seed} "
        f"--model {setup.source.name}"
    )
    metadata = {
        "model": setup.source.fingerprint,
        "network": trained.network.name,
        "weights": digest_of(weights),
        "command": command,
        "paceline": __version__,
    }
    run = AcceptanceTraining(
        restore_module(trained, setup.source),
        kept,
        apart,
        setup.features(trained.network),
        trained.draft_ids,
        recipe,
        metadata,
        checkpoint_at=out.with_suffix(".checkpoint"),
    )
    train_with_bar(run)
    judged = run.judge()
    save_acceptance_head(out, run.result())
    figures = {
        "head": str(out),
        "held_out": {
            "tokens": judged.examples,
            "accepted": judged.accepted,
            "auc": judged.auc,
            "calibration_error": judged.error,
            "auc_of_the_drafter": judged.own_auc,
            "calibration_error_of_the_drafter": judged.own_error,
        },
        "recipe": asdict(recipe),
    }
    line = (
        f"{out}: held out: {judged.examples} drafted tokens, {judged.accepted:.1%} accepted; "
        f"AUC {judged.auc:.3f} (the drafter's own probabilities: {judged.own_auc:.3f}), "
        f"calibration error {judged.error:.3f} ({judged.own_error:.3f})"
    )
    report(figures, line, as_json=as_json, finished=run.finish())


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
    if texts < 1:
        raise InvalidOption(f"--texts must be 1 or more, not {texts}")

    from paceline.networks.weights import load_network, save_network
    from paceline.training.batches import hold_out
    from paceline.training.head_preview import HeadPreviewTraining, check_rank
    from paceline.training.setup import TrainingSetup

    check_rank(load_network(weights), rank)
    out = out or weights.with_name(weights.name.removesuffix(".safetensors") + _PREVIEW_SUFFIX)
    setup = TrainingSetup(data, asked)
    kept, apart = hold_out(setup.texts)
    trained = setup.restored(weights)
    count = min(texts, len(kept))
    chosen = [kept[i * len(kept) // count] for i in range(count)]
    run = HeadPreviewTraining(
        trained,
        setup.source,
        setup.features(trained.network),
        chosen,
        apart,
        rank=rank,
        checkpoint_at=out.with_suffix(".checkpoint"),
    )
    train_with_bar(run)
    judged = run.judge()
    metadata = {
        **trained.metadata,
        "screen_command": (
            f"paceline train head-preview WEIGHTS --data DATA --rank {rank} --texts {texts} "
            f"--model {setup.source.name}"
        ),
        "screen_data": json.dumps(setup.data, sort_keys=True),
        "screen_paceline": __version__,
    }
    save_network(out, replace(trained, head_preview=run.fit(rank), metadata=metadata))
    agreement = judged.kept / max(1, judged.places)
    figures = {
        "weights": str(out),
        "rank": rank,
        "texts": run.step,
        "held_out": {
            "texts": len(apart),
            "tokens": judged.places,
            "agreement": agreement,
            "block_efficiency": judged.previewed.block_efficiency,
            "block_efficiency_without": judged.without.block_efficiency,
            "acceptance": judged.previewed.acceptance,
        },
    }
    line = (
        f"{out}: rank {rank}; held out: the whole head's token in {agreement:.1%} of "
        f"{judged.places} drafted, block efficiency {judged.previewed.block_efficiency:.3f} "
        f"({judged.without.block_efficiency:.3f} without)"
    )
    report(figures, line, as_json=as_json, finished=run.finish())
