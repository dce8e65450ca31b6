"""SpAtten (Wang et al. 2020, arXiv:2012.09852): tokens that nobody looks at leave the cache.

A token weighs what rows have paid of their attention to it so far, over all heads and layers. An
endless text (`core.target.Slides`) loses its lightest tokens in place of its oldest; the first ones
stay, and so do the newest. What has left stays away. Others keep their positions.

They leave at lengths that the text alone decides, by what rows up to there have paid, and no draft
goes beyond such a length: so a text is the same with drafts and without.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from paceline.core.options import require
from paceline.core.target import LEAVING, SINKS, Rows, row_mask, stored
from paceline.core.types import LogitArray
from paceline.errors import InvalidOption
from paceline.models.config import ModelConfig
from paceline.models.ops import Heads
from paceline.models.weights import Weights
from paceline.runtimes.torch.cache import TorchCache, reserve
from paceline.runtimes.torch.model import Attend
from paceline.runtimes.torch.target import TorchTarget

Leaving = Literal["lightest", "oldest"]


@dataclass(slots=True)
class ForgetfulCache(TorchCache):
    """Keys and values of an endless text.

    Attributes:
        window: tokens that it keeps behind the first ones; 0 for all.
        gone: how many have left, which `length` counts all the same.
        weights: float64 `[stored]`, what each token weighs.
        paid: float64 `[rows, stored + rows]`, attention of the rows of the last forward.
    """

    window: int = 0
    gone: int = 0
    weights: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.float64))
    paid: Tensor = field(default_factory=lambda: torch.zeros(0, 0, dtype=torch.float64))


class PrunedTarget(TorchTarget):
    """A model on torch whose endless texts lose tokens by a rule.

    Attributes:
        read_bytes: of keys and values, by all forwards so far.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights | Mapping[str, LogitArray],
        precision: str = "fp32",
        *,
        leaving: Leaving = "lightest",
        newest: float = 0.5,
    ) -> None:
        """Load a model on the CPU.

        Args:
            config: its shape.
            weights: its tensors.
            precision: as of `TorchTarget`.
            leaving: which tokens leave.
            newest: share of the window that stays whatever it weighs.

        Raises:
            InvalidOption: layers have windows, sinks or states, or `newest` is no share.
        """
        require(0 <= newest <= 1, "newest", newest, "from 0 to 1")
        if not config.slides or config.windows or config.sinks:
            raise InvalidOption(
                "tokens leave texts of models whose layers see all of them: take one without "
                "windows, sinks and recurrent layers"
            )
        super().__init__(config, weights, "cpu", precision)
        self._leaving, self._newest, self.read_bytes = leaving, newest, 0
        self.capabilities = replace(self.capabilities, endless=True)

    def open(self) -> ForgetfulCache:
        return ForgetfulCache(super().open().data)

    @torch.inference_mode()
    def keep(self, cache: Any, num_new: int, path: Sequence[int]) -> None:
        begin, kept = stored(cache), [*range(num_new), *(num_new + node for node in path)]
        places = torch.tensor([*range(begin), *(begin + row for row in kept)])
        paid = cache.paid[kept][:, places].sum(dim=0)
        cache.weights = torch.cat([cache.weights, paid.new_zeros(len(kept))]) + paid
        cache.data[:, :, :, begin : len(places)] = cache.data[:, :, :, places[begin:]]
        cache.length += len(kept)

    def slide(self, cache: Any, sinks: Sequence[int]) -> None:
        """Drop `LEAVING` tokens by the rule; `sinks` stay where they are."""
        last = stored(cache) - int(self._newest * cache.window)
        order = cache.weights[SINKS : max(last, SINKS + LEAVING)]
        order = order.argsort(stable=True) if self._leaving == "lightest" else torch.arange(LEAVING)
        self.drop(cache, order[:LEAVING] + SINKS)

    @torch.inference_mode()
    def drop(self, cache: Any, places: Tensor) -> None:
        """Drop tokens at these places of the cache."""
        stay = torch.ones(stored(cache), dtype=torch.bool)
        stay[places] = False
        data = cache.data[:, :, :, : len(stay)][:, :, :, stay]
        cache.data[:, :, :, : data.shape[3]] = data
        cache.weights = cache.weights[stay]
        cache.gone += len(places)

    def truncate(self, cache: Any, length: int, hold: bool = False) -> None:
        # What the dropped rows have paid is in the weights: all of them begin anew.
        if length < cache.length:
            cache.length = cache.gone = 0
            cache.weights = cache.weights[:0]

    def fork(self, cache: Any) -> ForgetfulCache:
        copy: ForgetfulCache = replace(cache, data=cache.data.clone())
        return copy

    def release(self, cache: Any) -> None:
        super().release(cache)
        cache.gone, cache.weights = 0, cache.weights[:0]

    def _attention(self, rows: Sequence[Rows]) -> Attend:
        sizes, masks = list(map(len, rows)), []
        for each in rows:
            reserve(each.cache, stored(each.cache) + len(each))
            masks.append(torch.from_numpy(row_mask(each)))
            each.cache.paid = torch.zeros(masks[-1].shape, dtype=torch.float64)

        def attended(
            layer: int, heads: Heads, queries: Tensor, keys: Tensor, values: Tensor
        ) -> Tensor:
            split = [each.split_with_sizes(sizes) for each in (queries, keys, values)]
            out = []
            for each, mask, q, k, v in zip(rows, masks, *split, strict=True):
                total = mask.shape[1]
                here = each.cache.data[layer, :, : heads.kv_heads, :total, : heads.width]
                here[0, :, total - len(each) :] = k.transpose(0, 1)
                here[1, :, total - len(each) :] = v.transpose(0, 1)
                self.read_bytes += here.nbytes
                every_key, every_value = here.repeat_interleave(heads.heads // heads.kv_heads, 1)
                scores = torch.einsum("rhd,hkd->hrk", q * heads.scale, every_key)
                shares = scores.masked_fill(~mask, -torch.inf).softmax(dim=-1)
                each.cache.paid += shares.double().sum(dim=0)
                out.append(torch.einsum("hrk,hkd->rhd", shares, every_value))
            return torch.cat(out)

        return attended
