"""`paceline train mask-rows`: train a mask embedding and an adapter on text of the model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paceline.cli import options as o
from paceline.cli.output import report
from paceline.registry.options import Options
from paceline.zoo.ppd.command import train_rows

if TYPE_CHECKING:
    from paceline.zoo.mask_rows.training import MaskTrainer
    from paceline.zoo.ppd.training import PromptQuality


@o.spread_options
def mask_rows(
    *,
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
    asked: Annotated[Options, o.Takes("model", "device", "threads")],
    as_json: o.AsJson = False,
) -> None:
    """Train mask rows; Ctrl-C saves, and the same command goes on.

    The model stays as it is. Beside the weights stand a card (NAME.md, NAME.json) and, while
    training, a checkpoint.
    """
    from paceline.networks.mask_rows import NETWORK, MaskRows, save_mask_rows
    from paceline.zoo.mask_rows.training import MaskRecipe, MaskTrainer

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

    def save(run: MaskTrainer, judged: PromptQuality, metadata: dict[str, str]) -> int:
        save_mask_rows(out, MaskRows(*run.adapter.arrays(), metadata))
        return sum(each.numel() for each in run.adapter.parameters())

    run, judged, found = train_rows(
        MaskTrainer,
        recipe,
        save,
        data=data,
        out=out,
        asked=asked,
        drafter=NETWORK,
        command=(
            f"paceline train mask-rows --data DATA --steps {steps} --depth {depth} --rank {rank} "
            f"--chains {chains} --batch-tokens {batch_tokens} --rate {rate} --loss {loss} "
            f"--training-precision {training_precision} --seed {seed} --model {asked.model}"
        ),
        conditions="groups of greedy tokens against texts as they stand, at random places",
    )
    share = " ".join(f"{each:.2f}" for each in judged.hits.acceptance)
    line = (
        f"{out}: {run.step} updates in {run.course.seconds:.0f} s; held out: loss "
        f"{judged.loss:.3f}, right by place {share}"
    )
    report(found, line, as_json=as_json, finished=run.finish())
