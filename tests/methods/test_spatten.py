"""Tokens leave by weight: the same text with drafts and without, and what weights are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.helpers.endless import CONFIG, WEIGHTS, WINDOW, endless_engine

from paceline.core.target import LEAVING, SINKS, Rows, row_mask, stored, whole
from paceline.core.tree import chain
from paceline.core.types import SamplingParams
from paceline.drafters.base import Drafter, NoDrafter
from paceline.errors import InvalidOption
from paceline.methods.prompt_lookup import PromptLookup
from paceline.methods.spatten import Leaving, PrunedTarget
from paceline.runtimes.torch.target import TorchTarget

PROMPT = np.random.default_rng(5).integers(3, 300, 500).tolist()
PARAMS = SamplingParams(max_new_tokens=320, ignore_eos=True)


def pruned(leaving: Leaving = "lightest", kind: Any = PrunedTarget) -> Any:
    """In float64, whose sums of other batches tell no two tokens apart that are not alike."""
    return kind(CONFIG, WEIGHTS, "fp64", leaving=leaving)


def text(target: Any, drafter: Drafter | None = None) -> list[int]:
    engine = endless_engine(drafter or NoDrafter(), target=target)
    return list(engine.generate(PROMPT, PARAMS, endless=WINDOW).token_ids)


class Eager(PrunedTarget):
    """Drops after every `keep`, so that a draft decides when."""

    def keep(self, cache: Any, num_new: int, path: Any) -> None:
        super().keep(cache, num_new, path)
        over = stored(cache) - SINKS - cache.window
        if over > 0:
            order = cache.weights[SINKS:-8].argsort(stable=True)
            self.drop(cache, order[:over] + SINKS)


def test_with_drafts_the_text_is_the_same() -> None:
    target = pruned()
    plain = text(target)
    assert text(target, PromptLookup()) == plain
    assert text(pruned("oldest")) != plain


def test_dropping_after_every_keep_lets_drafts_change_the_text() -> None:
    """Negative control: at fixed lengths alone is the text its own."""
    target = pruned(kind=Eager)
    assert text(target, PromptLookup()) != text(target)


def test_until_something_leaves_it_is_the_model() -> None:
    target, plain = pruned(), TorchTarget(CONFIG, WEIGHTS, "cpu", "fp64")
    ours, theirs = target.open(), plain.open()
    for part in (PROMPT[:7], PROMPT[7:60]):
        rows = [Rows.draft(each, part[:1], chain(part[1:])) for each in (ours, theirs)]
        [[found], [expected]] = target.forward(rows[:1]), plain.forward(rows[1:])
        np.testing.assert_allclose(found.logits, expected.logits, atol=1e-9)
        for each, cache in ((target, ours), (plain, theirs)):
            each.keep(cache, 1, range(len(part) - 1))


def paid_by_hand(target: Any, tokens: list[int]) -> Any:
    """What each token weighs after one forward over all."""
    cache = target.open()
    target.forward([Rows.draft(cache, tokens)])
    target.keep(cache, len(tokens), ())
    return cache.weights


def test_weights_are_what_kept_rows_have_paid() -> None:
    """However rows come, and whatever was drafted beside them; a row pays 1 a head and layer."""
    target, tokens = pruned(), PROMPT[:90]
    once = paid_by_hand(target, tokens)
    torch.testing.assert_close(
        once.sum(), torch.tensor(90.0 * CONFIG.heads * CONFIG.layers).double()
    )
    cache, rest = target.open(), tokens
    while rest:
        wrong = [(rest[0] + 1) % 300] * 3
        target.forward([Rows.draft(cache, rest[:1], chain([*rest[1:4], *wrong]))])
        target.keep(cache, 1, range(len(rest[1:4])))
        rest = rest[4:]
    torch.testing.assert_close(cache.weights, once)


def test_the_lightest_leave_and_the_first_and_newest_stay() -> None:
    target = pruned()
    cache = target.open()
    cache.window = WINDOW
    for part in (PROMPT[:300], PROMPT[300:], PROMPT[: whole(WINDOW) - 500]):
        target.prefill(cache, part)
    assert stored(cache) == whole(WINDOW)
    keys, weights = cache.data[0, 0, 0, : whole(WINDOW)].clone(), cache.weights.clone()
    target.slide(cache, PROMPT[:SINKS])
    middle = weights[SINKS : whole(WINDOW) - WINDOW // 2]
    stays = [*range(SINKS)]
    stays += sorted((middle.argsort()[LEAVING:] + SINKS).tolist())
    stays += range(whole(WINDOW) - WINDOW // 2, whole(WINDOW))
    assert torch.equal(cache.data[0, 0, 0, : stored(cache)], keys[stays])
    assert torch.equal(cache.weights, weights[stays])
    assert (cache.length, cache.gone) == (whole(WINDOW), LEAVING)
    assert row_mask(Rows.draft(cache, [1])).shape == (1, SINKS + WINDOW + 1)


def test_bytes_read_are_those_of_keys_and_values() -> None:
    target = pruned()
    cache = target.open()
    target.prefill(cache, PROMPT[:10])
    target.forward([Rows.draft(cache, PROMPT[10:13])])
    a_token = 2 * 8 * CONFIG.layers * CONFIG.kv_heads * CONFIG.head_dim
    assert target.read_bytes == (10 + 13) * a_token


def test_a_shortened_text_begins_anew() -> None:
    target = pruned()
    cache = target.open()
    target.prefill(cache, PROMPT[:40])
    copy = target.fork(cache)
    target.truncate(cache, 40)
    assert cache.length == 40
    target.truncate(cache, 30)
    assert (cache.length, len(cache.weights), copy.length) == (0, 0, 40)
    target.prefill(cache, PROMPT[:40])
    assert torch.equal(cache.weights, copy.weights)


def test_models_whose_layers_have_windows_are_refused() -> None:
    with pytest.raises(InvalidOption, match="without windows"):
        PrunedTarget(replace(CONFIG, windows=(8, 0)), WEIGHTS)
    with pytest.raises(InvalidOption, match="newest"):
        PrunedTarget(CONFIG, WEIGHTS, newest=2)
