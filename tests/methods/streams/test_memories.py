"""Memories over endless rows: their size, what they weigh, and that they replay."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.helpers.tiny_model import tiny_config
from tests.runtimes.tiny_cpu import weights as tiny_weights

from paceline.core.types import LogitArray
from paceline.errors import InvalidOption
from paceline.methods.streams import memories
from paceline.methods.streams.memories import ClipMemory, Sizes, StarMemory, weighted_kmeans
from paceline.runtimes.cpu.target import CpuTarget
from paceline.runtimes.reference.target import ReferenceTarget

SIZES = Sizes(spatial=2, retrieved=3, temporal=6, abstract=4, coarse=2)
RNG = np.random.default_rng(2)
CENTRES = RNG.standard_normal((9, 1, 5)) * 4


def frames(count: int, seed: int = 0) -> LogitArray:
    """Frames `[count, 4, 5]` of some scenes that come again."""
    rng = np.random.default_rng(seed)
    scenes = CENTRES[rng.integers(len(CENTRES), size=count // 5 + 1).repeat(5)[:count]]
    return (scenes + rng.standard_normal((count, 4, 5))).astype(np.float32)


def seen(given: LogitArray, **options: Any) -> StarMemory:
    memory = StarMemory(SIZES, **options)
    memory.add(given)
    return memory


def coarse(given: LogitArray) -> LogitArray:
    return given.reshape(len(given), 2, 2, 5).mean(axis=2, dtype=np.float64).reshape(len(given), -1)


def test_the_size_does_not_grow() -> None:
    memory, given = StarMemory(SIZES), frames(200)
    for at in range(0, 200, 10):
        memory.add(given[at : at + 10])
        assert memory.rows().shape == (SIZES.rows(4), 5) == (2 * 4 + 3 * 4 + 6 * 2 + 4, 5)
        assert len(memory.weights) <= SIZES.temporal
    assert np.isfinite(memory.rows()).all()


def test_the_papers_sizes_have_its_rows() -> None:
    assert Sizes().rows(64) == 681


def test_weights_are_frames_and_clusters_their_means() -> None:
    given = frames(150)
    memory = seen(given)
    assert memory.weights.sum() == memory.seen == 150
    mass = (memory.weights[:, None] * memory.centroids).sum(axis=0)
    np.testing.assert_allclose(mass, coarse(given).sum(axis=0), rtol=1e-9, atol=1e-9)


def test_kmeans_without_weights_forgets_what_was_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A negative control: old clusters weigh as much as one frame."""
    plain = weighted_kmeans

    def unweighted(points: Any, weights: Any, count: int, draws: Any) -> Any:
        return plain(points, np.ones_like(weights), count, draws)

    monkeypatch.setattr(memories, "weighted_kmeans", unweighted)
    given = frames(150)
    memory = seen(given)
    assert memory.weights.sum() < 150
    mass = memory.centroids.mean(axis=0) * 150
    assert np.abs(mass - coarse(given).sum(axis=0)).max() > 10


def test_one_by_one_is_together_and_a_replay_is_the_same() -> None:
    given, alone = frames(90), StarMemory(SIZES, seed=5)
    for frame in given:
        alone.add(frame[None])
    for found in (seen(given, seed=5), alone):
        np.testing.assert_array_equal(found.rows(), seen(given, seed=5).rows())
        np.testing.assert_array_equal(found.weights, alone.weights)
    assert not np.array_equal(seen(given, seed=6).rows(), alone.rows())


def test_the_newest_frames_stay_in_order_and_key_frames_are_frames() -> None:
    given = frames(60)
    memory = seen(given)
    np.testing.assert_array_equal(np.array(memory.newest), given[-2:])
    keys = memory.retrieved()
    assert len(keys) == SIZES.retrieved
    largest = np.argsort(-memory.weights, kind="stable")[: len(keys)]
    for key, cluster in zip(keys, largest, strict=True):
        assert any(np.array_equal(key, frame) for frame in given)
        # Nearer to their cluster than to any other.
        far = ((coarse(key[None]) - memory.centroids) ** 2).sum(axis=1)
        assert far[cluster] < np.median(far)


def test_few_frames_are_kept_as_they_are() -> None:
    given = frames(4)
    memory = seen(given)
    np.testing.assert_array_equal(memory.weights, np.ones(4))
    np.testing.assert_array_equal(memory.centroids, coarse(given))
    with pytest.raises(InvalidOption, match="nothing was seen"):
        StarMemory().rows()


def test_the_mixture_stays_within_what_was_seen() -> None:
    given = frames(100)
    abstract = seen(given).rows()[: SIZES.abstract]
    assert (abstract <= given.max(axis=(0, 1))).all()
    assert (abstract >= given.min(axis=(0, 1))).all()
    # It follows: the last frames of one scene are all that it has in the end.
    after = StarMemory(SIZES)
    after.add(np.concatenate([given, np.full((80, 4, 5), 7, np.float32)]))
    np.testing.assert_allclose(after.rows()[: SIZES.abstract], 7, atol=1e-3)


def test_the_loss_does_not_rise_and_is_that_of_the_result() -> None:
    for seed in range(20):
        draws = np.random.default_rng(seed)
        points, weights = draws.standard_normal((30, 3)), draws.integers(1, 9, 30).astype(float)
        found = weighted_kmeans(points, weights, 7, draws)
        assert (np.diff(found.losses) <= 1e-9).all()
        apart = ((points - found.centroids[found.labels]) ** 2).sum(axis=1)
        assert found.losses[-1] == pytest.approx((weights * apart).sum())
        assert found.weights.sum() == weights.sum()
        assert set(found.labels) == set(range(len(found.centroids)))


def test_means_without_weights_have_a_larger_loss() -> None:
    """A negative control of the loss: from the same points, by the same draws."""
    worse = 0
    for seed in range(20):
        draws = np.random.default_rng(seed)
        points = draws.standard_normal((30, 3))
        weights = np.where(draws.random(30) < 0.2, 50.0, 1.0)
        losses = []
        for used in (weights, np.ones(30)):
            found = weighted_kmeans(points, used, 4, np.random.default_rng(seed))
            apart = ((points - found.centroids[found.labels]) ** 2).sum(axis=1)
            losses.append((weights * apart).sum())
        worse += losses[1] > losses[0]
    assert worse > 15


def test_frames_of_another_shape_and_sizes_without_room_are_refused() -> None:
    memory = seen(frames(2))
    for bad in (np.zeros((1, 6, 5), np.float32), np.zeros((2, 5), np.float32)):
        with pytest.raises(InvalidOption, match="frames are"):
            memory.add(bad)
    with pytest.raises(InvalidOption, match="5 patches are not 2 coarse ones"):
        StarMemory(SIZES).add(np.zeros((1, 5, 5), np.float32))
    with pytest.raises(InvalidOption, match="temporal must be 1 or more"):
        Sizes(temporal=0)
    with pytest.raises(InvalidOption, match="ratio must be above 0"):
        StarMemory(ratio=0)


CONFIG = tiny_config("qwen2")
WEIGHTS = tiny_weights(CONFIG)
SUMMARY = RNG.standard_normal((3, CONFIG.hidden_size)).astype(np.float32)
CLIPS = RNG.standard_normal((5, 8, CONFIG.hidden_size)).astype(np.float32)
CPU = CpuTarget(CONFIG, WEIGHTS, "fp32", kv_tokens=512)


def summaries(target: Any, clips: Any, **options: Any) -> ClipMemory:
    memory = ClipMemory(target, CONFIG.layers, SUMMARY, **options)
    for clip in clips:
        memory.add(clip)
    return memory


def test_summaries_are_the_same_on_both_runtimes_and_carry_the_past() -> None:
    found = summaries(CPU, CLIPS).summaries
    reference = ReferenceTarget(CONFIG, WEIGHTS, "fp32")
    np.testing.assert_array_equal(found, summaries(reference, CLIPS).summaries)
    # The first clip is in all summaries; what comes later is in none before it.
    other = summaries(CPU, [-CLIPS[0], *CLIPS[1:]]).summaries
    late = summaries(CPU, [*CLIPS[:-1], -CLIPS[-1]]).summaries
    assert all(not np.array_equal(one, two) for one, two in zip(found, other, strict=True))
    np.testing.assert_array_equal(np.array(late)[:-1], np.array(found)[:-1])
    # Control: a memory that begins anew with each clip.
    alone = [summaries(CPU, [clip]).summaries[0] for clip in CLIPS]
    assert np.array_equal(alone[0], found[0])
    assert not np.array_equal(alone[1], found[1])


def test_a_clip_costs_the_same_work_whatever_was_before(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []
    forward = CPU.forward
    monkeypatch.setattr(
        CPU, "forward", lambda rows, layers: counted.append(len(rows[0])) or forward(rows, layers)
    )
    memory = summaries(CPU, [*CLIPS, *CLIPS], most=4)
    assert counted == [8 + 3] + [3 + 8 + 3] * 9
    assert len(memory.summaries) == 4


def test_a_question_has_the_summaries_that_are_nearest() -> None:
    memory = summaries(CPU, CLIPS)
    for at, each in enumerate(memory.summaries):
        assert memory.select(each.mean(axis=0), 1) == [at]
    assert memory.select(memory.summaries[0].mean(axis=0), 9) == [0, 1, 2, 3, 4]


def test_rows_of_another_width_are_refused() -> None:
    memory = summaries(CPU, [])
    for bad in (np.zeros((2, 7), np.float32), np.zeros((0, CONFIG.hidden_size), np.float32)):
        with pytest.raises(InvalidOption, match=rf"rows are \[n, {CONFIG.hidden_size}\]"):
            memory.add(bad)
