"""`paceline train acceptance-head`: teach a drafter when to stop."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from paceline.cli import options as o
from paceline.cli import train_options as t
from paceline.cli.option_groups import grouped
from paceline.errors import InvalidOption
from paceline.version import __version__

_SUFFIX = ".acceptance.safetensors"


@grouped
def acceptance_head(
    weights: Annotated[Path, typer.Argument(help="Weights of a drafter, safetensors.")],
    *,
    data: t.Data = Path("data"),
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
    computing: t.Computing,
    as_json: o.AsJson = False,
) -> None:
    """Train a head that predicts acceptance (SpecDec++); a few minutes.

    The drafter stays as it is. Decode with NAME:weights=WEIGHTS,head=HEAD: a chain ends once the
    chance that all of it stands falls below stop=0.7.
    """
    checked = computing.options()

    from paceline import loading
    from paceline.cli.output import print_json
    from paceline.drafters.acceptance import check_steps, save_acceptance_head
    from paceline.drafters.trained_weights import digest_of
    from paceline.networks.weights import load_network
    from paceline.training.acceptance_training import HeadRecipe, train_acceptance_head
    from paceline.training.batches import feature_source, hold_out
    from paceline.training.data.shards import Shards
    from paceline.training.frozen import module_of

    recipe = HeadRecipe(tokens, batch_tokens, rejection=rejection, rate=rate, seed=seed)
    trained = load_network(weights)
    check_steps(trained)
    out = out or weights.with_name(weights.name.removesuffix(".safetensors") + _SUFFIX)
    if out.exists() and out.samefile(weights):
        raise InvalidOption(f"the head would take the place of {weights}: give another --out")
    shards = Shards(data)
    kept, apart = hold_out(shards.read())
    loaded = loading.load_model(model, runtime=computing.runtime, options=checked)
    t.check_model(loaded.source, (data, shards.settings), (weights, trained.metadata))
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
