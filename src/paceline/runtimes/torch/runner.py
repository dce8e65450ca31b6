"""Runner of drafter networks on PyTorch, on CPU and CUDA, for ragged batches."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby

import numpy as np
import torch
from torch import Tensor

from paceline.core.types import IntArray, LogitArray
from paceline.errors import InvalidOption, RuntimeUnavailable
from paceline.models.ops import KV, Heads, Sight
from paceline.networks.base import Network
from paceline.networks.runner import Asked, Branch, Chain, ContextUpdate, Tail, by_steps, chains
from paceline.networks.torch_ops import Attention, NetworkTensors, Qkv, TorchOps
from paceline.networks.weights import Trained
from paceline.runtimes.torch.cache import TorchCache, TorchNetworkCache, attend, reserve
from paceline.runtimes.torch.hybrid import LONG
from paceline.runtimes.torch.model import TorchModel


@dataclass(frozen=True, slots=True)
class Span:
    """New rows of one sequence.

    Attributes:
        cache: destination.
        places: int64 `[rows]`, positions.
        mask: bool `[rows, total - past]`, visible cache rows; the last are its own.
        left: rows dropped from the cache: position minus cache row.
        target: `[layers, 2, kv_heads, context rows, head_dim]`, the target's keys and values.
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

    def at_root(self) -> Span:
        """Return as many rows where the root is, behind the target's."""
        assert self.target is not None
        return replace(self, places=torch.full_like(self.places, self.target.shape[3]))

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


class SpanAttention(Attention):
    """One draft, or one step of many branches.

    Context rows are `[rows, width]`, draft rows `[sequences, slots, width]`.
    """

    def __init__(self, context: Sequence[Span], branches: Sequence[Span] = ()) -> None:
        """Bind new context rows, after which chains are drafted, or draft rows of trees."""
        self._spans = context
        self._branches = branches
        self._written: dict[int | KV, int] = defaultdict(int)
        self._latest: Sequence[Span] = ()  # of the rows that attend

    @property
    def written(self) -> int:
        """Draft rows of chains in the cache so far, of each sequence."""
        return max(self._written.values(), default=0)

    def last(self, x: Tensor, count: int) -> Tensor:
        return x[self._newest_rows(count, x.device)]

    def _newest_rows(self, count: int, device: torch.device) -> Tensor:
        sizes = [len(span.places) for span in self._spans]
        ends = zip(accumulate(sizes), sizes, strict=True)
        back = range(count, 0, -1)
        rows = [[max(end - size, end - each) for each in back] for end, size in ends]
        return torch.tensor(rows, device=device)

    def places(self, kv: int | KV, x: Tensor, heads: Heads, sees: Sight) -> Tensor:
        self._latest = self._seeing(kv, x, heads.window, sees)
        places = torch.cat([span.places for span in self._latest])
        return places.reshape(x.shape[:-1])

    def _seeing(self, kv: int | KV, x: Tensor, reach: int, sees: Sight) -> Sequence[Span]:
        if sees in ("context", "last"):
            return [each.end() for each in self._spans] if isinstance(kv, KV) else self._spans
        slots, spans = x.shape[1], self._branches
        if sees == "root":
            return [each.at_root() for each in spans or [span.end() for span in self._spans]]
        if not spans:
            before = self._written[kv]
            self._written[kv] += slots
            spans = [span.behind(before, slots, reach) for span in self._spans]
        return [span.relaxed(slots) for span in spans] if sees == "block" else spans

    def attend(self, kv: int | KV, qkv: Qkv, heads: Heads, sees: Sight) -> Tensor:
        shape, sizes = qkv.queries.shape, [len(span.places) for span in self._latest]
        rows = (each.flatten(0, -3).split_with_sizes(sizes) for each in qkv)
        out = []
        for span, q, k, v in zip(self._latest, *rows, strict=True):
            if isinstance(kv, KV):
                assert span.target is not None
                seen = span.target[kv.layer][:, : heads.kv_heads, -heads.window :, : heads.width]
                out.append(attend(seen, None, q, scale=heads.scale))
                continue
            data = span.cache.data[kv]
            out.append(attend(data, span.mask, q, k, v, heads.scale, past=span.past))
        return torch.cat(out).reshape(shape)

    def newest(self, layer: int, queries: Tensor, heads: Heads) -> Tensor:
        rows = zip(self._spans, queries, strict=True)
        masks = [span.mask[-1:].expand(queries.shape[1], -1) for span in self._spans]
        return torch.stack(
            [
                attend(span.cache.data[layer], mask, q, scale=heads.scale)
                for (span, q), mask in zip(rows, masks, strict=True)
            ]
        )


def target_weights_for(network: Network, model: TorchModel) -> dict[str, Tensor]:
    """Return the target weights that a network runs with, by name.

    Raises:
        InvalidOption: the target has fewer layers.
    """
    out: dict[str, Tensor] = {}
    if network.reads_target:  # it runs none of them: their keys and values are there
        return out
    for name in network.target_weights():
        parts = name.split(".")
        if parts[0] == "layers" and int(parts[1]) >= model.config.layers:
            raise InvalidOption(
                f"network '{network.name}' runs {len(network.runs)} layers of its target, which "
                "has fewer: use weights that were trained for this model"
            )
        out[name] = model.tensor(name)
    return out


# Context rows per prefill chunk: bounds mask and activations.
_CHUNK = 512


@dataclass(frozen=True, slots=True)
class _BranchState:
    """State of a branch.

    Attributes:
        value: `[slots, ...]`, the network's.
        sees: cache rows after the context that its steps wrote.
    """

    value: Tensor
    sees: tuple[int, ...]


class TorchRunner:
    """A network with its weights on a device. Implements `networks.runner.Runner`."""

    def __init__(
        self,
        trained: Trained,
        embedding: Tensor,
        head: Tensor,
        target_weights: Mapping[str, Tensor],
    ) -> None:
        """Bind the weights; dtype and device are those of the embedding.

        Args:
            trained: network and parameters.
            embedding: `[vocabulary, width]`, the target's.
            head: `[vocabulary, width]`, the target's LM head.
            target_weights: of the target, by name.
        """
        self._network = trained.network
        self._place = embedding.dtype, embedding.device
        self._ids = self._tensor(np.array([*trained.draft_ids, -1], dtype=np.int64))
        parameters = {
            name: self._tensor(array).to(embedding.dtype)
            for name, array in trained.parameters.items()
        } | dict(target_weights)
        rows = head[self._tensor(trained.draft_ids)]
        self._weights = NetworkTensors(parameters, embedding, rows)

    def _ops(self, attention: SpanAttention) -> TorchOps:
        return TorchOps(self._weights, self._network.config.norm_eps, attention)

    @property
    def depth(self) -> int:
        return self._network.depth

    def open(self) -> TorchNetworkCache:
        network, shape = self._network, self._network.config
        rows = TorchCache.empty(network.layers, shape.kv_heads, shape.head_dim, self._place)
        return TorchNetworkCache(rows, Tail(network))

    def release(self, cache: TorchNetworkCache) -> None:
        cache.rows.data = cache.rows.data[:, :, :, :0].clone()
        cache.rows.length = 0
        cache.target = None

    @torch.inference_mode()
    def draft(self, context_update: Sequence[ContextUpdate], depth: int) -> list[Chain]:
        network = self._network
        steps = -(-depth // network.width)
        ops, state = self._take_in(context_update, max(steps, 1))
        drafted: list[Tensor] = []
        chances: list[Tensor] = []
        for step in range(steps):
            if step:
                state = network.advance(ops, state, drafted[-1][..., 0], step)
            distribution = network.logits(ops, state, step).float().softmax(-1)
            sure, best = distribution.topk(2)
            drafted.append(self._ids[best])
            chances.append(sure)
        if not drafted:
            return []
        tokens, sure = (torch.cat(each, dim=1).cpu().numpy() for each in (drafted, chances))
        return chains(tokens, sure, depth)

    @torch.inference_mode()
    def start(self, context_update: Sequence[ContextUpdate]) -> list[Branch]:
        ops, state = self._take_in(context_update, 1)
        sees = [
            tuple(range(cache.rows.length, cache.rows.length + cache.drafted))
            for cache in (each.cache for each in context_update)
        ]
        asked = [(each.cache, None, ()) for each in context_update]
        return self._branches(ops, state, sees, asked, 0)

    @torch.inference_mode()
    def advance(self, asked: Asked) -> list[Branch]:
        return by_steps(self._network, asked, self._advance)

    def _advance(self, asked: Asked, step: int) -> list[Branch]:
        network = self._network
        attends = network.layers or network.reads_target
        spans, sees = self._spans(asked) if attends else ([], [()] * len(asked))
        ops = self._ops(SpanAttention((), spans))
        above = torch.stack([branch.state.value for branch, _ in asked])
        tokens = self._tensor(np.array([tokens for _, tokens in asked], dtype=np.int64))
        state = network.advance(ops, above, tokens, step)
        places = [(branch.cache, branch, tokens) for branch, tokens in asked]
        return self._branches(ops, state, sees, places, step)

    def hidden(self, branch: Branch) -> LogitArray:
        out: LogitArray = branch.state.value.float().cpu().numpy()
        return out

    @torch.inference_mode()
    def digest(self, rows: LogitArray) -> LogitArray:
        ops, given = self._ops(SpanAttention(())), self._tensor(rows[None]).to(self._place[0])
        out: LogitArray = self._network.digest(ops, given)[0, 0].float().cpu().numpy()
        return out

    def _take_in(
        self, context_update: Sequence[ContextUpdate], steps: int
    ) -> tuple[TorchOps, Tensor]:
        rest = []
        for each in context_update:
            *heads, last = each.parts(_CHUNK)
            for head in heads:
                self._run([head], 1)
            rest.append(last)
        return self._run(rest, steps)

    def _run(self, context_update: Sequence[ContextUpdate], steps: int) -> tuple[TorchOps, Tensor]:
        caches: list[TorchNetworkCache] = [each.cache for each in context_update]
        behind = [each.cache.tail.again(each) for each in context_update]
        context_update = [each for each, _ in behind]
        reach = self._network.reach
        spans = []
        for cache, (each, again) in zip(caches, behind, strict=True):
            cache.slide(reach)
            past, rows = cache.rows.length - again, len(each.tokens)
            ahead = max(steps * self._network.width, self._network.rows)
            reserve(cache.rows, past + rows + ahead)
            cache.target = self._lent(each, cache.left + past + rows)
            spans.append(Span.causal(cache.rows, past, rows, reach, cache.left, cache.target))
        attention = SpanAttention(spans)
        ops = self._ops(attention)
        features: Tensor | None = None
        if self._network.reads_features:
            read = np.concatenate([each.features for each in context_update])
            features = self._tensor(read).to(self._place[0])
        read_tokens = [token for each in context_update for token in each.tokens]
        tokens = self._tensor(np.array(read_tokens, dtype=np.int64))
        state: Tensor = self._network.start(ops, features, tokens)
        for cache, (each, again) in zip(caches, behind, strict=True):
            cache.rows.length += len(each.tokens) - again
            cache.tail.extend(each)
            cache.drafted = attention.written
        return ops, state

    def _lent(self, context_update: ContextUpdate, rows: int) -> Tensor | None:
        if not self._network.reads_target:
            return None
        if context_update.target is None:
            raise RuntimeUnavailable(
                f"network '{self._network.name}' reads keys and values of its target, and was "
                "given none: give `ContextUpdate` the target's cache"
            )
        target: TorchCache = context_update.target
        return target.data[:, :, :, : rows if self._network.layers else target.length]

    def _spans(self, asked: Asked) -> tuple[list[Span], list[tuple[int, ...]]]:
        width, reach = self._network.width, self._network.reach
        spans: list[Span] = []
        sees: list[tuple[int, ...]] = []
        for cache, group in groupby(asked, key=lambda each: each[0].cache):
            branches = [branch for branch, _ in group]
            context, rows = cache.rows.length, len(branches) * width
            first = context + cache.drafted
            reserve(cache.rows, first + rows)
            mask = np.zeros((rows, first + rows), dtype=np.bool_)
            places = np.empty(rows, dtype=np.int64)
            for index, branch in enumerate(branches):
                begin = index * width
                seen = (*branch.state.sees, *range(first + begin, first + begin + width))
                for slot in range(width):
                    end = context + len(seen) - width + slot + 1  # by position
                    oldest = max(0, end - reach) if reach else 0
                    mask[begin + slot, oldest:context] = True
                    mask[begin + slot, seen[max(0, oldest - context) : end - context]] = True
                    places[begin + slot] = end - 1 + cache.left
                sees.append(seen)
            cache.drafted += rows
            # Without a window all rows see all of the context.
            past = context if not reach and context >= LONG else 0
            parts = cache.rows, self._tensor(places), self._tensor(mask[:, past:])
            spans.append(Span(*parts, cache.left, cache.target, past))
        return spans, sees

    def _branches(
        self,
        ops: TorchOps,
        state: Tensor,
        sees: Sequence[tuple[int, ...]],
        places: Sequence[tuple[TorchNetworkCache, Branch | None, Sequence[int]]],
        step: int,
    ) -> list[Branch]:
        logits = self._network.logits(ops, state, step).float().cpu().numpy()
        return [
            Branch(*place, _BranchState(value, seen), row)
            for place, value, seen, row in zip(places, state, sees, logits, strict=True)
        ]

    def _tensor(self, array: IntArray | np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self._place[1])
