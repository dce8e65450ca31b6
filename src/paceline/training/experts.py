"""Small Llamas with mixtures of experts in PyTorch, and the losses that keep experts in use few.

Kind "blockffn" is BlockFFN's (Song et al. 2025, arXiv:2507.08771): small experts without gates,
weighted by RMSNorm(ReLU(router)), so that a row uses as many as it wants to. Kind "top-k" is
Mixtral's (Jiang et al. 2024): gated experts, weighted by a softmax of the largest scores.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.core.options import check_counts, require
from paceline.core.types import BoolArray
from paceline.training.denoisers.module import ROPE_BASE, rms, rotated
from paceline.training.run import Muon, Rated

Kind = Literal["top-k", "blockffn"]
CHUNK = 8
"""Tokens in a row whose experts the chunk loss wants to be few."""
_SHARP = 4.0  # of sigmoids that say whether an expert is in use


@dataclass(frozen=True, slots=True)
class ExpertRecipe:
    """Shape and hyperparameters.

    Attributes:
        kind: of the experts.
        steps: updates.
        batch: texts per update.
        width: hidden size, a multiple of `head`.
        head: width of an attention head.
        experts: of a layer.
        inner: size of an expert.
        used: experts of a row, of "top-k".
        locality: weight of the loss on experts that change from token to token, of "blockffn".
        chunk: weight of the loss on experts that `CHUNK` tokens use together, of "blockffn".
        balance: weight of the loss on experts that are used unevenly (Fedus et al. 2022), of
            "top-k".
        matrix_rate: peak learning rate of matrices (Muon).
        vector_rate: peak learning rate of embeddings and norms (AdamW).
        warm_up: share of the updates.
    """

    kind: Kind
    steps: int = 2400
    batch: int = 64
    width: int = 128
    layers: int = 4
    head: int = 32
    experts: int = 16
    inner: int = 32
    used: int = 2
    locality: float = 0.1
    chunk: float = 0.3
    balance: float = 0.01
    matrix_rate: float = 0.02
    vector_rate: float = 3e-3
    warm_up: float = 0.05
    clip: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        require(self.kind in get_args(Kind), "kind", self.kind, "top-k or blockffn")
        require(self.steps >= 2, "steps", self.steps, "2 or more")
        check_counts(self)
        require(self.width % self.head == 0, "width", self.width, f"a multiple of {self.head}")
        require(self.inner % 32 == 0, "inner", self.inner, "a multiple of 32")
        require(1 <= self.used <= self.experts, "used", self.used, f"1 to {self.experts}")


class ExpertLayer(nn.Module):
    """Parameters of a layer; experts lie one behind another, as `up` rows and `down` columns."""

    def __init__(self, recipe: ExpertRecipe, generator: torch.Generator) -> None:
        super().__init__()
        width, inner = recipe.width, recipe.experts * recipe.inner

        def drawn(rows: int, columns: int, scale: float = 1.0) -> nn.Parameter:
            values = torch.randn((rows, columns), generator=generator)
            return nn.Parameter(values * scale / math.sqrt(columns))

        self.attention_norm = nn.Parameter(torch.ones(width))
        self.ffn_norm = nn.Parameter(torch.ones(width))
        self.q, self.k, self.v = (drawn(width, width) for _ in range(3))
        self.o = drawn(width, width, 0.5)
        self.router, self.up = drawn(recipe.experts, width), drawn(inner, width)
        self.down = drawn(width, inner, 0.5)
        if recipe.kind == "top-k":
            self.gate = drawn(inner, width)
        else:
            self.router_norm = nn.Parameter(torch.ones(recipe.experts))


class ExpertModule(nn.Module):
    """A left-to-right Llama with experts, the head tied to the embedding.

    All experts of all rows are computed and weighted, which for so small ones is the fastest.
    """

    def __init__(self, recipe: ExpertRecipe, vocabulary: int, generator: torch.Generator) -> None:
        super().__init__()
        self.recipe = recipe
        drawn = torch.randn((vocabulary, recipe.width), generator=generator)
        self.embedding = nn.Parameter(drawn * 0.02)
        self.norm = nn.Parameter(torch.ones(recipe.width))
        self.layers = nn.ModuleList(ExpertLayer(recipe, generator) for _ in range(recipe.layers))

    def forward(self, tokens: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return logits `[texts, rows, vocabulary]` and the scores of the routers by layer.

        Args:
            tokens: int64 `[texts, rows]`, padded on the right.
        """
        head = self.recipe.head
        halves = torch.arange(0, head, 2, dtype=torch.float32)
        places = torch.arange(tokens.shape[1], dtype=torch.float32)
        angles = places[:, None] * ROPE_BASE ** (-halves / head)
        cos, sin = angles.cos(), angles.sin()
        x, scores = self.embedding[tokens], []
        for layer in self.layers:
            assert isinstance(layer, ExpertLayer)
            y = rms(x, layer.attention_norm)
            q, k, v = (
                functional.linear(y, part).view(*y.shape[:2], -1, head).transpose(1, 2)
                for part in (layer.q, layer.k, layer.v)
            )
            q, k = rotated(q, cos, sin), rotated(k, cos, sin)
            found = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + functional.linear(found.transpose(1, 2).flatten(2), layer.o)
            y = rms(x, layer.ffn_norm)
            scores.append(functional.linear(y, layer.router))
            weights = self.weights(layer, scores[-1])[..., None]
            up = functional.linear(y, layer.up)
            if self.recipe.kind == "top-k":
                up = functional.silu(functional.linear(y, layer.gate)) * up
            else:
                up = functional.silu(up)
            weighted = up.view(*weights.shape[:-1], self.recipe.inner) * weights
            x = x + functional.linear(weighted.flatten(-2), layer.down)
        return functional.linear(rms(x, self.norm), self.embedding), scores

    def weights(self, layer: ExpertLayer, scores: Tensor) -> Tensor:
        """Return the weights of experts from their scores, 0 for those that a row does not use."""
        if self.recipe.kind == "blockffn":
            return rms(scores.relu(), layer.router_norm)
        best, order = scores.softmax(-1).topk(self.recipe.used, -1)
        return torch.zeros_like(scores).scatter(-1, order, best / best.sum(-1, keepdim=True))

    def rated(self) -> list[Rated]:
        """Return Muon for the layers' matrices and AdamW for the embedding and norms."""
        recipe, every = self.recipe, dict(self.named_parameters())
        matrices = [p for name, p in every.items() if p.ndim == 2 and name != "embedding"]
        others = [p for name, p in every.items() if p.ndim == 1 or name == "embedding"]
        adam = torch.optim.AdamW(others, lr=recipe.vector_rate, betas=(0.9, 0.95), weight_decay=0.0)
        return [
            (Muon(matrices, recipe.matrix_rate), recipe.matrix_rate),
            (adam, recipe.vector_rate),
        ]


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
