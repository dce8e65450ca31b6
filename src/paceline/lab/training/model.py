"""Models of a family whose tensors are trained: the family's own forward, over parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.core.types import LogitArray
from paceline.models.config import ModelConfig
from paceline.models.families import family_of
from paceline.models.ops import Heads
from paceline.models.weights import Weights
from paceline.runtimes.torch.model import TorchModel

NOTHING: Mapping[str, LogitArray] = MappingProxyType({})
_DAMPED = ("o", "down")  # matrices that add to the stream begin at half the size


class TrainableModel(TorchModel):
    """A model over parameters, by canonical names; what it does not own is lent and stays.

    Attributes:
        own: the parameters.
        module: holds them, for optimisers and checkpoints.
    """

    def __init__(
        self,
        config: ModelConfig,
        start: Mapping[str, Tensor],
        lent: Weights | Mapping[str, LogitArray] = NOTHING,
    ) -> None:
        self.config = config
        self._weights, self._known = lent, {}
        self._place = torch.device("cpu"), torch.float32
        self.own = {name: nn.Parameter(each.clone()) for name, each in start.items()}
        slashed = {name.replace(".", "/"): each for name, each in self.own.items()}
        self.module = nn.ParameterDict(slashed.items())

    def tensor(self, name: str) -> Tensor:
        if name == "head" and self.config.tied_embeddings:
            name = "embed"
        return self.own[name] if name in self.own else super().tensor(name)

    def bias(self, name: str) -> Tensor | None:
        return self.own.get(f"{name}.bias")

    def packed(self, tokens: Tensor, positions: Tensor, sees: Tensor | None = None) -> Tensor:
        """Return logits `[bins, rows, vocabulary]`.

        Args:
            tokens, positions: int64 `[bins, rows]`.
            sees: bool `[bins, 1, rows, rows]`, what rows see of their bin; None for all before.
        """
        bins = tokens.shape

        def within_bins(_: int, heads: Heads, *parts: Tensor) -> Tensor:
            q, k, v = (each.view(*bins, *each.shape[1:]).transpose(1, 2) for each in parts)
            found = functional.scaled_dot_product_attention(
                q, k, v, attn_mask=sees, is_causal=sees is None, scale=heads.scale
            )
            return found.transpose(1, 2).flatten(0, 1)

        hidden = self(self.embed(tokens.flatten()), positions.flatten(), within_bins)
        return self.logits(hidden).view(*bins, -1)

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        with torch.no_grad():
            for name, parameter in self.own.items():
                parameter.copy_(tensors[name])

    def stored(self) -> dict[str, Tensor]:
        """Return the tensors by canonical names, as files hold them."""
        return {name: each.detach() for name, each in self.own.items()}

    def hf_tensors(self) -> dict[str, Tensor]:
        """Return the tensors by their names in Hugging Face checkpoints."""
        return {_hf_name(self.config, name): each for name, each in self.stored().items()}


def drawn(
    config: ModelConfig,
    feed_forward: Sequence[tuple[str, int, int]],
    generator: torch.Generator,
) -> dict[str, Tensor]:
    """Return tensors of a Llama at random, with `feed_forward` matrices by name and shape."""
    width = config.hidden_size
    out = {"embed": torch.randn((config.vocab_size, width), generator=generator) * 0.02}
    attention = [(part, width, width) for part in "qkvo"]
    for index in range(config.layers):
        layer = {part: torch.ones(width) for part in ("attention_norm", "ffn_norm")}
        for part, rows, columns in (*attention, *feed_forward):
            values = torch.randn((rows, columns), generator=generator)
            layer[part] = values * (0.5 if part in _DAMPED else 1.0) / math.sqrt(columns)
        out |= {f"layers.{index}.{part}": each for part, each in layer.items()}
    return {**out, "norm": torch.ones(width)}


def _hf_name(config: ModelConfig, name: str) -> str:
    family = family_of(config)
    if name in family.hf_ends:
        return family.hf_ends[name]
    _, layer, *parts = name.split(".")
    kind = parts.pop() if parts[-1] == "bias" else "weight"
    if parts[0] == "experts":
        part = family.hf_parts[f"experts.{parts[2]}"].format(parts[1])
    else:
        part = family.hf_parts[parts[0]]
    return f"{family.hf_layers}.{layer}.{part}.{kind}"
