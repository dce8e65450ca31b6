"""The filter of Learn2PD: replays end in the answer, and the filter learns what decides."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from safetensors.numpy import load_file

from paceline.cli.app import run
from paceline.errors import InvalidOption
from paceline.lab.measure import parallel_tasks
from paceline.lab.training.denoisers.confidence_filter import FilterTask, collect, replay
from paceline.lab.training.denoisers.decode import decode
from paceline.lab.training.denoisers.files import denoiser
from paceline.lab.training.denoisers.rows import text_of, vocabulary
from paceline.lab.training.model import TrainableModel
from paceline.lab.training.recipe import DenoiserRecipe, FilterRecipe
from paceline.lab.training.run import TrainingRun
from paceline.methods.canvas.learned_filter import Filter

IDS = vocabulary()


@pytest.fixture(scope="module")
def network() -> TrainableModel:
    shape = DenoiserRecipe(width=32, layers=1, head=16, ffn=32)
    return denoiser(shape, torch.Generator().manual_seed(2))


def prompts() -> list[np.ndarray]:
    texts = [text_of(case, IDS) for case in parallel_tasks.cases("sort", 6, 0)]
    return [text.tokens[: text.prompt_length] for text in texts]


def test_an_answer_of_its_own_is_replayed_in_fewer_forwards(network: TrainableModel) -> None:
    # One token per forward, the surest first and within a block: what a replay follows.
    answers = []
    for prompt in prompts():
        [answer] = decode(network, [prompt], "full", length=4)
        answers.append(np.array([*answer, *[1] * (4 - len(answer))]))
    seen, right = replay(network, prompts(), answers, 4)
    assert seen.shape == right.shape == (len(seen), 4)
    assert len(seen) <= 4 * len(answers)
    assert right[seen == 1].all()  # filled places count as right
    first = seen[: len(answers)]
    assert (first < 1).all()  # nothing is filled at first
    assert right[: len(answers)][np.arange(len(answers)), first.argmax(1)].all()


def test_a_strange_answer_takes_a_forward_per_token(network: TrainableModel) -> None:
    answers = [np.full(8, IDS["Tibe"]) for _ in prompts()]
    seen, right = replay(network, prompts(), answers, 4)
    hidden = (seen < 1).sum(1)
    assert set(hidden) == {1, 2, 3, 4}
    assert (right[seen < 1]).mean() < 0.5
    assert len(seen) <= 8 * len(answers)


def test_the_filter_learns_a_rule_of_confidences() -> None:
    rng = np.random.default_rng(0)
    seen = rng.uniform(0.2, 0.999, (512, 4))
    right = seen > 0.7
    task = FilterTask(FilterRecipe(hidden=16, steps=2000), (seen, right), (seen, right))
    for _ in TrainingRun(task).run():
        pass
    with torch.no_grad():
        scores = task.module(torch.from_numpy(seen).float()).numpy()
    assert ((scores > 0) == right).mean() > 0.9


def test_files_hold_what_the_filter_computes(tmp_path: Path) -> None:
    nothing = np.ones((1, 4)), np.ones((1, 4), bool)
    task = FilterTask(FilterRecipe(seed=3), nothing, nothing)
    task.save(tmp_path / "filter.safetensors", {"block": "4"})
    held = load_file(tmp_path / "filter.safetensors")
    seen = np.random.default_rng(0).random((5, 4)).astype(np.float32)
    inner = np.maximum(seen @ held["in.weight"].T + held["in.bias"], 0)
    scores = inner @ held["out.weight"].T + held["out.bias"]
    with torch.no_grad():
        np.testing.assert_allclose(task.module(torch.from_numpy(seen)).numpy(), scores, atol=1e-6)


def test_canvases_are_whole_blocks(network: TrainableModel) -> None:
    seen, _ = collect(network, 15, 4, 8)
    assert seen.shape[1] == 4
    with pytest.raises(InvalidOption, match="multiple of the block"):
        collect(network, 15, 4, 6)


def test_a_filter_is_judged_by_what_it_picks() -> None:
    seen = np.array([[0.5, 0.5], [0.5, 1.0]])
    right = np.array([[True, True], [False, True]])
    task = FilterTask(FilterRecipe(), (seen, right), (seen, right))
    lone = task.module
    with torch.no_grad():  # says yes to the first place, no to the second
        lone.leave.weight.zero_()
        lone.leave.bias.copy_(torch.tensor([9.0, -9.0]))
    assert task.judge() == {"precision": 0.5, "recall": 0.5, "right": 2 / 3}


@pytest.mark.parametrize("model", ["lists-bd", "smollm2-135m"])
def test_a_filter_is_for_denoisers_that_see_every_row(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = run(["train", "canvas-filter", "--model", model, "--out", str(tmp_path / "f")])
    assert code == 2
    assert "denoiser" in capsys.readouterr().err


def test_the_command_writes_a_filter(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "filter.safetensors"
    sizes = ["--block", "4", "--room", "4", "--cases", "15", "--steps", "5", "--json"]
    assert run(["train", "canvas-filter", *sizes, "--out", str(out)]) == 0
    assert '"left_out"' in capsys.readouterr().out
    Filter(str(out))
