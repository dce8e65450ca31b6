"""`paceline train prompt-tokens`: train the embeddings of drafter `ppd` on text of the target."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from paceline.cli import options as o
from paceline.cli.output import report, train_with_bar


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

    from paceline.models.source import resolve
    from paceline.runtimes.torch.model import TorchModel
    from paceline.runtimes.torch.target import torch_device
    from paceline.training.card import write_card
    from paceline.training.data import Shards
    from paceline.training.setup import check_texts, figures, provenance
    from paceline.zoo.ppd.prompt_tokens import NETWORK, PromptTokens, save_prompt_tokens
    from paceline.zoo.ppd.training import PromptRecipe, PromptTrainer

    if threads is not None:
        torch.set_num_threads(threads)
    recipe = PromptRecipe(
        steps, depth, loss, batch_tokens, chains, rate, precision=training_precision, seed=seed
    )
    shards = Shards(data)
    place = torch_device(device or "cpu")
    source = resolve(model)
    check_texts(data, shards.settings, source)
    network = TorchModel(source.config, source.weights(), place, torch.float32)
    run = PromptTrainer(
        network, shards.read(), recipe, checkpoint_at=out.with_suffix(".checkpoint")
    )
    train_with_bar(run)
    judged = run.judge()
    run.course.held_out(run.step, judged.loss)
    command = (
        f"paceline train prompt-tokens --data DATA --steps {steps} --depth {depth} "
        f"--chains {chains} --batch-tokens {batch_tokens} --rate {rate} --loss {loss} "
        f"--training-precision {training_precision} --seed {seed} --model {model}"
    )
    metadata = provenance(source, shards.settings, run, command)
    trained = PromptTokens(run.embeddings(), judged.ranks.accuracies, metadata)
    save_prompt_tokens(out, trained)
    write_card(
        out,
        run,
        judged.hits,
        drafter=NETWORK,
        metadata=metadata,
        parameters=trained.embeddings.size,
        settings=asdict(recipe),
        data=shards.settings,
        licence="as the base model's, whose text they were trained on",
        conditions="chains of greedy tokens against texts as they stand, a chain behind every node",
    )
    found = figures(out, run, recipe, judged.loss, judged.hits)
    found["held_out"]["accuracies"] = trained.accuracies.tolist()
    share = " ".join(f"{each:.2f}" for each in judged.hits.acceptance)
    line = (
        f"{out}: {run.step} updates in {run.course.seconds:.0f} s; held out: loss "
        f"{judged.loss:.3f}, most likely guess right by offset {share}"
    )
    report(found, line, as_json=as_json, finished=run.finish())
