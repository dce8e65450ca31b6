"""Every function over trees against a naive reference."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.core import tree as trees
from paceline.core.types import ROOT, DraftSampling, TokenTree
from paceline.sampling.distributions import from_dense

LAW = DraftSampling("iid", {ROOT: from_dense(np.full(4, 0.25))})


def build(tokens: list[int], parents: list[int], **rest: object) -> TokenTree:
    return TokenTree(np.array(tokens, np.int64), np.array(parents, np.int64), **rest)  # type: ignore[arg-type]


@st.composite
def drafts(draw: st.DrawFn, distinct: bool = True, most: int = 12) -> TokenTree:
    """Any topologically ordered forest; `distinct` forbids equal siblings."""
    tokens: list[int] = []
    parents: list[int] = []
    for _ in range(draw(st.integers(0, most))):
        edge = draw(st.integers(ROOT, len(tokens) - 1)), draw(st.integers(0, 3))
        if distinct and edge in zip(parents, tokens, strict=True):
            continue
        parents.append(edge[0])
        tokens.append(edge[1])
    scores = np.array(draw(st.lists(st.floats(0, 1), min_size=len(tokens), max_size=len(tokens))))
    return build(tokens, parents, source=draw(st.sampled_from(["a", ""])), scores=scores)


def token_paths(tree: TokenTree) -> list[tuple[int, ...]]:
    """The token path of every node, by walking up."""
    out: list[tuple[int, ...]] = []
    for node in range(len(tree)):
        path: list[int] = []
        while node >= 0:
            path.insert(0, int(tree.tokens[node]))
            node = int(tree.parents[node])
        out.append(tuple(path))
    return out


@given(st.lists(st.integers(0, 9), max_size=6))
def test_chain(tokens: list[int]) -> None:
    tree = trees.chain(tokens, "me", LAW)
    assert token_paths(tree) == [tuple(tokens[: i + 1]) for i in range(len(tokens))]
    assert tree.source == "me"
    assert tree.sampling is LAW
    assert tree.tokens.dtype == tree.parents.dtype == np.dtype(np.int64)
    assert trees.is_chain(tree)
    trees.validate(tree)


@given(drafts(distinct=False))
def test_is_chain_means_no_siblings(tree: TokenTree) -> None:
    parents = tree.parents.tolist()
    assert trees.is_chain(tree) == (len(set(parents)) == len(parents))


@given(drafts())
def test_valid_trees_pass(tree: TokenTree) -> None:
    trees.validate(tree)


@pytest.mark.parametrize("parents", [[0], [1, ROOT], [ROOT, 1], [-2], [ROOT, 2, 0]])
def test_parents_must_precede_children(parents: list[int]) -> None:
    with pytest.raises(ValueError, match="precede"):
        trees.validate(build(list(range(len(parents))), parents))


def test_a_tree_needs_one_parent_per_token() -> None:
    with pytest.raises(ValueError, match="one parent per token"):
        trees.validate(build([1, 2], [ROOT]))


@given(drafts(distinct=False))
def test_depths_are_path_lengths(tree: TokenTree) -> None:
    assert trees.depths(tree).tolist() == [len(path) for path in token_paths(tree)]


@given(drafts(distinct=False))
def test_the_deepest_node_has_the_greatest_depth(tree: TokenTree) -> None:
    assert trees.deepest(tree) == trees.depths(tree).max(initial=0)


@given(drafts(), st.integers(0, 14))
def test_a_head_is_the_first_nodes(tree: TokenTree, nodes: int) -> None:
    head, taken = trees.head(tree, nodes), trees.take(tree, np.arange(min(nodes, len(tree))))
    trees.validate(head)
    for mine, theirs in ((head.tokens, taken.tokens), (head.parents, taken.parents)):
        assert mine.tolist() == theirs.tolist()
    assert (head.source, head.origins) == (taken.source, taken.origins)
    assert (head.scores is None) == (taken.scores is None)
    if head.scores is not None and taken.scores is not None:
        assert head.scores.tolist() == taken.scores.tolist()


@given(drafts(distinct=False))
def test_places_name_the_first_of_siblings_with_equal_tokens(tree: TokenTree) -> None:
    found = trees.places(tree)
    pairs = list(zip(tree.parents.tolist(), tree.tokens.tolist(), strict=True))
    assert found == {pair: pairs.index(pair) for pair in pairs}


@given(drafts(distinct=False))
def test_paths_lead_from_the_root_to_the_node(tree: TokenTree) -> None:
    assert trees.path_to(tree, ROOT) == ()
    for node, tokens in enumerate(token_paths(tree)):
        path = trees.path_to(tree, node)
        assert path[-1] == node
        assert tree.parents[path[0]] == ROOT
        assert tuple(tree.tokens[list(path)].tolist()) == tokens


@given(drafts(distinct=False))
def test_mask_shows_the_path(tree: TokenTree) -> None:
    mask = trees.ancestor_mask(tree)
    assert mask.shape == (len(tree), len(tree))
    for node in range(len(tree)):
        assert np.flatnonzero(mask[node]).tolist() == sorted(trees.path_to(tree, node))


@given(drafts(distinct=False))
def test_children_and_parents_agree(tree: TokenTree) -> None:
    below = trees.children(tree)
    pairs = [(parent, child) for parent, found in below.items() for child in found]
    assert sorted(pairs) == sorted((int(p), n) for n, p in enumerate(tree.parents))
    assert all(found == sorted(found) and found for found in below.values())


@given(drafts(distinct=False))
def test_leaf_paths_cover_the_tree(tree: TokenTree) -> None:
    leaves = [n for n in range(len(tree)) if n not in tree.parents.tolist()]
    assert trees.leaf_paths(tree) == [trees.path_to(tree, leaf) for leaf in leaves]
    assert {node for path in trees.leaf_paths(tree) for node in path} == set(range(len(tree)))


@given(drafts(), st.data())
def test_tokens_are_followed_as_far_as_they_are_drafted(
    tree: TokenTree, data: st.DataObject
) -> None:
    node = data.draw(st.integers(ROOT, len(tree) - 1))
    path = tree.tokens[list(trees.path_to(tree, node))].tolist()
    assert trees.follow(tree, path) == len(path)
    drafted = tree.tokens[trees.children(tree).get(node, [])].tolist()
    other = max(drafted, default=0) + 1
    assert trees.follow(tree, [*path, other, *drafted]) == len(path)


@given(drafts(), st.data())
def test_take_keeps_the_paths_of_the_chosen(tree: TokenTree, data: st.DataObject) -> None:
    seeds = data.draw(st.sets(st.integers(0, max(0, len(tree) - 1)))) if len(tree) else set()
    closed = sorted({node for seed in seeds for node in trees.path_to(tree, seed)})
    part = trees.take(tree, np.array(closed, dtype=np.int64))
    paths = token_paths(tree)
    assert token_paths(part) == [paths[node] for node in closed]
    assert tree.scores is not None
    assert part.scores is not None
    assert part.scores.tolist() == tree.scores[closed].tolist()
    assert part.source == tree.source
    trees.validate(part)


@given(drafts(), st.integers(0, 14), st.integers(0, 6))
def test_limit_is_the_first_nodes_that_fit(tree: TokenTree, nodes: int, depth: int) -> None:
    part = trees.limit(tree, nodes, depth)
    fitting = [path for path in token_paths(tree) if len(path) <= depth]
    assert token_paths(part) == fitting[:nodes]
    trees.validate(part)


@given(drafts(), drafts())
def test_merge_is_the_union_of_paths(first: TokenTree, second: TokenTree) -> None:
    both = trees.merge(first, second)
    paths = token_paths(both)
    assert set(paths) == set(token_paths(first)) | set(token_paths(second))
    assert len(set(paths)) == len(paths)
    assert paths[: len(first)] == token_paths(first)
    assert both.source == (second if len(second) and not len(first) else first).source
    for node in range(len(first)):
        assert both.origin(node) == first.origin(node)
    for node in range(len(first), len(both)):
        assert both.origin(node) == second.source
    trees.validate(both)


def test_sampled_drafts_are_neither_pruned_nor_merged() -> None:
    sampled = trees.chain([1, 2], sampling=LAW)
    with pytest.raises(ValueError, match="sampled"):
        trees.take(sampled, np.array([0]))
    with pytest.raises(ValueError, match="sampled"):
        trees.limit(sampled, 1, 5)
    with pytest.raises(ValueError, match="sampled"):
        trees.merge(sampled, trees.EMPTY)
    with pytest.raises(ValueError, match="sampled"):
        trees.merge(trees.EMPTY, sampled)
    assert trees.limit(sampled, 2, 2) is sampled


def test_the_empty_tree() -> None:
    assert len(trees.EMPTY) == 0
    assert trees.is_chain(trees.EMPTY)
    assert trees.children(trees.EMPTY) == {}
    assert trees.leaf_paths(trees.EMPTY) == []
    assert trees.ancestor_mask(trees.EMPTY).shape == (0, 0)
    trees.validate(trees.EMPTY)


def test_what_is_grafted_takes_known_places_and_new_ones() -> None:
    builder = trees.Builder.of(trees.chain([1, 2]))
    places = builder.graft(TokenTree(np.array([1, 3, 4]), np.array([ROOT, 0, ROOT])))
    assert places == [0, 2, 3]
    assert builder.tree().tokens.tolist() == [1, 2, 3, 4]
    assert builder.tree().parents.tolist() == [ROOT, 0, 0, ROOT]
    assert builder.tree().scores is None
