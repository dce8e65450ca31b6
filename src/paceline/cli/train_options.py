"""Options of the commands that train drafter networks, and the recipe that they make together."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from paceline.training.trainer import Recipe

Data = Annotated[Path, typer.Option(help="Folder of `paceline train data`.")]
Folders = Annotated[
    list[Path],
    typer.Option("--data", help="Folder of `paceline train data`; several, one each time."),
]
DATA = [Path("data")]
"""Where `paceline train data` writes unless it is told."""
Vocabulary = Annotated[int, typer.Option(help="Tokens that may be drafted.")]
Loss = Annotated[
    str, typer.Option(help="cross-entropy, forward-kl, reverse-kl, jsd, tvd or tvd++.")
]
BatchTokens = Annotated[int, typer.Option(help="Tokens per update.")]
Rate = Annotated[float, typer.Option(help="Highest learning rate of matrices (Muon).")]
PromptWeight = Annotated[
    float, typer.Option(help="Weight of prompt tokens, which the target did not write.")
]
OnPolicyShare = Annotated[
    float, typer.Option(help="Share of batches that teach on the drafter's own drafts.")
]
TrainingPrecision = Annotated[str, typer.Option(help="fp32 or bf16.")]
KeepFeatures = Annotated[
    Path | None, typer.Option(help="Folder to keep hidden states in, for several runs.")
]


@dataclass(frozen=True, slots=True)
class Teaching:
    """How networks are trained, whichever they are and however long; fields as the options."""

    vocabulary: int
    loss: str
    batch_tokens: int
    rate: float
    prompt_weight: float
    on_policy: float
    training_precision: str
    seed: int
    model: str

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
