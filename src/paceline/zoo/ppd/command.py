"""`paceline train prompt-tokens`: train the embeddings of drafter `ppd` on text of the target."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from paceline.cli import options as o
from paceline.cli.output import report, train_with_bar
from paceline.core.processor import usable_threads
from paceline.registry.options import Options

if TYPE_CHECKING:
    from paceline.zoo.ppd.training import PromptQuality, PromptRecipe, PromptTrainer

Run = TypeVar("Run", bound="PromptTrainer")


@o.spread_options
def prompt_tokens(
    *,
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
    asked: Annotated[Options, o.Takes("model", "device", "threads")],
    as_json: o.AsJson = False,
) -> None:
    """Train prompt tokens; Ctrl-C saves, and the same command goes on.

    The model stays as it is. Beside the weights stand a card (NAME.md, NAME.json) and, while
    training, a checkpoint.
    """
    from paceline.zoo.ppd.prompt_tokens import NETWORK, PromptTokens, save_prompt_tokens
    from paceline.zoo.ppd.training import PromptRecipe, PromptTrainer

    recipe = PromptRecipe(
        steps, depth, loss, batch_tokens, chains, rate, precision=training_precision, seed=seed
    )

    def save(run: PromptTrainer, judged: PromptQuality, metadata: dict[str, str]) -> int:
        trained = PromptTokens(run.embeddings(), judged.ranks.accuracies, metadata)
        save_prompt_tokens(out, trained)
        return trained.embeddings.size

    run, judged, found = train_rows(
        PromptTrainer,
        recipe,
        save,
        data=data,
        out=out,
        asked=asked,
        drafter=NETWORK,
        command=(
            f"paceline train prompt-tokens --data DATA --steps {steps} --depth {depth} "
            f"--chains {chains} --batch-tokens {batch_tokens} --rate {rate} --loss {loss} "
            f"--training-precision {training_precision} --seed {seed} --model {asked.model}"
        ),
        conditions="chains of greedy tokens against texts as they stand, a chain behind every node",
    )
    found["held_out"]["accuracies"] = judged.ranks.accuracies.tolist()
    share = " ".join(f"{each:.2f}" for each in judged.hits.acceptance)
    line = (
        f"{out}: {run.step} updates in {run.course.seconds:.0f} s; held out: loss "
        f"{judged.loss:.3f}, most likely guess right by offset {share}"
    )
    report(found, line, as_json=as_json, finished=run.finish())


def train_rows(
    trainer: Callable[..., Run],
    recipe: PromptRecipe,
    save: Callable[[Run, PromptQuality, dict[str, str]], int],
    *,
    data: Path,
    out: Path,
    asked: Options,
    drafter: str,
    command: str,
    conditions: str,
) -> tuple[Run, PromptQuality, dict[str, Any]]:
    """Train rows beside a frozen model on its text; write weights and card.

    Args:
        save: writes the weights with their metadata, and returns how many there are.
        drafter, conditions: for the card.
        command: for the provenance.

    Returns:
        The run, what held-out texts say of it, and its figures.

    Raises:
        InvalidOption: an option is out of range, or another model wrote the texts.
        ModelError: the checkpoint is damaged.
    """
    import torch

    from paceline.models.source import resolve
    from paceline.runtimes.torch.model import TorchModel
    from paceline.runtimes.torch.target import torch_device
    from paceline.training.card import write_card
    from paceline.training.data import Shards
    from paceline.training.setup import check_texts, figures, provenance

    if asked.threads is not None:
        torch.set_num_threads(usable_threads(asked.threads))
    shards = Shards(data)
    place = torch_device(asked.device or "cpu")
    source = resolve(asked.model)
    check_texts(data, shards.settings, source)
    network = TorchModel(source.config, source.weights(), place, torch.float32)
    run = trainer(network, shards.read(), recipe, checkpoint_at=out.with_suffix(".checkpoint"))
    train_with_bar(run)
    judged = run.judge()
    run.course.held_out(run.step, judged.loss)
    metadata = provenance(source, shards.settings, run, command)
    metadata["block_efficiency"] = f"{judged.hits.block_efficiency:.4f}"
    write_card(
        out,
        run,
        judged.hits,
        drafter=drafter,
        metadata=metadata,
        parameters=save(run, judged, metadata),
        settings=asdict(recipe),
        data=shards.settings,
        licence="as the base model's, whose text they were trained on",
        conditions=conditions,
    )
    return run, judged, figures(out, run, recipe, judged.loss, judged.hits)
