"""`paceline train acceptance-head`: teach a drafter when to stop."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.cli import options as o
from paceline.cli.output import print_json
from paceline.errors import InvalidOption
from paceline.version import __version__

if TYPE_CHECKING:
    from paceline.training.batches import Batch, FeatureSource
    from paceline.training.writing import Text

_SUFFIX = ".acceptance.safetensors"


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
    model: o.Model = "smollm2-135m",
    computing: o.ComputeOptions,
    as_json: o.AsJson = False,
) -> None:
    """Train a head that predicts acceptance (SpecDec++); a few minutes.

    The drafter stays as it is. Decode with NAME:weights=WEIGHTS,head=HEAD: a chain ends once the
    chance that all of it stands falls below stop=0.7.
    """
    checked = o.runtime_options(computing)

    from paceline.drafters.network.stopping_head import check_steps, save_acceptance_head
    from paceline.drafters.network.weights import digest_of
    from paceline.networks.weights import load_network
    from paceline.registry import loading
    from paceline.training.acceptance import HeadRecipe, train_acceptance_head
    from paceline.training.batches import feature_source, hold_out
    from paceline.training.module import module_of
    from paceline.training.store import Shards

    recipe = HeadRecipe(tokens, batch_tokens, rejection=rejection, rate=rate, seed=seed)
    trained = load_network(weights)
    check_steps(trained)
    out = out or weights.with_name(weights.name.removesuffix(".safetensors") + _SUFFIX)
    if out.exists() and out.samefile(weights):
        raise InvalidOption(f"the head would take the place of {weights}: give another --out")
    shards = Shards(data)
    kept, apart = hold_out(shards.read())
    loaded = loading.load_model(model, runtime=computing.runtime, options=checked)
    o.check_model(loaded.source, (data, shards.settings), (weights, trained.metadata))
    features = feature_source(loaded.target)
    metadata = {
        "model": loaded.source.fingerprint,
        "network": trained.network.name,
        "weights": digest_of(weights, {}),
        "command": (
            f"paceline train acceptance-head WEIGHTS --data DATA --tokens {tokens} --batch-tokens "
            f"{batch_tokens} --rejection {rejection} --rate {rate} --seed {seed} --model {model}"
        ),
        "paceline": __version__,
    }
    head, judged = train_acceptance_head(
        module_of(trained, loaded.source),
        kept,
        apart,
        features,
        trained.draft_ids,
        recipe,
        metadata,
    )
    save_acceptance_head(out, head)
    figures: dict[str, Any] = {
        "head": str(out),
        "held_out": {
            "tokens": judged.examples,
            "accepted": judged.accepted,
            "auc": judged.auc,
            "calibration_error": judged.reliability.error,
            "auc_of_the_drafter": judged.own_auc,
            "calibration_error_of_the_drafter": judged.own_error,
        },
        "recipe": asdict(recipe),
    }
    if as_json:
        print_json(figures)
    else:
        typer.echo(
            f"{out}: held out: {judged.examples} drafted tokens, {judged.accepted:.1%} accepted; "
            f"AUC {judged.auc:.3f} (the drafter's own probabilities: {judged.own_auc:.3f}), "
            f"calibration error {judged.reliability.error:.3f} ({judged.own_error:.3f})"
        )


# `paceline train screen`:

_train_screen_SUFFIX = ".screened.safetensors"


@o.spread_options
def head_preview(
    weights: Annotated[Path, typer.Argument(help="Weights of a drafter, safetensors.")],
    *,
    data: o.Folders = o.DATA,
    out: Annotated[
        Path | None,
        typer.Option(help="Where both go. Default: beside the weights, .screened."),
    ] = None,
    rank: Annotated[
        int, typer.Option(help="Of the screen: less is faster, more misses less.")
    ] = 128,
    texts: Annotated[int, typer.Option(help="Texts to fit to, spread over all.")] = 200,
    model: o.Model = "smollm2-135m",
    computing: o.ComputeOptions,
    as_json: o.AsJson = False,
) -> None:
    """Fit a screen before the LM head of a drafter (SVD-softmax); some minutes.

    The screen previews all logits by two thin matrices, and the best few are then computed from
    the head itself. On the CPU chains are drafted so, which reads a fraction of the head; other
    runtimes, and trees, go on with the whole. The network stays as it is.
    """
    checked = o.runtime_options(computing)
    if texts < 1:
        raise InvalidOption(f"--texts must be 1 or more, not {texts}")

    from paceline.networks.weights import load_network, save_network
    from paceline.registry import loading
    from paceline.training.batches import TokenSource, feature_source, hold_out
    from paceline.training.head_preview import HeadPreviewTraining, check_rank
    from paceline.training.store import read_folders

    trained = load_network(weights)
    check_rank(trained, rank)
    out = out or weights.with_name(weights.name.removesuffix(".safetensors") + _train_screen_SUFFIX)
    every, settings = read_folders(data)
    kept, apart = hold_out(every)
    loaded = loading.load_model(model, runtime=computing.runtime, options=checked)
    o.check_model(loaded.source, (data[0], settings), (weights, trained.metadata))
    features = (
        feature_source(loaded.target)
        if trained.network.reads_features
        else TokenSource(loaded.target.capabilities.hidden_size)
    )
    previewing = HeadPreviewTraining(trained, loaded.source)
    count = min(texts, len(kept))
    chosen = [kept[i * len(kept) // count] for i in range(count)]
    for batch in _batches("fitting", chosen, features):
        previewing.add(batch)
    fitted = previewing.fit(rank)
    first, *rest = (
        previewing.judge(batch, fitted) for batch in _batches("judging", apart, features)
    )
    judged = sum(rest, first)
    metadata = {
        **trained.metadata,
        "screen_command": (
            f"paceline train screen WEIGHTS --data DATA --rank {rank} --texts {texts} "
            f"--model {model}"
        ),
        "screen_data": json.dumps(settings, sort_keys=True),
        "screen_paceline": __version__,
    }
    save_network(out, replace(trained, head_preview=fitted, metadata=metadata))
    agreement = judged.kept / max(1, judged.places)
    figures: dict[str, Any] = {
        "weights": str(out),
        "rank": rank,
        "texts": len(chosen),
        "held_out": {
            "texts": len(apart),
            "tokens": judged.places,
            "agreement": agreement,
            "block_efficiency": judged.previewed.block_efficiency,
            "block_efficiency_without": judged.without.block_efficiency,
            "acceptance": judged.previewed.acceptance,
        },
    }
    if as_json:
        print_json(figures)
    else:
        typer.echo(
            f"{out}: rank {rank}; held out: the whole head's token in {agreement:.1%} of "
            f"{judged.places} drafted, block efficiency {judged.previewed.block_efficiency:.3f} "
            f"({judged.without.block_efficiency:.3f} without)"
        )


def _batches(title: str, texts: Sequence[Text], source: FeatureSource) -> Iterator[Batch]:
    """Texts one by one, under a bar on standard error if that is a terminal."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    for text in track(texts, title, console=console, disable=not sys.stderr.isatty()):
        yield source.batch([text])
