"""How prompt tokens are trained."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.options import require
from paceline.training.losses import find_loss


@dataclass(frozen=True, slots=True)
class PromptRecipe:
    """How prompt tokens are trained.

    Attributes:
        steps: updates.
        depth: prompt tokens, one per offset.
        loss: as for `losses.find_loss`.
        batch_tokens: tokens of the texts of an update, padding included.
        chains: places per text at which the prompt tokens are put, anew each time.
        rate: highest learning rate, of AdamW.
        warm_up: share of the updates in which the rate rises.
        decay: weight of an offset beside the one before.
        clip: longest gradient.
        precision: of matrix products, "fp32" or "bf16".
        seed: of first embeddings, of the order of texts, and of places.
    """

    steps: int = 300
    depth: int = 3
    loss: str = "forward-kl"
    batch_tokens: int = 512
    chains: int = 64
    rate: float = 1e-2
    warm_up: float = 0.05
    decay: float = 0.8
    clip: float = 1.0
    precision: str = "bf16"
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("steps", "depth", "batch_tokens", "chains"):
            value = getattr(self, name)
            require(value >= 1, name.replace("_", " "), value, "1 or more")
        require(self.precision in ("fp32", "bf16"), "precision", self.precision, "fp32 or bf16")
        require(self.rate > 0, "rate", self.rate, "more than 0")
        find_loss(self.loss)
