"""An engine over a tiny model whose texts may go on beyond the context."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.helpers.table_engines import EOS, TOKENIZER
from tests.helpers.tiny_model import tiny_config
from tests.runtimes.tiny_cpu import weights

from paceline.core.target import LEAVING
from paceline.drafters.base import Drafter, NoDrafter
from paceline.engine.engine import Engine
from paceline.engine.loop import AutoregressiveDecoder
from paceline.engine.stopping import StopRules
from paceline.policy.controller import Fixed
from paceline.runtimes.cpu.target import CpuTarget
from paceline.verifiers.matching import Coupled

WINDOW = LEAVING
CONFIG = replace(tiny_config("qwen2"), max_context=700)
WEIGHTS = weights(CONFIG)


def endless_target(tokens: int = 4000, **changes: Any) -> CpuTarget:
    return CpuTarget(replace(CONFIG, **changes), WEIGHTS, "fp32", kv_tokens=tokens)


def endless_engine(
    drafter: Drafter | None = None,
    tokens: int = 4000,
    target: Any = None,
    nodes: int = 6,
    **options: Any,
) -> Engine:
    target = target or endless_target(tokens)
    stops = StopRules((EOS,), CONFIG.max_context)
    decoder = AutoregressiveDecoder(
        target, drafter or NoDrafter(), Coupled(), Fixed(nodes, nodes), stops
    )
    return Engine(decoder, TOKENIZER, **options)
