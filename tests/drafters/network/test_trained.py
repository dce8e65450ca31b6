"""Trained drafters from a file to the text: never another text, and no file that is not theirs."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file
from tests.helpers import tiny_model as tiny
from tests.helpers.drafter_context import context as drafter_context
from tests.runtimes import tiny_cpu

from paceline.core import tree as trees
from paceline.core.target import LEAVING, whole
from paceline.core.types import Budget, Capabilities, SamplingParams
from paceline.drafters.base import Drafter, DrafterContext, NoDrafter
from paceline.drafters.network import weights as module
from paceline.drafters.network.drafter import TrainedDrafter, chains
from paceline.engine.loop import AutoregressiveDecoder
from paceline.engine.stopping import StopRules
from paceline.errors import InvalidOption, RuntimeUnavailable
from paceline.methods.gad.block import Gad
from paceline.methods.gad.ctc import RowsCTC
from paceline.methods.layers.imitation import Imitation
from paceline.methods.networks.draft_lm import DraftLM
from paceline.methods.networks.hidden_transfer import HiddenTransfer
from paceline.methods.networks.kangaroo import Kangaroo
from paceline.methods.networks.s2d import S2D
from paceline.methods.paraformer.drafter import Paraformer
from paceline.networks.base import Network, describe, drafter_config
from paceline.networks.catalogue import build, find, names
from paceline.networks.published.wirings import ALONE
from paceline.networks.runner import Chain, ContextUpdate
from paceline.networks.weights import Trained, load_network, save_network
from paceline.policy.acceptance import PlattScaling
from paceline.policy.controller import Fixed
from paceline.registry import table as registry
from paceline.runtimes.cpu.target import CpuTarget
from paceline.runtimes.reference.target import ReferenceTarget
from paceline.sampling.generation import Generation
from paceline.verifiers.matching import Coupled

CONFIG = tiny_cpu.config(layers=3)
TENSORS = tiny.named_tensors(CONFIG)
SHAPE = drafter_config(CONFIG)
MODEL = "fingerprint"
DRAFTERS: dict[str, type[TrainedDrafter]] = {
    method.name: method.load()
    for method in registry.methods()
    if method.kind == "drafter" and issubclass(method.load(), TrainedDrafter)
    # tests/networks has those that files bring, tests/methods/gad those that hear.
    if method.name not in ("mtp", Gad.name, *ALONE)
}
# Networks that lead into the target's own further layers, or become a model, have tests elsewhere.
ELSEWHERE = [each.name for each in (Imitation, S2D, HiddenTransfer, Gad, RowsCTC, Paraformer)]
ALONE = [name for name in names() if name not in ELSEWHERE]
PROMPTS = ([5, 9, 17, 3], [7], [11, 30, 30, 4, 250, 2, 8], [40, 41] * 25)
GREEDY = SamplingParams(max_new_tokens=6)
SAMPLED = SamplingParams(max_new_tokens=6, temperature=1.0, seed=3)


def on_torch() -> Any:
    torch = pytest.importorskip("paceline.runtimes.torch.target")
    return torch.TorchTarget(CONFIG, TENSORS, "cpu", "fp32")


TARGETS: dict[str, Callable[[], Any]] = {
    "cpu": cache(lambda: tiny_cpu.target("fp32", CONFIG)),
    "torch": cache(on_torch),
}
every_runtime = pytest.mark.parametrize("runtime", TARGETS)


def random_weights(network: Network, seed: int = 0) -> Trained:
    """Half of the vocabulary can be drafted."""
    rng = np.random.default_rng(seed)
    parameters = {
        name: rng.normal(1.0 if len(shape) == 1 else 0.0, 0.1, shape).astype(np.float32)
        for name, shape in network.shapes().items()
    }
    ids = np.arange(0, CONFIG.vocab_size, 2)
    return Trained(network, parameters, ids, {"model": MODEL, "model_name": "tiny"})


def saved(path: Path, trained: Trained) -> Path:
    save_network(path, trained)
    return path


def context(target: Any, **options: str) -> DrafterContext:
    return drafter_context(target, model=MODEL, options=options)


def generate(
    target: Any, drafter: Drafter, params: SamplingParams, depth: int = 2
) -> list[Generation]:
    """All prompts in one batch; a new one joins when the first ends."""
    stops = StopRules((), CONFIG.max_context)
    decoder = AutoregressiveDecoder(target, drafter, Coupled(), Fixed(depth, depth), stops)
    sequences = [Generation.start(i, prompt, params) for i, prompt in enumerate(PROMPTS)]
    *active, last = sequences
    waiting = [last]
    for sequence in active:
        decoder.open(sequence)
    while active:
        decoder.step(active)
        for ended in [each for each in active if each.finish_reason]:
            decoder.close(ended)
            active.remove(ended)
            while waiting:
                active.append(waiting.pop())
                decoder.open(active[-1])
    return sequences


@cache
def plain(runtime: str) -> list[list[list[int]]]:
    """Greedy texts and sampled ones, without a drafter."""
    target = TARGETS[runtime]()
    both = [generate(target, NoDrafter(), params) for params in (GREEDY, SAMPLED)]
    return [[each.tokens for each in sequences] for sequences in both]


def small(name: str) -> Network:
    steps = "steps" in build(name, SHAPE, {}).settings()
    return build(name, SHAPE, {"steps": 2} if steps else {})


def test_every_network_has_a_drafter() -> None:
    assert set(DRAFTERS) == set(ALONE)
    for name, drafter in DRAFTERS.items():
        assert drafter.needs.features == find(name).reads_features


@every_runtime
@pytest.mark.parametrize("name", ALONE)
def test_texts_are_those_of_plain_decoding(name: str, runtime: str, tmp_path: Path) -> None:
    target = TARGETS[runtime]()
    path = saved(tmp_path / "weights", random_weights(small(name)))
    drafter = DRAFTERS[name].create(context(target, weights=str(path), stop="0"))
    for params, expected in zip((GREEDY, SAMPLED), plain(runtime), strict=True):
        found = generate(target, drafter, params)
        assert [each.tokens for each in found] == expected
        assert sum(each.stats.drafted_tokens for each in found) > 0


@cache
def endless() -> tuple[Any, list[int]]:
    """A target whose texts lose tokens, and one of them without drafts."""
    target = tiny_cpu.target("fp32", replace(CONFIG, max_context=700))
    return target, answer(target, NoDrafter()).tokens


def answer(target: Any, drafter: Drafter) -> Generation:
    decoder = AutoregressiveDecoder(target, drafter, Coupled(), Fixed(2, 2), StopRules((), 700))
    prompt = np.random.default_rng(2).integers(3, CONFIG.vocab_size, whole(LEAVING) - 12).tolist()
    sequence = Generation.start(0, prompt, replace(GREEDY, max_new_tokens=40))
    sequence.window = LEAVING
    decoder.open(sequence)
    while not sequence.finish_reason:
        decoder.step([sequence])
    assert sequence.cache.gone == LEAVING
    decoder.close(sequence)
    return sequence


@pytest.mark.parametrize("name", ALONE)
def test_networks_draft_no_more_for_texts_that_lose_tokens(name: str, tmp_path: Path) -> None:
    """They would read what has left, or go beyond the positions that they have."""
    target, expected = endless()
    path = saved(tmp_path / "weights", random_weights(small(name)))
    found = answer(target, DRAFTERS[name].create(context(target, weights=str(path), stop="0")))
    assert found.tokens == expected
    assert 0 < found.stats.drafted_tokens <= 2 * 13


def copies() -> dict[str, Trained]:
    """Networks that compute what the target computes: right in all that they draft."""
    layers = {}
    for layer in range(CONFIG.layers):
        theirs = f"layers.{layer}"
        layers |= {
            f"layer.{layer}.norm": TENSORS[f"{theirs}.attention_norm"],
            f"layer.{layer}.qkv": np.concatenate([TENSORS[f"{theirs}.{each}"] for each in "qkv"]),
            f"layer.{layer}.o.residual": TENSORS[f"{theirs}.o"],
            f"layer.{layer}.ffn_norm": TENSORS[f"{theirs}.ffn_norm"],
            f"layer.{layer}.gate_up": np.concatenate(
                [TENSORS[f"{theirs}.{each}"] for each in ("gate", "up")]
            ),
            f"layer.{layer}.down.residual": TENSORS[f"{theirs}.down"],
        }
    norm = {"norm": TENSORS["norm"]}
    kangaroo = random_weights(Kangaroo(SHAPE, exit=CONFIG.layers)).parameters
    nothing = {"adapter.o.residual": np.zeros_like(kangaroo["adapter.o.residual"])}
    every = np.arange(CONFIG.vocab_size)
    return {
        "draft-lm": Trained(DraftLM(SHAPE, layers=CONFIG.layers), layers | norm, every, {}),
        "kangaroo": Trained(
            Kangaroo(SHAPE, exit=CONFIG.layers), {**kangaroo, **nothing, **norm}, every, {}
        ),
    }


@every_runtime
@pytest.mark.parametrize("name", ["draft-lm", "kangaroo"])
def test_a_network_that_equals_its_target_is_always_right(name: str, runtime: str) -> None:
    """Every row is in its place: the first token, the prompt, what was accepted, what was not."""
    target = TARGETS[runtime]()
    drafter = DRAFTERS[name](target.run_network(copies()[name]), stop=0)
    for sequence in generate(target, drafter, replace(GREEDY, max_new_tokens=16), depth=4):
        stats = sequence.stats
        assert stats.accepted_tokens == stats.drafted_tokens > 10


@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_compressed_layers_are_borrowed_as_they_are(precision: str) -> None:
    """Or the copy would not be right so often."""
    target = tiny_cpu.target(precision, CONFIG)
    drafter = DRAFTERS["kangaroo"](target.run_network(copies()["kangaroo"]), stop=0)
    found = generate(target, drafter, GREEDY)
    expected = [each.tokens for each in generate(target, NoDrafter(), GREEDY)]
    if target.capabilities.bit_exact:
        assert [each.tokens for each in found] == expected
    drafted = sum(each.stats.drafted_tokens for each in found)
    assert sum(each.stats.accepted_tokens for each in found) > 0.7 * drafted


def int8_targets() -> tuple[Any, Any]:
    """The reference, and the kernels."""
    weights = tiny_cpu.weights(CONFIG)
    return ReferenceTarget(CONFIG, weights, "int8"), CpuTarget(
        CONFIG, weights, "int8", kv_tokens=2048
    )


@pytest.mark.parametrize("name", ALONE)
def test_the_reference_drafts_what_the_kernels_draft(name: str) -> None:
    """To the last bit: a tree, and the tokens of a chain; a lent cache is the target's own."""
    trained, text = random_weights(small(name)), [5, 9, 60, 9, 3, 22, 41, 7]
    logits, drafted = [], []
    for target in int8_targets():
        runner, cache = target.run_network(trained), target.open()
        features, behind = target.prefill(cache, text, True), [*text[1:], 11]
        if not trained.network.reads_features:
            behind = [*text, 11]
            features = np.zeros((len(behind), 0), np.float32)
        elif trained.network.more:  # no picture
            features = np.pad(features, ((0, 0), (0, trained.network.more)))
        updates = [ContextUpdate(runner.open(), features, behind, cache) for _ in range(2)]
        tree = runner.start(updates[:1])
        if trained.network.steps > 1:
            tree += runner.advance([(tree[0], [4] * trained.network.width)])
        logits.append(np.concatenate([branch.logits for branch in tree]))
        [chain] = runner.draft(updates[1:], runner.depth)
        drafted.append((chain.tokens, chain.runner_ups))
    np.testing.assert_array_equal(*logits)
    assert drafted[0] == drafted[1]


def test_texts_of_the_reference_are_those_of_the_kernels(tmp_path: Path) -> None:
    """Draft by draft."""
    path, found = saved(tmp_path / "weights", random_weights(small("eagle3"))), []
    for target in int8_targets():
        drafter = DRAFTERS["eagle3"].create(context(target, weights=str(path), stop="0"))
        ended = generate(target, drafter, replace(GREEDY, max_new_tokens=6))
        counts = [(each.stats.drafted_tokens, each.stats.accepted_tokens) for each in ended]
        found.append(([each.tokens for each in ended], counts))
    assert found[0] == found[1]
    assert all(drafted > 0 for drafted, _ in found[0][1])


def test_the_first_token_matters_to_that() -> None:
    """Negative control: without its row, a copy of the target is wrong now and then."""

    class Forgetful(DRAFTERS["draft-lm"]):  # type: ignore[misc]
        def open(self, sequence: Generation) -> None:
            super().open(replace(sequence, tokens=sequence.tokens[1:]))

    target = TARGETS["torch"]()
    drafter = Forgetful(target.run_network(copies()["draft-lm"]))
    found = generate(target, drafter, replace(GREEDY, max_new_tokens=16), depth=4)
    drafted = sum(each.stats.drafted_tokens for each in found)
    assert sum(each.stats.accepted_tokens for each in found) < drafted


@pytest.mark.parametrize(("stop", "tokens"), [(0.0, 4), (0.5, 3), (0.05, 4), (0.2, 3), (0.99, 1)])
def test_a_chain_ends_with_the_token_that_is_not_likely_enough(stop: float, tokens: int) -> None:
    class Fake:
        depth = 5

        def open(self) -> None: ...

        def draft(self, grown: Any, depth: int) -> list[Chain]:
            return [chain_of([0.9, 0.5, 0.1, 0.02][:depth])]

    target_free: Any = Fake()
    drafter = DRAFTERS["draft-lm"](target_free, stop=stop)
    sequence = Generation.start(0, [1, 2, 3], GREEDY)
    drafter.open(sequence)
    (draft,) = drafter.propose([sequence], [Budget(9, 9)])
    assert draft.tokens.tolist() == list(range(tokens))
    assert draft.scores is not None
    stand = PlattScaling().acceptance([0.9, 0.5, 0.1, 0.02])
    np.testing.assert_allclose(draft.scores, np.cumprod(stand)[:tokens])


def chain_of(chances: list[float], runner_ups: list[float] | None = None) -> Chain:
    """Tokens 0, 1, 2, ... and beside them 10, 11, 12, ..."""
    count = len(chances)
    beside = [0.0] * count if runner_ups is None else runner_ups
    return Chain(list(range(count)), chances, list(range(10, 10 + count)), beside)


@pytest.mark.parametrize(
    ("budget", "stop", "leaves"),
    [
        (Budget(9, 9), 0.0, [10, 11, 12, 13]),
        (Budget(9, 9), 0.45, [10, 11, 12]),  # none beside a token that is not drafted
        (Budget(6, 9), 0.0, [11, 12]),  # room for the most likely: 0.9 * 0.4 and 0.9 * 0.5 * 0.6
        (Budget(5, 9), 0.0, [11]),
        (Budget(4, 9), 0.0, []),
        (Budget(9, 2), 0.0, [10, 11]),
    ],
)
def test_room_that_a_chain_leaves_is_for_its_runner_ups(
    budget: Budget, stop: float, leaves: list[int]
) -> None:
    chances, runner_ups = [0.9, 0.5, 0.4, 0.2], [0.05, 0.4, 0.6, 0.1]
    line = PlattScaling()  # as they say
    given = [chain_of(chances, runner_ups)], [budget], [line]
    ((draft, chain),) = chains(*given, source="name", stop=stop)
    assert chain.chances == chances
    assert draft.source == "name"
    long = min(budget.depth, 4 if stop < 0.2 else 3)
    assert draft.tokens.tolist() == [*range(long), *leaves]
    assert draft.parents.tolist() == [*range(-1, long - 1), *(leaf - 11 for leaf in leaves)]
    assert draft.scores is not None
    path = np.cumprod(chances)
    above = [1.0, *path]
    beside = [above[leaf - 10] * runner_ups[leaf - 10] for leaf in leaves]
    np.testing.assert_allclose(draft.scores, [*path[:long], *beside])
    ((bare, _),) = chains(*given, source="name", stop=stop, runner_ups=False)
    assert trees.is_chain(bare)
    assert len(bare) == long


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_a_rival_that_is_right_is_accepted(params: SamplingParams) -> None:
    """A drafter that is always wrong in first place and right in second: leaves stand, the text
    stays."""
    target = tiny_cpu.target("fp32", CONFIG)

    def text(drafter: Drafter, *sizes: int) -> Generation:
        sequence = Generation.start(0, list(PROMPTS[0]), params)
        stops = StopRules((), CONFIG.max_context)
        decoder = AutoregressiveDecoder(target, drafter, Coupled(), Fixed(*sizes), stops)
        decoder.open(sequence)
        while sequence.finish_reason is None:
            decoder.step([sequence])
        decoder.close(sequence)
        return sequence

    plain = text(NoDrafter(), 0, 0).tokens

    class Second:
        depth, read = 1, 0

        def open(self) -> None: ...

        def release(self, cache: None) -> None: ...

        def draft(self, grown: Any, depth: int) -> list[Chain]:
            self.read += len(grown[0].tokens)
            right = plain[self.read]
            return [Chain([(right + 1) % CONFIG.vocab_size], [0.6], [right], [0.3])]

    def drafted(**options: bool) -> Generation:
        runner: Any = Second()
        return text(DRAFTERS["draft-lm"](runner, **options), 2, 1)  # type: ignore[arg-type]

    found = drafted()
    assert found.tokens == plain
    assert found.stats.accepted_tokens == params.max_new_tokens // 2
    bare = drafted(runner_ups=False)
    assert bare.tokens == plain
    assert bare.stats.accepted_tokens == 0


CAPABILITIES = Capabilities(
    runtime="some",
    device="cpu",
    precision="fp32",
    vocab_size=CONFIG.vocab_size,
    max_context=256,
    hidden_size=CONFIG.hidden_size,
    hidden_states=True,
    bit_exact=True,
    feature_layers=(0, 1, 2),
    networks=True,
)


class Bare:
    """A target that is never run."""

    def __init__(self, **changes: Any) -> None:
        self.capabilities = replace(CAPABILITIES, **changes)

    def run_network(self, trained: Trained) -> Any:
        raise AssertionError("these weights should have been refused")


def refused(name: str, message: str, target: Any = None, **options: str) -> None:
    """One line that names what is wrong."""
    with pytest.raises((InvalidOption, RuntimeUnavailable), match=message) as caught:
        DRAFTERS[name].create(context(target or Bare(), **options))
    assert "\n" not in str(caught.value)


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    return saved(tmp_path / "weights", random_weights(build("hydra", SHAPE, {})))


def changed(path: Path, **entries: Any) -> Path:
    """The same tensors with other entries in the description of the network."""
    with safe_open(path, "np") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        metadata = file.metadata()
    metadata["network"] = json.dumps({**json.loads(metadata["network"]), **entries})
    save_file(tensors, path, metadata)
    return path


def test_weights_of_others_are_refused(weights: Path, tmp_path: Path) -> None:
    refused(
        "hydra", "there is no file .*gone: name trained weights", weights=str(tmp_path / "gone")
    )
    refused("medusa", "holds network 'hydra': use --drafter hydra:", weights=str(weights))
    other = replace(random_weights(build("hydra", SHAPE, {})), metadata={"model": "another"})
    refused("hydra", "for another model", weights=str(saved(tmp_path / "other", other)))
    anonymous = replace(other, metadata={})
    refused("hydra", "for another model", weights=str(saved(tmp_path / "anonymous", anonymous)))
    refused("hydra", "for another model", Bare(vocab_size=99), weights=str(weights))
    refused("hydra", "for another model", Bare(hidden_size=99), weights=str(weights))


@pytest.mark.parametrize("size", [0, 5, 200, -40, -1])
def test_truncated_files_are_refused(weights: Path, size: int) -> None:
    weights.write_bytes(weights.read_bytes()[:size])
    refused("hydra", "holds no drafter network, or is damaged", weights=str(weights))


def test_foreign_files_are_refused(weights: Path, tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (tmp_path / "ran",)

    message = "holds no drafter network, or is damaged"
    pickled = tmp_path / "pickle"
    pickled.write_bytes(pickle.dumps({"state": Bomb()}))
    refused("hydra", message, weights=str(pickled))
    assert not (tmp_path / "ran").exists()
    foreign = tmp_path / "foreign"
    save_file({"lm_head.weight": np.zeros((4, 4), np.float32)}, foreign, {"format": "pt"})
    refused("hydra", message, weights=str(foreign))
    save_file({"lm_head.weight": np.zeros((4, 4), np.float32)}, foreign)
    refused("hydra", message, weights=str(foreign))
    refused("hydra", message, weights=str(tmp_path))


@pytest.mark.parametrize(
    "entries",
    [
        {"network": "hydar"},
        {"settings": {"steps": 10**9}},
        {"settings": [1]},
        {"settings": {"steps": None}},
        {"geometry": {"width": 64}},
        {"geometry": "wide"},
    ],
)
def test_tampered_descriptions_are_refused(weights: Path, entries: dict[str, Any]) -> None:
    refused("hydra", "network|must be", weights=str(changed(weights, **entries)))


@pytest.mark.parametrize("field", ["width", "heads", "vocab_size", "norm_eps"])
def test_tampered_geometries_are_refused(weights: Path, field: str) -> None:
    geometry = describe(build("hydra", CONFIG, {}))["geometry"]
    for value in ("wide", None, -1, float("nan")):
        path = changed(weights, geometry={**geometry, field: value})
        refused("hydra", f"{field} of a geometry must be a positive number", weights=str(path))


def test_tampered_numbers_are_refused(weights: Path) -> None:
    trained = load_network(weights)
    broken = {**trained.parameters, "norm": np.full(SHAPE.hidden_size, np.nan, np.float32)}
    refused_after = replace(trained, parameters=broken)
    refused("hydra", "impossible numbers", weights=str(saved(weights, refused_after)))
    beyond = replace(trained, draft_ids=np.array([1, CONFIG.vocab_size]))
    refused("hydra", "impossible numbers", weights=str(saved(weights, beyond)))
    unordered = replace(trained, draft_ids=np.array([4, 1]))
    refused("hydra", "draft ids out of order", weights=str(saved(weights, unordered)))


def test_other_bad_options_are_named(weights: Path) -> None:
    class Runs(Bare):
        def run_network(self, trained: Trained) -> Any:
            return None

    refused("hydra", "has no option 'wights': use weights, growth, stop", wights="x")
    options = {"weights": str(weights), "stop": "soon"}
    refused("hydra", "option stop of drafter 'hydra' must be a number", Runs(), **options)
    refused("hydra", "stop must be 0 or more", Runs(), **{**options, "stop": "1"})
    options = {"weights": str(weights), "runner_ups": "some"}
    refused(
        "hydra", "option runner_ups of drafter 'hydra' must be true or false", Runs(), **options
    )
    options = {**options, "growth": "static", "runner_ups": "true"}
    refused("hydra", "option runner_ups is for chains of most likely tokens", Runs(), **options)
    refused("hydra", "runtime 'some' gives no hidden", Bare(feature_layers=()))
    for name in ("hydra", "draft-lm"):
        refused(name, "runtime 'some' runs none: use --runtime", Bare(networks=False))
    refused("draft-lm", "no weights ship for drafter 'draft-lm'", Bare(feature_layers=()))


def test_weights_that_ship_are_found_by_their_model(
    weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights.rename(weights.with_name("hydra-tiny.safetensors"))
    monkeypatch.setattr("paceline.weights.folders", lambda: (weights.parent,))
    assert module.shipped("hydra", MODEL).name == "hydra-tiny.safetensors"
    with pytest.raises(InvalidOption, match="no weights ship for drafter 'hydra'"):
        module.shipped("hydra", "another")
