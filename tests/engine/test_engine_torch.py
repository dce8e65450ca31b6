"""Chunks beside steps on a runtime that states no memory: the same tokens, in float64."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from engines import TOKENIZER  # noqa: E402
from paceline.controllers.fixed import Fixed  # noqa: E402
from paceline.decode.autoregressive import AutoregressiveDecoder  # noqa: E402
from paceline.drafters.recycling import Recycling  # noqa: E402
from paceline.engine import Engine  # noqa: E402
from paceline.runtimes.torch import TorchTarget  # noqa: E402
from paceline.stopping import StopRules  # noqa: E402
from paceline.types import SamplingParams  # noqa: E402
from paceline.verifiers.coupled import Coupled  # noqa: E402
from tiny import random_tensors, tiny_config  # noqa: E402

PROMPTS = [[5, 6, 7], list(range(10, 100)), list(range(200, 230)), [9] * 60]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_prompts_in_chunks_give_the_same_tokens_as_alone(temperature: float) -> None:
    config = tiny_config()
    target = TorchTarget(config, random_tensors(config), precision="fp64")
    params = SamplingParams(temperature=temperature, max_new_tokens=16, ignore_eos=True)

    def engine(step_tokens: int | None) -> Engine:
        stops = StopRules((2,), config.max_context)
        parts = target, Recycling(config.vocab_size), Coupled(), Fixed(6, 3), stops
        return Engine(AutoregressiveDecoder(*parts), TOKENIZER, step_tokens=step_tokens)

    alone = [engine(None).generate(prompt, params).token_ids for prompt in PROMPTS]
    together, done = engine(17), {}
    ids = []
    for prompt in PROMPTS:
        ids.append(together.add(prompt, params))
        done |= {e.request: e.completion for e in together.step() if e.completion}
    while together.pending:
        done |= {e.request: e.completion for e in together.step() if e.completion}
    assert [done[request].token_ids for request in ids] == alone
