"""Options of the commands that train drafter networks, and the recipe that they make together."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paceline.cli import options as o

if TYPE_CHECKING:
    from paceline.core.target import RuntimeOptions
    from paceline.training.trainer import Recipe

Data = Annotated[Path, typer.Option(help="Folder of `paceline train data`.")]
Folders = Annotated[
    list[Path],
    typer.Option("--data", help="Folder of `paceline train data`; several, one each time."),
]
DATA = [Path("data")]
"""Where `paceline train data` writes unless it is told."""
Loss = Annotated[
    str, typer.Option(help="cross-entropy, forward-kl, reverse-kl, jsd, tvd or tvd++.")
]
TrainingPrecision = Annotated[str, typer.Option(help="fp32 or bf16.")]
KeepFeatures = Annotated[
    Path | None, typer.Option(help="Folder to keep hidden states in, for several runs.")
]


@dataclass(frozen=True, slots=True)
class Teaching:
    """How networks are trained, whichever they are and however long."""

    vocabulary: Annotated[int, typer.Option(help="Tokens that may be drafted.")] = 8192
    loss: Loss = "forward-kl"
    batch_tokens: Annotated[int, typer.Option(help="Tokens per update.")] = 2048
    rate: Annotated[float, typer.Option(help="Highest learning rate of matrices (Muon).")] = 0.02
    prompt_weight: Annotated[
        float, typer.Option(help="Weight of prompt tokens, which the target did not write.")
    ] = 0.1
    on_policy: Annotated[
        float, typer.Option(help="Share of batches that teach on the drafter's own drafts.")
    ] = 0.0
    training_precision: TrainingPrecision = "bf16"
    seed: o.Seed = 0
    model: o.Model = "smollm2-135m"

    def recipe(self, tokens: int, seed: int | None = None) -> Recipe:
        """The recipe of a run.

        Args:
            tokens: to train on.
            seed: another one than the options say.

        Raises:
            InvalidOption: a value is out of range.
        """
        from paceline.training.trainer import Recipe

        return Recipe(
            tokens,
            self.loss,
            self.batch_tokens,
            matrix_rate=self.rate,
            vector_rate=self.rate / 10,
            prompt_weight=self.prompt_weight,
            precision=self.training_precision,
            seed=self.seed if seed is None else seed,
            on_policy=self.on_policy,
        )

    @property
    def words(self) -> str:
        """The options as they stand on a command line, without paths."""
        return (
            f"--vocabulary {self.vocabulary} --loss {self.loss} "
            f"--batch-tokens {self.batch_tokens} --rate {self.rate} "
            f"--prompt-weight {self.prompt_weight} --on-policy {self.on_policy} "
            f"--training-precision {self.training_precision} --seed {self.seed} "
            f"--model {self.model}"
        )


@dataclass(frozen=True, slots=True)
class Computing:
    """What the target runs on."""

    runtime: o.Runtime = "auto"
    device: o.Device = None
    precision: o.Precision = None
    threads: o.Threads = None

    def options(self) -> RuntimeOptions:
        """For the loading of the target.

        Raises:
            InvalidOption: a value is out of range.
        """
        return o.runtime_options(self.device, self.precision, threads=self.threads)
