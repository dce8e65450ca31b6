"""Training of mask rows over a frozen model, after TiDAR (arXiv:2511.08923) and FlexDraft
(arXiv:2605.20022): groups of masks behind random places of a text learn what the model says there.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.core.types import IntArray, LogitArray
from paceline.lab.training.chains import Chains
from paceline.lab.training.optimisers import Rated, adam
from paceline.methods.ppd.recipe import MaskRecipe
from paceline.methods.ppd.training import PromptTask, guesses
from paceline.networks.mask_rows import NETWORK, PARTS, MaskRows, save_mask_rows
from paceline.runtimes.torch.model import TorchModel


class Adapter(nn.Module):
    """Mask embedding, and low-rank matrices by canonical name; `up` is 0 at the start."""

    def __init__(self, network: TorchModel, rank: int, generator: torch.Generator) -> None:
        super().__init__()
        embed = network.tensor("embed")
        self.embedding = nn.Parameter(embed.float().mean(0))
        self.names = [f"layers.{i}.{part}" for i in range(network.config.layers) for part in PARTS]
        self._place = {name: at for at, name in enumerate(self.names)}
        self.down, self.up = nn.ParameterList(), nn.ParameterList()
        for outputs, inputs in (network.tensor(name).shape for name in self.names):
            drawn = torch.randn(rank, inputs, generator=generator) / inputs**0.5
            self.down.append(nn.Parameter(drawn.to(embed.device)))
            self.up.append(nn.Parameter(torch.zeros(outputs, rank, device=embed.device)))

    def of(self, name: str) -> tuple[Tensor, Tensor] | None:
        """Return `down` and `up` of a matrix, None if it is not adapted."""
        at = self._place.get(name)
        return None if at is None else (self.down[at], self.up[at])

    def arrays(self) -> tuple[LogitArray, dict[str, LogitArray], dict[str, LogitArray]]:
        """Return embedding, `down` and `up` as float32."""
        down, up = (
            {name: _array(each) for name, each in zip(self.names, parts, strict=True)}
            for parts in (self.down, self.up)
        )
        return _array(self.embedding), down, up


def _array(tensor: Tensor) -> LogitArray:
    array: LogitArray = tensor.detach().float().cpu().numpy()
    return array


class Adapted(TorchModel):
    """A model whose rows all go through the adapter too; tensors are the model's own."""

    def __init__(self, network: TorchModel, adapter: Adapter) -> None:
        self.config = network.config
        self._network, self._adapter = network, adapter

    def tensor(self, name: str) -> Tensor:
        return self._network.tensor(name)

    def bias(self, name: str) -> Tensor | None:
        return self._network.bias(name)

    def linear(self, x: Tensor, name: str) -> Tensor:
        out, pair = super().linear(x, name), self._adapter.of(name)
        if pair is None:
            return out
        return out + functional.linear(functional.linear(x, pair[0]), pair[1])


class MaskTask(PromptTask):
    """Mask rows; errors as of `PromptTask`."""

    name = NETWORK
    conditions = "groups of greedy tokens against texts as they stand, at random places"
    recipe: MaskRecipe
    module: Adapter

    def _make(self) -> None:
        self.module = Adapter(self._network, self.recipe.rank, self.generator)
        self._adapted = Adapted(self._network, self.module)

    def optimisers(self) -> list[Rated]:
        adapter, recipe = self.module, self.recipe
        matrices = adam([*adapter.down, *adapter.up], recipe.rate)
        return [matrices, adam([adapter.embedding], recipe.mask_rate)]

    def _guesses(self, batch: Sequence[Chains]) -> tuple[Tensor, Tensor, IntArray]:
        rows = self.module.embedding.expand(self.recipe.depth, -1)
        return guesses(self._network, rows, batch, adapted=self._adapted, causal=False)

    def save(self, out: Path, metadata: dict[str, str]) -> Path:
        save_mask_rows(out, MaskRows(*self.module.arrays(), metadata))
        return out
