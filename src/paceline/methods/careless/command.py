"""`paceline train causal`: factors for a Whisper whose encoder hears as sound comes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from paceline.cli import options as o
from paceline.cli.train import folder, train
from paceline.core.options import require
from paceline.methods.careless.recipe import CausalRecipe
from paceline.registry.options import Options

_RECIPE = ("steps", "batch", "moments", "rank", "rate", "chunks", "seed")
_LONGEST = 20.0  # seconds of a sound
_HELD_OUT = 40  # of this many sounds the last is held out


def causal(
    *,
    data: Annotated[Path, "Folder of NAME.wav with NAME.txt, sentences of up to 20 s."],
    out: Annotated[Path | None, "Folder of the adapter. Default: causal."] = None,
    recipe: Annotated[CausalRecipe, o.Takes(*_RECIPE)],
    asked: Annotated[Options, o.Takes("model", "threads")],
    as_json: o.AsJson = False,
) -> None:
    """Train a Whisper to hear forward; Ctrl-C saves, and the same command goes on.

    What comes of it is a LoRA adapter in the form of PEFT, for `--adapter`, with a card.
    """
    from paceline.lab.training.setup import use_threads
    from paceline.listening.windows import Listener
    from paceline.methods.careless.captions import prompt_of
    from paceline.methods.careless.spoken import read_spoken
    from paceline.methods.careless.training import CausalTask, publish

    use_threads(asked.threads)
    engine, source = o.load(replace(asked, drafter="none"))
    listener = Listener(engine, source.path)
    sounds = read_spoken(data, engine.tokenizer, _LONGEST)
    require(len(sounds) >= _HELD_OUT, "sounds", len(sounds), f"{_HELD_OUT} or more")
    apart = sounds[_HELD_OUT - 1 :: _HELD_OUT]
    learned = [each for at, each in enumerate(sounds, 1) if at % _HELD_OUT]
    place = folder(out, "causal")
    command = f"paceline train causal --data DATA {recipe.words(*_RECIPE)} --model {source.name}"
    weights, end = source.weights(), listener.rules.end
    task = CausalTask(
        source.config, weights, learned, apart, prompt_of(listener, "en"), end, recipe
    )

    def written(run: TrainingRun[CausalTask]) -> tuple[dict[str, object], str]:
        return publish(run, place, source.config, source.name, command)

    train(task, place, written, as_json=as_json)


if TYPE_CHECKING:
    from paceline.lab.training.run import TrainingRun
    from paceline.methods.careless.training import CausalTask
