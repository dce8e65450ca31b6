"""The network of a denoiser in PyTorch, and the recipe of its training."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.core.options import check_counts, require
from paceline.training.run import Muon, Rated

Kind = Literal["full", "block", "order"]
ROPE_BASE, NORM_EPS = 10000.0, 1e-5


@dataclass(frozen=True, slots=True)
class DenoiserRecipe:
    """Shape and hyperparameters of a denoiser.

    Attributes:
        kind: what its rows see.
        steps: updates.
        batch: examples per update.
        width: hidden size, a multiple of `head`.
        head: width of an attention head.
        ffn: inner size of the feed-forward blocks.
        matrix_rate: peak learning rate of matrices (Muon).
        vector_rate: peak learning rate of embeddings and norms (AdamW).
        warm_up: share of the updates.
        corrupt: share of the visible tokens that are exchanged, in half of the examples of "full".
        causal_weight: of the loss on next tokens, of "block".
        certainty: weight of the entropy of mask rows that are right (dParallel, arXiv:2509.26488).
        own: so many answers that the starting weights write, greedily, are learned from in place of
            those of the tasks; 0 for the latter.
    """

    kind: Kind
    steps: int = 3000
    batch: int = 64
    width: int = 160
    layers: int = 4
    head: int = 32
    ffn: int = 448
    matrix_rate: float = 0.02
    vector_rate: float = 3e-3
    warm_up: float = 0.05
    clip: float = 1.0
    corrupt: float = 0.0
    causal_weight: float = 1.0
    certainty: float = 0.0
    own: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        require(self.kind in get_args(Kind), "kind", self.kind, "full, block or order")
        require(self.steps >= 2, "steps", self.steps, "2 or more")
        require(self.corrupt <= 1, "corrupt", self.corrupt, "0 to 1")
        check_counts(self)
        require(self.width % self.head == 0, "width", self.width, f"a multiple of {self.head}")


class DenoiserLayer(nn.Module):
    """Parameters of a layer of Llama; `drawn` gives a matrix of rows, columns and scale."""

    def __init__(self, width: int, ffn: int, drawn: Callable[..., nn.Parameter]) -> None:
        super().__init__()
        self.attention_norm = nn.Parameter(torch.ones(width))
        self.ffn_norm = nn.Parameter(torch.ones(width))
        self.q, self.k, self.v = (drawn(width, width) for _ in range(3))
        self.o = drawn(width, width, 0.5)
        self.gate, self.up = (drawn(ffn, width) for _ in range(2))
        self.down = drawn(width, ffn, 0.5)


class DenoiserModule(nn.Module):
    """A Llama trunk whose rows see what they are told to, with the head tied to the embedding."""

    def __init__(self, recipe: DenoiserRecipe, vocabulary: int, generator: torch.Generator) -> None:
        super().__init__()
        self.head, width = recipe.head, recipe.width

        def drawn(rows: int, columns: int, scale: float = 1.0) -> nn.Parameter:
            values = torch.randn((rows, columns), generator=generator)
            return nn.Parameter(values * scale / math.sqrt(columns))

        self.embedding = nn.Parameter(torch.randn((vocabulary, width), generator=generator) * 0.02)
        self.norm = nn.Parameter(torch.ones(width))
        self.layers = nn.ModuleList(
            DenoiserLayer(width, recipe.ffn, drawn) for _ in range(recipe.layers)
        )

    def forward(self, tokens: Tensor, positions: Tensor, sees: Tensor) -> Tensor:
        """Return logits `[bins, rows, vocabulary]`; arguments as in `rows.PackedRows`."""
        x = self.embedding[tokens]
        halves = torch.arange(0, self.head, 2, dtype=torch.float32)
        angles = positions[:, None, :, None] * ROPE_BASE ** (-halves / self.head)
        cos, sin = angles.cos(), angles.sin()
        for layer in self.layers:
            assert isinstance(layer, DenoiserLayer)
            y = rms(x, layer.attention_norm)
            q, k, v = (
                functional.linear(y, part).view(*y.shape[:2], -1, self.head).transpose(1, 2)
                for part in (layer.q, layer.k, layer.v)
            )
            q, k = rotated(q, cos, sin), rotated(k, cos, sin)
            found = functional.scaled_dot_product_attention(q, k, v, attn_mask=sees)
            x = x + functional.linear(found.transpose(1, 2).flatten(2), layer.o)
            y = rms(x, layer.ffn_norm)
            inner = functional.silu(functional.linear(y, layer.gate))
            x = x + functional.linear(inner * functional.linear(y, layer.up), layer.down)
        return functional.linear(rms(x, self.norm), self.embedding)

    def rated(self, matrix_rate: float, vector_rate: float) -> list[Rated]:
        """Return Muon for the layers' matrices and AdamW for the embedding and norms."""
        every = dict(self.named_parameters())
        matrices = [p for name, p in every.items() if p.ndim == 2 and name != "embedding"]
        others = [p for name, p in every.items() if p.ndim == 1 or name == "embedding"]
        adam = torch.optim.AdamW(others, lr=vector_rate, betas=(0.9, 0.95), weight_decay=0.0)
        return [(Muon(matrices, matrix_rate), matrix_rate), (adam, vector_rate)]


def rms(x: Tensor, weight: Tensor) -> Tensor:
    """Return RMS-normed rows."""
    return functional.rms_norm(x, (x.shape[-1],), weight, NORM_EPS)


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return rows `[..., head]` with rotary positions, halves apart."""
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
