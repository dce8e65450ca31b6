"""A model in PyTorch, over flat token rows; a callback computes attention."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from paceline.core.target import Layer
from paceline.core.types import LogitArray
from paceline.models import families
from paceline.models.config import ModelConfig
from paceline.models.families import base
from paceline.models.ops import KV, Heads, Sight
from paceline.models.weights import Weights
from paceline.networks.torch_ops import Attention, Changes, Qkv, TorchOps
from paceline.runtimes.torch.cache import RecurrentRows

# `(layer, heads, queries [rows, heads, width], keys, values [rows, kv_heads, width])` to the
# attention's output `[rows, heads, width]`.
Attend: TypeAlias = Callable[[int, Heads, Tensor, Tensor, Tensor], Tensor]


class TorchModel:
    """A model without caches or batches: rows of all sequences are stacked, and meet in attention.

    Raises:
        ModelError: a tensor is missing or damaged.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights | Mapping[str, LogitArray],
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.config = config
        self._weights, self._place = weights, (device, dtype)
        self._known: dict[str, Tensor | None] = {}
        nothing = torch.zeros((0, config.hidden_size), device=device, dtype=dtype)
        places, ids = (torch.zeros(0, dtype=torch.int64, device=device) for _ in range(2))
        self.logits(self(nothing, places, self._no_rows, tokens=ids))
        self.embed(ids)

    def __call__(
        self,
        x: Tensor,
        positions: Tensor,
        attend: Attend,
        features: list[Tensor] | None = None,
        layers: Sequence[Layer] | None = None,
        states: list[Tensor] | None = None,
        recurrent: RecurrentRows | None = None,
        boundaries: tuple[int, ...] = (),
        tokens: Tensor | None = None,
    ) -> Tensor:
        """Return the hidden states after the final norm, `[rows, hidden_size]`.

        Args:
            x: `[rows, hidden_size]`, as `embed` returns them.
            positions: int64 `[rows]`, in each token's own sequence.
            attend: the place where rows meet.
            features: if given, collects the inputs of the feature layers, and the result.
            layers: those to run; None for all.
            states: if given, collects the rows before the final norm.
            recurrent: the states of the rows, if layers have some.
            boundaries: whose states features have behind the usual ones.
            tokens: int64 `[rows]`, for layers that read them too.
        """
        ops = TorchOps(self, self.config.norm_eps, RowAttention(positions, attend, recurrent))
        if tokens is None:
            self.config.refuse_added_embeddings()
        halves = families.halves_of(self.config, ops, tokens)
        found: Tensor = base.forward(
            ops,
            self.config,
            halves,
            x,
            layers=layers,
            features=features,
            states=states,
            boundaries=boundaries,
        )
        return found

    def _no_rows(
        self, _layer: int, heads: Heads, queries: Tensor, _keys: Tensor, _values: Tensor
    ) -> Tensor:
        # Reads what attention does.
        if heads.sinks is not None:
            self.tensor(heads.sinks)
        return queries

    def embed(self, ids: Tensor) -> Tensor:
        return self.tensor("embed")[ids] * self.config.embedding_scale

    def logits(self, hidden: Tensor) -> Tensor:
        ops = TorchOps(self, self.config.norm_eps, RowAttention(hidden, lambda *_: hidden))
        found: Tensor = base.head(ops, self.config, hidden)
        return found

    def trim_head(self, ids: Tensor) -> None:
        """Let the LM head have the rows int64 `ids` alone."""
        self._known["head"] = self.tensor("head")[ids.to(self._place[0])]

    @property
    def head(self) -> Tensor:
        """The LM head, `[vocabulary, hidden_size]`."""
        return self.tensor("head")

    def linear(self, x: Tensor, name: str) -> Tensor:
        """Return rows times a matrix, plus its bias; adapters override it."""
        return functional.linear(x, self.tensor(name), self.bias(name))

    def tensor(self, name: str) -> Tensor:
        """Return a tensor by canonical name; raise ModelError if there is none."""
        if name == "head" and name not in self._known and self.config.tied_embeddings:
            name = "embed"
        if name not in self._known:
            device, dtype = self._place
            self._known[name] = torch.as_tensor(self._weights[name]).to(device, dtype)
        found = self._known[name]
        assert found is not None
        return found

    def rows(self, name: str, ids: Tensor) -> Tensor:
        """Return rows of a table; all but the embedding stay in the model's file."""
        if name == "embed":
            return functional.embedding(ids, self.tensor(name))
        assert not isinstance(self._weights, Mapping), f"{name} lies in no file"
        found = self._weights.stored(name).rows(ids.cpu().numpy())
        return torch.from_numpy(found).to(*self._place)

    def bias(self, name: str) -> Tensor | None:
        name = f"{name}.bias"
        if name not in self._known and name not in self._weights:
            self._known[name] = None
        return self._known[name] if name in self._known else self.tensor(name)


class RowAttention(Attention):
    """Flat rows of a model, whose keys a callback knows; without `recurrent` there are none."""

    def __init__(
        self, positions: Tensor, attend: Attend, recurrent: RecurrentRows | None = None
    ) -> None:
        self._positions, self._attend, self._recurrent = positions, attend, recurrent

    def convolve(self, layer: int, x: Tensor, weights: Tensor) -> Tensor:
        return x if self._recurrent is None else self._recurrent.convolve(layer, x, weights)

    def scan(self, layer: int, rows: Changes) -> Tensor:
        return rows.values if self._recurrent is None else self._recurrent.scan(layer, rows)

    def places(self, kv: int | KV, x: Tensor, heads: Heads, sees: Sight) -> Tensor:
        return self._positions

    def attend(self, kv: int | KV, qkv: Qkv, heads: Heads, sees: Sight) -> Tensor:
        layer = kv.layer if isinstance(kv, KV) else kv
        return self._attend(layer, heads, *qkv)
