"""`paceline train gad`: train a drafter of a Whisper on what it writes down."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paceline.cli import options as o
from paceline.cli.output import remark
from paceline.cli.train import train
from paceline.core.expressions import Expression, parse
from paceline.core.options import require
from paceline.lab.training.recipe import DrafterRecipe
from paceline.registry.options import Options

if TYPE_CHECKING:
    from paceline.methods.gad.training import HeardTask

RECIPE = ("tokens", "batch_tokens", "rate", "seed")
Sounds = Annotated[list[Path] | None, typer.Argument(metavar="FILE...", help="Sounds.")]
Windows = Annotated[Path, "Folder of windows that are written down; what it has is kept."]
Vocabulary = Annotated[int, "Tokens that may be drafted."]
_NETWORKS = "gad (a block of masks) or gad-ctc (a head on the encoder), with sizes: gad:width=16."


def gad(
    network: Annotated[str, typer.Argument(help=_NETWORKS)],
    files: Sounds = None,
    *,
    data: Windows = Path("windows"),
    out: Annotated[Path | None, "Where the weights go. Default: NETWORK.safetensors."] = None,
    vocabulary: Vocabulary = 8192,
    recipe: Annotated[DrafterRecipe, o.Takes(*RECIPE)],
    asked: Annotated[Options, o.Takes("model", *o.COMPUTE)],
    as_json: o.AsJson = False,
) -> None:
    """Train a drafter that hears; Ctrl-C saves, and the same command goes on.

    A window takes 8 MB in --data. Beside the weights stands a card (NAME.md, NAME.json).
    """
    from paceline.methods.gad.training import BlockTask, RowsTask

    tasks = {"gad": BlockTask, "gad-ctc": RowsTask}
    named = parse(network, "network")
    require(named.name in tasks, "NETWORK", named.name, " or ".join(tasks))
    place, task = out or Path(f"{named.name}.safetensors"), tasks[named.name]
    hearing = SoundTraining(f"gad {network}", files or (), data, vocabulary, asked)
    hearing.train(task, named, place, recipe, as_json=as_json)


@dataclass(frozen=True, slots=True)
class SoundTraining:
    """What commands that train on sounds are asked for; `line` begins the card's command."""

    line: str
    files: Sequence[Path]
    data: Path
    vocabulary: int
    asked: Options

    def train(
        self,
        task: type[HeardTask],
        named: Expression,
        out: Path,
        recipe: DrafterRecipe,
        *,
        as_json: bool,
    ) -> None:
        """Have the model write sounds down, and train a network on that."""
        from paceline.lab.training.card import Teacher, publish
        from paceline.lab.training.setup import use_threads
        from paceline.lab.training.vocabulary import count_tokens, keep_frequent
        from paceline.listening.windows import Listener
        from paceline.methods.gad.windows import KeptWindows
        from paceline.networks.catalogue import build

        use_threads(self.asked.threads)
        engine, source = o.load(replace(self.asked, drafter="none"))
        config = source.config
        config.refuse_to_look(named.name)
        require(config.layers >= 2, "layers of the decoder", config.layers, "2 or more")
        windows = KeptWindows(self.data, source.fingerprint)
        for count in windows.hear(self.files, engine):
            remark(f"{self.data}: {count} windows more")
        rules = Listener(engine).rules
        texts, size, ends = windows.texts(), config.vocab_size, config.eos_token_ids
        answers = count_tokens((each.tokens[each.prompt_length :] for each in texts), size)
        if not task.marks:  # they stand from the ends on
            size, ends = rules.end, ()
            answers[size:] = 0
        kept = keep_frequent(answers, min(self.vocabulary or size, size), ends)
        weights = source.weights()
        embedding = weights["embed"]
        head = embedding if config.tied_embeddings else weights["head"]
        network = build(named.name, config, named.options)
        begins = task.begins(network, config, weights)
        made = task(network, windows, kept, embedding, head, recipe, begins, rules.times)
        teacher = Teacher(source, texts, {"model": source.fingerprint, "prompts": windows.digest()})
        line = (
            f"paceline train {self.line} --data DATA --vocabulary {self.vocabulary} "
            f"{recipe.words(*RECIPE)} --model {source.name}"
        )
        train(made, out, lambda run: publish(run, out, teacher, line), as_json=as_json)
