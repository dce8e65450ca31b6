"""Training of prompt tokens: what a chain sees, what it learns, and resumption."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.helpers import tiny_model as tiny
from torch import Tensor

from paceline.core import tree as trees
from paceline.core.target import Rows
from paceline.core.types import LogitArray
from paceline.errors import InvalidOption
from paceline.lab.training.chains import Chains, place
from paceline.lab.training.data import Text
from paceline.lab.training.run import TrainingRun
from paceline.methods.ppd.recipe import PromptRecipe
from paceline.methods.ppd.training import PromptTask, guesses
from paceline.runtimes.torch.model import TorchModel
from paceline.runtimes.torch.target import TorchTarget

CONFIG = tiny.tiny_config()
TENSORS = tiny.named_tensors(CONFIG)
RECIPE = PromptRecipe(steps=6, batch_tokens=60, chains=4, training_precision="fp32")


def network(dtype: torch.dtype = torch.float32) -> TorchModel:
    return TorchModel(CONFIG, TENSORS, torch.device("cpu"), dtype)


def texts(count: int) -> list[Text]:
    rng = np.random.default_rng(0)
    return [Text(i, rng.integers(3, 320, 14 + i % 5), 4) for i in range(count)]


def embeddings(seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal((3, 64))).to(dtype)


BATCH = [
    Chains(texts(2)[0].tokens, np.array([2, 5, 9])),
    Chains(texts(2)[1].tokens, np.array([0, 10])),
]


def test_a_chain_sees_what_it_sees_in_decoding() -> None:
    """Rows of the training forward are those of a draft of prompt tokens, and of plain passes."""
    target = TorchTarget(CONFIG, TENSORS, precision="fp64")
    first = target.add_embeddings(embeddings().numpy().astype(np.float32))
    rows = embeddings().float().double()  # as the target keeps them
    student, teacher, labels = guesses(network(torch.float64), rows, BATCH)
    row = 0
    for text in BATCH:
        for start in text.starts:
            seen = text.tokens[: start + 1].tolist()
            chain = trees.chain([first, first + 1, first + 2])
            (asked,) = target.forward([Rows.draft(target.open(), seen, chain)])
            truth = trees.chain(text.tokens[start + 1 : start + 4].tolist())
            (told,) = target.forward([Rows.draft(target.open(), seen, truth)])
            found = student[row : row + 3].numpy(), teacher[row : row + 3].numpy()
            np.testing.assert_allclose(found[0], asked.logits[1:], atol=1e-9)
            np.testing.assert_allclose(found[1], told.logits[1:], atol=1e-9)
            expected = text.tokens[start + 2 : start + 5]
            assert labels[row : row + 3].tolist() == expected.tolist()
            row += 3
    assert row == len(student)


def test_what_the_target_says_of_a_text_does_not_depend_on_prompt_tokens() -> None:
    net = network()
    first = guesses(net, embeddings(0, torch.float32), BATCH)
    second = guesses(net, embeddings(1, torch.float32), BATCH)
    assert torch.equal(first[1], second[1])
    assert not torch.allclose(first[0], second[0])


def test_gradients_are_those_of_differences_and_reach_the_embeddings_alone() -> None:
    net, rows = network(torch.float64), embeddings().requires_grad_()

    def value(at: Tensor) -> Tensor:
        return (guesses(net, at, BATCH)[0] * weights).sum()

    weights = torch.from_numpy(np.random.default_rng(2).standard_normal((15, 320)))
    value(rows).backward()
    assert rows.grad is not None
    assert net.tensor("head").grad is None
    assert not net.tensor("layers.0.q").requires_grad
    step = 1e-6 * embeddings(3)
    with torch.no_grad():
        change = value(rows + step) - value(rows - step)
    assert float(change) / 2 == pytest.approx(float((rows.grad * step).sum().detach()), rel=1e-5)


def test_chains_guess_tokens_of_the_answer_alone() -> None:
    text = Text(0, np.arange(20), 8)
    chains = place(text, 99, 3, np.random.default_rng(0))
    assert chains.starts.tolist() == list(range(6, 16))
    assert chains.labels(3).min() == 8
    assert chains.labels(3).max() == 19
    few = place(text, 4, 3, np.random.default_rng(0)).starts
    assert len(set(few.tolist())) == 4
    assert place(Text(0, np.arange(4), 2), 9, 3, np.random.default_rng(0)).starts.tolist() == []


def test_the_loss_weighs_every_offset_less_than_the_one_before() -> None:
    task = PromptTask(network(), texts(41), replace(RECIPE, decay=0.5))
    _, loss, _ = task._forward(BATCH)
    student, teacher, _ = guesses(network(), torch.from_numpy(task.embeddings()), BATCH)
    p, q = teacher.log_softmax(1), student.detach().log_softmax(1)
    divergence = (p.exp() * (p - q)).sum(1).reshape(-1, 3).mean(0)
    expected = (divergence * torch.tensor([1, 0.5, 0.25])).sum() / 1.75
    assert float(loss.detach()) == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_training_brings_guesses_nearer_to_the_target(precision: str) -> None:
    recipe = replace(RECIPE, steps=60, training_precision=precision, rate=0.1)
    task = PromptTask(network(), texts(60), recipe)
    before = task.judge()
    reports = list(TrainingRun(task).run())
    after = task.judge()
    assert [report.step for report in reports] == list(range(1, 61))
    assert after.loss < 0.95 * before.loss
    assert after.hits.starts == len(task.held_out) * 4


def test_ranks_are_counted_while_guesses_before_are_among_them() -> None:
    task = PromptTask(network(), texts(82), RECIPE)
    judged = task.judge()
    trials, hits = task.ranks.trials, task.ranks.hits
    assert trials[0].tolist() == [judged.hits.starts] * 10
    for offset in (1, 2):
        assert trials[offset, 0] == hits[offset - 1].sum()
    assert hits[0, 0] == judged.hits.accepted[0]


def run_to(run: TrainingRun, step: int) -> LogitArray:
    for report in run.run():
        if report.step == step:
            break
    assert isinstance(run.task, PromptTask)
    return run.task.embeddings()


def test_a_run_resumes_to_the_same_numbers(tmp_path: Path) -> None:
    def run(place: Path | None = None, recipe: PromptRecipe = RECIPE) -> TrainingRun:
        return TrainingRun(PromptTask(network(), texts(60), recipe), place)

    whole = run_to(run(), 6)
    place = tmp_path / "a.checkpoint"
    first = run(place)
    run_to(first, 3)
    first.save()
    second = run(place)
    assert (second.step, second.tokens) == (3, first.tokens)
    np.testing.assert_array_equal(run_to(second, 6), whole)
    other = replace(RECIPE, rate=0.5)
    with pytest.raises(InvalidOption, match=r"other settings \(rate\)"):
        run(place, other)
    assert not np.array_equal(run_to(run(recipe=other), 6), whole)


def test_a_loss_that_is_no_number_stops_the_run() -> None:
    task = PromptTask(network(), texts(60), RECIPE)
    with torch.no_grad():
        task.rows[1, 0] = torch.inf
    with pytest.raises(InvalidOption, match="the loss is nan at step 0: begin again"):
        next(TrainingRun(task).run())
    assert np.isfinite(task.embeddings()[0]).all()


def test_too_few_texts_are_refused() -> None:
    short = [Text(i, np.arange(5), 4) for i in range(99)]
    with pytest.raises(InvalidOption, match="40 texts whose answers have 3 tokens are too few"):
        PromptTask(network(), [*texts(40), *short], RECIPE)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": 0}, "steps must be 1 or more"),
        ({"chains": 0}, "chains must be 1 or more"),
        ({"rate": 0.0}, "rate must be more than 0"),
        ({"training_precision": "fp8"}, "fp32 or bf16"),
        ({"loss": "hope"}, "loss 'hope' is unknown"),
    ],
)
def test_recipes_out_of_range_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        replace(RECIPE, **change)  # type: ignore[arg-type]
