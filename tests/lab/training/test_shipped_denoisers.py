"""The denoisers in the package: they load by name, are small, and answer held-out cases."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch")

import torch

from paceline.lab.measure import parallel_tasks
from paceline.lab.training.denoisers.decode import decode
from paceline.lab.training.denoisers.files import load_denoiser
from paceline.lab.training.denoisers.rows import text_of, vocabulary
from paceline.models.source import DENOISERS, resolve


@pytest.mark.parametrize("name", DENOISERS)
def test_it_is_small_and_answers_as_its_card_says(name: str) -> None:
    source = resolve(name)
    assert source.name == name
    assert source.config.vocab_size == source.tokenizer().vocab_size == len(vocabulary())
    assert sum(each.stat().st_size for each in source.path.iterdir()) < 8 * 2**20
    card = json.loads((source.path / "card.json").read_text())
    module, recipe = load_denoiser(source.path)
    assert all(torch.isfinite(each).all() for each in module.own.values())
    ways = {"block 8": "block", "left to right": "causal"} if recipe.kind == "block" else {}
    for label, way in (ways or {recipe.kind: recipe.kind}).items():
        for task in ("copy", "reverse"):
            cases = list(parallel_tasks.cases(task, 20, 7))
            prompts = [text_of(each, vocabulary()) for each in cases]
            answers = decode(
                module,
                [each.tokens[: each.prompt_length] for each in prompts],
                way,  # type: ignore[arg-type]
                length=20,
            )
            tokenizer = source.tokenizer()
            right = [
                parallel_tasks.grade(case, tokenizer.decode(answer)).strict
                for case, answer in zip(cases, answers, strict=True)
            ]
            share = card["held_out"]["right"][label][task]
            assert share > 0.75
            assert sum(right) / len(right) > share - 0.2
