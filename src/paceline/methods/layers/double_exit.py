"""Kangaroo (Liu et al. 2024, arXiv:2404.18911): first layers and an adapter draft, with both early
exits of the paper.

Drafting halts behind a token of low confidence, and verification goes on from the shallow states.
The adapter (attention with a residual, and a norm) is the one of drafter 'kangaroo'; the LM head
is the target's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from paceline.core.options import arguments, within
from paceline.core.target import NO_LOGITS, Output, Rows, Target
from paceline.core.types import Budget, LogitArray, TokenTree
from paceline.drafters.base import DrafterContext
from paceline.drafters.network.weights import weights_of
from paceline.methods.layers.chains import ExitDrafter, GrowingChain
from paceline.methods.networks.kangaroo import Kangaroo
from paceline.models.config import rotary_frequencies
from paceline.networks.weights import Trained
from paceline.sampling.generation import Generation

_CHUNK = 512


class AdapterCache:
    """Keys and values of one sequence in the adapter, and the tokens that they belong to."""

    def __init__(self, trained: Trained) -> None:
        """Start empty; the parameters are float32."""
        self.shape = trained.network.config
        self.weights = trained.parameters
        pair = (2, 0, self.shape.kv_heads, self.shape.head_dim)
        self._cached: npt.NDArray[np.float32] = np.zeros(pair, np.float32)
        self.tokens: list[int] = []

    def truncate(self, length: int) -> None:
        del self.tokens[length:]
        self._cached = self._cached[:, :length]

    def append(self, tokens: Sequence[int], states: LogitArray) -> LogitArray:
        """Add rows, float32 `[rows, width]` after the first layers; return them after the adapter.

        What is returned has the adapter's last norm, without its weights' place in the LM head.
        """
        x = self.attended(tokens, states)
        return normed(x, self.weights["norm"], self.shape.norm_eps)

    def attended(self, tokens: Sequence[int], states: LogitArray) -> LogitArray:
        """Add rows; return them after the attention and its residual."""
        shape, past = self.shape, len(self.tokens)
        sizes = np.cumsum([shape.heads, shape.kv_heads]) * shape.head_dim
        mixed = normed(states, self.weights["adapter.norm"], shape.norm_eps)
        q, k, v = np.split(mixed @ self.weights["adapter.qkv"].T, sizes, axis=1)
        places = past + np.arange(len(tokens))
        q = self._rotated(q.reshape(len(tokens), shape.kv_heads, -1, shape.head_dim), places)
        k = self._rotated(k.reshape(len(tokens), shape.kv_heads, 1, shape.head_dim), places)[
            :, :, 0
        ]
        new = np.stack([k, v.reshape(k.shape)])
        self._cached = np.concatenate([self._cached, new], axis=1)
        self.tokens += tokens
        keys, values = self._cached
        scores = np.einsum("rkgd,nkd->rkgn", q, keys) / np.sqrt(shape.head_dim)
        hidden = np.arange(len(self.tokens)) > places[:, None]
        scores = np.where(hidden[:, None, None], -np.inf, scores)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        out = np.einsum("rkgn,nkd->rkgd", weights, values).reshape(len(tokens), -1)
        x: LogitArray = states + out @ self.weights["adapter.o.residual"].T
        return x

    def _rotated(self, x: LogitArray, places: npt.NDArray[Any]) -> LogitArray:
        frequencies = rotary_frequencies(self.shape.rope_base, self.shape.head_dim)
        angles = (places[:, None] * frequencies)[:, None, None]
        cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
        first, second = np.split(x, 2, axis=-1)
        return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


class DoubleExit(ExitDrafter):
    """Draft with the first layers and the adapter until a token is doubtful."""

    name: ClassVar[str] = "double-exit"
    requires = "runtime cpu or torch; weights for the model (paceline train drafter kangaroo)"
    paper = "after Kangaroo, Liu et al. 2024, arXiv:2404.18911"
    # Whose weights are read, and what runs them.
    network: ClassVar[str] = Kangaroo.name
    adapter: ClassVar[type[AdapterCache]] = AdapterCache
    _own_head = True

    def __init__(
        self,
        target: Target,
        layers: int,
        needs_q: bool = False,
        *,
        trained: Trained,
        final_norm: LogitArray,
        norm_eps: float,
        stop: float = 0.6,
    ) -> None:
        """Bind an adapter.

        Args:
            target: drafts and verifies.
            layers: of the target.
            needs_q: see `SelfDrafter`.
            trained: weights of `network`.
            final_norm: float32 `[hidden_size]`, weights of the target's norm before the head.
            norm_eps: of that norm.
            stop: a token that is less probable is the last of its draft (the paper's eta).

        Raises:
            InvalidOption: `stop` is no probability.
        """
        super().__init__(target, layers, needs_q)
        within("stop", stop, 0, 1)
        assert isinstance(trained.network, Kangaroo)
        self._trained, self._stop = trained, stop
        self._shallow = trained.network.exit
        self._norm, self._eps = final_norm, norm_eps
        self._adapters: dict[int, AdapterCache] = {}
        self._scratch = target.open()

    @classmethod
    def create(cls, context: DrafterContext) -> Self:
        """Build with the weights that ship, or those of the option `weights`; errors as above."""
        options = dict(context.options)
        named = options.pop("weights", None)
        given = ("target", "layers", "needs_q", "trained", "final_norm", "norm_eps")
        chosen = arguments(cls, "drafter", options, *given)
        parts = cls._parts(context)
        source = context.resources.loaded.source
        return cls(
            *parts,
            trained=weights_of(cls.network, named, context.model, context.target),
            final_norm=np.asarray(source.weights()["norm"], np.float32),
            norm_eps=source.config.norm_eps,
            **chosen,
        )

    def open(self, sequence: Generation) -> None:
        self._adapters[sequence.id] = self.adapter(self._trained)
        self._read(sequence)

    def close(self, sequence: Generation) -> None:
        super().close(sequence)
        self._adapters.pop(sequence.id, None)

    def propose(
        self, sequences: Sequence[Generation], budgets: Sequence[Budget]
    ) -> list[TokenTree]:
        for each in sequences:
            self._read(each)
        return super().propose(sequences, budgets)

    def _exit(self, sequence: Generation) -> int:
        return self._shallow

    def _stops(self, chain: GrowingChain, chance: float) -> bool:
        return chance < self._stop

    def _logits(
        self, chains: Sequence[GrowingChain], found: Sequence[Output]
    ) -> Sequence[LogitArray]:
        rows = [
            self._adapters[chain.sequence.id].append([chain.last], each.state)
            for chain, each in zip(chains, found, strict=True)
        ]
        return list(self._head(np.concatenate(rows)))

    def _head(self, normed: LogitArray) -> LogitArray:
        # The target's head stands behind its own norm, so that is undone: its weights are divided
        # out before, and what it divides the row by is multiplied back.
        x = normed / self._norm
        sizes = np.sqrt((x**2).mean(axis=1) + self._eps)
        places = np.zeros(len(x), dtype=np.int64)
        sees = np.eye(len(x), dtype=np.bool_)
        block = Rows.block(self._scratch, places, places, sees, inputs=x)
        [found] = self._target.forward([block], ())
        out: LogitArray = found.logits * sizes[:, None]
        return out

    def _read(self, sequence: Generation) -> None:
        # Brings the adapter to the tokens before the root.
        adapter, tokens = self._adapters[sequence.id], sequence.tokens[:-1]
        known = min(len(adapter.tokens), len(tokens))
        while adapter.tokens[:known] != tokens[:known]:
            known -= 1
        adapter.truncate(known)
        missing = tokens[known:]
        begun = self._begun.get(id(sequence.cache))
        if len(missing) == 1 and begun is not None and begun.tokens[-1] == missing[0]:
            # All that was drafted has been accepted, and its last token was run for verification.
            drafted = len(begun.tokens)
            if list(begun.tokens) == tokens[len(tokens) - drafted :]:
                adapter.append(missing, begun.states[-1:])
                return
        if missing:
            self._catch_up(sequence, known)

    def _catch_up(self, sequence: Generation, known: int) -> None:
        adapter, tokens = self._adapters[sequence.id], sequence.tokens[:-1]
        copy = self._target.fork(sequence.cache)
        try:
            self._target.truncate(copy, known)
            for begin in range(known, len(tokens), _CHUNK):
                chunk = tokens[begin : begin + _CHUNK]
                rows = Rows.draft(copy, chunk, wanted=NO_LOGITS)
                [found] = self._target.forward([rows], tuple(range(self._shallow)))
                adapter.append(chunk, found.state)
                self._target.keep(copy, len(chunk), ())
        finally:
            self._target.release(copy)


def normed(x: LogitArray, weights: LogitArray, eps: float) -> LogitArray:
    out: LogitArray = x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + eps) * weights
    return out
