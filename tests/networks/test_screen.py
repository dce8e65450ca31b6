"""Screens before an LM head: in files, and in chains that native programs draft."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tests.networks.cases import TINY
from tests.networks.runners import cpu_runner

from paceline.drafters.network.online import LearntFile
from paceline.errors import InvalidOption
from paceline.networks.catalogue import build
from paceline.networks.head_preview import SCREEN, HeadPreview
from paceline.networks.runner import Chain, ContextUpdate, Noise, Runner
from paceline.networks.weights import (
    Trained,
    load_network,
    read_card,
    read_metadata,
    save_network,
)

WIDE = replace(TINY, hidden_size=64, ffn_size=128, vocab_size=400)
IDS = np.arange(1, 400, 2)
"""Many more than are refined."""

TABLE = np.random.default_rng(5).standard_normal((400, 64)).astype(np.float32)
HEAD = TABLE[::-1][IDS]


def trained(name: str, head_preview: HeadPreview | None = None) -> Trained:
    network, rng = build(name, WIDE, {}), np.random.default_rng(3)
    weights = {
        each: rng.normal(len(shape) == 1, 0.2, shape).astype(np.float32)
        for each, shape in network.shapes().items()
    }
    return Trained(network, weights, IDS, {"model": "tiny"}, head_preview)


def whole(rank: int = 70) -> HeadPreview:
    """One that previews every logit as it is; its rank is no multiple of anything."""
    axes = np.linalg.qr(np.random.default_rng(0).standard_normal((rank, 64)))[0]
    return HeadPreview(axes.astype(np.float32), (HEAD @ axes.T).astype(np.float32))


def runner(of: Trained, precision: str = "fp32") -> Runner:
    return cpu_runner(of, {"embed": TABLE, "head": TABLE[::-1]}, precision)


def grown(made: Runner, rows: int, noise: Noise | None = None, seed: int = 0) -> ContextUpdate:
    rng = np.random.default_rng(seed)
    features = rng.standard_normal((rows, 4 * 64)).astype(np.float32)
    return ContextUpdate(made.open(), features, rng.integers(400, size=rows).tolist(), None, noise)


def drafts(made: Runner, noise: Noise | None = None) -> list[Chain]:
    return made.draft([grown(made, 1 + 3 * i, noise, i) for i in range(8)], made.depth)


@pytest.mark.parametrize("drawn", [False, True])
@pytest.mark.parametrize("name", ["hydra", "eagle", "medusa", "falcon", "ctc", "block-parallel"])
def test_a_screen_of_full_rank_changes_no_chain(name: str, drawn: bool) -> None:
    """And little of its chances; one that misleads changes both."""
    noise = Noise(bytes(range(160)), 0.7) if drawn else None
    plain = drafts(runner(trained(name)), noise)
    previewed = drafts(runner(trained(name, whole())), noise)
    for one, other in zip(plain, previewed, strict=True):
        assert one.tokens == other.tokens
        np.testing.assert_allclose(one.chances, other.chances, rtol=1e-3)
        assert one.runner_ups == other.runner_ups
        np.testing.assert_allclose(one.runner_up_probs, other.runner_up_probs, rtol=1e-3)
    misled = whole()
    wrong = drafts(runner(trained(name, HeadPreview(misled.down, -misled.up))), noise)
    pairs = zip(plain, wrong, strict=True)
    assert any(one.tokens != other.tokens for one, other in pairs)


def test_int8_screens_draft_nearly_the_same() -> None:
    """Matrices are rounded, and the head reads exact states where the whole reads rounded ones."""
    pairs = zip(
        drafts(runner(trained("block-parallel"), "int8")),
        drafts(runner(trained("block-parallel", whole()), "int8")),
        strict=True,
    )
    agreed = [a == b for one, other in pairs for a, b in zip(one.tokens, other.tokens, strict=True)]
    assert np.mean(agreed) >= 0.8


def test_the_head_is_no_product_of_screened_chains() -> None:
    made: Any = runner(trained("hydra", whole()))
    names = made._chains._ops.program.names
    assert "head" not in names
    steps = made._network.steps
    assert [names.count(name) for name in (*SCREEN, "refine")] == [steps] * 3


def test_trees_read_the_whole_head() -> None:
    """However bad the screen is, and whether a chain or a tree comes first."""
    blind = whole()
    blind.up[:] = 0
    plain, previewed = runner(trained("hydra")), runner(trained("hydra", blind))
    drafts(previewed)
    [one], [other] = (made.start([grown(made, 5)]) for made in (plain, previewed))
    assert np.array_equal(one.logits, other.logits)
    token = [int(IDS[7])]
    [one], [other] = plain.advance([(one, token)]), previewed.advance([(other, token)])
    assert np.array_equal(one.logits, other.logits)


def test_a_screen_is_written_and_read_back(tmp_path: Path) -> None:
    """Also one that lies column by column, as decompositions leave it."""
    path, head_preview = tmp_path / "a.safetensors", whole()
    head_preview = HeadPreview(np.asfortranarray(head_preview.down), head_preview.up)
    of = trained("hydra", head_preview)
    save_network(path, of)
    read = load_network(path)
    assert read.head_preview is not None
    for before, after in (
        (head_preview.down, read.head_preview.down),
        (head_preview.up, read.head_preview.up),
    ):
        assert after.dtype == np.float32
        assert np.array_equal(after, before.astype(np.float16))
    assert read.parameters.keys() == of.parameters.keys()
    assert load_file(path)[SCREEN[0]].dtype == np.float16
    save_network(path, replace(read, head_preview=None))
    assert load_network(path).head_preview is None


@pytest.mark.parametrize(("kind", "share", "error"), [("Q8_0", 0.54, 0.006), ("Q4_0", 0.3, 0.09)])
def test_matrices_in_blocks_take_less_and_come_back_nearly_the_same(
    tmp_path: Path, kind: str, share: float, error: float
) -> None:
    """The preview's, too."""
    of, path, whole_path = trained("eagle3", whole(64)), tmp_path / "a", tmp_path / "b"
    save_network(whole_path, of)
    save_network(path, replace(of, metadata={**of.metadata, "stored": kind}))
    read = load_network(path)
    assert read.head_preview is not None
    pairs = {**of.parameters, **whole(64).tensors()}
    for name, after in {**read.parameters, **read.head_preview.tensors()}.items():
        before = pairs[name]
        wrong = np.linalg.norm(after - before) / np.linalg.norm(before)
        assert after.dtype == np.float32
        assert wrong < (error if before.ndim == 2 else 1e-3), name
        assert wrong > error / 4 or before.ndim < 2
    tensors = load_file(path).values()
    half = sum(2 * array.size for array in pairs.values())
    assert sum(each.nbytes for each in tensors if each.dtype != np.int32) < half * share
    assert read_card(path).parameters == read_card(whole_path).parameters
    # What is read and written again stays as it is, and what is learnt is not lost in blocks.
    save_network(path, read)
    assert np.array_equal(load_network(path).parameters["fuse"], read.parameters["fuse"])
    begin = LearntFile(path, "", ships=False).begin(read)
    assert begin.metadata["stored"] == "F16"


@pytest.mark.parametrize("kind", ["Q8_0", "Q5_K", "F16"])
def test_blocks_of_another_kind_than_said_are_refused(tmp_path: Path, kind: str) -> None:
    path, of = tmp_path / "a", trained("eagle3")
    save_network(path, replace(of, metadata={"stored": "Q4_0"}))
    save_file(load_file(path), path, read_metadata(path) | {"stored": kind})
    with pytest.raises(InvalidOption, match="does not hold the tensors"):
        load_network(path)


@pytest.mark.parametrize(
    "changes",
    [
        {"screen.down": None},
        {"screen.up": None},
        {"screen.down": np.ones((70, 63))},
        {"screen.up": np.ones((len(IDS) - 1, 70))},
        {"screen.up": np.ones((len(IDS), 69))},
        {"screen.down": np.ones((0, 64)), "screen.up": np.ones((len(IDS), 0))},
        {"screen.down": np.array(1.0)},
        {"screen.down": np.full((70, 64), np.nan)},
        {"screen.up": np.full((len(IDS), 70), np.inf)},
    ],
)
def test_screens_that_do_not_fit_are_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    path = tmp_path / "a.safetensors"
    save_network(path, trained("hydra", whole()))
    tensors, metadata = load_file(path), read_metadata(path)
    for name, array in changes.items():
        tensors.pop(name)
        if array is not None:
            tensors[name] = array.astype(np.float16)
    save_file(tensors, path, metadata)
    with pytest.raises(InvalidOption, match="has a head preview that does not fit its network"):
        load_network(path)


def test_what_is_learnt_while_serving_keeps_its_screen(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    save_network(path, trained("hydra", whole()))
    file = LearntFile(path, "", ships=False)
    begin = file.begin(load_network(path))
    moved = {name: 1.01 * array for name, array in begin.parameters.items()}
    file.keep(replace(begin, parameters=moved))
    file.save()
    learnt = LearntFile(path, "", ships=False).begin(load_network(path))
    assert learnt.head_preview is not None
    assert np.array_equal(learnt.head_preview.up, load_network(path).head_preview.up)  # type: ignore[union-attr]
    assert not np.array_equal(learnt.parameters["norm"], begin.parameters["norm"])
