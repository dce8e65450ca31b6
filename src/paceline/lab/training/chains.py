"""Chains of rows behind random places of a text: they see the text before them and themselves, so
keys and values of the text are computed once for all chains.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from paceline.core.types import BoolArray, IntArray
from paceline.errors import ModelError
from paceline.lab.training.data import Text
from paceline.models.ops import Heads
from paceline.runtimes.torch.model import TorchModel


@dataclass(frozen=True, slots=True)
class Chains:
    """Text with starts of chains.

    Attributes:
        tokens: int64 `[length]`.
        starts: int64 `[chains]`, position of the last token that each chain sees.
    """

    tokens: IntArray
    starts: IntArray

    def ahead(self, depth: int, first: int = 1) -> IntArray:
        """Return int64 `[chains, depth]`, positions of the rows, from `first` behind the start."""
        return self.starts[:, None] + np.arange(first, depth + 1)

    def labels(self, depth: int, first: int = 1) -> IntArray:
        """Return int64 `[chains, depth]`, the token after each of these positions."""
        return self.tokens[self.ahead(depth, first) + 1]

    def mask(self, depth: int, causal: bool = True) -> BoolArray:
        """Return the bool `[rows, length + rows]` attention mask of the chains' rows.

        Rows of a chain that is not causal see all of it.
        """
        rows = len(self.starts) * depth
        text = np.arange(len(self.tokens)) <= np.repeat(self.starts, depth)[:, None]
        group = np.tri(depth, dtype=bool) if causal else np.ones((depth, depth), dtype=bool)
        own = np.kron(np.eye(len(self.starts), dtype=bool), group)
        return np.concatenate([text, own.reshape(rows, rows)], axis=1)


def place(text: Text, chains: int, depth: int, generator: np.random.Generator) -> Chains:
    """Put up to `chains` chains at random places whose labels are all in the answer."""
    places = np.arange(max(0, text.prompt_length - 2), len(text.tokens) - 1 - depth)
    chosen = generator.permutation(places)[:chains]
    return Chains(text.tokens, np.sort(chosen))


class Read:
    """Texts as a network reads them.

    Attributes:
        hidden: `[tokens of all texts, width]`, after the final norm.
    """

    def __init__(self, network: TorchModel, batch: Sequence[Chains]) -> None:
        """Read the texts, with gradients if they are on."""
        self._batch, self._device = batch, network.tensor("norm").device
        lengths = [len(each.tokens) for each in batch]
        self._seen: list[tuple[tuple[Tensor, ...], tuple[Tensor, ...]]] = []

        def over_texts(
            layer: int, heads: Heads, queries: Tensor, keys: Tensor, values: Tensor
        ) -> Tensor:
            split = [x.split_with_sizes(lengths) for x in (queries, keys, values)]
            self._seen.append((split[1], split[2]))
            return torch.cat([_attend(heads, q, k, v) for q, k, v in zip(*split, strict=True)])

        tokens = self._there(np.concatenate([each.tokens for each in batch]))
        places = self._there(np.concatenate([np.arange(n) for n in lengths]))
        self._offsets = np.cumsum([0, *lengths[:-1]])
        self.hidden = network(network.embed(tokens), places, over_texts)

    def rows(self, depth: int, first: int = 1) -> Tensor:
        """Return int64, the rows of `hidden` from `first` to `depth` places behind each start."""
        pairs = zip(self._offsets, self._batch, strict=True)
        return self._there(np.concatenate([at + c.ahead(depth, first).ravel() for at, c in pairs]))

    def chains(self, network: TorchModel, embeddings: Tensor, causal: bool) -> Tensor:
        """Return the hidden states of the chains' rows, `[rows, width]`.

        Rows go by text, chain and offset; `embeddings` `[depth, width]` go in by offset.
        """
        depth = len(embeddings)
        masks = [self._there(each.mask(depth, causal)) for each in self._batch]
        ahead = [each.ahead(depth).ravel() for each in self._batch]
        sizes = [len(each) for each in ahead]

        def over_chains(
            layer: int, heads: Heads, queries: Tensor, keys: Tensor, values: Tensor
        ) -> Tensor:
            split = [x.split_with_sizes(sizes) for x in (queries, keys, values)]
            out = []
            for known_keys, known_values, mask, q, k, v in zip(
                *self._seen[layer], masks, *split, strict=True
            ):
                known = torch.cat([known_keys, k]), torch.cat([known_values, v])
                out.append(_attend(heads, q, *known, mask))
            return torch.cat(out)

        positions = self._there(np.concatenate(ahead))
        inputs = embeddings.repeat(len(positions) // depth, 1)
        found: Tensor = network(inputs, positions, over_chains)
        return found

    def _there(self, array: IntArray | BoolArray) -> Tensor:
        return torch.from_numpy(array).to(self._device)


def _attend(
    heads: Heads, queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None
) -> Tensor:
    # `[rows, heads, head_dim]` of one text; causal without a mask.
    if heads.window or heads.sinks:
        raise ModelError("chains are not trained for models with sliding windows or sinks yet")
    q, k, v = (x.to(values.dtype).transpose(0, 1)[None] for x in (queries, keys, values))
    out = functional.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=mask is None, scale=heads.scale, enable_gqa=True
    )
    return out[0].transpose(0, 1)
