"""Blocks of rows and some of the layers, on every runtime that has them: as on the reference."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.helpers.target_contract import all_rows
from tests.models.test_families import original

torch = pytest.importorskip("torch")

from paceline.core import tree as trees  # noqa: E402
from paceline.core.target import NO_LOGITS, Rows  # noqa: E402
from paceline.errors import InvalidOption  # noqa: E402
from paceline.models.source import DirectorySource  # noqa: E402
from paceline.runtimes.cpu.target import CpuTarget  # noqa: E402
from paceline.runtimes.reference.target import ReferenceTarget  # noqa: E402
from paceline.runtimes.torch.target import TorchTarget  # noqa: E402

PROMPT = [3, 17, 5, 80, 41, 9, 2, 66, 31]
ROWS = 6
# Windows of two kinds, no positions in some layers, scales of all kinds, partial rotation.
FAMILIES = ("llama", "gemma3", "smollm3", "granite", "phi3-long")
RUNTIMES = ("cpu", "torch", "reference")


@pytest.fixture(scope="module", params=FAMILIES)
def source(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    path: Path = tmp_path_factory.mktemp(request.param)
    original(request.param, path)
    return DirectorySource(path)


def target(runtime: str, source: Any, config: Any = None, weights: Any = None) -> Any:
    config, weights = config or source.config, weights or source.weights()
    if runtime == "torch":
        return TorchTarget(config, weights, precision="fp32")
    if runtime == "reference":
        return ReferenceTarget(config, weights, "fp32")
    return CpuTarget(config, weights, "fp32", kv_tokens=256, kv_precision="fp32")


def opened(made: Any) -> Any:
    cache = made.open()
    made.prefill(cache, PROMPT)
    return cache


def block_of(kind: str, cache: Any, source: Any) -> Rows:
    """Rows that no chain or tree has."""
    rng = np.random.default_rng(5)
    tokens, past = rng.integers(96, size=ROWS), len(PROMPT)
    places = past + np.arange(ROWS)
    both_ways = np.ones((ROWS, ROWS), dtype=bool)
    if kind == "both-ways":
        return Rows.block(cache, tokens, places, both_ways)
    if kind == "another-order":
        order = rng.permutation(ROWS)
        return Rows.block(cache, tokens, places[order], order[:, None] >= order[None])
    if kind == "repeated-positions":
        return Rows.block(cache, tokens, past + np.arange(ROWS) // 2, np.tri(ROWS, dtype=bool))
    if kind == "less-of-the-cache":
        return Rows.block(cache, tokens, places, both_ways, cached=np.array([9, 4, 0, 1, 8, 9]))
    if kind == "holes-in-the-cache":
        keys = np.array([rng.permutation(past) for _ in range(ROWS)])
        keys[keys == np.arange(ROWS)[:, None]] = -1
        keys[2] = -1
        return Rows.block(cache, tokens, places, both_ways, cached=keys)
    inputs = rng.standard_normal((ROWS, source.config.hidden_size)).astype(np.float32)
    return Rows.block(cache, tokens, places, both_ways, inputs=inputs)


KINDS = (
    "both-ways",
    "another-order",
    "repeated-positions",
    "less-of-the-cache",
    "holes-in-the-cache",
    "embeddings",
)


def same(runtime: str, found: Any, expected: Any) -> bool:
    """Bit for bit where that is promised."""
    return np.array_equal(found, expected) or (runtime == "torch" and close(found, expected))


def close(found: Any, expected: Any) -> bool:
    return bool(np.abs(found - expected).max() < 1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("runtime", RUNTIMES[:2])
@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_a_block_are_those_of_the_reference(source: Any, runtime: str, kind: str) -> None:
    made, reference = target(runtime, source), target("reference", source)
    cache, plain = opened(made), opened(reference)
    every = range(source.config.layers)
    [expected] = reference.forward([block_of(kind, plain, source)], every)
    [found] = made.forward([block_of(kind, cache, source)], every)
    assert same(runtime, found.logits, expected.logits)
    assert same(runtime, found.state, expected.state)
    # Negative control: rows that see another thing.
    other = block_of(kind, cache, source)
    sees = other.sees.copy()
    sees[-1, :-1] = ~sees[-1, :-1]
    [wrong] = made.forward([replace(other, sees=sees)])
    assert not close(wrong.logits[-1], expected.logits[-1])
    # Any rows stay, and what follows sees them.
    made.forward([block_of(kind, cache, source)])
    made.keep(cache, 0, [4, 1])
    reference.keep(plain, 0, [4, 1])
    assert cache.length == plain.length == len(PROMPT) + 2
    [expected] = reference.forward([all_rows(plain, [7])])
    [after] = made.forward([Rows.draft(cache, [7])])
    assert same(runtime, after.logits, expected.logits)


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_block_in_company_is_the_block_alone(source: Any, runtime: str) -> None:
    made = target(runtime, source)
    caches = [opened(made) for _ in KINDS[:5]]
    blocks = [block_of(kind, each, source) for kind, each in zip(KINDS, caches, strict=False)]
    together = [each.logits.copy() for each in made.forward(blocks)]
    for block, found in zip(blocks, together, strict=True):
        [alone] = made.forward([block])
        assert np.array_equal(alone.logits, found) or (
            runtime == "torch" and close(found, alone.logits)
        )


@pytest.mark.parametrize("runtime", RUNTIMES)
@pytest.mark.parametrize("layers", [(0, 1), (0, 2, 3), (2, 0), ()])
def test_some_layers_are_the_model_built_with_those(
    source: Any, runtime: str, layers: tuple[int, ...]
) -> None:
    """Its own windows and layers without positions included; a chain, and a forward of the copy."""
    made, config = target(runtime, source), source.config
    found = made.forward([all_rows(made.open(), PROMPT)], layers)[0].logits
    plain = target("reference", source)
    [expected] = plain.forward([all_rows(plain.open(), PROMPT)], layers)
    assert same(runtime, found, expected.logits)
    if layers not in ((0, 1), (0, 2, 3)):
        return
    windows = tuple(config.windows[each] for each in layers) if config.windows else ()
    bare = tuple(at for at, each in enumerate(layers) if each in config.no_positions)
    less = replace(config, layers=len(layers), windows=windows, no_positions=bare)
    other = target(runtime, source, less, Renumbered(source.weights(), layers))
    cache = other.open()
    [built] = other.forward([all_rows(cache, PROMPT)])
    assert np.array_equal(built.logits, found) or (
        runtime == "torch" and close(found, built.logits)
    )
    [last] = other.forward([Rows.draft(cache, PROMPT)])
    assert close(last.logits[0], found[-1])


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_halves_of_a_layer_are_the_layer(source: Any, runtime: str) -> None:
    made, rows = target(runtime, source), range(source.config.layers)
    block = all_rows(opened(made), [7, 8, 9])
    both = [(index, half) for index in rows for half in ("attention", "feed-forward")]
    [whole] = made.forward([block])
    expected = whole.logits.copy()
    [found] = made.forward([block], both)
    assert same(runtime, found.logits, expected)
    # One half less, as on the reference, and not the whole.
    less = [each for each in both if each != (1, "feed-forward")]
    plain = target("reference", source)
    [other] = plain.forward([all_rows(opened(plain), [7, 8, 9])], less)
    [found] = made.forward([block], less)
    assert same(runtime, found.logits, other.logits)
    assert not close(found.logits, expected)
    [bare] = made.forward([replace(block, wanted=NO_LOGITS)], less)
    assert bare.logits.shape == (0, source.config.vocab_size)
    assert bare.state.shape == (3, source.config.hidden_size)


class Renumbered:
    """Weights of a model with some of the layers."""

    def __init__(self, weights: Any, layers: tuple[int, ...]) -> None:
        self._weights, self._layers = weights, layers

    def _name(self, name: object) -> str:
        start, _, rest = str(name).partition(".")
        if start != "layers":
            return str(name)
        layer, _, part = rest.partition(".")
        return f"layers.{self._layers[int(layer)]}.{part}"

    def __contains__(self, name: object) -> bool:
        return self._name(name) in self._weights

    def __getitem__(self, name: str) -> Any:
        return self._weights[self._name(name)]

    def stored(self, name: str) -> Any:
        return self._weights.stored(self._name(name))


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_layers_go_on_from_a_state_on_the_same_cache(source: Any, runtime: str) -> None:
    """The first half, then the rest, then the next token: as one forward over all."""
    made = target(runtime, source)
    cache, whole = opened(made), opened(made)
    half, rest = range(2), range(2, source.config.layers)
    rows = all_rows(cache, [7, 8, 9])
    [early] = made.forward([rows], half)
    state = early.state.copy()
    [late] = made.forward([replace(rows, inputs=state)], rest)
    expected = made.forward([all_rows(whole, [7, 8, 9])])[0].logits.copy()
    [late] = made.forward([replace(rows, inputs=state)], rest)
    assert np.array_equal(late.logits, expected)
    assert not close(early.logits, expected)
    made.keep(cache, 3, ())
    made.forward([all_rows(whole, [7, 8, 9])])
    made.keep(whole, 3, ())
    a, b = (made.forward([Rows.draft(each, [5])])[0].logits.copy() for each in (cache, whole))
    assert np.array_equal(a, b)


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_rows_taken_back_leave_the_keys_of_their_layers(source: Any, runtime: str) -> None:
    """Row by row through the first half, all of them through the rest, and one dropped."""
    made = target(runtime, source)
    cache, whole = opened(made), opened(made)
    half, rest = range(2), range(2, source.config.layers)
    states = []
    for token in (7, 8, 9):
        [early] = made.forward([Rows.draft(cache, [token], wanted=NO_LOGITS)], half)
        states.append(early.state[0].copy())
        made.keep(cache, 1, ())
    made.truncate(cache, len(PROMPT), hold=True)
    assert cache.length == len(PROMPT)
    rows = Rows.draft(cache, [7], trees.chain([8, 9]), inputs=np.stack(states))
    [late] = made.forward([rows], rest)
    made.keep(cache, 1, [0])
    [expected] = made.forward([Rows.draft(whole, [7], trees.chain([8, 9]))])
    assert same(runtime, late.logits, expected.logits)
    made.keep(whole, 1, [0])
    assert cache.length == whole.length == len(PROMPT) + 2
    a, b = (made.forward([Rows.draft(each, [5])])[0].logits.copy() for each in (cache, whole))
    assert same(runtime, a, b)


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_wrong_layers_and_mixed_inputs_are_refused(source: Any, runtime: str) -> None:
    made = target(runtime, source)
    rows = all_rows(made.open(), PROMPT)
    with pytest.raises(InvalidOption, match="layer 9 is not one of"):
        made.forward([rows], [0, 9])
    given = np.zeros((len(PROMPT), source.config.hidden_size), np.float32)
    with pytest.raises(InvalidOption, match="some have none"):
        made.forward([rows, replace(rows, inputs=given)])
