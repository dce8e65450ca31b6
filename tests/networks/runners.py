"""Networks with random weights, ready to run on each runtime."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from tests.networks.cases import GEOMETRY, NETWORKS, module

from paceline.models.weights import Stored
from paceline.native.packed import Packed
from paceline.networks.base import FUSED
from paceline.networks.runner import Runner
from paceline.networks.weights import Trained
from paceline.runtimes.cpu.matrices import Matrices
from paceline.runtimes.cpu.networks.runner import CpuRunner
from paceline.runtimes.kv_cache import BlockPool
from paceline.training.module import DraftModule

RUNTIMES = ("cpu", "torch")

IDS = np.array([0, 2, 3, 5, 6, 8, 9, 11, 13, 14, 16])
"""Token ids of the draft vocabulary."""


class Held(dict[str, Any]):
    """Weights of a target in memory."""

    def stored(self, name: str) -> Stored:
        matrix = np.ascontiguousarray(self[name], dtype=np.float32)
        rows, columns = matrix.shape
        return Stored("F32", (rows, columns), matrix.view(np.uint8))


@cache
def ready(runtime: str, name: str) -> tuple[DraftModule, Runner]:
    """A network of the cases, compiled once for all tests."""
    trained = module(NETWORKS[name]())
    return trained, runner(runtime, trained)


def trained_of(trained: DraftModule) -> Trained:
    """The network in float32."""
    parameters = {name: each.detach().float().numpy() for name, each in trained.named().items()}
    return Trained(trained.network, parameters, IDS, {})


def runner(
    runtime: str,
    trained: DraftModule,
    max_context: int = 64,
    kv_tokens: int = 2048,
    lent: BlockPool | None = None,
) -> Runner:
    """All in float32; rows of the LM head that the network may not draft are far off.

    `lent` are keys and values of a target on the CPU runtime.
    """
    embedding, rows = (trained.get_buffer(name).float() for name in ("embedding", "head"))
    head = rows.new_full((GEOMETRY.vocab_size, GEOMETRY.width), 1e3)
    head[IDS] = rows
    shared = {name: each.float() for name, each in trained.target_weights().items()}
    if runtime == "torch":
        from paceline.runtimes.torch.runner import TorchRunner

        return TorchRunner(trained_of(trained), embedding, head, shared)
    held = {"embed": embedding.numpy(), "head": head.numpy()}
    for name, theirs in trained.network.target_weights().items():
        held |= split(theirs, shared[name].numpy())
    return cpu_runner(trained_of(trained), held, "fp32", max_context, kv_tokens, lent)


def split(name: str, lent: Any) -> dict[str, Any]:
    """The tensors that a network's name for several of its target's stands for."""
    layer, _, part = name.rpartition(".")
    if part not in FUSED:
        return {name: lent}
    narrow, wide = (count * GEOMETRY.head_dim for count in (GEOMETRY.kv_heads, GEOMETRY.heads))
    sizes = [wide, narrow, narrow] if part == "qkv" else [len(lent) // 2] * 2
    pieces = np.split(lent, np.cumsum(sizes)[:-1])
    return {f"{layer}.{each}": piece for each, piece in zip(FUSED[part], pieces, strict=True)}


def cpu_runner(
    trained: Trained,
    held: dict[str, Any],
    precision: str = "fp32",
    max_context: int = 128,
    kv_tokens: int = 512,
    lent: BlockPool | None = None,
) -> Runner:
    """Of a target with these tensors, by canonical name."""
    matrices = Matrices(Held(held), precision, Packed(), 2)
    return CpuRunner(
        trained,
        matrices,
        2,
        precision=precision,
        max_context=max_context,
        kv_tokens=kv_tokens,
        lent=lent,
    )
