"""`models.ops.Ops` in PyTorch, over flat token rows; a callback computes attention."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from paceline.core.target import Layer
from paceline.core.types import LogitArray
from paceline.models import families
from paceline.models.config import ModelConfig
from paceline.models.ops import Activation, Experts, Heads, Rotary
from paceline.models.weights import Weights

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
        self.logits(self(nothing, torch.zeros(0, device=device), lambda _layer, _heads, q, *_: q))
        self.embed(torch.zeros(0, dtype=torch.int64, device=device))

    def __call__(
        self,
        x: Tensor,
        positions: Tensor,
        attend: Attend,
        features: list[Tensor] | None = None,
        layers: Sequence[Layer] | None = None,
        states: list[Tensor] | None = None,
    ) -> Tensor:
        """Return the hidden states after the final norm, `[rows, hidden_size]`.

        Args:
            x: `[rows, hidden_size]`, as `embed` returns them.
            positions: int64 `[rows]`, in each token's own sequence.
            attend: the place where rows meet.
            features: if given, collects the inputs of the feature layers, and the result.
            layers: those to run; None for all.
            states: if given, collects the rows before the final norm.
        """
        ops = _TorchOps(self, positions, attend)
        found: Tensor = families.forward(
            ops, self.config, layers=layers, x=x, features=features, states=states
        )
        return found

    def embed(self, ids: Tensor) -> Tensor:
        return self.tensor("embed")[ids] * self.config.embedding_scale

    def logits(self, hidden: Tensor) -> Tensor:
        ops = _TorchOps(self, hidden, lambda *_: hidden)
        found: Tensor = families.head(ops, self.config, hidden)
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

    def bias(self, name: str) -> Tensor | None:
        name = f"{name}.bias"
        if name not in self._known and name not in self._weights:
            self._known[name] = None
        return self._known[name] if name in self._known else self.tensor(name)


class _TorchOps:
    def __init__(self, model: TorchModel, positions: Tensor, attend: Attend) -> None:
        self._model, self._positions, self._attend = model, positions, attend
        self._turns: dict[Rotary, tuple[Tensor, Tensor]] = {}

    def embed(self, scale: float = 1.0) -> Tensor:
        raise NotImplementedError("rows are embedded before")

    def norm(self, x: Tensor, name: str, *, plus: Tensor | None = None) -> Tensor:
        # In float32 or better.
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self._model.config.norm_eps)
        out = self._model.tensor(name) * (wide * scale).to(x.dtype)
        return out if plus is None else plus + out

    def linear(
        self,
        x: Tensor,
        names: Sequence[str],
        *,
        norm: str | None = None,
        scale: float = 1.0,
        plus: Tensor | None = None,
    ) -> Tensor:
        x = x if norm is None else self.norm(x, norm)
        parts = [self._model.linear(x, name) for name in names]
        out = parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)
        out = out if scale == 1.0 else out * scale
        return out if plus is None else plus + out

    def gated(
        self, x: Tensor, gate: str, up: str, *, activation: Activation, norm: str | None = None
    ) -> Tensor:
        x = x if norm is None else self.norm(x, norm)
        return self._active(self.linear(x, [gate]), activation) * self.linear(x, [up])

    def _active(self, x: Tensor, activation: Activation) -> Tensor:
        return (
            functional.silu(x) if activation == "silu" else functional.gelu(x, approximate="tanh")
        )

    def attend(self, layer: int, x: Tensor, heads: Heads) -> Tensor:
        sizes = heads.heads, heads.kv_heads, heads.kv_heads
        queries, keys, values = x.reshape(-1, sum(sizes), heads.width).split_with_sizes(
            sizes, dim=1
        )
        queries = queries if heads.query_norm is None else self.norm(queries, heads.query_norm)
        keys = keys if heads.key_norm is None else self.norm(keys, heads.key_norm)
        if heads.rotary is not None:
            queries, keys = (self._rotate(each, heads.rotary) for each in (queries, keys))
        return self._attend(layer, heads, queries, keys, values).flatten(-2)

    def route(self, x: Tensor, name: str, experts: Experts) -> Tensor:
        exact = torch.promote_types(x.dtype, torch.float32)
        scores = self.linear(x, [name]).to(exact)
        if not experts.used:
            return self.norm(scores.relu().to(x.dtype), f"{name}_norm")
        shares = scores.softmax(-1)
        # Of equal ones the first, which `topk` does not guarantee.
        order = shares.argsort(dim=-1, descending=True, stable=True)[:, : experts.used]
        found = shares.gather(-1, order)
        found = found / found.sum(-1, keepdim=True) if experts.sum_to_one else found
        return torch.zeros_like(shares).scatter(-1, order, found).to(x.dtype)

    def mix(
        self,
        x: Tensor,
        weights: Tensor,
        name: str,
        experts: Experts,
        *,
        activation: Activation,
        plus: Tensor,
    ) -> Tensor:
        out = plus.clone()
        for each in range(experts.count):
            (rows,) = weights[:, each].nonzero(as_tuple=True)
            if not len(rows) and len(x):  # of no rows all are read: it finds what is missing
                continue
            part, at = f"{name}.{each}", x[rows]
            if experts.gated:
                inner = self.gated(at, f"{part}.gate", f"{part}.up", activation=activation)
            else:
                inner = self._active(self.linear(at, [f"{part}.up"]), activation)
            made = self.linear(inner, [f"{part}.down"])
            out = out.index_add(0, rows, made * weights[rows, each, None])
        return out

    def _rotate(self, x: Tensor, rotary: Rotary) -> Tensor:
        if rotary not in self._turns:
            exact = torch.promote_types(x.dtype, torch.float32)
            frequencies = torch.tensor(rotary.frequencies, dtype=torch.float64)
            angles = self._positions.to(exact)[:, None, None] * frequencies.to(x.device, exact)
            turns = (angles.cos() * rotary.factor, angles.sin() * rotary.factor)
            self._turns[rotary] = turns[0].to(x.dtype), turns[1].to(x.dtype)
        cos, sin = self._turns[rotary]
        half = cos.shape[-1]
        first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
        turned: list[Any] = [first * cos - second * sin, second * cos + first * sin, rest]
        return torch.cat(turned, dim=-1)
