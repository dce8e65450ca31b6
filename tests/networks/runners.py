"""Networks with random weights, ready to run on each runtime."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from tests.networks.cases import NETWORKS, TINY, module

from paceline.lab.training.module import DraftModule
from paceline.models.weights import Stored
from paceline.native.packed import Packed
from paceline.networks.runner import ContextUpdate, Runner
from paceline.networks.weights import Trained
from paceline.runtimes.cpu.matrices import Formats, Matrices
from paceline.runtimes.cpu.networks.runner import CpuRunner
from paceline.runtimes.kv_cache import BlockPool
from paceline.runtimes.reference.networks import ReferenceRunner
from paceline.runtimes.reference.ops import ReferenceOps

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
) -> Any:
    """All in float32; rows of the LM head that the network may not draft are far off.

    `lent` are keys and values of a target on the CPU runtime.
    """
    embedding, rows = (trained.get_buffer(name).float() for name in ("embedding", "head"))
    head = rows.new_full((TINY.vocab_size, TINY.hidden_size), 1e3)
    head[IDS] = rows
    shared = {name: each.float() for name, each in trained.target_weights().items()}
    if runtime == "torch":
        from paceline.runtimes.torch.runner import TorchRunner

        return TorchRunner(trained_of(trained), embedding, head, shared)
    held = {"embed": embedding.numpy(), "head": head.numpy()}
    held |= {name: each.numpy() for name, each in shared.items()}
    if runtime == "reference":
        return ReferenceRunner(trained_of(trained), Formats(Held(held), "fp32"), "fp32")
    return cpu_runner(trained_of(trained), held, "fp32", max_context, kv_tokens, lent)


class Reference:
    """Drafts of the reference after a text that grows; `ops` may be a wrong one."""

    def __init__(self, trained: DraftModule, ops: type[ReferenceOps] = ReferenceOps) -> None:
        self.network, self.runner = trained.network, runner("reference", trained)
        self.runner.ops = ops
        self.cache = self.runner.open()

    def draft(self, features: Any, tokens: Sequence[int], follow: Sequence[int]) -> Any:
        """Take in context rows and draft after the last.

        Args:
            features: `[rows, 4 * width]` of positions that were not given before.
            tokens: what follows each; networks that read no features begin with the first token.
            follow: the draft's own tokens, as many as steps before the last take in.

        Returns:
            `[depth, columns]` logits.
        """
        given = ContextUpdate(self.cache, np.asarray(features, np.float32), tokens)
        [branch] = self.runner.start([given])
        out, width = [branch.logits], self.network.width
        for step in range(1, self.network.steps):
            [branch] = self.runner.advance([(branch, follow[(step - 1) * width : step * width])])
            out.append(branch.logits)
        return np.concatenate(out)


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
