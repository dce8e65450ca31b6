"""Chunks beside steps on a runtime that states no memory: the same tokens, in float64."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.helpers.table_engines import TOKENIZER  # noqa: E402
from tests.helpers.tiny_model import named_tensors, tiny_config  # noqa: E402

from paceline.core.types import SamplingParams  # noqa: E402
from paceline.drafters.recycling import Recycling  # noqa: E402
from paceline.engine.engine import Engine  # noqa: E402
from paceline.engine.loop import AutoregressiveDecoder  # noqa: E402
from paceline.engine.stopping import StopRules  # noqa: E402
from paceline.policy.controller import Fixed  # noqa: E402
from paceline.runtimes.torch.target import TorchTarget  # noqa: E402
from paceline.verifiers.matching import Coupled  # noqa: E402

PROMPTS = [[5, 6, 7], list(range(10, 100)), list(range(200, 230)), [9] * 60]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_prompts_in_chunks_give_the_same_tokens_as_alone(temperature: float) -> None:
    config = tiny_config()
    target = TorchTarget(config, named_tensors(config), precision="fp64")
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
