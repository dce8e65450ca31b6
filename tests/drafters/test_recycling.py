"""Token recycling: the template, the matrix, reduced trees, and what is learned."""

from __future__ import annotations

from array import array
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers.decoding_loop import decode_all
from tests.helpers.steps import step_of

from paceline.core import tree as trees
from paceline.core.target import Output
from paceline.core.types import ROOT, Budget, LogitArray, SamplingParams, TokenTree, Verdict
from paceline.drafters.base import Drafter, NoDrafter
from paceline.drafters.recycling import DEPTH, TEMPLATE, WIDTH, Recycling
from paceline.engine.loop import AutoregressiveDecoder
from paceline.engine.stopping import StopRules
from paceline.native.sampling import rank_into
from paceline.policy.controller import Fixed
from paceline.proof.tabular import TabularModel, TabularTarget
from paceline.sampling.generation import Generation
from paceline.verifiers.matching import Coupled

VOCABULARY = 40
FULL = Budget(len(TEMPLATE), DEPTH)


def start(tokens: list[int], id: int = 0) -> Generation:
    return Generation.start(id, tokens, SamplingParams())


def rows(count: int, seed: int = 0) -> LogitArray:
    return np.random.default_rng(seed).normal(size=(count, VOCABULARY)).astype(np.float32)


def best(row: LogitArray) -> list[int]:
    """The eight most likely tokens, most likely first."""
    return [int(token) for token in np.argsort(-row, kind="stable")[:WIDTH]]


def teach(drafter: Recycling, tokens: list[int], logits: LogitArray) -> None:
    """One step in which the first of `tokens` was the root and the others were rejected nodes."""
    sequence = start(tokens[:1], id=77)
    drafter.open(sequence)
    drafter.propose([sequence], [Budget(1, 1)])
    star = TokenTree(np.array(tokens[1:], np.int64), np.full(len(tokens) - 1, ROOT))
    sequence.tokens.append(0)
    drafter.observe(step_of([sequence], [star], [Verdict((), 0)], [Output(logits)]))
    drafter.close(sequence)


def taught(seed: int = 1) -> Recycling:
    """A drafter that knows successors of every token."""
    drafter = Recycling(VOCABULARY)
    teach(drafter, list(range(VOCABULARY)), rows(VOCABULARY, seed))
    return drafter


def propose(drafter: Recycling, tokens: list[int], budget: Budget = FULL) -> TokenTree:
    sequence = start(tokens, id=5)
    [draft] = drafter.propose([sequence], [budget])
    drafter.close(sequence)
    return draft


def successors(drafter: Recycling, token: int) -> list[int]:
    """What the matrix holds for a token."""
    return drafter._successors[token * WIDTH : (token + 1) * WIDTH].tolist()


def test_the_template_is_the_published_tree() -> None:
    assert len(TEMPLATE) == len(set(TEMPLATE)) == 80
    assert Counter(map(len, TEMPLATE)) == {1: 8, 2: 21, 3: 25, 4: 15, 5: 8, 6: 3}
    assert DEPTH == 6
    for index, path in enumerate(TEMPLATE):
        assert all(0 <= rank < WIDTH for rank in path)
        assert path[:-1] in ((), *TEMPLATE[:index])  # closed under prefixes, parents first


def test_the_full_tree_follows_the_matrix() -> None:
    logits = rows(VOCABULARY, 1)
    draft = propose(taught(), [3])
    assert len(draft) == 80
    expected = set()
    for path in TEMPLATE:
        text = [3]
        for rank in path:
            text.append(best(logits[text[-1]])[rank])
        expected.add(tuple(text[1:]))
    assert texts(draft) == expected
    assert draft.sampling is None
    assert draft.source == "recycling"


def test_every_verified_row_is_recycled_rejected_nodes_too() -> None:
    drafter = Recycling(VOCABULARY)
    logits = rows(4)
    teach(drafter, [4, 5, 6, 7], logits)
    for token, row in zip([4, 5, 6, 7], logits, strict=True):
        assert successors(drafter, token) == best(row)
    assert successors(drafter, 8) == [-1] * WIDTH


def test_the_last_row_of_a_token_wins() -> None:
    drafter = Recycling(VOCABULARY)
    logits = rows(4)
    teach(drafter, [4, 5, 4, 5], logits)
    assert successors(drafter, 4) == best(logits[2])
    assert successors(drafter, 5) == best(logits[3])


def test_unknown_tokens_give_smaller_trees() -> None:
    drafter = Recycling(VOCABULARY)
    assert len(propose(drafter, [4])) == 0
    logits = rows(1)
    teach(drafter, [4], logits)
    draft = propose(drafter, [4])
    below = best(logits[0])
    if 4 not in below:
        assert draft.tokens.tolist() == below
    trees.validate(draft)
    assert len(propose(drafter, [5])) == 0


def test_prompt_neighbours_fill_unknown_entries_alone() -> None:
    drafter = Recycling(VOCABULARY)
    drafter.open(start([1, 2, 1, 3, 1, 2, 9]))
    assert successors(drafter, 1) == [2, 3] + [-1] * 6
    assert successors(drafter, 2) == [1, 9] + [-1] * 6
    assert successors(drafter, 9) == [-1] * WIDTH
    known = taught()
    before = [successors(known, token) for token in range(VOCABULARY)]
    known.open(start([1, 2, 1, 3, 1, 2, 9]))
    assert [successors(known, token) for token in range(VOCABULARY)] == before


@st.composite
def drafters(draw: st.DrawFn) -> Recycling:
    """Any state: some tokens known, some from prompts, some hit rates learned."""
    drafter = Recycling(VOCABULARY)
    seed = draw(st.integers(0, 99))
    known = draw(st.lists(st.integers(0, VOCABULARY - 1), max_size=40))
    if known:
        teach(drafter, known, rows(len(known), seed))
    sequence = start(draw(st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=60)))
    drafter.open(sequence)
    generator = np.random.default_rng(seed)
    for _ in range(draw(st.sampled_from([0, 3, 70]))):
        [draft] = drafter.propose([sequence], [FULL])
        paths = trees.leaf_paths(draft) or [()]
        path = paths[generator.integers(len(paths))]
        sequence.tokens += [*draft.tokens[list(path)].tolist(), int(generator.integers(40))]
        output = Output(rows(1 + len(draft), seed))
        drafter.observe(step_of([sequence], [draft], [Verdict((), 0)], [output]))
    drafter.close(sequence)
    return drafter


@settings(max_examples=20)
@given(drafters(), st.integers(0, VOCABULARY - 1), st.integers(0, 6))
def test_reduced_trees_hold_the_most_probable_known_nodes(
    drafter: Recycling, token: int, depth: int
) -> None:
    drafter.propose([start([token])], [FULL])
    drafter._steps = 1  # no reordering between the calls that are compared
    whole = propose(drafter, [token], Budget(80, depth))
    assert whole.scores is not None
    for size in (0, 1, 2, 3, 5, 8, 13, 29, 50, 79, 80):
        draft = propose(drafter, [token], Budget(size, depth))
        drafter._steps = 1
        trees.validate(draft)
        assert len(draft) == min(size, len(whole))
        assert draft.scores is not None
        assert trees.depths(draft).max(initial=0) <= depth
        ranked = np.sort(whole.scores)[::-1]
        np.testing.assert_array_equal(np.sort(draft.scores)[::-1], ranked[: len(draft)])
        inner = draft.parents != ROOT
        assert np.all(draft.scores[inner] <= draft.scores[draft.parents[inner]])
        siblings = list(zip(draft.parents.tolist(), draft.tokens.tolist(), strict=True))
        assert len(set(siblings)) == len(draft)
        assert texts(draft) <= texts(whole)


def texts(draft: TokenTree) -> set[tuple[int, ...]]:
    """The tokens on the path to every node."""
    paths = (trees.path_to(draft, node) for node in range(len(draft)))
    return {tuple(draft.tokens[list(path)].tolist()) for path in paths}


def test_the_order_follows_hit_rates() -> None:
    """Where the fifth candidate keeps coming true, it is drafted first."""
    drafter = taught()
    assert propose(drafter, [3], Budget(1, 1)).tokens.tolist() == [successors(drafter, 3)[0]]
    sequence = start([3])
    drafter.open(sequence)
    for _ in range(200):
        drafter.propose([sequence], [FULL])
        sequence.tokens.append(successors(drafter, sequence.root)[5])
        output = Output(rows(VOCABULARY, 1)[sequence.tokens[-2:-1]])
        drafter.observe(step_of([sequence], [trees.EMPTY], [Verdict((), sequence.root)], [output]))
    drafter.close(sequence)
    draft = propose(drafter, [3], Budget(1, 1))
    assert draft.tokens.tolist() == [successors(drafter, 3)[5]]
    assert draft.scores is not None
    assert draft.scores[0] > 0.5
    drafter.reset()
    assert len(propose(drafter, [3])) == 0
    drafter.open(start([3, 4, 3, 5]))
    assert propose(drafter, [3], Budget(1, 1)).tokens.tolist() == [4]  # rank 0 leads again


def test_what_was_learned_outlives_sequences_until_reset() -> None:
    drafter = taught()
    before = propose(drafter, [3])
    sequence = start([3, 1])
    drafter.open(sequence)
    drafter.propose([sequence], [FULL])
    drafter.close(sequence)
    drafter.close(sequence)
    np.testing.assert_array_equal(propose(drafter, [3]).tokens, before.tokens)
    assert not drafter._proposed
    drafter.reset()
    assert len(propose(drafter, [3])) == 0


MODEL = TabularModel(12, 1, seed=5, sharpness=2.0)


def run(drafter: Drafter, params: list[SamplingParams], nodes: int) -> list[list[int]]:
    target = TabularTarget(MODEL.logits, 12)
    decoder = AutoregressiveDecoder(target, drafter, Coupled(), Fixed(nodes, 6), StopRules((), 500))
    sequences = decode_all(decoder, (Generation.start(i, [i, 3], p) for i, p in enumerate(params)))
    if isinstance(drafter, Recycling):
        assert sum(s.stats.accepted_tokens for s in sequences) > 10
    return [s.generated for s in sequences]


@pytest.mark.parametrize("nodes", [1, 5, 80])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_loop_commits_the_tokens_of_plain_decoding(nodes: int, temperature: float) -> None:
    params = [
        SamplingParams(temperature, seed=s, max_new_tokens=40 + s, presence_penalty=0.2)
        for s in range(3)
    ]
    expected = [run(NoDrafter(), [SamplingParams()] * i + [p], 1)[i] for i, p in enumerate(params)]
    drafter = Recycling(12)
    assert run(drafter, params, nodes) == expected
    assert run(drafter, params, nodes) == expected  # also with a matrix from before


def test_vocabularies_narrower_than_a_row_of_the_matrix_work() -> None:
    drafter = Recycling(3)
    drafter.open(sequence := start([0, 1]))
    [draft] = drafter.propose([sequence], [FULL])
    sequence.tokens.append(2)
    logits = np.zeros((1 + len(draft), 3), np.float32)
    drafter.observe(step_of([sequence], [draft], [Verdict((), 2)], [Output(logits)]))
    trees.validate(drafter.propose([sequence], [FULL])[0])


@pytest.mark.parametrize("width", [3, WIDTH, VOCABULARY])
def test_rows_are_ranked_into_the_matrix(width: int) -> None:
    logits = np.random.default_rng(0).normal(size=(6, width)).astype(np.float32)
    tokens = [2, 0, 1, 2, 1, 1]
    table = array("i", [-1] * width * WIDTH)
    assert rank_into(logits, tokens, table, WIDTH)
    last = dict(zip(tokens, logits, strict=True))
    for token in range(width):
        row = table[token * WIDTH : (token + 1) * WIDTH].tolist()
        best = np.argsort(-last[token])[:WIDTH].tolist() if token in last else []
        assert row == best + [-1] * (WIDTH - len(best))
    assert not rank_into(logits.astype(np.float64), tokens, table, WIDTH)


def test_logits_of_any_layout_are_learned() -> None:
    tables = []
    for layout in (np.float32, np.float64):
        drafter = Recycling(VOCABULARY)
        drafter.open(sequence := start([0, 1]))
        [draft] = drafter.propose([sequence], [FULL])
        sequence.tokens.append(2)
        logits = np.asfortranarray(rows(1 + len(draft), seed=0), dtype=layout)
        drafter.observe(step_of([sequence], [draft], [Verdict((), 2)], [Output(logits)]))
        tables.append(drafter._successors)
    assert tables[0] == tables[1]
    assert set(tables[0]) != {-1}


def test_plain_steps_are_learned_from_now_and_then() -> None:
    """Where nothing is asked, one step in eight is ranked; the first that is asked again, too."""
    drafter = Recycling(VOCABULARY)
    sequence = start([5])
    drafter.open(sequence)

    def step(token: int, budget: Budget) -> bool:
        [draft] = drafter.propose([sequence], [budget])
        assert len(draft) == 0 or budget.nodes
        root = sequence.tokens[-1]
        sequence.tokens.append(token)
        before = drafter._successors[root * WIDTH : (root + 1) * WIDTH]
        nothing = TokenTree(np.zeros(0, np.int64), np.zeros(0, np.int64))
        logits = rows(1, seed=len(sequence.tokens))
        drafter.observe(step_of([sequence], [nothing], [Verdict((), token)], [Output(logits)]))
        return drafter._successors[root * WIDTH : (root + 1) * WIDTH] != before

    learned = [step(token % VOCABULARY, Budget(0, 0)) for token in range(6, 38)]
    assert [at for at, new in enumerate(learned) if new] == [7, 15, 23, 31]
    assert step(3, Budget(4, 2))
    assert not step(4, Budget(0, 0))
    drafter.close(sequence)
