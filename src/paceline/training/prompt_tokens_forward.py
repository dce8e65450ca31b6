"""The forward that prompt tokens are trained with: chains of them beside a text, at many places.

The text goes through the target as it always does, and nothing of it sees a prompt token. A chain
that starts behind position t sees the text up to t and itself; its rows stand at positions t + 1,
t + 2, ..., and say what the target will say there once it knows the tokens in between. So keys and
values of the text are computed once, without gradients, for all chains.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from paceline.models.llama import Llama
from paceline.training.data.writing import Text
from paceline.types import BoolArray, IntArray


@dataclass(frozen=True, slots=True)
class Chains:
    """A text with the places where chains of prompt tokens start.

    Attributes:
        tokens: int64 `[length]`.
        starts: int64 `[chains]`, position of the last token that each chain sees.
    """

    tokens: IntArray
    starts: IntArray

    def ahead(self, depth: int) -> IntArray:
        """int64 `[chains, depth]`, positions of the prompt tokens."""
        return self.starts[:, None] + np.arange(1, depth + 1)

    def labels(self, depth: int) -> IntArray:
        """int64 `[chains, depth]`, the token behind each of these positions."""
        return self.tokens[self.ahead(depth) + 1]

    def mask(self, depth: int) -> BoolArray:
        """bool `[rows, length + rows]`, what the chains' rows see: the text, then their own."""
        rows = len(self.starts) * depth
        text = np.arange(len(self.tokens)) <= np.repeat(self.starts, depth)[:, None]
        own = np.kron(np.eye(len(self.starts), dtype=bool), np.tri(depth, dtype=bool))
        return np.concatenate([text, own.reshape(rows, rows)], axis=1)


def place(text: Text, chains: int, depth: int, generator: np.random.Generator) -> Chains:
    """Chains at random places from which they guess tokens of the answer alone.

    Args:
        text: where to.
        chains: how many, or as many as there are places.
        depth: prompt tokens per chain.
        generator: of the draws.
    """
    places = np.arange(max(0, text.prompt_length - 2), len(text.tokens) - 1 - depth)
    chosen = generator.permutation(places)[:chains]
    return Chains(text.tokens, np.sort(chosen))


def guesses(
    network: Llama, embeddings: Tensor, batch: Sequence[Chains]
) -> tuple[Tensor, Tensor, IntArray]:
    """What prompt tokens guess, and what the target says at the same positions.

    Args:
        network: the target, frozen.
        embeddings: `[depth, width]` of the prompt tokens.
        batch: texts with at least one chain in all.

    Returns:
        Logits `[rows, vocabulary]` of the prompt tokens, those of the target, without gradient, and
        int64 `[rows]` labels, which are the tokens of the texts. Rows go by text, chain and offset.
    """
    device, depth = embeddings.device, len(embeddings)
    lengths = [len(each.tokens) for each in batch]
    seen: list[tuple[tuple[Tensor, ...], tuple[Tensor, ...]]] = []

    def over_texts(layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        split = [x.split_with_sizes(lengths) for x in (queries, keys, values)]
        seen.append((split[1], split[2]))
        return torch.cat([_attend(q, k, v) for q, k, v in zip(*split, strict=True)])

    tokens = torch.from_numpy(np.concatenate([each.tokens for each in batch])).to(device)
    places = torch.from_numpy(np.concatenate([np.arange(n) for n in lengths])).to(device)
    offsets = np.cumsum([0, *lengths[:-1]])
    ahead = [each.ahead(depth).ravel() for each in batch]
    rows = torch.from_numpy(np.concatenate([o + a for o, a in zip(offsets, ahead, strict=True)]))
    with torch.no_grad():
        hidden = network(network.embed_tokens(tokens), places, over_texts)
        teacher = network.logits(hidden[rows.to(device)])

    masks = [torch.from_numpy(each.mask(depth)).to(device) for each in batch]
    sizes = [len(each) for each in ahead]

    def over_chains(layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        split = [x.split_with_sizes(sizes) for x in (queries, keys, values)]
        out = []
        for text_keys, text_values, mask, q, k, v in zip(*seen[layer], masks, *split, strict=True):
            out.append(_attend(q, torch.cat([text_keys, k]), torch.cat([text_values, v]), mask))
        return torch.cat(out)

    positions = torch.from_numpy(np.concatenate(ahead)).to(device)
    chains = embeddings.repeat(len(positions) // depth, 1)
    student = network.logits(network(chains, positions, over_chains))
    return student, teacher, np.concatenate([each.labels(depth).ravel() for each in batch])


def _attend(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None) -> Tensor:
    """Attention of one text, `[rows, heads, head_dim]`; causal if there is no mask."""
    q, k, v = (x.to(values.dtype).transpose(0, 1)[None] for x in (queries, keys, values))
    out = functional.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=True
    )
    return out[0].transpose(0, 1)
