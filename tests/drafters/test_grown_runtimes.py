"""Trees from networks on real runtimes: the chain within them, and never another text."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from tests.drafters.network.test_trained import (
    CONFIG,
    DRAFTERS,
    GREEDY,
    PROMPTS,
    SAMPLED,
    SHAPE,
    TARGETS,
    context,
    copies,
    generate,
    random_weights,
    saved,
)
from tests.networks.cases import NETWORKS, context_rows, texts
from tests.networks.runners import RUNTIMES, ready, trained_of

from paceline.core import tree as trees
from paceline.core.types import Budget
from paceline.drafters.base import NoDrafter
from paceline.drafters.network.trees import TreeDrafts
from paceline.engine.loop import AutoregressiveDecoder
from paceline.engine.stopping import StopRules
from paceline.networks.catalogue import build
from paceline.networks.runner import ContextUpdate
from paceline.policy.controller import Fixed
from paceline.sampling.generation import Generation
from paceline.trees.deterministic import ExpandRerank
from paceline.trees.drawn import Iid
from paceline.verifiers.rejection import Rejection

every_runtime = pytest.mark.parametrize("runtime", RUNTIMES)


@every_runtime
@pytest.mark.parametrize("name", [name for name in NETWORKS if name != "ctc"])
def test_a_beam_of_one_is_the_chain_that_one_call_drafts(name: str, runtime: str) -> None:
    trained, compiled = ready(runtime, name)
    network = trained.network
    features, tokens = texts(2, 8)
    rows = [
        context_rows(network, features[i], tokens[i], 0, count) for i, count in enumerate((5, 2))
    ]

    def grown() -> list[ContextUpdate]:
        return [
            ContextUpdate(compiled.open(), read.astype(np.float32), behind) for read, behind in rows
        ]

    sequences = [Generation.start(i, [1], GREEDY) for i in range(2)]
    budgets = [Budget(9, 9), Budget(9, network.depth - 1)]
    drafts = TreeDrafts(compiled, trained_of(trained), ExpandRerank(1))
    grew = drafts.grow(sequences, budgets, grown())
    for draft, chain, budget in zip(
        grew, compiled.draft(grown(), network.depth), budgets, strict=True
    ):
        depth = min(budget.depth, network.depth)
        assert draft.tokens.tolist() == chain.tokens[:depth]
        assert trees.is_chain(draft)
        assert draft.scores is not None
        np.testing.assert_allclose(draft.scores, np.cumprod(chain.chances)[:depth], rtol=1e-3)


@cache
def plain(runtime: str, greedy: bool) -> list[list[int]]:
    """Texts without a drafter."""
    params = GREEDY if greedy else SAMPLED
    return [each.tokens for each in generate(TARGETS[runtime](), NoDrafter(), params)]


@every_runtime
@pytest.mark.parametrize("name", ["medusa", "eagle3", "falcon", "kangaroo"])
def test_texts_with_trees_are_those_of_plain_decoding(
    name: str, runtime: str, tmp_path: Path
) -> None:
    target = TARGETS[runtime]()
    path = saved(tmp_path / "weights", random_weights(build(name, SHAPE, {})))
    for params, growth in ((GREEDY, "expand-rerank-3"), (SAMPLED, "shared-noise-2.1")):
        drafter = DRAFTERS[name].create(context(target, weights=str(path), growth=growth))
        found = generate(target, drafter, params)
        assert [each.tokens for each in found] == plain(runtime, params.greedy)
        assert sum(each.stats.drafted_tokens for each in found) > 0


@every_runtime
def test_rejection_accepts_a_network_that_equals_its_target(runtime: str) -> None:
    """Laws, rows and rollback are right where p / q is 1 everywhere."""
    target = TARGETS[runtime]()
    trained = copies()["draft-lm"]
    compiled = target.run_network(trained)
    drafter = DRAFTERS["draft-lm"](compiled)
    drafter.expand_by(TreeDrafts(compiled, trained, Iid([1])))
    stops = StopRules((), CONFIG.max_context)
    decoder = AutoregressiveDecoder(target, drafter, Rejection(), Fixed(3, 3), stops)
    params = replace(SAMPLED, max_new_tokens=12, top_p=0.9, presence_penalty=0.2)
    sequences = [Generation.start(i, prompt, params) for i, prompt in enumerate(PROMPTS)]
    for sequence in sequences:
        decoder.open(sequence)
    while sequences:
        for commit in decoder.step(sequences):
            if commit.finish_reason:
                decoder.close(commit.sequence)
                stats = commit.sequence.stats
                assert stats.accepted_tokens == stats.drafted_tokens > 5
        sequences = [each for each in sequences if each.finish_reason is None]
