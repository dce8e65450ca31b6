"""Values against plain sums, gradients against differences, and what each loss promises."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from paceline.errors import InvalidOption
from paceline.lab.training.losses import Loss, find_loss

NAMES = (
    *("cross-entropy", "forward-kl", "reverse-kl", "jsd:beta=0.3", "jsd:beta=0.9", "tvd"),
    *("tvd++:advantage=reward", "tvd++"),
)
DIVERGENCES = NAMES[1:6]


def batch(seed: int, n: int = 4, v: int = 5) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Float64 student and teacher logits, labels with one missing, weights with one zero."""
    generator = torch.Generator().manual_seed(seed)
    student, teacher = torch.randn(2, n, v, dtype=torch.float64, generator=generator) * 2
    labels = torch.randint(0, v, (n,), generator=generator)
    labels[-1] = -1
    weights = torch.rand(n, dtype=torch.float64, generator=generator)
    weights[0] = 0
    return student, teacher, labels, weights


def gradient(loss: Loss, student: Tensor, *rest: Tensor) -> Tensor:
    leaf = student.clone().requires_grad_()
    (found,) = torch.autograd.grad(loss(leaf, *rest), leaf)
    return found


def kl(p: np.ndarray, q: np.ndarray) -> float:
    return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))


def plain(name: str, p: np.ndarray, q: np.ndarray) -> float:
    """A row's divergence by its definition."""
    if name == "forward-kl":
        return kl(p, q)
    if name == "reverse-kl":
        return kl(q, p)
    if name == "tvd":
        return 0.5 * np.abs(p - q).sum()
    beta = float(name.split("=")[1])
    m = beta * p + (1 - beta) * q
    return beta * kl(p, m) + (1 - beta) * kl(q, m)


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("name", DIVERGENCES)
@settings(max_examples=15)
@given(seed=st.integers(0, 10_000))
def test_values_are_the_definitions(name: str, seed: int) -> None:
    student, teacher, labels, weights = batch(seed)
    rows = [
        plain(name, p, q)
        for p, q in zip(softmax(teacher.numpy()), softmax(student.numpy()), strict=True)
    ]
    expected = np.average(rows, weights=weights.numpy())
    assert float(find_loss(name)(student, teacher, labels, weights)) == pytest.approx(expected)


def test_cross_entropy_leaves_rows_without_a_label_out() -> None:
    student, teacher, labels, weights = batch(1)
    rows = -np.log(softmax(student.numpy()))[np.arange(3), labels.numpy()[:3]]
    expected = np.average(rows, weights=weights.numpy()[:3])
    loss = find_loss("cross-entropy")
    assert float(loss(student, teacher, labels, weights)) == pytest.approx(expected)
    none = torch.full_like(labels, -1)
    assert float(loss(student, teacher, none, weights)) == 0
    assert not gradient(loss, student, teacher, none, weights).any()


@pytest.mark.parametrize("name", [n for n in NAMES if not n.startswith("tvd++")])
@pytest.mark.parametrize("seed", range(3))
def test_gradients_are_those_of_finite_differences(name: str, seed: int) -> None:
    student, *rest = batch(seed)
    loss, width = find_loss(name), 1e-6
    found = gradient(loss, student, *rest)
    for place in np.ndindex(*student.shape):
        above, below = student.clone(), student.clone()
        above[place] += width
        below[place] -= width
        slope = (loss(above, *rest) - loss(below, *rest)) / (2 * width)
        assert float(found[place]) == pytest.approx(float(slope), abs=1e-7)


@pytest.mark.parametrize("top", [0, 2])
@pytest.mark.parametrize("seed", range(5))
def test_with_the_reward_as_advantage_the_gradient_is_that_of_tvd(seed: int, top: int) -> None:
    inputs = batch(seed, n=6)
    reward = gradient(find_loss(f"tvd++:advantage=reward,top={top}"), *inputs)
    assert torch.allclose(reward, gradient(find_loss(f"tvd:top={top}"), *inputs), atol=1e-14)
    assert reward.abs().max() > 1e-3


@pytest.mark.parametrize("seed", range(5))
def test_normalising_divides_by_the_deviation_of_the_reward(seed: int) -> None:
    student, teacher, _, weights = inputs = batch(seed, n=6)
    p, q = softmax(teacher.numpy()), softmax(student.numpy())
    mean = np.average((q * (p > q)).sum(axis=1), weights=weights.numpy())
    tvd = gradient(find_loss("tvd"), *inputs)
    expected = tvd / math.sqrt(mean * (1 - mean))
    assert torch.allclose(gradient(find_loss("tvd++"), *inputs), expected, atol=1e-14)
    assert not torch.allclose(tvd, expected, atol=1e-3)


def test_jsd_tends_to_the_two_divergences() -> None:
    inputs = batch(3)
    near_zero = float(find_loss("jsd:beta=1e-7")(*inputs)) / 1e-7
    near_one = float(find_loss("jsd:beta=0.9999999")(*inputs)) / 1e-7
    assert near_zero == pytest.approx(float(find_loss("forward-kl")(*inputs)), rel=1e-4)
    assert near_one == pytest.approx(float(find_loss("reverse-kl")(*inputs)), rel=1e-4)


@pytest.mark.parametrize("name", NAMES[1:])
def test_a_student_that_equals_its_teacher_is_left_alone(name: str) -> None:
    student, _, labels, weights = batch(2)
    loss = find_loss(name)
    assert float(loss(student, student, labels, weights)) == pytest.approx(0, abs=1e-12)
    assert gradient(loss, student, student, labels, weights).abs().max() < 1e-12


@pytest.mark.parametrize("name", DIVERGENCES)
def test_fewer_tokens_bound_a_divergence_from_below(name: str) -> None:
    inputs = batch(7, n=20, v=12)
    join = "," if ":" in name else ":"
    values = [float(find_loss(f"{name}{join}top={top}")(*inputs)) for top in (1, 3, 6, 12, 99)]
    whole = float(find_loss(name)(*inputs))
    assert values[:3] == sorted(values[:3])
    assert 0 < values[0] < values[2] < whole
    assert values[3] == values[4] == whole


def test_one_argmax_token_by_hand() -> None:
    student = torch.tensor([[0.3, 0.2, 0.5]], dtype=torch.float64).log()
    teacher = torch.tensor([[0.1, 0.7, 0.2]], dtype=torch.float64).log()
    rest = torch.tensor([0]), torch.ones(1)
    found = float(find_loss("forward-kl:top=1")(student, teacher, *rest))
    assert found == pytest.approx(0.7 * math.log(0.7 / 0.2) + 0.3 * math.log(0.3 / 0.8))


@pytest.mark.parametrize("name", ["forward-kl", "jsd", "tvd", "tvd++"])
def test_tokens_that_the_teacher_rules_out_make_no_nan(name: str) -> None:
    student, teacher, labels, weights = batch(4)
    teacher[:, 2] = -math.inf
    assert torch.isfinite(find_loss(name)(student, teacher, labels, weights))
    assert torch.isfinite(gradient(find_loss(name), student, teacher, labels, weights)).all()


def test_half_precision_is_computed_in_float32() -> None:
    student, teacher, labels, weights = batch(5)
    rounded = student.bfloat16(), teacher.bfloat16()
    loss = find_loss("forward-kl")
    value = loss(*rounded, labels, weights)
    assert value.dtype == torch.float32
    assert float(value) == pytest.approx(
        float(loss(*(x.double() for x in rounded), labels, weights)), rel=1e-5
    )


def test_unknown_names_and_bad_values_are_named() -> None:
    with pytest.raises(InvalidOption, match=r"loss 'kl' is unknown: use cross-entropy, forward-kl"):
        find_loss("kl")
    with pytest.raises(InvalidOption, match=r"beta must be between 0 and 1, not 1\.5"):
        find_loss("jsd:beta=1.5")
    with pytest.raises(InvalidOption, match="loss 'tvd' has no option 'beta': use top"):
        find_loss("tvd:beta=0.5")
    with pytest.raises(InvalidOption, match="top must be 0"):
        find_loss("tvd++:top=-1")
    with pytest.raises(InvalidOption, match="must be normalised or reward, not 'none'"):
        find_loss("tvd++:advantage=none")
