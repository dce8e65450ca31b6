"""A head that was made for another model, or that foresees nothing, is named once."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.lab.export import drafters
from tests.networks.heads import random_head, write

import paceline
from paceline.drafters.network.first_drafts import FirstDrafts

OTHER = "was made for"


@pytest.mark.parametrize(
    ("made_for", "target", "says"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", "Meta-Llama-3.1-8B-Instruct-Q4_K_M.gguf", False),
        ("/data/models/Qwen3_4B", "qwen3-4b", False),
        ("", "anything", False),
        ("Qwen/Qwen3-4B", "Qwen3-8B-Q4_K_M", True),
    ],
)
def test_names_of_head_and_target_are_compared(
    made_for: str, target: str, says: bool, caplog: pytest.LogCaptureFixture
) -> None:
    FirstDrafts("head", made_for, target)
    assert (OTHER in caplog.text) == says


@pytest.mark.parametrize(("right", "says"), [(0, True), (76, True), (77, False), (256, False)])
def test_next_to_nothing_is_said_once(
    right: int, says: bool, caplog: pytest.LogCaptureFixture
) -> None:
    first = FirstDrafts("head", "", "target")
    more = [first.note([1, 2], [1, 9] if i < right else [9, 2]) for i in range(256)]
    assert more == [True] * 255 + [False]
    assert ("foresees" in caplog.text) == says


def test_a_random_head_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """In an engine, where it changes no text."""
    source = drafters.target(tmp_path / "target", "llama")
    head = write(random_head(source.config, boundaries=(1, 4, 6)), "speculators", tmp_path / "head")
    load = {"runtime": "cpu", "precision": "fp32", "controller": "fixed", "depth": 3}
    options = {"max_new_tokens": 100, "raw": True, "ignore_eos": True}
    engine = paceline.load(str(source.path), drafter="eagle3", draft_model=str(head), **load)
    prompts = ["a", "b", "c", "d"]
    texts = engine.generate(prompts, **options)
    assert caplog.text.count("foresees 0.0") == 1
    plain = paceline.load(str(source.path), drafter="none", **load)
    for with_drafts, without in zip(texts, plain.generate(prompts, **options), strict=True):
        assert with_drafts.token_ids == without.token_ids
