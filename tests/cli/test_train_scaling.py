"""`train scaling` on a tiny model: laws of its runs, resumption, and what is refused."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

from tests.cli.conftest import Command, Outcome, one_line
from tests.helpers.tiny_model import save_directory, tiny_config

from paceline.measure.log_linear import fit_log_linear
from paceline.models.source import resolve
from paceline.training.data import Shards, Text
from paceline.training.run import TrainingStep
from paceline.training.trainer import Trainer

SMALL, MIDDLE, LARGE = (f"hydra:steps=2,hidden={n},ffn_size={n}" for n in (8, 16, 32))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_directory(tmp_path_factory.mktemp("model"), tiny_config())


@pytest.fixture(scope="module")
def data(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    settings = {"model": resolve(str(model)).fingerprint, "prompts": "counting"}
    texts = [Text(i, (np.arange(16) + 5 * i) % 300, 3) for i in range(42)]
    Shards(folder, settings).write(0, texts)
    return folder


@pytest.fixture
def study(command: Command, model: Path, data: Path, tmp_path: Path):
    def call(*more: str, tokens: str = "100,200,400", networks: tuple[str, ...] = (SMALL,)):
        sizes = ("--batch-tokens", "64", "--training-precision", "fp32", "--vocabulary", "200")
        where = ("--data", str(data), "--out", str(tmp_path / "study"), "--model", str(model))
        names = [part for name in networks for part in ("--networks", name)]
        run = ("train", "scaling", "--tokens", tokens, *names, "--runtime", "torch")
        return command(*run, *where, *sizes, *more)

    return call


@pytest.fixture
def updates(monkeypatch: pytest.MonkeyPatch) -> list[TrainingStep]:
    """Every update that is made, of whichever run."""
    seen: list[TrainingStep] = []
    genuine = Trainer.run

    def run(self: Trainer) -> Iterator[TrainingStep]:
        for report in genuine(self):
            seen.append(report)
            yield report

    monkeypatch.setattr(Trainer, "run", run)
    return seen


def report(outcome: Outcome) -> dict:
    assert outcome.code == 0, outcome.err
    return json.loads(outcome.out)


def test_laws_are_those_of_the_runs_and_a_larger_study_takes_up_a_smaller_one(
    study, updates: list[TrainingStep], tmp_path: Path
) -> None:
    first = report(study("--json", "--seeds", "2", tokens="100,0.2k"))
    assert [(run["budget"], run["seed"]) for run in first["runs"]] == [
        *((100, 0), (100, 1), (200, 0), (200, 1)),
    ]
    assert sum(run["steps"] for run in first["runs"]) == len(updates)
    assert (first["complete"], first["laws"]) == (True, [])

    done = len(updates)
    whole = report(study("--json", networks=(SMALL, MIDDLE, LARGE)))
    runs, distributions = whole["runs"], whole["laws"]
    known = [run for run in runs if run["network"] == SMALL and run["budget"] < 400]
    assert known == first["runs"][::2]
    assert sum(run["steps"] for run in runs if run not in known) == len(updates) - done
    assert runs[0]["parameters"] < runs[1]["parameters"] < runs[2]["parameters"]
    assert len(distributions) == 2 * 3 + 2
    for distribution in distributions:
        if distribution["over"] == "parameters":
            assert distribution["of"] == "hydra of depth 2, 400 tokens"
            mine, size = runs[-3:], "parameters"
        else:
            mine, size = [run for run in runs if run["network"] == distribution["of"]], "tokens"
        block = distribution["value"] == "block efficiency"
        values = [r["block_efficiency"] if block else r["acceptance"][0] for r in mine]
        fit = fit_log_linear([run[size] for run in mine], values)
        assert distribution["per_tenfold"]["value"] == fit.per_tenfold.value
        assert distribution["per_tenfold"]["low"] == fit.per_tenfold.low
        assert distribution["intercept"] == fit.intercept
    folder = tmp_path / "study"
    assert json.loads((folder / "scaling.json").read_text()) == whole
    text = (folder / "scaling.md").read_text()
    assert text.count(f"| `{LARGE}` | ") == 3 + 2
    for name in ("training-tokens", "parameters"):
        assert f"(block-efficiency-over-{name}.png)" in text
        assert (folder / f"block-efficiency-over-{name}.png").read_bytes().startswith(b"\x89PNG")


def test_a_stopped_study_goes_on_and_ends_like_one_that_was_not(
    study, updates: list[TrainingStep], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = report(study("--json"))
    (tmp_path / "study").rename(tmp_path / "whole")
    steps = [run["steps"] for run in whole["runs"]]
    updates.clear()
    genuine = Trainer._update

    def interrupted(self: Trainer, *given: object):
        if len(updates) == steps[0] + 1:
            signal.raise_signal(signal.SIGINT)
        return genuine(self, *given)

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "_update", interrupted)
        cut = study("--json")
    assert cut.code == 130
    assert "1 of 3 runs are finished: the same command goes on" in cut.err
    partial = json.loads(cut.out)
    assert (partial["complete"], len(partial["runs"]), partial["laws"]) == (False, 1, [])
    assert len(updates) == steps[0] + 2
    assert len([*(tmp_path / "study" / "runs").glob("*.checkpoint")]) == 1
    rest = report(study("--json"))
    assert len(updates) == sum(steps)  # nothing twice
    for run in (*whole["runs"], *rest["runs"]):
        del run["seconds"]
    assert rest == whole
    assert not [*(tmp_path / "study" / "runs").glob("*.checkpoint")]


@pytest.mark.parametrize(
    "other",
    [(), ("--rate", "0.01"), ("--loss", "tvd"), ("--vocabulary", "150"), ("--seed", "1")],
    ids=lambda other: other[0] if other else "same",
)
def test_results_of_another_recipe_are_not_taken(
    study, updates: list[TrainingStep], other: tuple[str, ...]
) -> None:
    first = report(study("--json", tokens="100"))
    assert len(updates) == first["runs"][0]["steps"]
    updates.clear()
    again = report(study("--json", *other, tokens="100"))
    assert len(updates) == (again["runs"][0]["steps"] if other else 0)


def test_results_that_are_damaged_or_of_another_run_are_named(study, tmp_path: Path) -> None:
    report(study("--json", tokens="100,200"))
    first, second = sorted((tmp_path / "study" / "runs").iterdir())
    mine = first.read_bytes()
    entry = json.loads(mine)
    gone = {**entry, "outcome": {**entry["outcome"], "loss": None}}
    for content, message in (
        (mine[:-20], "is damaged or no result"),
        (json.dumps(gone).encode(), "is damaged or no result"),
        (b"[]", "is damaged or no result"),
        (second.read_bytes(), "is the result of another run"),
    ):
        first.write_bytes(content)
        done = study(tokens="100,200")
        assert one_line(done), done.err
        assert str(first) in done.err
        assert message in done.err
    first.unlink()
    done = study(tokens="100,200")
    assert done.code == 0, done.err
    assert "scaling.md: 2 runs, 0 laws" in done.out
    assert "A law needs three numbers" in (tmp_path / "study" / "scaling.md").read_text()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"tokens": "60q"}, "--tokens must be whole numbers above 0"),
        ({"tokens": "100,,200"}, "not ''"),
        ({"networks": ("abacus",)}, "network 'abacus' is unknown"),
        ({"networks": ("medusa", "medusa")}, "--networks names medusa twice"),
        ({"networks": ("hydra", "hydra:hidden=64")}, "hydra and hydra:hidden=64 are the same"),
    ],
)
def test_bad_lists_end_in_one_line(study, more: dict, message: str) -> None:
    done = study(**more)
    assert one_line(done), done.err
    assert message in done.err


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--seeds", "0"), "--seeds must be 1 or more"),
        (("--loss", "love"), "love"),
        (("--data", "nowhere"), "nowhere holds no training text"),
    ],
)
def test_bad_options_end_in_one_line(study, more: tuple[str, str], message: str) -> None:
    done = study(*more)
    assert one_line(done), done.err
    assert message in done.err


def test_a_folder_that_is_a_file_is_named(study, tmp_path: Path) -> None:
    (tmp_path / "study").write_text("")
    done = study()
    assert one_line(done)
    assert "choose another --out" in done.err
