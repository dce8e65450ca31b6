"""Small mixtures of experts: their losses, their training, and that runtimes read their files."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from tests.helpers.killed_run import goes_on_bit_for_bit

import paceline as paceline_library
from paceline.cli.app import run as paceline
from paceline.core.target import Rows
from paceline.core.tree import chain
from paceline.errors import InvalidOption
from paceline.lab.measure.parallel_tasks import cases, grade
from paceline.lab.training import experts as training
from paceline.lab.training.denoisers.decode import decode
from paceline.lab.training.denoisers.rows import MASK, PAD, UNKNOWN
from paceline.lab.training.experts import (
    ExpertTask,
    Quality,
    balance_loss,
    chunk_loss,
    experts_of,
    locality_loss,
    save_experts,
    union_share,
)
from paceline.lab.training.recipe import ExpertKind as Kind
from paceline.lab.training.recipe import ExpertRecipe
from paceline.lab.training.run import TrainingRun
from paceline.models.ops import Experts
from paceline.models.source import EXPERTS, DirectorySource, resolve
from paceline.runtimes.cpu.target import CpuTarget
from paceline.runtimes.torch.target import TorchTarget

KINDS: tuple[Kind, ...] = ("top-k", "blockffn")
OFF, ON = -50.0, 50.0  # scores of experts that are surely not, and surely, in use


def recipe(kind: Kind, **changes: object) -> ExpertRecipe:
    sizes = {"steps": 12, "batch": 4, "width": 32, "layers": 2, "head": 16, "experts": 4}
    return ExpertRecipe(kind=kind, **{**sizes, **changes})  # type: ignore[arg-type]


def scores(*rows: str) -> torch.Tensor:
    """One text; a row is the experts in use, as digits."""
    out = torch.full((1, len(rows), 4), OFF)
    for row, used in zip(out[0], rows, strict=True):
        row[[int(each) for each in used]] = ON
    return out


def everywhere(of: torch.Tensor) -> torch.Tensor:
    return torch.ones(of.shape[:2], dtype=torch.bool)


def test_the_chunk_loss_is_the_share_of_experts_that_eight_tokens_use_together() -> None:
    same, apart = scores(*["0"] * 8), scores(*"01010101")
    assert chunk_loss(same, everywhere(same)) == pytest.approx(1 / 4)
    assert chunk_loss(apart, everywhere(apart)) == pytest.approx(2 / 4)
    longer = scores(*["0"] * 8, "1", "2")  # a chunk of one expert and one of two
    assert chunk_loss(longer, everywhere(longer)) == pytest.approx((1 / 4 + 2 / 4) / 2)
    valid = everywhere(longer)
    valid[0, 9] = False  # padding uses none
    assert chunk_loss(longer, valid) == pytest.approx(1 / 4)
    half = torch.zeros((1, 3, 4))  # each expert by each of three tokens with a chance of a half
    assert chunk_loss(half, everywhere(half)) == pytest.approx(1 - 0.5**3)


def test_the_locality_loss_is_for_experts_that_change() -> None:
    same, apart = scores(*["01"] * 4), scores("01", "01", "23", "23")
    assert locality_loss(same, everywhere(same)) == pytest.approx(0, abs=1e-6)
    assert locality_loss(apart, everywhere(apart)) > 1
    valid = everywhere(apart)
    valid[0, 2:] = False
    assert locality_loss(apart, valid) == pytest.approx(0, abs=1e-6)
    undecided = torch.zeros((1, 2, 4))
    assert locality_loss(undecided, everywhere(undecided)) == pytest.approx(math.log(2))


def test_the_balance_loss_is_least_if_all_experts_are_used_alike() -> None:
    even, one = scores(*"0123"), scores(*"0000")
    assert balance_loss(even, everywhere(even), 1) == pytest.approx(1)
    assert balance_loss(one, everywhere(one), 1) == pytest.approx(4)


def test_shares_of_unions_are_counted_by_hand() -> None:
    used = np.array([[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 0], [1, 1, 1, 1]], bool)
    assert union_share([used], 1) == pytest.approx((1 + 2 + 1 + 1 + 4) / 20)
    assert union_share([used], 2) == pytest.approx((2 + 1) / 8)
    assert union_share([used, ~used], 4) == pytest.approx((3 / 4 + 1) / 2)


@pytest.mark.parametrize("kind", KINDS)
def test_it_learns(kind: Kind) -> None:
    run = TrainingRun(ExpertTask(recipe(kind, steps=60, batch=16)))
    losses = [each.loss for each in run.run()]
    assert np.mean(losses[-5:]) < 0.75 * np.mean(losses[:5])


def test_the_losses_of_blockffn_make_experts_fewer() -> None:
    def share(**weights: float) -> float:
        task = ExpertTask(recipe("blockffn", steps=60, batch=16, experts=16, **weights))
        for _ in TrainingRun(task).run():
            pass
        texts = [text.tokens for text in task.batch(60)]
        return union_share(experts_of(task.model, texts, task.recipe), 8)

    assert share(chunk=3.0) < 0.8 * share(chunk=0.0, locality=0.0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_run_goes_on_bit_for_bit(kind: Kind, tmp_path: Path) -> None:
    place = tmp_path / "checkpoint"
    goes_on_bit_for_bit(ExpertTask, recipe(kind), place)
    with pytest.raises(InvalidOption, match="other settings"):
        TrainingRun(ExpertTask(recipe(kind, seed=1)), place)


@pytest.mark.parametrize("kind", KINDS)
def test_runtimes_give_the_logits_and_the_experts_of_the_module(kind: Kind, tmp_path: Path) -> None:
    task = ExpertTask(recipe(kind, inner=64))
    for parameter in task.module.parameters():  # as they are on disk
        parameter.data = parameter.data.half().float()
    nothing = dict.fromkeys(training.TASKS, 0.0)
    save_experts(tmp_path, TrainingRun(task), Quality(nothing, {"1": 1.0}), "paceline")
    source = DirectorySource(tmp_path)
    wanted = Experts(4, 2, True) if kind == "top-k" else Experts(4, gated=False)
    assert source.config.experts == wanted
    tokens = list(map(int, task.batch(0)[0].tokens))
    with torch.no_grad():
        logits = task.model.scored(torch.tensor([tokens]))[0][0].numpy()
    cpu = CpuTarget(source.config, source.weights(), "fp32", kv_tokens=64, kv_precision="fp32")
    for target in (cpu, TorchTarget(source.config, source.weights())):
        [output] = target.forward([Rows.draft(target.open(), tokens[:1], chain(tokens[1:]))])
        np.testing.assert_allclose(output.logits, logits, atol=1e-4)
    for found, used in zip(
        cpu.routes(), experts_of(task.model, [tokens], task.recipe), strict=True
    ):
        assert np.array_equal(found != 0, used)


def test_answers_are_greedy_end_at_the_end_token_and_keep_within_their_room() -> None:
    task = ExpertTask(recipe("blockffn"))
    prompts = [text.tokens[: text.prompt_length] for text in task.batch(0)]
    found = decode(task.model, prompts, "causal", length=12)
    assert all(len(answer) <= 12 and training.EOS not in answer for answer in found)
    text = list(prompts[2])
    for token in found[2]:
        with torch.no_grad():
            last = task.model.scored(torch.tensor([text]))[0][0, -1]
        last[[MASK, PAD, UNKNOWN]] = -torch.inf
        assert token == int(last.argmax())
        text.append(token)


@pytest.mark.parametrize("kind", KINDS)
def test_the_command_writes_a_model_that_loads(
    kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(training, "JUDGED", 3)
    out = tmp_path / "model"
    sizes = ["--width", "32", "--layers", "1", "--experts", "4", "--steps", "3", "--batch", "4"]
    assert paceline(["train", "experts", kind, "--out", str(out), *sizes, "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["finished"]
    assert set(figures["right"]) == set(training.TASKS)
    assert set(figures["experts"]) == {"1", "8", "16", "32"}
    assert DirectorySource(out).config.experts is not None
    assert "| 32 |" in (out / "README.md").read_text()
    card = json.loads((out / "card.json").read_text())
    assert f"paceline train experts {kind} --steps 3 --batch 4" in card["command"]
    assert not list(tmp_path.glob("*.checkpoint"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "soft"}, "top-k or blockffn"),
        ({"width": 40}, "multiple of 16"),
        ({"inner": 40}, "multiple of 32"),
        ({"used": 5}, "1 to 4"),
        ({"chunk": -1.0}, "chunk"),
    ],
)
def test_recipes_that_are_wrong_are_named(changes: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        recipe(**{"kind": "top-k", **changes})  # type: ignore[arg-type]


def test_a_file_in_the_way_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model").write_text("")
    assert paceline(["train", "experts", "top-k", "--out", str(tmp_path / "model")]) == 2
    assert "is a file" in capsys.readouterr().err


# The one in the package.


def test_the_model_in_the_package_is_small_and_answers_as_its_card_says() -> None:
    [name] = EXPERTS
    source = resolve(name)
    assert source.name == name
    assert (source.path / "model.safetensors").stat().st_size <= 2 * 2**20
    card = json.loads((source.path / "card.json").read_text())
    assert np.mean(list(card["held_out"]["right"].values())) > 0.9
    shares = card["held_out"]["experts"]
    assert shares["1"] < shares["8"] < shares["32"] < 0.5
    found = answered(name, drafter="none", precision="fp32")
    right = [grade(case, text).strict for case, text in zip(CASES, found, strict=True)]
    assert sum(right) > 0.9 * len(CASES)


CASES = [case for task in training.TASKS for case in cases(task, 4, 7)]


def answered(model: str, *, drafter: str, precision: str, temperature: float = 0.0) -> list[str]:
    """All cases together."""
    engine = paceline_library.load(model, drafter=drafter, precision=precision, max_batch=8)
    asked: dict[str, Any] = {"raw": True, "max_new_tokens": 12, "temperature": temperature}
    numbers = [engine.add(case.prompt, seed=i, **asked) for i, case in enumerate(CASES)]
    done: dict[int, str] = {}
    while engine.pending:
        for event in engine.step():
            if event.completion is not None:
                done[event.request] = event.completion.text
    return [done[each] for each in numbers]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_drafts_change_none_of_its_texts(temperature: float) -> None:
    [name] = EXPERTS
    plain = answered(name, drafter="none", precision="int8", temperature=temperature)
    drafted = answered(name, drafter="suffix-automaton", precision="int8", temperature=temperature)
    assert drafted == plain
