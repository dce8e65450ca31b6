"""Times of nodes: every product of every family is recognised, and first runs are taken out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.helpers import tiny_model as tiny
from tests.runtimes import tiny_openvino

pytest.importorskip("openvino")

from paceline.core import tree
from paceline.core.target import Pass
from paceline.core.types import TokenTree
from paceline.runtimes.cpu.openvino.requests import count
from paceline.runtimes.cpu.profile import GROUPS, group

PRODUCTS = {name for name in GROUPS if name.startswith("product ")}
BRANCHES = TokenTree(np.array([1, 2, 3]), np.array([-1, -1, 0]))


@pytest.mark.parametrize("family", tiny.FAMILIES)
@pytest.mark.parametrize("precision", ["int8", "fp32"])
@pytest.mark.parametrize("attention", ["paths", "plugin"])
def test_every_group_is_found(
    family: Any, precision: str, attention: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: set[str] = set()  # times of tiny products may be below the counters' microsecond

    def noted(name: str, kind: str) -> str:
        seen.add(group(name, kind))
        return group(name, kind)

    monkeypatch.setattr("paceline.runtimes.cpu.profile.group", noted)
    shape = tiny_openvino.config(
        family=family,
        qkv_bias=family == "qwen2",
        qk_norm=family == "qwen3",
        tied_embeddings=family in ("llama", "qwen3"),
        ffn_size=512,
        hidden_size=256,
    )
    target = tiny_openvino.target(precision, shape, attention=attention)
    alone = {"rotary positions", "norms"} if attention == "plugin" else set()
    cache = target.open()
    target.prefill(cache, list(range(60)))
    before = target.forward([Pass(cache, [5])])[0].logits.copy()
    for draft in (tree.EMPTY, tree.chain([1] * 7), BRANCHES):
        seen.clear()
        found = target.counted([Pass(cache, [5], draft)], 4)
        assert tuple(found.groups) == GROUPS
        assert seen >= PRODUCTS | {"attention"} | alone
        assert "other products" not in seen
        assert sum(found.groups.values()) > 0
        assert found.seconds > 0
    assert cache.length == 60
    assert np.array_equal(target.forward([Pass(cache, [5])])[0].logits, before)


def test_groups_by_name_and_type() -> None:
    assert group("layers.11.gate_up", "FullyConnectedCompressed") == "product gate-up"
    assert group("embed", "FullyConnected") == "product LM head"
    assert group("adapter.7", "MatMul") == "other products"
    assert group("Multiply_7", "RMS") == "norms"
    assert group("Add_7", "Subgraph") == "element-wise"


@dataclass
class Counting:
    """An instance whose counters give means since the beginning, as the plugin's do."""

    times: Sequence[float]
    seconds: float = 0.0
    done: int = 0

    def run(self) -> None:
        self.seconds = 1.25 * self.times[self.done]
        self.done += 1

    def nodes(self) -> Any:
        mean = sum(self.times[: self.done]) / self.done
        time = timedelta(seconds=mean)
        return [SimpleNamespace(node_name="layers.0.o", node_type="MatMul", real_time=time)]


def test_first_inferences_do_not_count() -> None:
    instance = Counting([9.0, 5.0, 4.0, 1.0, 2.0, 3.0, 2.0])
    found = count(instance.run, instance, 4)
    assert found.groups["product o"] == pytest.approx(2)
    assert found.seconds == pytest.approx(2.5)
