"""`paceline train drafter`: train a drafter network on text that the target wrote."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.cli import options as o
from paceline.cli.output import print_json, train_with_bar
from paceline.errors import InvalidOption
from paceline.version import __version__

if TYPE_CHECKING:
    from paceline.networks.base import Network
    from paceline.networks.weights import Trained


_KEPT = ("command", "data", "tokens")
"""Of the provenance of weights that a run starts from, what is noted beside its own."""


@o.spread_options
def drafter(
    network: Annotated[str, typer.Argument(help="Network, with sizes: hydra:steps=5.")],
    *,
    data: o.Folders = o.DATA,
    out: Annotated[
        Path | None, typer.Option(help="Where the weights go. Default: NETWORK.safetensors.")
    ] = None,
    start: Annotated[
        Path | None,
        typer.Option(
            "--from",
            help="Weights to start from, instead of drawn: of the same network, or of another, of "
            "which the tensors of the same name and shape are taken.",
        ),
    ] = None,
    tokens: Annotated[int, typer.Option(help="Tokens to train on, repeats counted.")] = 1_000_000,
    keep_features: o.KeepFeatures = None,
    teaching: o.TrainingOptions,
    computing: o.ComputeOptions,
    as_json: o.AsJson = False,
) -> None:
    """Train a drafter; Ctrl-C saves, and the same command goes on.

    Beside the weights stand a card (NAME.md, NAME.json) and, while training, a checkpoint.
    `draft-lm` is trained twice (FastDraft): on all text, with --loss cross-entropy and
    --prompt-weight 1, and --from that on what the target wrote, by a divergence.
    """
    checked = o.runtime_options(computing)

    from paceline.core.options import split_options
    from paceline.networks.weights import Trained, save_network
    from paceline.training.material import Material
    from paceline.training.run_card import Course, write_card

    recipe = teaching.recipe(tokens)
    name, _ = split_options(network, "network")
    material = Material(
        data,
        teaching.model,
        computing.runtime,
        checked,
        vocabulary=teaching.vocabulary,
        keep_features=keep_features,
    )
    source, kept = material.source, material.kept
    net = material.network(network)
    out = out or Path(f"{name}.safetensors")
    earlier = None if start is None else _earlier(start, net, source.fingerprint, out)
    trainer = material.trainer(
        net,
        recipe,
        place=out.with_suffix(".checkpoint"),
        start=None if earlier is None else earlier.parameters,
    )
    course = Course(trainer.notes or None)
    finished = train_with_bar(trainer, course)
    held_out_loss, found = trainer.judge()
    course.held_out(trainer.step, held_out_loss)
    command = f"paceline train drafter {network} --data DATA --tokens {tokens} {teaching.words}"
    before = {}
    if earlier is not None:
        command += " --from WEIGHTS"
        kept_keys = [key for key in earlier.metadata if key.split("from_")[-1] in _KEPT]
        before = {f"from_{key}": earlier.metadata[key] for key in kept_keys}
    trained = Trained(
        net,
        trainer.parameters(),
        kept.ids,
        {
            **before,
            "model": source.fingerprint,
            "model_name": source.name,
            "command": command,
            "data": json.dumps(material.data, sort_keys=True),
            "tokens": str(trainer.tokens),
            "block_efficiency": f"{found.block_efficiency:.4f}",
            "paceline": __version__,
        },
    )
    save_network(out, trained)
    figures: dict[str, Any] = {
        "weights": str(out),
        "finished": finished,
        "steps": trainer.step,
        "tokens": trainer.tokens,
        "held_out": {
            "texts": len(trainer.held_out),
            "loss": held_out_loss,
            "block_efficiency": found.block_efficiency,
            "acceptance": found.acceptance,
        },
        "vocabulary": {"size": len(kept.ids), "coverage": kept.coverage},
        "seconds": round(course.seconds, 1),
        "tokens_per_second": round(course.tokens / max(course.seconds, 1e-9), 1),
        "recipe": asdict(recipe),
    }
    write_card(
        out,
        trained,
        course,
        recipe,
        material.data,
        len(material.texts),
        int(material.counts.sum()),
        kept.coverage,
        (len(trainer.held_out), found),
    )
    if finished:
        out.with_suffix(".checkpoint").unlink(missing_ok=True)
    if as_json:
        print_json(figures)
    else:
        share = " ".join(f"{each:.2f}" for each in found.acceptance)
        typer.echo(
            f"{out}: {trainer.tokens} tokens in {course.seconds:.0f} s; held out: block efficiency "
            f"{found.block_efficiency:.3f}, acceptance by depth {share}"
        )
    if not finished:
        raise typer.Exit(130)


def _earlier(path: Path, network: Network, model: str, out: Path) -> Trained:
    """The weights to start from.

    Raises:
        InvalidOption: they cannot be read, are of another size or model or of a network that
            shares no layer, or would be written over.
    """
    from paceline.networks.weights import load_network

    found = load_network(path)
    if out.exists() and out.samefile(path):
        raise InvalidOption(f"--from and --out are both {path}: give another --out")
    if found.metadata.get("model") != model:
        raise InvalidOption(f"{path} was trained for another model: begin without --from")
    wanted = network.shapes()
    same = found.network.name == network.name
    if same and found.network.shapes() == wanted:
        return found
    fitting = {
        name: each for name, each in found.parameters.items() if wanted.get(name) == each.shape
    }
    # Sizes of one network that differ are a slip; and norms alone are no start.
    if same or not any(each.ndim > 1 for each in fitting.values()):
        raise InvalidOption(
            f"{path} holds network '{found.network.name}' with settings "
            f"{found.network.settings()}, which '{network.name}' with {network.settings()} cannot "
            "start from: name the same network and sizes, or one that shares layers"
        )
    typer.echo(f"{len(fitting)} of {len(wanted)} tensors are those of {path}", err=True)
    return replace(found, parameters=fitting)
