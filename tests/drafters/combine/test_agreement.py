"""Two drafts weighed together: whose nodes there are, in what order, and how sure they are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.core import tree as trees
from paceline.core.types import ROOT, TokenTree
from paceline.trees.union import weighed


@st.composite
def drafts(draw: st.DrawFn, source: str) -> TokenTree:
    """A tree whose siblings' chances sum to 1 at most."""
    tokens: list[int] = []
    parents: list[int] = []
    scores: list[float] = []
    for _ in range(draw(st.integers(1, 8))):
        parent = draw(st.integers(ROOT, len(tokens) - 1))
        siblings = [node for node, above in enumerate(parents) if above == parent]
        token = draw(st.integers(0, 3))
        if token in [tokens[node] for node in siblings]:
            continue
        reached = 1.0 if parent == ROOT else scores[parent]
        left = reached - sum(scores[node] for node in siblings)
        tokens.append(token)
        parents.append(parent)
        scores.append(left * draw(st.floats(0.01, 0.99)))
    shape = np.array(tokens, dtype=np.int64), np.array(parents, dtype=np.int64)
    return TokenTree(*shape, source=source, scores=np.array(scores))


def named(tree: TokenTree) -> dict[tuple[int, ...], float]:
    """Scores by token path."""
    assert tree.scores is not None
    paths = (trees.path_to(tree, node) for node in range(len(tree)))
    return {
        tuple(int(tree.tokens[i]) for i in path): float(score)
        for path, score in zip(paths, tree.scores, strict=True)
    }


@given(drafts("copy"), drafts("other"), st.floats(0, 0.5))
def test_the_union_holds_one_draft_and_what_is_likely_of_the_other(
    copy: TokenTree, other: TokenTree, least: float
) -> None:
    union = weighed(copy, other, least)
    trees.validate(union)
    both, mine, theirs = named(union), named(copy), named(other)
    assert set(both) <= set(mine) | set(theirs)
    firsts = [each for each in (mine, theirs) if set(list(both)[: len(each)]) == set(each)]
    rest = [[score for path, score in both.items() if path not in each] for each in firsts]
    assert any(all(score > least for score in scores) for scores in rest)
    for path, score in both.items():
        assert 0 <= score <= both.get(path[:-1], 1.0) + 1e-12
        assert union.origin(list(both).index(path)) == ("copy" if path in mine else "other")
    everything = named(weighed(copy, other, 0.0))
    for above in {path[:-1] for path in everything}:
        siblings = [p for p in everything if p[:-1] == above]
        assert sum(everything[p] for p in siblings) <= everything.get(above, 1.0) + 1e-9
    assert set(both) == {
        path for path, score in everything.items() if path in both or score > least
    }


@given(drafts("copy"), drafts("other"))
def test_where_one_says_nothing_the_other_is_believed(copy: TokenTree, other: TokenTree) -> None:
    both, mine, theirs = named(weighed(copy, other, 0.0)), named(copy), named(other)
    spoken = {path[:-1] for path in theirs}
    for path, score in both.items():
        if path in mine and path[:-1] and path[:-1] not in spoken and both[path[:-1]]:
            assert score / both[path[:-1]] == pytest.approx(mine[path] / mine[path[:-1]])


def one(token: int, chance: float, source: str = "") -> TokenTree:
    return trees.chain([token], source, scores=np.array([chance]))


@pytest.mark.parametrize("copied", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("said", [0.1, 0.5, 0.9])
def test_agreement_makes_sure_and_contradiction_unsure(copied: float, said: float) -> None:
    agreed = named(weighed(one(1, copied), one(1, said), 0.0))[(1,)]
    assert max(said, 0.8 * copied) < agreed < 1
    against = named(weighed(one(1, copied), one(2, said), 0.0))
    assert against[(1,)] < copied
    assert against[(2,)] < said
    neither = 1 - sum(against.values())
    odds = [against[(1,)], against[(2,)], neither]
    rule = [copied * (1 - said), 2 * said * (1 - copied), 2 * (1 - said) * (1 - copied)]
    np.testing.assert_allclose(odds, np.array(rule) / sum(rule))
