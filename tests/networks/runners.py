"""Networks with random weights, ready to run on each runtime."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from tests.networks.cases import GEOMETRY, NETWORKS, module

from paceline.networks.runner import Runner
from paceline.networks.weights import Trained
from paceline.training.module import DraftModule

RUNTIMES = ("openvino", "native", "torch")

IDS = np.array([0, 2, 3, 5, 6, 8, 9, 11, 13, 14, 16])
"""Token ids of the draft vocabulary."""


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
    runtime: str, trained: DraftModule, max_context: int = 64, kv_tokens: int = 2048
) -> Runner:
    """All in float32; rows of the LM head that the network may not draft are far off."""
    pytest.importorskip("torch")
    embedding, rows = (trained.get_buffer(name).float() for name in ("embedding", "head"))
    head = rows.new_full((GEOMETRY.vocab_size, GEOMETRY.width), 1e3)
    head[IDS] = rows
    lent = {name: each.float() for name, each in trained.target_weights().items()}
    if runtime == "torch":
        from paceline.runtimes.torch.runner import TorchRunner

        return TorchRunner(trained_of(trained), embedding, head, lent)
    target = {"embed.weight": embedding.numpy(), "lm_head.weight": head.numpy()}
    for name, theirs in trained.network.target_weights().items():
        matrix = lent[name].numpy()
        target[theirs if matrix.ndim == 1 else f"{theirs}.weight"] = matrix
    sizes: Any = {"precision": "fp32", "max_context": max_context, "kv_tokens": kv_tokens}
    if runtime == "native":
        from paceline.native.library import has_float_products
        from paceline.runtimes.cpu.native.fit import takes
        from paceline.runtimes.cpu.native.runner import NativeRunner

        if not has_float_products():
            pytest.skip("native operations need a C++ compiler and AVX-512")
        if not takes(trained.network, "fp32"):
            pytest.skip("native operations do not take this network: OpenVINO runs it, tested too")
        return NativeRunner(trained_of(trained), target, 2, **sizes)
    from paceline.runtimes.cpu.openvino.runner import OpenVinoRunner

    settings = {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}
    return OpenVinoRunner(trained_of(trained), target, settings, **sizes)
