"""Drafter networks as OpenVINO graphs: a whole draft, token by token, in one run.

Every step's argmax is embedded inside the graph and fed to the next step. Drafts need not be
bit-exact, so single rows and padding are allowed here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset15 as op

from paceline.core.types import IntArray
from paceline.errors import RuntimeUnavailable
from paceline.models.config import rotary_frequencies
from paceline.networks.base import Network
from paceline.runtimes.cpu.openvino.graph import (
    Inputs,
    Paging,
    Rotation,
    Tensors,
    embed,
    gather,
    ints,
    linear,
    paged_attention,
    rms_norm,
    scalar,
)
from paceline.runtimes.kv_cache import BLOCK


class OpenVinoOps:
    """Build a network as graph nodes. Implements `networks.ops.Ops`.

    Context rows are `[rows, 1, width]`, draft rows `[sequences, slots, width]`.
    """

    def __init__(self, network: Network, tensors: Tensors, max_context: int) -> None:
        """Create the inputs; positions are at most `max_context`."""
        self._geometry = network.geometry
        self._reach = network.reach
        self._tensors = tensors
        self._max_context = max_context
        self.inputs = add = Inputs()
        self.last_rows = add.add("last_rows", np.int32, [-1])
        self._drafted = [0] * network.layers
        if not network.layers:
            return
        self._draft_past = add.add("draft_past", np.int32, [-1])
        self._draft_positions = add.add("draft_positions", np.int32, [-1])
        self._draft_begins = add.add("draft_begins", np.int32, [-1])
        no_bias = op.constant(np.zeros(0, dtype=np.uint8))
        self._paging = Paging(
            add.add("past_lens", np.int32, [-1]),
            add.add("subsequence_begins", np.int32, [-1]),
            add.add("block_indices", np.int32, [-1]),
            add.add("block_indices_begins", np.int32, [-1]),
            add.add("max_context_len", np.int32, []),
            no_bias,
            add.add("qq_bias_begins", np.int32, [-1]),
        )
        positions = add.add("positions", np.int32, [-1])
        self._rotation = self._rotate(positions)
        shape = [-1, self._geometry.kv_heads, BLOCK, self._geometry.head_dim]
        self._caches = [
            [add.add(f"{kind}_cache.{layer}", np.float32, shape) for kind in ("key", "value")]
            for layer in range(network.layers)
        ]

    @property
    def drafted(self) -> int:
        """Return the draft rows written so far, of each sequence."""
        return max(self._drafted, default=0)

    def weight(self, name: str) -> Any:
        return op.constant(self._tensors[name])

    def linear(self, x: Any, name: str) -> Any:
        return linear(x, self._tensors, name)

    def norm(self, x: Any, name: str) -> Any:
        return rms_norm(x, self._tensors[name].reshape(1, 1, -1), self._geometry.norm_eps)

    def silu(self, x: Any) -> Any:
        return op.swish(x)

    def concat(self, parts: Sequence[Any]) -> Any:
        return op.concat(list(parts), -1)

    def split(self, x: Any, sizes: Sequence[int]) -> list[Any]:
        ends = np.cumsum(sizes).tolist()
        return [
            op.slice(x, ints(end - size), ints(end), ints(1), ints(-1))
            for size, end in zip(sizes, ends, strict=True)
        ]

    def embed(self, tokens: Any) -> Any:
        return embed(tokens, self._tensors)

    def embed_windows(self, tokens: Any) -> Any:
        window = tokens.get_output_partial_shape(0)[1].get_length()
        width = window * self._geometry.width
        return op.reshape(embed(tokens, self._tensors), ints(-1, 1, width), False)

    def head(self, x: Any) -> Any:
        return linear(x, self._tensors, "head")

    def last(self, x: Any) -> Any:
        return gather(x, self.last_rows)

    def slots(self, x: Any, count: int) -> Any:
        width = self._geometry.width
        return op.reshape(x, ints(-1, count, width), False)

    def attend_context(self, layer: int, queries: Any, keys: Any, values: Any) -> Any:
        return self._attend(layer, (queries, keys, values), self._rotation, self._paging, 1)

    def attend_draft(self, layer: int, queries: Any, keys: Any, values: Any) -> Any:
        """Attend from draft rows, stored after the context and overwritten later."""
        slots = queries.get_output_partial_shape(0)[1].get_length()
        before = self._drafted[layer]
        self._drafted[layer] += slots
        places = op.constant(before + np.arange(slots, dtype=np.int32)[None])
        first = op.unsqueeze(self._draft_positions, ints(1))
        positions = op.reshape(op.add(first, places), ints(-1), False)
        paging = Paging(
            op.add(self._draft_past, scalar(before, np.int32)),
            op.multiply(self._draft_begins, scalar(slots, np.int32)),
            self._paging.block_indices,
            self._paging.block_indices_begins,
            self._paging.max_context_len,
            self._paging.qq_bias,
            self._paging.qq_bias_begins,
        )
        return self._attend(layer, (queries, keys, values), self._rotate(positions), paging, slots)

    def know_target(self, make: Callable[[], tuple[Any, Any]]) -> None:
        # The plugin's attention writes its rows, which would overwrite the target's cache.
        raise RuntimeUnavailable(
            "a network that reads keys and values of its target needs a runtime that lends them: "
            "use --runtime torch, or weights of a network that does not"
        )

    def attend_target(self, queries: Any) -> Any:
        raise NotImplementedError

    def attend_slots(self, queries: Any, keys: Any, values: Any) -> Any:
        g = self._geometry
        slots = queries.get_output_partial_shape(0)[1].get_length()
        group = g.heads // g.kv_heads

        def heads(x: Any, repeats: int) -> Any:
            # `[sequences, kv_heads, repeats * slots, head_dim]`: the query heads of a group one
            # after another, with the key head that they share.
            x = op.reshape(x, ints(-1, slots, g.kv_heads, repeats, g.head_dim), False)
            x = op.transpose(x, ints(0, 2, 3, 1, 4))
            return op.reshape(x, ints(-1, g.kv_heads, repeats * slots, g.head_dim), False)

        scores = op.matmul(heads(queries, group), heads(keys, 1), False, True)
        weights = op.softmax(op.multiply(scores, scalar(g.head_dim**-0.5)), -1)
        mixed = op.matmul(weights, heads(values, 1), False, False)
        mixed = op.reshape(mixed, ints(-1, g.kv_heads, group, slots, g.head_dim), False)
        mixed = op.transpose(mixed, ints(0, 3, 1, 2, 4))
        return op.reshape(mixed, ints(-1, slots, g.heads * g.head_dim), False)

    def _attend(
        self, layer: int, rows: tuple[Any, Any, Any], rotation: Rotation, paging: Paging, slots: int
    ) -> Any:
        g = self._geometry

        def heads(x: Any, count: int) -> Any:
            x = rotation(op.reshape(x, ints(-1, count, 1, g.head_dim), False))
            return op.reshape(x, ints(-1, count * g.head_dim), False)

        queries, keys, values = rows
        flat = [
            heads(queries, g.heads),
            heads(keys, g.kv_heads),
            op.reshape(values, ints(-1, g.kv_heads * g.head_dim), False),
        ]
        attended = paged_attention(
            [*flat, *self._caches[layer]], paging, g.heads, g.kv_heads, g.head_dim, self._reach
        )
        return op.reshape(attended, ints(-1, slots, g.heads * g.head_dim), False)

    def _rotate(self, positions: Any) -> Rotation:
        frequencies = rotary_frequencies(self._geometry.rope_base, self._geometry.head_dim)
        return Rotation(frequencies, self._max_context, positions)


def build(
    network: Network, tensors: Tensors, draft_ids: IntArray, steps: int, max_context: int
) -> ov.Model:
    """Build the graph that drafts `steps` steps.

    Inputs beside the caches (int32 unless noted): `features` float32 `[rows, 4 * width]`, if the
    network reads them, and `tokens [rows, window]` of the new context rows, `last_rows [s]`; where
    the network attends, `positions [rows]`, `past_lens [s]`, `subsequence_begins [s + 1]`,
    `block_indices`, `block_indices_begins`, `max_context_len []`, `qq_bias_begins [s + 1]` (zeros),
    `draft_past [s]` (context rows in the cache, new ones included), `draft_positions [s]` (the
    same plus rows dropped from the cache) and `draft_begins [s + 1]` (0, 1, 2, ...).

    Outputs `[s, steps * width, 2]`: `drafted` int32, ids of argmax and runner-up, -1 where a slot
    is blank, and `chances` float32, their probabilities.
    """
    blank = [-1] if network.blank else []
    ids = op.constant(np.array([*draft_ids, *blank], dtype=np.int32))
    ops, state = begun(network, tensors, max_context)
    drafted: list[Any] = []
    chances: list[Any] = []
    for step in range(steps):
        if step:
            first = op.gather(drafted[-1], ints(0), scalar(-1, np.int64))
            state = network.advance(ops, state, op.squeeze(first, ints(-1)), step)
        logits = network.logits(ops, state, step)
        best = op.topk(logits, scalar(2, np.int32), -1, "max", "value", index_element_type="i32")
        drafted.append(gather(ids, best.output(1)))
        highest = op.gather(best.output(0), ints(0), scalar(-1, np.int64))
        spread = op.reduce_sum(op.exp(op.subtract(logits, highest)), ints(-1), True)
        above = op.exp(op.subtract(best.output(0), highest))
        chances.append(op.divide(above, spread))
    outputs = {"drafted": op.concat(drafted, 1), "chances": op.concat(chances, 1)}
    return model(outputs, ops.inputs.parameters, network.name)


def begun(network: Network, tensors: Tensors, max_context: int) -> tuple[OpenVinoOps, Any]:
    """Return a graph that takes context rows, and the state of its first step."""
    ops = OpenVinoOps(network, tensors, max_context)
    features = None
    if network.reads_features:
        features = ops.inputs.add("features", np.float32, [-1, 4 * network.geometry.width])
        features = op.unsqueeze(features, ints(1))
    tokens = ops.inputs.add("tokens", np.int32, [-1, max(network.window, 1)])
    return ops, network.start(ops, features, tokens)


def model(outputs: Mapping[str, Any], parameters: Sequence[Any], name: str) -> ov.Model:
    for each, node in outputs.items():
        node.output(0).get_tensor().set_names({each})
    return ov.Model([*map(op.result, outputs.values())], list(parameters), name)
