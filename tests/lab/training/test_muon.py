"""Our Muon makes the steps of PyTorch's, but for what bfloat16 rounds there."""

from __future__ import annotations

from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")

from paceline.lab.training.optimisers import Muon  # noqa: E402

Step = Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]
RATE = 0.02
SHAPES = [(24, 24), (48, 16), (16, 48)]  # square, tall, wide


def moved(make: Step, steps: int = 3) -> list[torch.Tensor]:
    """How far each matrix goes under the same gradients."""
    draws = torch.Generator().manual_seed(5)
    matrices = [torch.nn.Parameter(torch.randn(*shape, generator=draws)) for shape in SHAPES]
    begin = [each.detach().clone() for each in matrices]
    optimiser = make(matrices)
    for _ in range(steps):
        for each in matrices:
            each.grad = torch.randn(*each.shape, generator=draws)
        optimiser.step()
    return [after.detach() - before for after, before in zip(matrices, begin, strict=True)]


def theirs(matrices: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Muon(matrices, lr=RATE, momentum=0.95, weight_decay=0.0)


def apart(make: Step) -> float:
    """The largest difference from PyTorch's way, as a share of its length."""
    pairs = zip(moved(make), moved(theirs), strict=True)
    return max(float((ours - other).norm() / other.norm()) for ours, other in pairs)


def test_steps_are_those_of_pytorch() -> None:
    assert apart(lambda matrices: Muon(matrices, RATE)) < 0.03


def test_another_momentum_or_rate_is_seen() -> None:
    assert apart(lambda matrices: Muon(matrices, RATE, momentum=0.5)) > 0.1
    assert apart(lambda matrices: Muon(matrices, 1.1 * RATE)) > 0.05
    assert apart(lambda matrices: torch.optim.SGD(matrices, lr=RATE)) > 0.1


def test_a_matrix_without_gradient_stays() -> None:
    matrix = torch.nn.Parameter(torch.ones(4, 4))
    Muon([matrix], RATE).step()
    assert bool((matrix == 1).all())
