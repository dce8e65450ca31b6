"""Losses equal their reference forms in value and gradient, and keep less for backward."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.lab.training.reference_losses import reference_loss
from torch import Tensor

from paceline.lab.training.losses import find_loss

Form = Callable[..., Tensor]

NAMES = (
    *("cross-entropy", "forward-kl", "forward-kl:top=3", "reverse-kl", "reverse-kl:top=3"),
    *("jsd", "jsd:beta=0.9,top=2", "tvd", "tvd:top=3", "tvd++", "tvd++:top=3"),
    *("tvd++:advantage=reward", "tvd++:advantage=reward,top=1"),
)


def batch(
    seed: int, n: int, v: int, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    student, teacher = torch.randn(2, n, v, dtype=torch.float64, generator=generator) * 3
    labels = torch.randint(-1, v, (n,), generator=generator)
    weights = torch.rand(n, dtype=torch.float64, generator=generator).round(decimals=1)
    return student.to(dtype), teacher.to(dtype), labels, weights.to(dtype)


def reference(name: str) -> Form:
    return partial(reference_loss, find_loss(name))


def both(loss: Form, student: Tensor, *rest: Tensor) -> tuple[Tensor, Tensor]:
    """Value and gradient of five times the loss, so that what comes from above is used."""
    leaf = student.clone().requires_grad_()
    value = 5 * loss(leaf, *rest)
    (gradient,) = torch.autograd.grad(value, leaf)
    return value.detach(), gradient


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("dtype", "close"), [(torch.float64, 1e-12), (torch.float32, 3e-5)])
@settings(max_examples=8)
@given(
    seed=st.integers(0, 10_000),
    n=st.integers(1, 9),
    v=st.integers(2, 17),
    chunk=st.sampled_from([1, 20, 1000]),
)
def test_values_and_gradients_are_equal(
    name: str, dtype: torch.dtype, close: float, seed: int, n: int, v: int, chunk: int
) -> None:
    inputs = batch(seed, n, v, dtype)
    value, gradient = both(reference(name), *inputs)
    with patch("paceline.lab.training.losses._CHUNK", chunk):
        mine, my_gradient = both(find_loss(name), *inputs)
    assert mine.dtype == my_gradient.dtype == dtype
    assert torch.allclose(mine, value, rtol=close, atol=close)
    assert torch.allclose(my_gradient, gradient, rtol=close, atol=close)


@pytest.mark.parametrize("name", ["forward-kl", "jsd", "tvd++"])
def test_tokens_that_the_teacher_rules_out_make_no_nan(name: str) -> None:
    student, teacher, labels, weights = batch(1, 4, 6)
    teacher[:, 2] = -torch.inf
    value, gradient = both(reference(name), student, teacher, labels, weights)
    mine, my_gradient = both(find_loss(name), student, teacher, labels, weights)
    assert torch.allclose(mine, value)
    assert torch.allclose(my_gradient, gradient)


def kept(loss: Form, inputs: tuple[Tensor, ...]) -> int:
    """Bytes of distinct tensors that wait for the backward pass."""
    held: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        held[storage.data_ptr()] = storage.nbytes()
        return tensor

    student, *rest = inputs
    leaf = student.clone().requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        value = loss(leaf, *rest)
    assert value.requires_grad
    return sum(held.values())


@pytest.mark.parametrize("name", [name for name in NAMES if "top" not in name])
def test_one_tensor_in_the_size_of_the_logits_is_kept(name: str) -> None:
    inputs = batch(0, 40, 1000, torch.float32)
    size = inputs[0].nbytes
    assert kept(find_loss(name), inputs) == size
    if name != "cross-entropy":  # whose log-probabilities alone are kept by the reference
        assert kept(reference(name), inputs) > 2 * size


def test_nothing_is_kept_where_no_gradient_is_wanted() -> None:
    student, *rest = batch(0, 5, 7)
    for name in NAMES:
        value = find_loss(name)(student, *rest)
        assert not value.requires_grad
        assert torch.allclose(value, reference(name)(student, *rest))


def test_a_step_down_the_gradient_lowers_the_loss() -> None:
    for name in ("forward-kl", "reverse-kl", "jsd", "tvd", "cross-entropy"):
        student, *rest = batch(2, 30, 9)
        loss = find_loss(name)
        value, gradient = both(loss, student, *rest)
        assert 5 * loss(student - 0.1 * gradient, *rest) < value
