"""Drafts by some of the target's layers: exact, on a cache that they leave as it was."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.helpers.decoding_loop import decode_all
from tests.helpers.drafter_context import context as drafter_context
from tests.proof.joints import joint_of_steps
from tests.runtimes import tiny_cpu

from paceline.core.target import Rows, Target
from paceline.core.types import ROOT, Budget, SamplingParams, TokenTree
from paceline.drafters.base import Drafter, NoDrafter
from paceline.engine.loop import AutoregressiveDecoder
from paceline.engine.stopping import StopRules
from paceline.errors import InvalidOption, RuntimeUnavailable
from paceline.methods.layers.chains import GrowingChain, top_probability
from paceline.methods.layers.double_exit import AdapterCache, DoubleExit
from paceline.methods.layers.dynamic_exit import DynamicExit, Shadows, tokens_per_layer
from paceline.methods.layers.search import MaskSearch, posterior
from paceline.methods.layers.swift import Swift
from paceline.methods.layers.tables import LAYERS, LayeredTable
from paceline.methods.networks.kangaroo import Kangaroo
from paceline.networks.base import drafter_config
from paceline.networks.weights import Trained
from paceline.policy.controller import Fixed
from paceline.proof.compare import max_error, target_joint
from paceline.proof.tabular import TabularModel, TabularTarget, processed
from paceline.registry import table as registry
from paceline.runtimes.cpu.target import CpuTarget
from paceline.sampling.generation import Generation
from paceline.verifiers.base import Verifier
from paceline.verifiers.block import Block as BlockRule
from paceline.verifiers.matching import Coupled
from paceline.verifiers.rejection import Rejection

EXACT = 1e-12
WHOLE, FIRST, SECOND = (TabularModel(2, 4, seed, 1.5) for seed in (11, 12, 13))
CONFIG = tiny_cpu.config(vocab_size=96, layers=4, max_context=160)
WEIGHTS = tiny_cpu.weights(CONFIG)
NORM = np.asarray(WEIGHTS["norm"])


# Enumeration, with a table per subset of layers:


def tables() -> LayeredTable:
    return LayeredTable(WHOLE.logits, [FIRST.logits, SECOND.logits], 2)


def table_swift(cls: type[Swift] = Swift) -> Swift:
    return cls(tables(), LAYERS, True, skip=0.5, stop=0.6, window=1, bayes=2)


def table_del(cls: type[DynamicExit] = DynamicExit, every: int = 2) -> DynamicExit:
    """Drafts from the first step on, and looks at shadow tokens in every second."""
    made = cls(tables(), LAYERS, True, spacing=1, every=every)
    begin = made.open

    def primed(sequence: Generation) -> None:
        begin(sequence)
        counts, confidence = np.array([[1.0, 1.0], [9.0, 5.0]]), np.array([[0.5, 0.5], [6.0, 4.0]])
        made._shadows[sequence.id] = Shadows(counts, confidence)

    made.open = primed  # type: ignore[method-assign]
    return made


def error(make: Callable[[], Drafter], rule: Verifier, params: SamplingParams) -> float:
    joint = joint_of_steps(WHOLE.logits, 2, rule, make, (0,), params, Budget(2, 2))
    truth = target_joint(processed(WHOLE.logits, params, (0,)), (0,), params.max_new_tokens)
    return max_error(joint, truth)


@pytest.mark.parametrize("rule", [Rejection(), BlockRule()], ids=lambda rule: rule.name)
@pytest.mark.parametrize("make", [table_swift, table_del])
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1, max_new_tokens=5),
        SamplingParams(temperature=0.7, top_p=0.9, max_new_tokens=4),
        SamplingParams(temperature=1.3, presence_penalty=0.5, max_new_tokens=4),
    ],
    ids=["plain", "top-p", "penalties"],
)
def test_the_loop_is_exact(
    make: Callable[[], Drafter], rule: Verifier, params: SamplingParams
) -> None:
    """Layers, lengths and stops change from step to step."""
    assert error(make, rule, params) < EXACT


class KeepsItsKeys(Swift):
    """Leaves what was drafted in the prefix."""

    def propose(self, sequences: Any, budgets: Any) -> list[TokenTree]:
        truncate = self._target.truncate
        self._target.truncate = lambda *_, **__: None  # type: ignore[method-assign]
        drafts = super().propose(sequences, budgets)
        self._target.truncate = truncate  # type: ignore[method-assign]
        return drafts


class LooksFirst(Swift):
    """Drops a token after it was drawn, because it is doubtful."""

    def _draft(self, chain: GrowingChain) -> TokenTree:
        if chain.tokens and chain.tokens[-1]:
            chain.tokens.pop()
            chain.rows.pop()
        return super()._draft(chain)


class OthersState(DynamicExit):
    """Goes on from states in another order."""

    def _finish(self, chains: Any) -> None:
        super()._finish(chains)
        for key, begun in self._begun.items():
            self._begun[key] = begun._replace(states=begun.states[::-1])


@pytest.mark.parametrize("wrong", [KeepsItsKeys, LooksFirst])
def test_wrong_drafters_are_found(wrong: type[Swift]) -> None:
    """Negative controls."""
    params = SamplingParams(temperature=1, max_new_tokens=4)
    assert error(lambda: table_swift(wrong), Rejection(), params) > 1e-3


def test_states_of_other_rows_are_found() -> None:
    with pytest.raises(ValueError, match="goes on from the state of"):
        error(
            lambda: table_del(OthersState, 9),
            Rejection(),
            SamplingParams(temperature=1, max_new_tokens=4),
        )


def test_the_audit_enumerates_swift() -> None:
    method = registry.find("drafter", "swift")
    proof = method.load_proof()
    assert [each.name for each in proof.drafts] == ["layer subset"]


# Tiny models:


class Watched:
    """A target that notes which layers it is asked for, where it is not all."""

    def __init__(self, target: Any) -> None:
        self._target = target
        self.calls: list[tuple[tuple[Any, ...], int, bool]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def forward(self, rows: Sequence[Rows], layers: Any = None) -> Any:
        if layers is not None:
            logits = any(len(each.wanted_rows) for each in rows)
            self.calls.append((tuple(layers), sum(map(len, rows)), logits))
        return self._target.forward(rows, layers)


def cpu() -> CpuTarget:
    made: CpuTarget = tiny_cpu.target("fp32", CONFIG)
    return made


def torch() -> Any:
    return pytest.importorskip("paceline.runtimes.torch.target").TorchTarget(
        CONFIG, WEIGHTS, precision="fp64"
    )


def adapter() -> Trained:
    network = Kangaroo(drafter_config(CONFIG), exit=2)
    rng = np.random.default_rng(4)
    parameters = {
        name: (0.3 * rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)
        if len(shape) > 1
        else np.asarray(WEIGHTS["norm"])
        for name, shape in network.shapes().items()
    }
    return Trained(network, parameters, np.arange(96), {})


def double_exit(target: Target, stop: float = 0.0) -> DoubleExit:
    eps = CONFIG.norm_eps
    return DoubleExit(target, 4, trained=adapter(), final_norm=NORM, norm_eps=eps, stop=stop)


def eager_del(target: Target) -> DynamicExit:
    made = DynamicExit(target, 4, spacing=1, every=3)
    made._limit = lambda sequence, most: (
        made._chosen.__setitem__(  # type: ignore[method-assign]
            sequence.id, (sequence.id % 3, most)
        )
        or min(most, 3)
    )
    return made


MAKERS: dict[str, Callable[[Any], Drafter]] = {
    "swift": lambda target: Swift(target, 4, skip=0.25, stop=0.0, window=8),
    "del": eager_del,
    "double-exit": double_exit,
}
PARAMS = {
    "greedy": SamplingParams(max_new_tokens=40, ignore_eos=True),
    "sampled": SamplingParams(temperature=0.8, max_new_tokens=40, seed=5, ignore_eos=True),
}


def texts(
    target: Any, drafter: Drafter, params: SamplingParams
) -> tuple[list[list[int]], list[Generation]]:
    rule = Coupled()
    decoder = AutoregressiveDecoder(target, drafter, rule, Fixed(4, 4), StopRules((), 160))
    prompts = [[5, 6, 7, 8], list(range(40)), [9, 9, 3]]
    done = decode_all(decoder, [Generation.start(i, p, params) for i, p in enumerate(prompts)])
    return [each.generated for each in done], done


@pytest.mark.parametrize("params", PARAMS)
@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("runtime", [cpu, torch])
def test_the_text_is_that_of_plain_decoding(
    runtime: Callable[[], Any], name: str, params: str
) -> None:
    target = runtime()
    plain, _ = texts(target, NoDrafter(), PARAMS[params])
    found, done = texts(target, MAKERS[name](target), PARAMS[params])
    assert found == plain
    assert sum(each.stats.drafted_tokens for each in done) > 50
    assert sum(each.stats.accepted_tokens for each in done) > 0


def cached(target: CpuTarget, cache: Any) -> np.ndarray:
    """Keys and values of all tokens of a sequence, in all layers."""
    pool, rows = target.memory, range(cache.length)
    return np.stack(
        [np.stack(pool.slabs[0].token(cache.blocks[row // 32], row % 32)).copy() for row in rows]
    )


@pytest.mark.parametrize("name", MAKERS)
def test_the_cache_is_that_of_the_text_bit_for_bit(name: str) -> None:
    """After drafts, trials and rejections; over blocks that another sequence shares."""
    target = cpu()
    drafter = MAKERS[name](target)
    decoder = AutoregressiveDecoder(target, drafter, Coupled(), Fixed(4, 4), StopRules((), 160))
    sequences = [Generation.start(i, list(range(70)), PARAMS["greedy"]) for i in range(2)]
    for each in sequences:
        decoder.open(each)
    shared = sequences[0].cache.blocks[:2]
    assert shared == sequences[1].cache.blocks[:2]
    for _ in range(12):
        decoder.step(sequences)
    decoder.speculator.propose(sequences, [Budget(4, 4)] * 2)
    for each in sequences:
        assert each.cache.length == len(each.tokens) - 1
        fresh = target.open()
        target.prefill(fresh, each.tokens[:-1])
        assert np.array_equal(cached(target, each.cache), cached(target, fresh))
    assert sequences[0].cache.blocks[:2] == shared


def test_states_of_other_rows_spoil_the_cache() -> None:
    """Negative control of the test above."""

    class Wrong(DoubleExit):
        def _go_on(self, blocks: Any, exit: int) -> Any:
            turned = [replace(each, inputs=each.inputs[::-1].copy()) for each in blocks]
            return super()._go_on(turned, exit)

    target = cpu()
    wrong = Wrong(target, 4, trained=adapter(), final_norm=NORM, norm_eps=CONFIG.norm_eps, stop=0)
    decoder = AutoregressiveDecoder(target, wrong, Coupled(), Fixed(4, 4), StopRules((), 160))
    sequence = Generation.start(0, list(range(70)), PARAMS["greedy"])
    decoder.open(sequence)
    decoder.step([sequence])
    fresh = target.open()
    target.prefill(fresh, sequence.tokens[:-1])
    assert not np.array_equal(cached(target, sequence.cache), cached(target, fresh))


def drafted(
    drafter: Any, target: Any, budget: int = 4
) -> tuple[Generation, TokenTree, list[tuple[Any, ...]]]:
    """One draft of a sequence, and the calls that it made."""
    sequence = Generation.start(0, [5, 6, 7, 8, 1, 2], PARAMS["greedy"])
    sequence.cache = target.open()
    target.prefill(sequence.cache, sequence.tokens[:-1])
    drafter.open(sequence)
    target.calls.clear()
    [draft] = drafter.propose([sequence], [Budget(budget, budget)])
    return sequence, draft, target.calls


def test_verification_goes_on_from_the_shallow_states() -> None:
    """The first exit: two layers are not run again, and no bit is another."""
    target = Watched(cpu())
    drafter = double_exit(target)  # type: ignore[arg-type]
    sequence, draft, calls = drafted(drafter, target)
    assert len(draft) == 4
    shallow = [rows for layers, rows, _ in calls if layers == (0, 1)]
    assert shallow == [1] * 5  # root, three tokens, and the last for verification
    calls.clear()
    [found] = drafter.forward(target, [Rows.draft(sequence.cache, [2], draft)])
    assert calls == [((2, 3), 5, True)]
    copy = target.fork(sequence.cache)
    [expected] = target.forward([Rows.draft(copy, [2], draft)])
    assert np.array_equal(found.logits, expected.logits)
    # A pruned draft goes on as well; one that is another is run whole.
    calls.clear()
    less = replace(draft, tokens=draft.tokens[:2], parents=draft.parents[:2], scores=None)
    drafter.forward(target, [Rows.draft(sequence.cache, [2], less)])
    assert calls == [((2, 3), 3, True)]
    calls.clear()
    other = replace(less, tokens=(less.tokens + 1) % 96)
    drafter.forward(target, [Rows.draft(sequence.cache, [2], other)])
    assert calls == []
    # Negative control: states of other rows give other logits.
    begun = drafter._begun[id(sequence.cache)]
    drafter._begun[id(sequence.cache)] = begun._replace(states=begun.states[::-1].copy())
    [wrong] = drafter.forward(target, [Rows.draft(sequence.cache, [2], draft)])
    assert not np.array_equal(wrong.logits, expected.logits)


@pytest.mark.parametrize("at", [0, 1, 2])
def test_drafting_halts_at_a_doubtful_token(at: int) -> None:
    """The second exit: the token that ends the draft is verified, and nothing is run behind it."""
    target = Watched(cpu())
    drafter = double_exit(target)  # type: ignore[arg-type]
    asked: list[float] = []

    def stops(chain: GrowingChain, chance: float) -> bool:
        asked.append(chance)
        return len(asked) > at

    drafter._stops = stops  # type: ignore[method-assign]
    _, draft, calls = drafted(drafter, target)
    assert len(draft) == at + 1
    # Root, tokens, and the last one for verification.
    assert [layers for layers, _, _ in calls if layers == (0, 1)] == [(0, 1)] * (at + 2)
    strict = double_exit(target, stop=1.0)  # type: ignore[arg-type]
    assert len(drafted(strict, target)[1]) == 1
    assert len(drafted(double_exit(target), target)[1]) == 4  # type: ignore[arg-type]


def test_the_adapter_row_by_row_is_the_adapter_at_once() -> None:
    """And the head behind its own norm is a product with the head's rows."""
    rng = np.random.default_rng(1)
    states = rng.standard_normal((9, CONFIG.hidden_size)).astype(np.float32)
    whole, parts = AdapterCache(adapter()), AdapterCache(adapter())
    expected = whole.append(list(range(9)), states)
    found = [parts.append([row], states[row : row + 1]) for row in range(6)]
    parts.append([80, 81], states[:2])
    parts.truncate(6)
    found.append(parts.append([6, 7, 8], states[6:]))
    np.testing.assert_allclose(np.concatenate(found), expected, atol=1e-5)
    drafter = double_exit(cpu())
    logits = drafter._head(expected)
    embedding = np.asarray(WEIGHTS["embed"])
    np.testing.assert_allclose(logits, expected @ embedding.T, atol=2e-4)


def test_the_network_that_was_trained_drafts_the_same() -> None:
    """As the drafter 'kangaroo' has it: its network on the native runner."""
    target = Watched(cpu())
    _, draft, _ = drafted(double_exit(target), target)  # type: ignore[arg-type]
    runner = target.run_network(adapter())
    from paceline.networks.runner import ContextUpdate

    rows = np.zeros((6, 0), dtype=np.float32)
    [chain] = runner.draft([ContextUpdate(runner.open(), rows, [5, 6, 7, 8, 1, 2], None)], 4)
    assert list(chain.tokens[:4]) == draft.tokens.tolist()


# SWIFT:


def test_without_a_skipped_layer_every_draft_is_accepted() -> None:
    target = cpu()
    for params in PARAMS.values():
        _, done = texts(target, Swift(target, 4, skip=0.0, stop=0.0), params)
        assert all(each.stats.accepted_tokens == each.stats.drafted_tokens for each in done)


def test_first_and_last_layer_stay() -> None:
    made = Swift(cpu(), 4, skip=1.0)
    assert made._layers(Generation.start(0, [1], PARAMS["greedy"])) == tuple(
        (index, half) for index in (0, 3) for half in ("attention", "feed-forward")
    )
    even = Swift(cpu(), 4, skip=0.5)._layers(Generation.start(0, [1], PARAMS["greedy"]))
    assert {index for index, _ in even} == {0, 1, 3}  # type: ignore[misc]


def test_runner_ups_stand_beside_each_token_of_the_chain() -> None:
    target = cpu()
    sequence = Generation.start(0, list(range(3, 30)), PARAMS["greedy"])
    sequence.cache = target.open()
    target.prefill(sequence.cache, sequence.tokens[:-1])
    alone = Swift(target, 4, stop=0.0, trials=0)
    several = Swift(target, 4, stop=0.0, trials=0, runners=2)
    [chain] = alone.propose([sequence], [Budget(9, 3)])
    [tree] = several.propose([sequence], [Budget(9, 3)])
    assert tree.tokens[:3].tolist() == chain.tokens.tolist()
    assert tree.parents.tolist()[:3] == [ROOT, 0, 1]
    assert sorted(tree.parents.tolist()[3:]) == [ROOT, ROOT, 0, 0, 1, 1]
    assert tree.scores is not None
    assert (np.diff(tree.scores[3:]) <= 0).all()
    # Naively, from the logits of the layers that draft.
    copy, path = target.fork(sequence.cache), [sequence.root, *chain.tokens.tolist()]
    layers = alone.layers_without(alone.search.best)
    for node, token in enumerate(path[:3]):
        [row] = target.forward([Rows.draft(copy, [token])], layers)
        target.keep(copy, 1, ())
        best = np.argsort(-row.logits[0], kind="stable")[:3].tolist()
        beside = tree.tokens[3:][tree.parents[3:] == node - 1].tolist()
        assert best == [path[node + 1], *beside]
    [short] = several.propose([sequence], [Budget(4, 3)])
    assert len(short) == 4
    [bare] = several.propose([sequence], [Budget(3, 3)])
    assert len(bare) == 3
    with pytest.raises(InvalidOption, match="runner-ups are not drawn"):
        Swift(target, 4, needs_q=True, runners=1)


def test_matchness_is_the_share_of_tokens_that_the_layers_would_have_drafted() -> None:
    """Token by token over the target's cache of what stands before the window."""
    target = cpu()
    drafter = Swift(target, 4, skip=0.25, window=12)
    sequence = Generation.start(0, list(range(3, 30)), PARAMS["greedy"])
    sequence.tokens += [4, 8, 15, 16, 23, 42]
    sequence.cache = target.open()
    target.prefill(sequence.cache, sequence.tokens[:-1])
    layers = drafter.layers_without(drafter.search.best)
    copy, begin = target.fork(sequence.cache), len(sequence.tokens) - 13
    target.truncate(copy, begin)
    argmax = []
    for token in sequence.tokens[begin:-1]:
        [row] = target.forward([Rows.draft(copy, [token])], layers)
        argmax.append(int(row.logits[0].argmax()))
        target.keep(copy, 1, ())
    sequence.tokens[-1] = argmax[-1]  # at least one is met
    before = cached(target, sequence.cache)
    score = drafter.matchness(sequence, drafter.search.best)
    hits = sum(a == b for a, b in zip(argmax, sequence.tokens[begin + 1 :], strict=True))
    assert score == pytest.approx(hits / 12)
    assert score > 0
    assert np.array_equal(cached(target, sequence.cache), before)


def test_the_search_takes_the_best_mask_and_ends() -> None:
    wanted = np.zeros(12, dtype=bool)
    wanted[[1, 4, 6, 9]] = True

    def run(every: int, seed: int) -> MaskSearch:
        first = np.zeros(12, dtype=bool)
        first[:4] = True
        search = MaskSearch(first, seed=seed, every=every, enough=1.0, limit=60)
        best = -1.0
        while not search.done:
            mask = search.propose()
            assert mask.sum() == 4
            score = float((mask & wanted).sum() / 4)
            assert search.observe(mask, score) == (score > best)
            best = max(best, score)
            assert search.score == best
        return search

    guided = [run(2, seed) for seed in range(8)]
    random = [run(10**6, seed) for seed in range(8)]
    assert all(each.score == 1 for each in guided)
    assert sum(each.trials for each in guided) < sum(each.trials for each in random)
    idle = MaskSearch(wanted, patience=3)
    for _ in range(4):
        idle.observe(wanted, 0.5)
    assert idle.done
    assert MaskSearch(np.zeros(3, dtype=bool)).done


def test_the_process_meets_what_it_has_seen() -> None:
    known = np.eye(4)
    mean, deviation = posterior(
        known, np.array([0.1, 0.9, 0.3, 0.5]), np.vstack([known, [[1] * 4]])
    )
    np.testing.assert_allclose(mean[:4], [0.1, 0.9, 0.3, 0.5], atol=0.02)
    assert deviation[:4].max() < deviation[4]


# DEL:


def test_tokens_per_layer_is_the_expectation() -> None:
    """Brute force over which drafted tokens are right."""
    chance, exits = np.array([0.0, 0.3, 0.9, 1.0]), np.array([2.0, 4.0, 8.0, 10.0])
    table = tokens_per_layer(chance, exits, 12, 3)
    for exit, a in enumerate(chance):
        for length in range(4):
            tokens = 0.0
            for outcome in range(2**length):
                right = [bool(outcome >> bit & 1) for bit in range(length)]
                prefix = right.index(False) if False in right else length
                tokens += np.prod([a if each else 1 - a for each in right]) * (1 + prefix)
            assert table[exit, length] == pytest.approx(tokens / (length * exits[exit] + 12))


def test_shadow_tokens_are_what_the_exits_would_have_drafted() -> None:
    """From states on the way of one verification, against forwards of the first layers alone."""
    target = cpu()
    drafter = DynamicExit(target, 4, spacing=1, every=1)
    decoder = AutoregressiveDecoder(target, drafter, Coupled(), Fixed(3, 3), StopRules((), 160))
    sequence = Generation.start(0, [5, 6, 7, 8], PARAMS["greedy"])
    decoder.open(sequence)
    expected = Shadows(np.zeros((2, 3)), np.zeros((2, 3)))
    for _ in range(12):
        begin = len(sequence.tokens)
        decoder.step([sequence])
        for at in range(begin, len(sequence.tokens)):
            right, chances = [], []
            for exit in drafter.exits:
                copy = target.fork(sequence.cache)
                target.truncate(copy, at - 1)
                rows = Rows.draft(copy, [sequence.tokens[at - 1]])
                [found] = target.forward([rows], range(exit))
                right.append(int(found.logits[0].argmax()) == sequence.tokens[at])
                chances.append(top_probability(found.logits[0]))
                target.release(copy)
            expected.add(right, chances, 0.95)
    seen = drafter._shadows[0]
    np.testing.assert_allclose(seen.counts, expected.counts)
    np.testing.assert_allclose(seen.confidence, expected.confidence, rtol=1e-5)
    assert seen.counts.sum() > 0


def test_the_choice_follows_the_shadow_tokens() -> None:
    drafter = DynamicExit(cpu(), 4, spacing=1)
    sequence = Generation.start(0, [1], PARAMS["greedy"])
    drafter.open(sequence)
    assert drafter._limit(sequence, 4) == 0  # nothing known: nothing drafted
    drafter._shadows[0].counts[:] = [[9, 1, 1], [1, 99, 99]]
    assert drafter._limit(sequence, 4) == 4
    assert drafter._exit(sequence) == 2  # the first of two that are as good
    drafter._shadows[0].counts[:] = [[9, 9, 9], [1, 1, 1]]
    assert drafter._limit(sequence, 4) == 0
    drafter._shadows[0].confidence[:] = [[2.7, 1.8, 0], [0.9, 0.8, 1]]
    drafter._chosen[0] = 0, 1
    chain = GrowingChain(sequence, 1, 0)
    assert drafter._stops(chain, 0.59)
    assert not drafter._stops(chain, 0.61)


# Errors:


def test_what_is_wrong_is_named() -> None:
    bare = drafter_context(TabularTarget(WHOLE.logits, 2))
    for name in ("swift", "del", "double-exit"):
        with pytest.raises(RuntimeUnavailable, match="runtime 'tabular' cannot"):
            registry.find("drafter", name).load().create(bare)
    with pytest.raises(InvalidOption, match="has no option 'depth'"):
        Swift.create(replace(bare, options={"depth": "3"}))
    with pytest.raises(InvalidOption, match="skip must be from 0 to 1"):
        Swift(cpu(), 4, skip=1.5)
    with pytest.raises(InvalidOption, match="spacing must be from 1 to 3"):
        DynamicExit(cpu(), 4, spacing=4)
    with pytest.raises(InvalidOption, match="stop must be from 0 to 1"):
        double_exit(cpu(), stop=2)
