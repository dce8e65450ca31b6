"""Drafter networks in PyTorch at decoding, over ragged batches.

Attention runs per sequence over its own cache; all else runs over stacked rows. Draft rows are
written after the context, and masks say which of them a row sees.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import torch
from torch import Tensor
from torch.nn import functional

from paceline.errors import InvalidOption
from paceline.networks.base import Geometry, Network, fused_of
from paceline.networks.ops import Ops, Sight
from paceline.networks.torch_ops import TorchOps
from paceline.runtimes.torch.cache import TorchCache, attend
from paceline.runtimes.torch.model import TorchModel


@dataclass(frozen=True, slots=True)
class Span:
    """New rows of one sequence.

    Attributes:
        cache: destination.
        places: int64 `[rows]`, positions.
        mask: bool `[rows, total - past]`, visible cache rows; the last are its own.
        left: rows dropped from the cache: position minus cache row.
        target: `[2, kv_heads, context rows, head_dim]`, shared keys and values of the target.
        past: cache rows, from the first, that all rows see.
    """

    cache: TorchCache
    places: Tensor
    mask: Tensor
    left: int = 0
    target: Tensor | None = None
    past: int = 0

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
        """Build causal rows, which see the last `reach` rows; 0 for all."""
        device = cache.data.device
        mask = torch.ones(rows, past + rows, dtype=torch.bool, device=device).tril(past)
        if reach:
            mask = mask.triu(past - reach + 1)
        places = torch.arange(past + left, past + left + rows, device=device)
        return cls(cache, places, mask, left, target)

    def end(self) -> Span:
        """Return the last row."""
        return replace(self, places=self.places[-1:], mask=self.mask[-1:])

    def relaxed(self, slots: int) -> Span:
        """Return the same rows, of which every `slots` see one another both ways."""
        steps = torch.arange(len(self.places), device=self.places.device) // slots
        mask = self.mask.clone()
        mask[:, -len(steps) :] |= steps[:, None] == steps
        return replace(self, mask=mask)

    def behind(self, before: int, rows: int, reach: int) -> Span:
        """Build draft rows after these and `before` others."""
        past = self.mask.shape[1] + before
        return Span.causal(self.cache, past, rows, reach, self.left, self.target)


class TorchDraftOps(TorchOps):
    """Ops of one draft, or one step of many branches. Implements `networks.ops.Ops`.

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
            parameters: of the network, shared target weights included.
            embedding: `[vocabulary, width]`, the target's.
            head: `[draft vocabulary, width]`, rows of the target's LM head.
            reach: as of `Network`.
            context: new context rows; without `branches`, drafts are chains after them.
            branches: draft rows of trees.
        """
        super().__init__(geometry, parameters, embedding, head, reach)
        self._spans = context
        self._branches = branches
        self._written: dict[int, int] = defaultdict(int)
        self._newest: Sequence[Span] = ()

    @property
    def written(self) -> int:
        """Draft rows of chains in the cache so far, of each sequence."""
        return max(self._written.values(), default=0)

    def last(self, x: Tensor, count: int = 1) -> Tensor:
        return x[self._newest_rows(count)]

    def _newest_rows(self, count: int) -> Tensor:
        sizes = [len(span.places) for span in self._spans]
        ends = zip(accumulate(sizes), sizes, strict=True)
        back = range(count, 0, -1)
        rows = [[max(end - size, end - each) for each in back] for end, size in ends]
        return torch.tensor(rows, device=self._embedding.device)

    def attend(self, layer: int, x: Tensor, sees: Sight) -> Tensor:
        out = super().attend(layer, x, sees)
        if sees == "last":
            self._newest = [span.end() for span in self._newest]
        return out

    def _context_rows(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        return self._over(layer, self._spans, queries, keys, values)

    def _rows_again(self, layer: int, queries: Tensor) -> Tensor:
        context = torch.cat([span.places for span in self._spans])
        places = context[self._newest_rows(queries.shape[1])]
        spans = [
            replace(span, places=each, mask=span.mask[-1:].expand(len(each), -1))
            for span, each in zip(self._spans, places, strict=True)
        ]
        return self._over(layer, spans, queries)

    def _draft_rows(
        self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, block: bool
    ) -> Tensor:
        spans, slots = self._branches, queries.shape[1]
        if not spans:
            before = self._written[layer]
            self._written[layer] += slots
            spans = [span.behind(before, slots, self._reach) for span in self._spans]
        if block:
            spans = [span.relaxed(slots) for span in spans]
        return self._over(layer, spans, queries, keys, values)

    def know_target(self, make: Callable[[Ops], tuple[Tensor, Tensor]]) -> None: ...

    def attend_target(self, queries: Tensor) -> Tensor:
        # The newest context row and draft rows see all of the context: no mask is needed.
        q = self._rotate(self._heads(queries), self._newest_places())
        out = []
        for span, rows in zip(self._newest, q.split_with_sizes(self._sizes()), strict=True):
            assert span.target is not None
            keys, values = span.target
            assert len(span.places) == 1 or span.places.min() >= keys.shape[1] - 1
            mixed = functional.scaled_dot_product_attention(
                rows.transpose(0, 1)[None], keys[None], values[None], enable_gqa=True
            )
            out.append(mixed[0].transpose(0, 1))
        return torch.cat(out).reshape(*queries.shape)

    def _among_slots(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        return super()._among_slots(queries[None], keys[None], values[None])[0]

    def _over(self, layer: int, spans: Sequence[Span], queries: Tensor, *kv: Tensor) -> Tensor:
        # Without keys and values none are written.
        self._newest = spans
        places = self._newest_places()
        q, *kv_heads = map(self._heads, (queries, *kv))
        rows = [self._rotate(q, places)]
        if kv_heads:
            k, v = kv_heads
            rows += [self._rotate(k, places), v]
        split = (x.split_with_sizes(self._sizes()) for x in rows)
        out = [
            attend(span.cache.data[layer], span.mask, *qkv, past=span.past)
            for span, *qkv in zip(spans, *split, strict=True)
        ]
        return torch.cat(out).reshape(*queries.shape)

    def _heads(self, x: Tensor) -> Tensor:
        head_dim = self._geometry.head_dim
        return x.reshape(-1, x.shape[-1] // head_dim, head_dim)

    def _newest_places(self) -> Tensor:
        return torch.cat([span.places for span in self._newest])[:, None]

    def _sizes(self) -> list[int]:
        return [len(span.places) for span in self._newest]


def target_weights_for(network: Network, model: TorchModel) -> dict[str, Tensor]:
    """Return the target weights that a network shares, by the network's own names.

    Raises:
        InvalidOption: the target has fewer layers.
    """
    out: dict[str, Tensor] = {}
    if network.reads_target:  # it runs none of them: their keys and values are there
        return out
    for mine, theirs in network.target_weights().items():
        parts = theirs.split(".")
        if parts[0] == "layers" and int(parts[1]) >= model.config.layers:
            raise InvalidOption(
                f"network '{network.name}' runs {len(network.runs)} layers of its target, which "
                "has fewer: use weights that were trained for this model"
            )
        out[mine] = torch.cat([model.tensor(each) for each in fused_of(theirs)])
    return out
