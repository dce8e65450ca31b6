"""Noise floor and fidelity on tables, where the answers are known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from tests.helpers.tiny_model import tiny_tokenizer

from paceline.core.target import Output, Rows
from paceline.core.types import LogitArray
from paceline.lab.measure.doctor import fidelity, noise_floor
from paceline.models.text import Tokenizer
from paceline.proof.tabular import TabularModel, TabularTarget

TABLE = TabularModel(320, 2, seed=1, sharpness=2.0)
OTHER = TabularModel(320, 2, seed=2, sharpness=2.0)
TOKENS = list(range(30, 90))


def target(table: TabularModel, max_context: int = 400) -> Any:
    return TabularTarget(table.logits, 320, max_context)


class Sloppy(TabularTarget):
    """Logits of branches are off, as in a packed tree whose keys have gaps."""

    def forward(self, passes: Sequence[Rows]) -> list[Output]:
        outputs = super().forward(passes)
        for each, output in zip(passes, outputs, strict=True):
            parents = [] if each.tree is None else each.tree.parents.tolist()
            for node, parent in enumerate(parents):
                if parent != node - 1:
                    output.logits[node + 1, 7] += 0.25
        return outputs


@pytest.mark.parametrize("max_context", [4, 10, 11, 400])
def test_a_table_has_no_noise(max_context: int) -> None:
    expected = {"chain": 0.0, "tree": 0.0} if max_context > 10 else {"chain": 0.0}
    assert noise_floor(target(TABLE, max_context), TOKENS) == expected


def test_noise_is_found_where_it_is() -> None:
    sloppy: Any = Sloppy(TABLE.logits, 320)
    found = noise_floor(sloppy, TOKENS)
    assert found["chain"] == 0
    assert found["tree"] == pytest.approx(0.25, abs=1e-5)


def test_a_model_is_faithful_to_itself() -> None:
    tokenizer = Tokenizer(tiny_tokenizer(320))
    same = fidelity(target(TABLE), target(TABLE), tokenizer, ["fox", "dog"], 20)
    assert same.tokens == 40
    assert same.kl == pytest.approx(0, abs=1e-12)
    assert same.top1_agreement == 1
    assert same.perplexity == pytest.approx(same.reference_perplexity)


def test_kl_and_perplexity_are_those_of_the_definition() -> None:
    tokenizer = Tokenizer(tiny_tokenizer(320))
    got = fidelity(target(TABLE), target(OTHER), tokenizer, ["fox"], 12)
    context = tokenizer.encode("fox")
    kl, loss, agree = 0.0, 0.0, 0
    for _ in range(12):
        p, q = (table.distribution(tuple(context)).probs for table in (TABLE, OTHER))
        token = int(p.argmax())
        kl += float((p * np.log(p / q)).sum())
        loss -= float(np.log(q[token]))
        agree += int(q.argmax()) == token
        context.append(token)
    assert got.kl == pytest.approx(kl / 12)
    assert got.perplexity == pytest.approx(np.exp(loss / 12))
    assert got.top1_agreement == agree / 12


def test_continuations_end_at_end_tokens() -> None:
    def logits(context: tuple[int, ...]) -> LogitArray:
        row = np.zeros(320, dtype=np.float32)
        row[2 if len(context) > 8 else 40] = 5
        return row

    ending: Any = TabularTarget(logits, 320)
    tokenizer = Tokenizer(tiny_tokenizer(320), eos_token_ids=(2,))
    length = len(tokenizer.encode("fox"))
    assert fidelity(ending, ending, tokenizer, ["fox"], 64).tokens == 8 - length + 2
