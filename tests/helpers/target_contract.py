"""What every target must do, as checks that the tests of each runtime share.

`target` is under test; `logits_of(target, tokens)` recomputes from nothing. `tolerance` bounds the
difference of logits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from paceline.core import tree
from paceline.core.target import Rows, Target
from paceline.core.types import TokenTree

PROMPT = [5, 9, 17, 23, 9, 42, 7]
DRAFT = TokenTree(
    tokens=np.array([11, 12, 13, 14, 15, 11, 16, 17]),
    parents=np.array([-1, -1, 0, 1, 1, 3, 2, 5]),
)
ACROSS = (1, 3, 5, 7)  # a path whose nodes are not the first ones

Numbers = npt.NDArray[np.floating[Any]]


def all_rows(cache: Any, tokens: list[int], **more: Any) -> Rows:
    """New tokens, with the logits of all."""
    return Rows.draft(cache, tokens, wanted=np.arange(len(tokens)), **more)


def cache_with(target: Target, tokens: list[int]) -> Any:
    cache = target.open()
    target.prefill(cache, tokens)
    assert cache.length == len(tokens)
    return cache


def logits_of(target: Target, tokens: list[int]) -> Numbers:
    """Logits after `tokens`, from an empty cache in one plain pass."""
    (output,) = target.forward([Rows.draft(target.open(), tokens)])
    rows: Numbers = output.logits[0].copy()
    return rows


def close(found: Numbers, expected: Numbers, tolerance: float) -> None:
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance)


def check_nodes_equal_their_paths(target: Target, tolerance: float, draft: TokenTree) -> None:
    """T6: a node's logits and hidden state are those of its path as a plain sequence."""
    cache = cache_with(target, PROMPT[:-2])
    (output,) = target.forward([Rows.draft(cache, PROMPT[-2:], draft, hidden=True)])
    assert output.logits.shape == (1 + len(draft), target.capabilities.vocab_size)
    assert output.hidden is not None
    assert output.hidden.shape == (1 + len(draft), target.capabilities.hidden_size)
    for node in range(-1, len(draft)):
        path = draft.tokens[list(tree.path_to(draft, node))].tolist()
        (plain,) = target.forward([Rows.draft(target.open(), PROMPT + path, hidden=True)])
        assert plain.hidden is not None
        close(output.logits[node + 1], plain.logits[0], tolerance)
        close(output.hidden[node + 1], plain.hidden[0], tolerance)


def check_features(target: Target, tolerance: float) -> None:
    """A token's features are the same in a prefill, in a pass beside others, and alone."""
    capabilities = target.capabilities
    width = capabilities.hidden_size
    assert len(capabilities.feature_layers) == 3
    cache = target.open()
    prompt = target.prefill(cache, PROMPT[:4], True)
    assert prompt is not None
    passes = [
        Rows.draft(cache, PROMPT[4:], DRAFT, hidden=True, features=True),
        Rows.draft(cache_with(target, PROMPT[:2]), PROMPT[2:3]),
        Rows.draft(cache_with(target, PROMPT[:1]), PROMPT[1:3], features=True),
    ]
    first, second, third = target.forward(passes)
    assert second.features is None
    assert first.features is not None
    assert third.features is not None
    assert third.features.shape == (2, 4 * width)
    assert first.features.shape == (len(PROMPT) - 4 + len(DRAFT), 4 * width)
    assert first.hidden is not None
    close(first.features[len(PROMPT) - 5 :, -width:], first.hidden, tolerance)
    rows = np.concatenate([prompt, first.features])
    close(third.features, rows[1:3], tolerance)
    for node in range(-1, len(DRAFT)):
        path = DRAFT.tokens[list(tree.path_to(DRAFT, node))].tolist()
        (alone,) = target.forward([Rows.draft(target.open(), PROMPT + path, features=True)])
        assert alone.features is not None
        close(rows[len(PROMPT) + node], alone.features[-1], tolerance)
        close(rows[: len(PROMPT)], alone.features[: len(PROMPT)], tolerance)
    assert np.ptp(rows.reshape(len(rows), 4, width), axis=1).min() > 0  # four different streams


def check_forward_alone_changes_nothing(target: Target, tolerance: float) -> None:
    cache = cache_with(target, PROMPT[:-1])
    first = target.forward([Rows.draft(cache, PROMPT[-1:], DRAFT)])[0].logits.copy()
    target.forward([Rows.draft(cache, [3, 3], tree.chain([4, 4]))])
    assert cache.length == len(PROMPT) - 1
    close(target.forward([Rows.draft(cache, PROMPT[-1:], DRAFT)])[0].logits, first, tolerance)


def check_keep(target: Target, path: tuple[int, ...], tolerance: float) -> None:
    """T4: after keeping a path the cache is that of the committed tokens."""
    cache = cache_with(target, PROMPT[:-2])
    target.forward([Rows.draft(cache, PROMPT[-2:], DRAFT)])
    target.keep(cache, 2, path)
    committed = PROMPT + DRAFT.tokens[list(path)].tolist()
    assert cache.length == len(committed)
    (output,) = target.forward([Rows.draft(cache, [33], tree.chain([34]))])
    close(output.logits[0], logits_of(target, [*committed, 33]), tolerance)
    close(output.logits[1], logits_of(target, [*committed, 33, 34]), tolerance)


def check_truncate(target: Target, tolerance: float) -> None:
    cache = cache_with(target, PROMPT)
    target.truncate(cache, 3)
    assert cache.length == 3
    (output,) = target.forward([Rows.draft(cache, [33])])
    close(output.logits[0], logits_of(target, [*PROMPT[:3], 33]), tolerance)
    target.truncate(cache, 0)
    target.prefill(cache, PROMPT[:1])
    (output,) = target.forward([Rows.draft(cache, [33])])
    close(output.logits[0], logits_of(target, [PROMPT[0], 33]), tolerance)


def check_fork(target: Target, tolerance: float) -> None:
    """What happens to a fork does not show in the original, and the other way round."""
    cache = cache_with(target, PROMPT)
    fork = target.fork(cache)
    for one, token in ((cache, 20), (fork, 21)):
        target.forward([Rows.draft(one, [token], DRAFT)])
        target.keep(one, 1, ACROSS)
    path = DRAFT.tokens[list(ACROSS)].tolist()
    for one, token in ((cache, 20), (fork, 21)):
        (output,) = target.forward([Rows.draft(one, [33])])
        close(output.logits[0], logits_of(target, [*PROMPT, token, *path, 33]), tolerance)
    target.release(fork)
    (output,) = target.forward([Rows.draft(cache, [33])])
    close(output.logits[0], logits_of(target, [*PROMPT, 20, *path, 33]), tolerance)


def check_ragged_batches(target: Target, tolerance: float) -> None:
    """A pass has the same output beside others of other lengths and drafts as alone."""
    sizes, drafts = (0, 1, 4), (None, DRAFT, tree.chain([8, 8]))
    passes = [
        Rows.draft(cache_with(target, PROMPT[:size]), PROMPT[size:], draft, hidden=size == 1)
        for size, draft in zip(sizes, drafts, strict=True)
    ]
    together = target.forward(passes)
    assert [output.hidden is not None for output in together] == [False, True, False]
    together_logits = [output.logits.copy() for output in together]
    for one, logits in zip(passes, together_logits, strict=True):
        close(logits, target.forward([one])[0].logits, tolerance)
    assert target.forward([]) == []


def check_most_probable(target: Target) -> None:
    """Who asks hears what the rows of logits say, or nothing; who does not ask hears nothing."""
    passes = [
        Rows.draft(cache_with(target, PROMPT[:size]), PROMPT[size:], draft, argmax=asked)
        for size, draft, asked in ((0, DRAFT, True), (4, None, False), (2, None, True))
    ]
    first, second, third = target.forward(passes)
    assert not second.argmax
    assert bool(first.argmax) == bool(third.argmax)
    for output in (first, third):
        if output.argmax:
            assert list(output.argmax) == output.logits.argmax(axis=1).tolist()
    for each in passes:
        target.release(each.cache)


def check_long_prefill(target: Target, tolerance: float) -> None:
    """Chunks of a prefill add up to one plain pass."""
    tokens = (PROMPT * 100)[:600]
    cache = cache_with(target, tokens)
    (output,) = target.forward([Rows.draft(cache, [33])])
    close(output.logits[0], logits_of(target, [*tokens, 33]), tolerance)
