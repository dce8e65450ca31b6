"""Drafter networks on PyTorch at decoding: behind the last context row of every sequence.

Rows of all sequences are stacked everywhere but in attention, which runs per sequence over its own
cache, so a batch is ragged and nothing is padded. Draft rows are written behind the context, each
step or branch behind those before it, and masks say which of them a row sees.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor
from torch.nn import functional

from paceline.errors import InvalidOption
from paceline.models.llama import Llama
from paceline.networks.base import Geometry, Network
from paceline.networks.torch_ops import TorchOps
from paceline.runtimes.torch.cache import TorchCache, attend


@dataclass(frozen=True, slots=True)
class Span:
    """New rows of one sequence.

    Attributes:
        cache: where they are written.
        places: int64 `[rows]`, their positions.
        mask: bool `[rows, total]`, which rows of the cache each sees; the last are its own.
        left: rows that have left the cache, so that a row's position is its place there and this.
        target: `[2, kv_heads, context rows, head_dim]`, keys and values that the target lends.
    """

    cache: TorchCache
    places: Tensor
    mask: Tensor
    left: int = 0
    target: Tensor | None = None

    @classmethod
    def causal(
        cls,
        cache: TorchCache,
        past: int,
        rows: int,
        reach: int,
        left: int = 0,
        target: Tensor | None = None,
    ) -> Span:
        """Rows that see those before them and themselves: the last `reach`, or if 0 all."""
        device = cache.data.device
        mask = torch.ones(rows, past + rows, dtype=torch.bool, device=device).tril(past)
        if reach:
            mask = mask.triu(past - reach + 1)
        places = torch.arange(past + left, past + left + rows, device=device)
        return cls(cache, places, mask, left, target)

    def behind(self, before: int, rows: int, reach: int) -> Span:
        """Rows of a draft behind these and `before` others."""
        past = self.mask.shape[1] + before
        return Span.causal(self.cache, past, rows, reach, self.left, self.target)


class TorchDraftOps(TorchOps):
    """One draft, or one step of many branches. Implements `networks.ops.Ops`.

    Context rows are `[rows, width]`, draft rows `[sequences, slots, width]`.
    """

    def __init__(
        self,
        geometry: Geometry,
        parameters: Mapping[str, Tensor],
        embedding: Tensor,
        head: Tensor,
        reach: int,
        context: Sequence[Span],
        branches: Sequence[Span] = (),
    ) -> None:
        """Bind weights and rows.

        Args:
            geometry: of the target.
            parameters: of the network, and what it borrows.
            embedding: `[vocabulary, width]`, the target's.
            head: `[draft vocabulary, width]`, rows of the target's LM head.
            reach: as of `Network`.
            context: the new context rows; without `branches`, drafts are chains behind them.
            branches: draft rows, where they are no chains.
        """
        super().__init__(geometry, parameters, embedding, head, reach)
        self._context_rows = context
        self._branches = branches
        self._written: dict[int, int] = defaultdict(int)
        self._newest: Sequence[Span] = ()

    @property
    def written(self) -> int:
        """Draft rows of chains in the cache so far, of each sequence."""
        return max(self._written.values(), default=0)

    def last(self, x: Tensor) -> Tensor:
        """The last context row of every sequence."""
        ends = accumulate(len(span.places) for span in self._context_rows)
        return x[[end - 1 for end in ends]].unsqueeze(1)

    def attend_context(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Attention of the new context rows over all of them."""
        return self._over(layer, self._context_rows, queries, keys, values)

    def attend_draft(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Attention of draft rows, which are overwritten by the next context."""
        spans, slots = self._branches, queries.shape[1]
        if not spans:
            before = self._written[layer]
            self._written[layer] += slots
            spans = [span.behind(before, slots, self._reach) for span in self._context_rows]
        return self._over(layer, spans, queries, keys, values)

    def know_target(self, make: Callable[[], tuple[Tensor, Tensor]]) -> None:
        """The target keeps them."""

    def attend_target(self, queries: Tensor) -> Tensor:
        """Attention of the rows that attended last over what the target lends of each sequence."""
        q = self._rotate(self._heads(queries), self._newest_places())
        out = []
        for span, rows in zip(self._newest, q.split_with_sizes(self._sizes()), strict=True):
            assert span.target is not None
            keys, values = span.target
            seen = torch.arange(keys.shape[1], device=q.device) <= span.places[:, None]
            mixed = functional.scaled_dot_product_attention(
                rows.transpose(0, 1)[None],
                keys[None],
                values[None],
                attn_mask=seen,
                enable_gqa=True,
            )
            out.append(mixed[0].transpose(0, 1))
        return torch.cat(out).reshape(*queries.shape)

    def attend_slots(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Attention among the slots of every sequence."""
        return super().attend_slots(queries[None], keys[None], values[None])[0]

    def _over(
        self, layer: int, spans: Sequence[Span], queries: Tensor, keys: Tensor, values: Tensor
    ) -> Tensor:
        self._newest = spans
        places = self._newest_places()
        q, k, v = map(self._heads, (queries, keys, values))
        rows = self._rotate(q, places), self._rotate(k, places), v
        split = (x.split_with_sizes(self._sizes()) for x in rows)
        out = [
            attend(span.cache.data[layer], span.mask, *qkv)
            for span, *qkv in zip(spans, *split, strict=True)
        ]
        return torch.cat(out).reshape(*queries.shape)

    def _heads(self, x: Tensor) -> Tensor:
        """`[rows of all spans, heads, head_dim]`."""
        head_dim = self._geometry.head_dim
        return x.reshape(-1, x.shape[-1] // head_dim, head_dim)

    def _newest_places(self) -> Tensor:
        """Of the rows that attended last, with an axis for the heads."""
        return torch.cat([span.places for span in self._newest])[:, None]

    def _sizes(self) -> list[int]:
        """Rows of each span that attended last."""
        return [len(span.places) for span in self._newest]


# Layers of a target in PyTorch that drafter networks run as their own.

_LAYER = {
    "attention_norm": ("input_layernorm",),
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "o": ("self_attn.o_proj",),
    "ffn_norm": ("post_attention_layernorm",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}
"""Modules of a layer by the names that `Network.target_weights` uses, what is fused side by side."""


def target_weights_for(network: Network, llama: Llama) -> dict[str, Tensor]:
    """What a network borrows of its target, by the network's own names.

    Raises:
        InvalidOption: the target has fewer layers.
    """
    out = {}
    for mine, theirs in network.target_weights().items():
        layer, part = theirs.removeprefix("layers.").split(".")
        if int(layer) >= len(llama.layers):
            raise InvalidOption(
                f"network '{network.name}' runs {len(network.runs)} layers of its target, which "
                "has fewer: use weights that were trained for this model"
            )
        names = [f"layers.{layer}.{name}.weight" for name in _LAYER[part]]
        out[mine] = torch.cat([llama.get_parameter(name) for name in names])
    return out
