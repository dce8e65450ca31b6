"""`paceline train prompt-tokens`: train the embeddings of drafter `ppd` on text of the target."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from paceline.cli import options as o
from paceline.cli.output import print_json, train_with_bar
from paceline.errors import InvalidOption
from paceline.version import __version__


def prompt_tokens(
    data: o.Data = Path("data"),
    out: Annotated[Path, typer.Option(help="Where the prompt tokens go.")] = Path(
        "ppd.safetensors"
    ),
    steps: Annotated[int, typer.Option(help="Updates.")] = 300,
    depth: Annotated[int, typer.Option(help="Prompt tokens: how far ahead they ask.")] = 3,
    chains: Annotated[int, typer.Option(help="Places per text to put them at.")] = 64,
    batch_tokens: Annotated[int, typer.Option(help="Tokens of the texts of an update.")] = 512,
    rate: Annotated[float, typer.Option(help="Highest learning rate.")] = 1e-2,
    loss: o.Loss = "forward-kl",
    training_precision: o.TrainingPrecision = "bf16",
    seed: o.Seed = 0,
    model: o.Model = "smollm2-135m",
    device: o.Device = None,
    threads: o.Threads = None,
    as_json: o.AsJson = False,
) -> None:
    """Train prompt tokens; Ctrl-C saves, and the same command goes on.

    The model stays as it is. Beside the weights stand a card (NAME.md, NAME.json) and, while
    training, a checkpoint.
    """
    o.runtime_options(device=device, threads=threads)

    import torch

    from paceline.models.llama import Llama
    from paceline.models.source import resolve
    from paceline.runtimes.torch.target import torch_device
    from paceline.training.run_card import Course, save_card
    from paceline.training.store import Shards
    from paceline.zoo.ppd.prompt_tokens import PromptTokens, save_prompt_tokens
    from paceline.zoo.ppd.training import PromptRecipe, PromptTrainer, card_of

    if threads is not None:
        torch.set_num_threads(threads)
    recipe = PromptRecipe(
        steps, depth, loss, batch_tokens, chains, rate, precision=training_precision, seed=seed
    )
    shards = Shards(data)
    texts = shards.read()
    place = torch_device(device or "cpu")
    source = resolve(model)
    if shards.settings["model"] != source.fingerprint:
        raise InvalidOption(
            f"{data} was written by another model: write text of {source.name} with "
            "`paceline train data`"
        )
    network = Llama.build(source.config, source.weights(), place, torch.float32)
    trainer = PromptTrainer(network, texts, recipe, checkpoint_at=out.with_suffix(".checkpoint"))
    course = Course(trainer.notes or None)
    finished = train_with_bar(trainer, course)
    judged = trainer.judge()
    course.held_out(trainer.step, judged.loss)
    trained = PromptTokens(
        trainer.embeddings(),
        judged.ranks.accuracies,
        {
            "model": source.fingerprint,
            "model_name": source.name,
            "command": (
                f"paceline train prompt-tokens --data DATA --steps {steps} --depth {depth} "
                f"--chains {chains} --batch-tokens {batch_tokens} --rate {rate} --loss {loss} "
                f"--training-precision {training_precision} --seed {seed} --model {model}"
            ),
            "data": json.dumps(shards.settings, sort_keys=True),
            "tokens": str(trainer.tokens),
            "paceline": __version__,
        },
    )
    save_prompt_tokens(out, trained)
    card = card_of(out, trained, course, recipe, shards.settings, texts, trainer.held_out, judged)
    save_card(out, card)
    if finished:
        out.with_suffix(".checkpoint").unlink(missing_ok=True)
    figures: dict[str, Any] = {
        "weights": str(out),
        "finished": finished,
        "steps": trainer.step,
        "tokens": trainer.tokens,
        "held_out": {
            "texts": len(trainer.held_out),
            "loss": judged.loss,
            "block_efficiency": judged.hits.block_efficiency,
            "acceptance": judged.hits.acceptance,
            "accuracies": trained.accuracies.tolist(),
        },
        "seconds": round(course.seconds, 1),
        "recipe": asdict(recipe),
    }
    if as_json:
        print_json(figures)
    else:
        share = " ".join(f"{each:.2f}" for each in judged.hits.acceptance)
        typer.echo(
            f"{out}: {trainer.step} updates in {course.seconds:.0f} s; held out: loss "
            f"{judged.loss:.3f}, likeliest guess right by offset {share}"
        )
    if not finished:
        raise typer.Exit(130)
