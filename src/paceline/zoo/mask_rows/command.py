"""`paceline train mask-rows`: train a mask embedding and an adapter on text of the model."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from paceline.cli import options as o
from paceline.cli.output import report, train_with_bar


def mask_rows(
    data: o.Data = Path("data"),
    out: Annotated[Path, typer.Option(help="Where the mask rows go.")] = Path(
        "mask-rows.safetensors"
    ),
    steps: Annotated[int, typer.Option(help="Updates.")] = 2000,
    depth: Annotated[int, typer.Option(help="Masks of a group: how far ahead they draft.")] = 3,
    rank: Annotated[int, typer.Option(help="Rank of the adapter.")] = 32,
    chains: Annotated[int, typer.Option(help="Places per text to put groups at.")] = 24,
    batch_tokens: Annotated[int, typer.Option(help="Tokens of the texts of an update.")] = 768,
    rate: Annotated[float, typer.Option(help="Highest learning rate of the adapter.")] = 2e-3,
    loss: o.Loss = "forward-kl",
    training_precision: o.TrainingPrecision = "bf16",
    seed: o.Seed = 0,
    model: o.Model = "smollm2-135m",
    device: o.Device = None,
    threads: o.Threads = None,
    as_json: o.AsJson = False,
) -> None:
    """Train mask rows; Ctrl-C saves, and the same command goes on.

    The model stays as it is. Beside the weights stand a card (NAME.md, NAME.json) and, while
    training, a checkpoint.
    """
    o.runtime_options(device=device, threads=threads)

    import torch

    from paceline.models.source import resolve
    from paceline.networks.mask_rows import NETWORK, MaskRows, save_mask_rows
    from paceline.runtimes.torch.model import TorchModel
    from paceline.runtimes.torch.target import torch_device
    from paceline.training.card import write_card
    from paceline.training.data import Shards
    from paceline.training.setup import check_texts, figures, provenance
    from paceline.zoo.mask_rows.training import MaskRecipe, MaskTrainer

    if threads is not None:
        torch.set_num_threads(threads)
    recipe = MaskRecipe(
        steps,
        depth,
        loss,
        batch_tokens,
        chains,
        rate,
        precision=training_precision,
        seed=seed,
        rank=rank,
    )
    shards = Shards(data)
    place = torch_device(device or "cpu")
    source = resolve(model)
    check_texts(data, shards.settings, source)
    network = TorchModel(source.config, source.weights(), place, torch.float32)
    run = MaskTrainer(network, shards.read(), recipe, checkpoint_at=out.with_suffix(".checkpoint"))
    train_with_bar(run)
    judged = run.judge()
    run.course.held_out(run.step, judged.loss)
    command = (
        f"paceline train mask-rows --data DATA --steps {steps} --depth {depth} --rank {rank} "
        f"--chains {chains} --batch-tokens {batch_tokens} --rate {rate} --loss {loss} "
        f"--training-precision {training_precision} --seed {seed} --model {model}"
    )
    metadata = provenance(source, shards.settings, run, command)
    trained = MaskRows(*run.adapter.arrays(), metadata)
    save_mask_rows(out, trained)
    write_card(
        out,
        run,
        judged.hits,
        drafter=NETWORK,
        metadata=metadata,
        parameters=sum(each.numel() for each in run.adapter.parameters()),
        settings=asdict(recipe),
        data=shards.settings,
        licence="as the base model's, whose text they were trained on",
        conditions="groups of greedy tokens against texts as they stand, at random places",
    )
    found = figures(out, run, recipe, judged.loss, judged.hits)
    share = " ".join(f"{each:.2f}" for each in judged.hits.acceptance)
    line = (
        f"{out}: {run.step} updates in {run.course.seconds:.0f} s; held out: loss "
        f"{judged.loss:.3f}, right by place {share}"
    )
    report(found, line, as_json=as_json, finished=run.finish())
