"""What only the CPU runtime does: int8, the same bits in any company, fused operations."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.networks.cases import NETWORKS, TINY, context_rows, lent_shapes, module, texts
from tests.networks.runners import IDS, Held, cpu_runner, ready, runner

from paceline.errors import InvalidOption, ModelError
from paceline.native.program import ALL, Program
from paceline.networks.base import Network
from paceline.networks.catalogue import build
from paceline.networks.runner import Branch, Chain, ContextUpdate, Runner
from paceline.networks.weights import Trained
from paceline.runtimes.cpu.matrices import Formats
from paceline.runtimes.cpu.ops import Sights
from paceline.runtimes.reference.networks import ReferenceRunner

WIDE = replace(TINY, hidden_size=64, ffn_size=128, vocab_size=40)


def quantised(network: Network, seed: int = 0) -> tuple[Runner, Runner]:
    """Runners at int8, native and of the reference."""
    rng = np.random.default_rng(seed)
    shape = network.config
    weights = {
        name: rng.normal(len(each) == 1, 0.2, each).astype(np.float32)
        for name, each in network.shapes().items()
    }
    table = rng.standard_normal((shape.vocab_size, shape.hidden_size)).astype(np.float32)
    held: dict[str, Any] = {"embed": table, "head": table[::-1]}
    for name, size in lent_shapes(network).items():
        held[name] = rng.normal(len(size) == 1, 0.2, size).astype(np.float32)
    trained = Trained(network, weights, np.arange(1, 40, 2), {})
    reference = ReferenceRunner(trained, Formats(Held(held), "int8"), "int8")
    return cpu_runner(trained, held, "int8", 256), reference


@pytest.mark.parametrize(
    "name",
    [
        "hydra",
        "eagle3",
        "ctc",
        "kangaroo",
        "block-parallel",
        "dflash",
        "clover",
        "falcon",
        "s2d",
        "specformer",
        "chimera",
        "draft-lm",
        "medusa",
    ],
)
def test_int8_drafts_are_those_of_the_reference(name: str) -> None:
    """To the last bit: logits after a text that grows, and after a step from there."""
    network = build(name, WIDE, {})
    runners = quantised(network)
    rng = np.random.default_rng(1)
    caches = [each.open() for each in runners]
    for gained in (40, 1, 3, 130):
        width = 4 * WIDE.hidden_size if network.reads_features else 0
        features = rng.standard_normal((gained, width)).astype(np.float32)
        tokens = rng.integers(40, size=gained).tolist()
        found = []
        for compiled, cache in zip(runners, caches, strict=True):
            branches = compiled.start([ContextUpdate(cache, features, tokens)])
            for step in range(1, min(network.steps, 3)):
                branches += compiled.advance([(branches[-1], [3 * step] * network.width)])
            found.append(np.concatenate([each.logits for each in branches]))
        np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("name", ["hydra", "clover", "falcon", "s2d", "medusa"])
def test_company_changes_no_bit(name: str) -> None:
    """Of a chain's chances and of a branch's logits; what a sequence read itself does."""
    trained, runner = ready("cpu", name)
    network = trained.network
    features, tokens = texts(3, 40)
    rows = [
        context_rows(network, features[i], tokens[i], 0, count)
        for i, count in enumerate((5, 33, 1))
    ]

    def grown(*which: int) -> list[ContextUpdate]:
        return [
            ContextUpdate(runner.open(), rows[i][0].astype(np.float32), rows[i][1]) for i in which
        ]

    def step(roots: list[Branch]) -> list[Branch]:
        if network.steps == 1:
            return roots
        return runner.advance([(root, [int(IDS[3])] * network.width) for root in roots])

    together = runner.draft(grown(0, 1, 2), network.depth)
    branches = step(runner.start(grown(0, 1, 2)))
    for i in range(3):
        [alone] = runner.draft(grown(i), network.depth)
        assert alone.tokens == together[i].tokens
        assert np.array_equal(alone.chances, together[i].chances)
        [branch] = step(runner.start(grown(i)))
        assert np.array_equal(branch.logits, branches[i].logits)
    assert not np.array_equal(together[0].chances, together[1].chances)


@pytest.mark.parametrize("name", ["hydra", "eagle3", "draft-lm"])
def test_chains_end_where_what_is_behind_would_not_stand(name: str) -> None:
    """Of a batch, where no chain is worth going on with; what was drafted is the same."""
    trained, runner = ready("cpu", name)
    features, tokens = texts(2, 40)
    rows = [context_rows(trained.network, features[i], tokens[i], 0, 9) for i in range(2)]

    def drafted(*least: float) -> list[Chain]:
        grown = [
            ContextUpdate(runner.open(), rows[i][0].astype(np.float32), rows[i][1], least=each)
            for i, each in enumerate(least)
        ]
        return runner.draft(grown, trained.network.steps)

    whole = drafted(0.0, 0.0)
    assert [len(chain.tokens) for chain in whole] == [trained.network.steps] * 2
    stands = np.cumprod(whole[0].chances)
    for least, expected in ((1.1, 1), (float(stands[0]) * 0.999, 2), (0.0, len(stands))):
        [chain] = drafted(least)
        assert len(chain.tokens) == expected
        np.testing.assert_array_equal(chain.tokens, whole[0].tokens[:expected])
        np.testing.assert_array_equal(chain.chances, whole[0].chances[:expected])
    assert [len(chain.tokens) for chain in drafted(1.1, 1.1)] == [1, 1]
    assert [len(chain.tokens) for chain in drafted(1.1, 0.0)] == [len(stands)] * 2


def test_a_step_of_hydra_is_eight_operations() -> None:
    """Norms, gates and sums are done with products; all else would be paid at every depth."""
    _, compiled = ready("cpu", "hydra")
    runner: Any = compiled
    names = runner._chains._ops.program.names
    begin, end = runner._chains.ends[:2]
    products = ["step.up", "step.down.residual", "head"]
    step = ["leave", "embedding", *products, "pick"]
    assert [name for name in names[begin:end] if name != "gather"] == step
    assert names[begin:end].count("gather") == 2  # both norms, of what is read side by side
    # Behind attention only last rows are read: taking a prompt in ends there.
    assert names[runner._chains.taken_in - 1] == "attention"
    assert "prefix.o.residual" not in names[: runner._chains.taken_in]


@pytest.mark.parametrize("name", ["hydra", "eagle3", "draft-lm", "kangaroo", "hidden-transfer"])
def test_what_nobody_reads_is_spared(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind the last attention over the context, all but last rows."""
    asked: list[bool] = []
    attention = Program.attention

    def noted(self: Program, *of: Any, **named: Any) -> None:
        asked.append(of[-1] == ALL)
        attention(self, *of, **named)

    monkeypatch.setattr(Program, "attention", noted)
    network = NETWORKS[name]()
    runner("cpu", module(network))
    layers = network.layers
    assert asked[:layers] == [True] * (layers - 1) + [False]
    assert all(asked[layers:])


def test_rows_side_by_side_are_written_in_place() -> None:
    """Once, and they may be read again; what is somewhere else already is copied."""
    runner: Any = quantised(build("hydra", WIDE, {}))[0]
    ops = runner._parts.ops(Sights())
    names = ops.program.names
    x = ops.loaded("above", 1, 64)
    normed = ops.norm(x, "norm")
    both = ops.concat([normed, x]).columns()
    assert names == ["load", "gather", "gather"]
    assert normed.columns() == both.part(0, 64)
    assert x.columns() != both.part(64, 64)


def test_buffers_are_reused_after_the_last_use() -> None:
    """Not before: rows side by side keep theirs as long as one of them is there."""
    runner: Any = quantised(build("hydra", WIDE, {}))[0]
    ops = runner._parts.ops(Sights())
    x = ops.loaded("above", 1, 64)
    normed = ops.norm(x, "norm")
    first = ops.concat([normed, ops.norm(x, "norm")]).columns()
    assert ops.concat([x, x]).columns().buffer != first.buffer
    del normed
    assert ops.concat([x, x]).columns().buffer == first.buffer


def test_context_and_draft_rows_are_not_summed() -> None:
    runner: Any = quantised(build("hydra", WIDE, {}))[0]
    ops = runner._parts.ops(Sights())
    context, draft = ops.loaded("features", 0, 64), ops.loaded("above", 1, 64)
    with pytest.raises(AssertionError, match="context and draft rows"):
        ops.linear(context, ["step.down.residual"], residual=draft)


def test_odd_widths_are_named() -> None:
    network = build("hydra", replace(TINY, hidden_size=40), {})
    weights = {name: np.ones(each, np.float32) for name, each in network.shapes().items()}
    held = dict.fromkeys(("embed", "head"), np.ones((40, 40), np.float32))
    with pytest.raises((InvalidOption, ModelError), match="no multiple of 32: use --runtime torch"):
        cpu_runner(Trained(network, weights, np.arange(40), {}), held)
