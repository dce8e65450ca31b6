"""The drafter in examples/deploy/vllm, called as vLLM 0.32 calls it, without vLLM."""

from __future__ import annotations

import importlib.util
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

EXAMPLE = Path(__file__).parents[1] / "examples" / "deploy" / "vllm" / "paceline_proposer.py"
LONGEST = 64


@pytest.fixture
def suffix() -> Any:
    spec = importlib.util.spec_from_file_location("paceline_proposer", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    config = SimpleNamespace(
        speculative_config=SimpleNamespace(num_speculative_tokens=4),
        model_config=SimpleNamespace(max_model_len=LONGEST),
    )
    return module.Suffix(config)


def batch(*texts: tuple[list[int], int]) -> tuple[list[list[int]], np.ndarray, np.ndarray]:
    """Texts, and how many of their tokens this step sampled."""
    tokens = np.full((len(texts) + 2, LONGEST), -1, np.int32)
    for row, (text, _) in enumerate(texts):
        tokens[row, : len(text)] = text
    lengths = np.array([len(text) for text, _ in texts], np.int32)
    return [text[len(text) - new :] for text, new in texts], lengths, tokens


def test_a_text_that_repeats_itself_is_drafted(suffix: Any) -> None:
    text = [1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3]
    assert suffix.propose(*batch((text, 1))) == [[4, 5, 6, 7]]
    assert suffix.propose(*batch(([*text, 4, 5], 2))) == [[6, 7, 8, 1]]


def test_rows_move_and_texts_keep_theirs(suffix: Any) -> None:
    first, second = [1, 2, 3, 9, 1, 2], [11, 12, 13, 19, 11, 12]
    suffix.propose(*batch(([5, 6, 7], 1), (first, 1), (second, 1)))
    drafts = suffix.propose(*batch(([*second, 13], 1), ([*first, 3], 1)))
    assert [draft[0] for draft in drafts] == [19, 9]
    assert len(suffix._rows) == 2


def test_rows_in_prefill_have_no_draft_and_ended_texts_are_remembered(suffix: Any) -> None:
    said = [40, 41, 42, 43, 44, 45, 46]
    suffix.propose(*batch(([30, *said[:1]], 1)))
    suffix.propose(*batch(([30, *said], 6)))
    assert suffix.propose(*batch(([1, 2, 3], 0))) == [[]]
    [draft] = suffix.propose(*batch(([1, 2, 41, 42, 43], 1)))
    assert draft[:2] == [44, 45]


def test_at_the_end_of_the_context_drafts_are_shorter(suffix: Any) -> None:
    for length, most in ((LONGEST - 3, 2), (LONGEST - 1, 0), (LONGEST, 0)):
        assert len(suffix.propose(*batch(([7] * length, 1)))[0]) == most


def test_under_any_order_of_requests_the_rows_hold_their_texts(suffix: Any) -> None:
    draw = random.Random(4)
    texts: list[list[int]] = []
    for _ in range(300):
        texts = [text for text in texts if len(text) < LONGEST - 4 and draw.random() > 0.05]
        draw.shuffle(texts)
        texts += [[draw.randrange(6)] for _ in range(5 - len(texts)) if draw.random() < 0.5]
        new = [draw.randrange(1, 4) for _ in texts]
        texts = [t + [draw.randrange(6) for _ in range(n)] for t, n in zip(texts, new, strict=True)]
        drafts = suffix.propose(*batch(*zip(texts, new, strict=True)))
        assert [suffix._rows[row][0].tokens for row in range(len(texts))] == texts
        assert all(len(draft) <= 4 for draft in drafts)
