"""`paceline train gad`: train a drafter of a Whisper on what it writes down."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from paceline.cli import options as o
from paceline.cli.output import remark
from paceline.cli.train import train
from paceline.core.options import require
from paceline.lab.training.recipe import DrafterRecipe
from paceline.registry.options import Options

_RECIPE = ("tokens", "batch_tokens", "rate", "seed")
_NETWORKS = "gad (a block of masks) or gad-ctc (a head on the encoder), with sizes: gad:width=16."


def gad(
    network: Annotated[str, typer.Argument(help=_NETWORKS)],
    files: Annotated[list[Path] | None, typer.Argument(metavar="FILE...", help="Sounds.")] = None,
    *,
    data: Annotated[Path, "Folder of windows that are written down; what it has is kept."] = Path(
        "windows"
    ),
    out: Annotated[Path | None, "Where the weights go. Default: NETWORK.safetensors."] = None,
    vocabulary: Annotated[int, "Tokens that may be drafted."] = 8192,
    recipe: Annotated[DrafterRecipe, o.Takes(*_RECIPE)],
    asked: Annotated[Options, o.Takes("model", *o.COMPUTE)],
    as_json: o.AsJson = False,
) -> None:
    """Train a drafter that hears; Ctrl-C saves, and the same command goes on.

    A window takes 8 MB in --data. Beside the weights stands a card (NAME.md, NAME.json).
    """
    from paceline.core.expressions import parse
    from paceline.lab.training.card import Teacher, publish
    from paceline.lab.training.setup import use_threads
    from paceline.lab.training.vocabulary import count_tokens, keep_frequent
    from paceline.methods.gad.training import BlockTask, HeardTask, RowsTask
    from paceline.methods.gad.windows import KeptWindows
    from paceline.networks.catalogue import build

    named = parse(network, "network")
    tasks: dict[str, type[HeardTask]] = {"gad": BlockTask, "gad-ctc": RowsTask}
    require(named.name in tasks, "NETWORK", named.name, " or ".join(tasks))
    use_threads(asked.threads)
    engine, source = o.load(replace(asked, drafter="none"))
    source.config.refuse_to_look(named.name)
    require(source.config.layers >= 2, "layers of the decoder", source.config.layers, "2 or more")
    windows = KeptWindows(data, source.fingerprint)
    for count in windows.hear(files or (), engine):
        remark(f"{data}: {count} windows more")
    texts, size = windows.texts(), source.config.vocab_size
    answers = count_tokens((each.tokens[each.prompt_length :] for each in texts), size)
    kept = keep_frequent(answers, min(vocabulary or size, size), source.config.eos_token_ids)
    weights, place = source.weights(), out or Path(f"{named.name}.safetensors")
    embedding = weights["embed"]
    task = tasks[named.name](
        build(named.name, source.config, named.options),
        windows,
        kept,
        embedding,
        embedding if source.config.tied_embeddings else weights["head"],
        recipe,
    )
    teacher = Teacher(source, texts, {"model": source.fingerprint, "prompts": windows.digest()})
    command = (
        f"paceline train gad {network} --data DATA --vocabulary {vocabulary} "
        f"{recipe.words(*_RECIPE)} --model {source.name}"
    )
    train(task, place, lambda run: publish(run, place, teacher, command), as_json=as_json)
