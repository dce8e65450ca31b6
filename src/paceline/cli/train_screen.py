"""`paceline train screen`: fit what spares a drafter most of its LM head."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.cli import options as o
from paceline.cli import train_options as t
from paceline.cli.option_groups import grouped
from paceline.errors import InvalidOption
from paceline.version import __version__

if TYPE_CHECKING:
    from paceline.training.batches import Batch, FeatureSource
    from paceline.training.data.writing import Text

_SUFFIX = ".screened.safetensors"


@grouped
def screen(
    weights: Annotated[Path, typer.Argument(help="Weights of a drafter, safetensors.")],
    *,
    data: t.Folders = t.DATA,
    out: Annotated[
        Path | None,
        typer.Option(help="Where both go. Default: beside the weights, .screened."),
    ] = None,
    rank: Annotated[
        int, typer.Option(help="Of the screen: less is faster, more misses less.")
    ] = 128,
    texts: Annotated[int, typer.Option(help="Texts to fit to, spread over all.")] = 200,
    model: o.Model = "smollm2-135m",
    computing: t.Computing,
    as_json: o.AsJson = False,
) -> None:
    """Fit a screen before the LM head of a drafter (SVD-softmax); some minutes.

    The screen previews all logits by two thin matrices, and the best few are then computed from
    the head itself. On the CPU chains are drafted so, which reads a fraction of the head; other
    runtimes, and trees, go on with the whole. The network stays as it is.
    """
    checked = computing.options()
    if texts < 1:
        raise InvalidOption(f"--texts must be 1 or more, not {texts}")

    from paceline import loading
    from paceline.cli.output import print_json
    from paceline.networks.weights import load_network, save_network
    from paceline.training.batches import feature_source, hold_out
    from paceline.training.data.folders import read_folders
    from paceline.training.screen import Screening, check_rank
    from paceline.training.token_source import TokenSource

    trained = load_network(weights)
    check_rank(trained, rank)
    out = out or weights.with_name(weights.name.removesuffix(".safetensors") + _SUFFIX)
    every, settings = read_folders(data)
    kept, apart = hold_out(every)
    loaded = loading.load_model(model, runtime=computing.runtime, options=checked)
    t.check_model(loaded.source, (data[0], settings), (weights, trained.metadata))
    features = (
        feature_source(loaded.target)
        if trained.network.reads_features
        else TokenSource(loaded.target.capabilities.hidden_size)
    )
    screening = Screening(trained, loaded.source)
    count = min(texts, len(kept))
    chosen = [kept[i * len(kept) // count] for i in range(count)]
    for batch in _batches("fitting", chosen, features):
        screening.add(batch)
    fitted = screening.fit(rank)
    first, *rest = (
        screening.judge(batch, fitted) for batch in _batches("judging", apart, features)
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
    save_network(out, replace(trained, screen=fitted, metadata=metadata))
    agreement = judged.kept / max(1, judged.places)
    figures: dict[str, Any] = {
        "weights": str(out),
        "rank": rank,
        "texts": len(chosen),
        "held_out": {
            "texts": len(apart),
            "tokens": judged.places,
            "agreement": agreement,
            "block_efficiency": judged.screened.block_efficiency,
            "block_efficiency_without": judged.without.block_efficiency,
            "acceptance": judged.screened.acceptance,
        },
    }
    if as_json:
        print_json(figures)
    else:
        typer.echo(
            f"{out}: rank {rank}; held out: the whole head's token in {agreement:.1%} of "
            f"{judged.places} drafted, block efficiency {judged.screened.block_efficiency:.3f} "
            f"({judged.without.block_efficiency:.3f} without)"
        )


def _batches(title: str, texts: Sequence[Text], source: FeatureSource) -> Iterator[Batch]:
    """Texts one by one, under a bar on standard error if that is a terminal."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    for text in track(texts, title, console=console, disable=not sys.stderr.isatty()):
        yield source.batch([text])
