"""Nodes that carry embeddings: their rows are right, and no token's row knows of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.helpers import tiny_model as tiny
from tests.runtimes import tiny_cpu

from paceline.core import tree as trees
from paceline.core.target import Rows
from paceline.core.types import ROOT, LogitArray, TokenTree
from paceline.errors import InvalidOption
from paceline.runtimes.torch.target import TorchTarget

PROMPT = [5, 9, 17, 23, 9, 42, 7]
REAL = TokenTree(np.array([11, 12, 13]), np.array([ROOT, 0, ROOT]))
WIDTH = 64


def make(runtime: str, precision: str) -> Any:
    if runtime == "cpu":
        return tiny_cpu.target(precision)
    config = tiny.tiny_config()
    return TorchTarget(config, tiny.named_tensors(config), precision=precision)


def rows_of(scale: float = 1.0) -> LogitArray:
    rng = np.random.default_rng(3)
    return (scale * rng.standard_normal((3, WIDTH))).astype(np.float32)


def with_prompts(first: int) -> TokenTree:
    """`REAL` with chains of embeddings behind the root and every node."""
    tokens, parents = REAL.tokens.tolist(), REAL.parents.tolist()
    for above in (ROOT, 0, 1, 2):
        for index in range(3):
            parents.append(above if index == 0 else len(tokens) - 1)
            tokens.append(first + index)
    return TokenTree(np.array(tokens), np.array(parents))


def logits(target: Any, draft: TokenTree, tokens: list[int] = PROMPT) -> LogitArray:
    cache = target.open()
    target.prefill(cache, tokens[:-1])
    (output,) = target.forward([Rows.draft(cache, tokens[-1:], draft)])
    found: LogitArray = output.logits.copy()
    target.release(cache)
    return found


@pytest.mark.parametrize("precision", ["int8", "fp32"])
def test_rows_of_tokens_are_the_same_numbers_with_embeddings_and_beside_them(
    precision: str,
) -> None:
    target = tiny_cpu.target(precision)
    before = logits(target, REAL)
    first = target.add_embeddings(rows_of())
    assert first == target.capabilities.vocab_size == 320
    np.testing.assert_array_equal(logits(target, REAL), before)
    beside = logits(target, with_prompts(first))
    assert beside.shape == (1 + 3 + 12, 320)
    np.testing.assert_array_equal(beside[:4], before)
    chain = trees.chain([first, first + 1, first + 2])
    alone = logits(target, chain)
    target.warm_up()
    np.testing.assert_array_equal(logits(target, with_prompts(first)), beside)
    np.testing.assert_array_equal(logits(target, chain), alone)
    np.testing.assert_array_equal(beside[4:7], alone[1:])
    other = tiny_cpu.target(precision)
    other.add_embeddings(rows_of(scale=2.0))
    assert np.abs(logits(other, with_prompts(first))[4:] - beside[4:]).max() > 0.01


@pytest.mark.parametrize(("runtime", "precision"), [("cpu", "fp32"), ("torch", "fp64")])
def test_an_embedding_that_is_a_tokens_is_worth_that_token(runtime: str, precision: str) -> None:
    target = make(runtime, precision)
    config = tiny_cpu.config() if runtime == "cpu" else tiny.tiny_config()
    table = tiny.named_tensors(config)["embed"]
    first = target.add_embeddings(table[[21, 22, 23]])
    found = logits(target, trees.chain([11, first, first + 1, first + 2]))
    expected = logits(target, trees.chain([11, 21, 22, 23]))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10 if runtime == "torch" else 0)


def test_torch_rows_of_tokens_see_no_embedding() -> None:
    target = make("torch", "fp64")
    before = logits(target, REAL)
    first = target.add_embeddings(rows_of())
    beside = logits(target, with_prompts(first))
    np.testing.assert_allclose(beside[:4], before, rtol=0, atol=1e-10)
    assert np.abs(beside[4] - beside[0]).max() > 0.01


@pytest.mark.parametrize(("runtime", "precision"), [("cpu", "int8"), ("torch", "fp64")])
def test_a_path_beside_embeddings_can_be_kept(runtime: str, precision: str) -> None:
    target = make(runtime, precision)
    first = target.add_embeddings(rows_of())
    for path in ((), (0,), (0, 1), (2,)):
        cache = target.open()
        target.prefill(cache, PROMPT[:-1])
        target.forward([Rows.draft(cache, PROMPT[-1:], with_prompts(first))])
        target.keep(cache, 1, path)
        (output,) = target.forward([Rows.draft(cache, [33], trees.chain([34]))])
        found = output.logits.copy()
        plain = logits(target, trees.chain([34]), [*PROMPT, *REAL.tokens[list(path)].tolist(), 33])
        np.testing.assert_allclose(found, plain, rtol=0, atol=1e-10 if runtime == "torch" else 0)


@pytest.mark.parametrize(
    "rows", [np.zeros((2, 63)), np.zeros(64), np.zeros((0, 64)), np.full((1, 64), np.nan)]
)
def test_rows_that_do_not_fit_are_refused(rows: LogitArray) -> None:
    with pytest.raises(InvalidOption, match="embeddings must be finite rows of width 64"):
        make("cpu", "fp32").add_embeddings(rows)
