"""Runner of drafter networks on PyTorch, on CPU and CUDA, for ragged batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import torch
from torch import Tensor

from paceline.core.types import IntArray, LogitArray
from paceline.errors import RuntimeUnavailable
from paceline.networks.runner import Branch, Chain, ContextUpdate, Tail, chains
from paceline.networks.weights import Trained
from paceline.runtimes.torch.cache import TorchCache, TorchNetworkCache, reserve
from paceline.runtimes.torch.hybrid import LONG
from paceline.runtimes.torch.ops import Span, TorchDraftOps

# Context rows per prefill chunk: bounds mask and activations.
_CHUNK = 512

Asked = tuple[Branch, Sequence[int]]


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
            target_weights: shared with the target, by the network's names.
        """
        self._network = trained.network
        self._place = embedding.dtype, embedding.device
        blank = [-1] if trained.network.blank else []
        self._ids = self._tensor(np.array([*trained.draft_ids, *blank], dtype=np.int64))
        parameters = {
            name: self._tensor(array).to(embedding.dtype)
            for name, array in trained.parameters.items()
        } | dict(target_weights)
        rows = head[self._tensor(trained.draft_ids)]
        network = trained.network
        self._weights = (network.geometry, parameters, embedding, rows, network.reach)

    @property
    def depth(self) -> int:
        return self._network.depth

    def open(self) -> TorchNetworkCache:
        network, shape = self._network, self._network.geometry
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
        return chains(network, tokens, sure, depth)

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
    def advance(self, asked: Sequence[Asked]) -> list[Branch]:
        spans, sees = self._spans(asked) if self._network.layers else ([], [()] * len(asked))
        ops = TorchDraftOps(*self._weights, (), spans)
        above = torch.stack([branch.state.value for branch, _ in asked])
        tokens = self._tensor(np.array([tokens for _, tokens in asked], dtype=np.int64))
        state = self._network.advance(ops, above, tokens, 1)
        places = [(branch.cache, branch, tokens) for branch, tokens in asked]
        return self._branches(ops, state, sees, places, 1)

    def hidden(self, branch: Branch) -> LogitArray:
        out: LogitArray = branch.state.value.float().cpu().numpy()
        return out

    def _take_in(
        self, context_update: Sequence[ContextUpdate], steps: int
    ) -> tuple[TorchDraftOps, Tensor]:
        rest = []
        for each in context_update:
            *heads, last = each.parts(_CHUNK)
            for head in heads:
                self._run([head], 1)
            rest.append(last)
        return self._run(rest, steps)

    def _run(
        self, context_update: Sequence[ContextUpdate], steps: int
    ) -> tuple[TorchDraftOps, Tensor]:
        caches: list[TorchNetworkCache] = [each.cache for each in context_update]
        behind = [each.cache.tail.again(each) for each in context_update]
        context_update = [each for each, _ in behind]
        reach = self._network.reach
        spans = []
        for cache, (each, again) in zip(caches, behind, strict=True):
            cache.slide(reach)
            past, rows = cache.rows.length - again, len(each.tokens)
            reserve(cache.rows, past + rows + steps * self._network.width)
            cache.target = self._lent(each, cache.left + past + rows)
            spans.append(Span.causal(cache.rows, past, rows, reach, cache.left, cache.target))
        ops = TorchDraftOps(*self._weights, spans)
        features: Tensor | None = None
        if self._network.reads_features:
            read = np.concatenate([each.features for each in context_update])
            features = self._tensor(read).to(self._place[0])
        windows = [
            cache.tail.windows(g.tokens) for cache, g in zip(caches, context_update, strict=True)
        ]
        tokens = self._tensor(np.concatenate(windows))
        if tokens.shape[1] == 1:
            tokens = tokens[:, 0]
        state: Tensor = self._network.start(ops, features, tokens)
        for cache, (each, again) in zip(caches, behind, strict=True):
            cache.rows.length += len(each.tokens) - again
            cache.tail.extend(each)
            cache.drafted = ops.written
        return ops, state

    def _lent(self, context_update: ContextUpdate, rows: int) -> Tensor | None:
        if not self._network.reads_target:
            return None
        if context_update.target is None:
            raise RuntimeUnavailable(
                f"network '{self._network.name}' reads keys and values of its target, and was "
                "given none: give `ContextUpdate` the target's cache"
            )
        lent: Tensor = context_update.target.data[-1]
        return lent[:, :, :rows]

    def _spans(self, asked: Sequence[Asked]) -> tuple[list[Span], list[tuple[int, ...]]]:
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
        ops: TorchDraftOps,
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
