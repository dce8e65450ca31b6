"""Small Llamas with mixtures of experts, and the losses that keep experts in use few.

Kind "blockffn" is BlockFFN's (Song et al. 2025, arXiv:2507.08771): small experts without gates,
weighted by RMSNorm(ReLU(router)), so that a row uses as many as it wants to. Kind "top-k" is
Mixtral's (Jiang et al. 2024): gated experts, weighted by a softmax of the largest scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from paceline.core.types import BoolArray
from paceline.models.families import hf_config
from paceline.models.families.experts import BLOCKFFN, MIXTRAL
from paceline.training.denoisers.files import llama_json
from paceline.training.denoisers.rows import EOS
from paceline.training.model import TrainableModel, drawn
from paceline.training.recipe import ExpertRecipe

CHUNK = 8
"""Tokens in a row whose experts the chunk loss wants to be few."""
_SHARP = 4.0  # of sigmoids that say whether an expert is in use


class ExpertModel(TrainableModel):
    """A left-to-right Llama with experts, which lie one behind another in its parameters."""

    def __init__(self, recipe: ExpertRecipe, generator: torch.Generator) -> None:
        """Draw the weights."""
        width, inner, self._inner = recipe.width, recipe.experts * recipe.inner, recipe.inner
        config = hf_config(config_json(recipe), (EOS,))
        router = ("router", recipe.experts, width)
        parts = [router, ("up", inner, width), ("down", width, inner)]
        gated = recipe.kind == "top-k"
        begin = drawn(config, [*parts, ("gate", inner, width)] if gated else parts, generator)
        if not gated:
            ones = torch.ones(recipe.experts)
            begin |= {f"layers.{i}.router_norm": ones for i in range(config.layers)}
        super().__init__(config, begin)
        self._scores: list[Tensor] = []
        self._parts: dict[str, Tensor] = {}

    def scored(self, tokens: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return logits `[texts, rows, vocabulary]` and the scores of the routers by layer.

        Args:
            tokens: int64 `[texts, rows]`, padded on the right.
        """
        self._scores, self._parts = [], self._split()
        logits = self.packed(tokens, torch.arange(tokens.shape[1]).expand(tokens.shape))
        return logits, [each.view(*tokens.shape, -1) for each in self._scores]

    def linear(self, x: Tensor, name: str) -> Tensor:
        out = super().linear(x, name)
        if name.endswith(".router"):
            self._scores.append(out)
        return out

    def tensor(self, name: str) -> Tensor:
        return self._parts[name] if ".experts." in name else super().tensor(name)

    def stored(self) -> dict[str, Tensor]:
        own = super().stored()
        parts = {name: each.detach() for name, each in self._split().items()}
        return {name: each for name, each in own.items() if not _is_stacked(name)} | parts

    def _split(self) -> dict[str, Tensor]:
        found = {}
        for name, matrix in self.own.items():
            if _is_stacked(name):
                layer, _, part = name.rpartition(".")
                for expert, each in enumerate(
                    torch.split(matrix, self._inner, int(part == "down"))
                ):
                    found[f"{layer}.experts.{expert}.{part}"] = each
        return found


def _is_stacked(name: str) -> bool:
    return name.endswith((".gate", ".up", ".down"))


def in_use(scores: Tensor, recipe: ExpertRecipe) -> Tensor:
    """Return which experts rows use, bool like the scores."""
    if recipe.kind == "blockffn":
        return scores > 0
    best = scores.topk(recipe.used, -1).indices
    return torch.zeros_like(scores, dtype=torch.bool).scatter(-1, best, True)


def config_json(recipe: ExpertRecipe) -> dict[str, Any]:
    """Return the config: that of Mixtral, or of Llama with the experts of BlockFFN."""
    own: dict[str, Any] = {"model_type": BLOCKFFN.hf, "num_experts": recipe.experts}
    if recipe.kind == "top-k":
        own = {
            "architectures": ["MixtralForCausalLM"],
            "model_type": MIXTRAL.hf,
            "num_local_experts": recipe.experts,
            "num_experts_per_tok": recipe.used,
            "sliding_window": None,
        }
    return own | llama_json(recipe, recipe.inner)


def locality_loss(scores: Tensor, valid: Tensor) -> Tensor:
    """Return the cross-entropy between the experts of adjacent tokens, in nats (BlockFFN).

    Args:
        scores: `[texts, rows, experts]`.
        valid: bool `[texts, rows]`, False for padding.
    """
    sharp = _SHARP * scores
    each = functional.binary_cross_entropy_with_logits(
        sharp[:, :-1], sharp[:, 1:].sigmoid(), reduction="none"
    )
    return each[valid[:, 1:]].mean()


def chunk_loss(scores: Tensor, valid: Tensor) -> Tensor:
    """Return the share of experts that `CHUNK` tokens in a row use, made smooth (BlockFFN).

    Arguments as for `locality_loss`; the last chunk of a text may be shorter.
    """
    unused = functional.logsigmoid(-_SHARP * scores).masked_fill(~valid[..., None], 0.0)
    unused = functional.pad(unused, (0, 0, 0, -unused.shape[1] % CHUNK))
    together = unused.view(len(unused), -1, CHUNK, unused.shape[2]).sum(2)
    begun = functional.pad(valid, (0, -valid.shape[1] % CHUNK))[:, ::CHUNK]
    found: Tensor = (1 - together.exp())[begun].mean()
    return found


def balance_loss(scores: Tensor, valid: Tensor, used: int) -> Tensor:
    """Return 1 if all experts are used alike, and more else; arguments as for `locality_loss`."""
    shares = scores[valid].softmax(-1)
    taken = torch.zeros_like(shares).scatter(-1, shares.topk(used, -1).indices, 1 / used)
    return shares.shape[-1] * (taken.mean(0) * shares.mean(0)).sum()


def union_share(used: Sequence[BoolArray], size: int) -> float:
    """Return the mean share of experts that some of `size` rows in a row use.

    Args:
        used: bool `[rows, experts]` by layer, with `size` rows or more.
    """
    shares = []
    for each in used:
        chunks = each[: len(each) // size * size].reshape(-1, size, each.shape[1])
        shares.append(float(chunks.any(1).mean()))
    return sum(shares) / len(shares)
