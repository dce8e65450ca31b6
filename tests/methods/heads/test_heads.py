"""Heads: what is written is read back, and what is no head, or not this model's, is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from paceline.core.types import Capabilities
from paceline.errors import InvalidOption, RuntimeUnavailable
from paceline.methods.heads.verifiers import Headed, Judge, LinearHead, Pivot, load_head, save_head
from paceline.proof.tabular import TabularModel, TabularTarget
from paceline.registry import table as registry
from paceline.verifiers.base import VerifierContext

TEMPERATURE_KINDS = ("judge", "pivot")


def head_file(folder: Path, kind: str, features: int, seed: int = 0, bias: float = 0.3) -> Path:
    """A random head on disk."""
    weight = np.random.default_rng(seed).normal(size=features).astype(np.float32)
    path = folder / f"{kind}-{seed}.safetensors"
    save_head(path, LinearHead(weight, bias, {"kind": kind, "model": "mine"}))
    return path


def context(model: str = "mine", hidden: bool = True, **options: str) -> VerifierContext:
    """What an engine would hand over."""
    table = TabularTarget(TabularModel(4, 1, 1).logits, 4).capabilities
    fields = {name: getattr(table, name) for name in table.__slots__}
    target = Capabilities(**(fields | {"hidden_states": hidden}))
    return VerifierContext(target, model, lambda text: [1, 2], options)


def test_a_head_is_read_back_as_written(tmp_path: Path) -> None:
    path = tmp_path / "head.safetensors"
    head = LinearHead(np.array([0.5, -2.0], np.float32), 0.25, {"kind": "judge", "made": "here"})
    save_head(path, head)
    back = load_head("judge", str(path))
    assert back.weight.tolist() == head.weight.tolist()
    assert back.bias == 0.25
    assert back.metadata == head.metadata
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("features", "expected"),
    [([0.0, 0.0], 1 / (1 + np.exp(-0.25))), ([1.0, 1.0], 1 / (1 + np.exp(1.25)))],
)
def test_the_probability_is_the_sigmoid_of_the_score(
    features: list[float], expected: float
) -> None:
    head = LinearHead(np.array([0.5, -2.0], np.float32), 0.25, {"kind": "judge"})
    assert head.probability(np.array(features, np.float32)) == pytest.approx(expected)


@pytest.mark.parametrize(("score", "expected"), [(1e6, 1.0), (-1e6, 0.0), (-800.0, 0.0)])
def test_extreme_scores_do_not_overflow(score: float, expected: float) -> None:
    head = LinearHead(np.array([1.0], np.float32), 0.0, {})
    assert head.probability(np.array([score], np.float32)) == expected


@pytest.mark.parametrize("kind", TEMPERATURE_KINDS)
def test_a_head_of_another_width_is_refused(kind: str) -> None:
    head = LinearHead(np.zeros(3, np.float32), 0.0, {"kind": kind})
    with pytest.raises(InvalidOption, match=f"takes 3 features and this model gives 2.*{kind}"):
        head.probability(np.zeros(2, np.float32))


@pytest.mark.parametrize("kind", TEMPERATURE_KINDS)
def test_a_missing_damaged_or_foreign_file_is_named(kind: str, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    damaged.write_bytes(b"not a head")
    foreign = head_file(tmp_path, "other", 4)
    for path in (tmp_path / "missing", damaged, foreign):
        with pytest.raises(InvalidOption, match=f"{path.name}.* holds no {kind} head") as caught:
            load_head(kind, str(path))
        assert "\n" not in str(caught.value)
        assert f"paceline train {kind}" in str(caught.value)


@pytest.mark.parametrize("rule", [Judge, Pivot])
def test_a_head_for_another_model_is_refused(rule: type[Headed], tmp_path: Path) -> None:
    path = str(head_file(tmp_path, rule.name, 4))
    assert rule.create(context(head=path, threshold="0.25")).threshold == 0.25
    with pytest.raises(InvalidOption, match=f"{rule.name} head was trained for another model"):
        rule.create(context("another", head=path))


@pytest.mark.parametrize("rule", [Judge, Pivot])
def test_a_target_without_hidden_states_is_refused(rule: type[Headed], tmp_path: Path) -> None:
    path = str(head_file(tmp_path, rule.name, 4))
    with pytest.raises(RuntimeUnavailable, match="hidden states"):
        rule.create(context(hidden=False, head=path))


@pytest.mark.parametrize("rule", [Judge, Pivot])
def test_without_a_head_the_command_that_makes_one_is_named(rule: type[Headed]) -> None:
    for make in (rule, lambda: rule.create(context())):
        with pytest.raises(InvalidOption, match=f"verifier '{rule.name}' needs a head") as caught:
            make()
        assert f"`paceline train {rule.name}`" in str(caught.value)
        assert f"'{rule.name}:head=FILE'" in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("threshold", [-0.1, 1.1, float("nan")])
@pytest.mark.parametrize("rule", [Judge, Pivot])
def test_thresholds_are_checked(rule: type[Headed], threshold: float) -> None:
    with pytest.raises(InvalidOption, match="threshold must be in"):
        rule(threshold)


def test_an_unwritable_place_is_named(tmp_path: Path) -> None:
    head = LinearHead(np.zeros(2, np.float32), 0.0, {"kind": "judge"})
    with pytest.raises(InvalidOption, match="cannot write"):
        save_head(tmp_path / "no" / "such" / "folder", head)


def test_judge_and_pivot_ask_for_hidden_states() -> None:
    for name in TEMPERATURE_KINDS:
        assert registry.find("verifier", name).load().needs.hidden
