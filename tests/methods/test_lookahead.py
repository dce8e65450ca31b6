"""Lookahead: the comb sees what the window's mask shows, and iterations go as published."""

from __future__ import annotations

import numpy as np
import pytest
from tests.helpers.steps import step_of

from paceline.core import tree as trees
from paceline.core.target import Output
from paceline.core.types import Budget, SamplingParams, Verdict
from paceline.engine.loop import AutoregressiveDecoder
from paceline.engine.stopping import StopRules
from paceline.errors import InvalidOption
from paceline.methods.lookahead import JacobiWindow, Lookahead
from paceline.policy.controller import Fixed
from paceline.proof.tabular import TabularModel, TabularTarget
from paceline.sampling.generation import Generation
from paceline.verifiers.matching import Greedy

VOCABULARY = 6
MODEL = TabularModel(VOCABULARY, 7, seed=3, sharpness=2.0)
"""Its laws depend on seven tokens, so a row under a wrong mask is another row."""

PROMPT = [0, 1, 2, 3, 4, 5, 1]


class Naive:
    """The two-dimensional window, position by position, with its attention written out."""

    def __init__(self, length: int, columns: int, *, spine: bool = True) -> None:
        """Without `spine` the mask is wrong: diagonals do not see the oldest iteration."""
        self.spine = spine
        self.length = length
        self.columns = columns
        # By (iteration, position): an iteration knows positions from its own offset on.
        self.rows = [self.fill(level, len(PROMPT) - 1) for level in range(length - 1)]

    def fill(self, level: int, root: int) -> dict[int, int]:
        return {
            root + level + c: PROMPT[(root + level + c) % len(PROMPT)] for c in range(self.columns)
        }

    def iterate(self, text: list[int], shown: int) -> list[list[int]]:
        """New n-grams; `text` ends with the root."""
        root = len(text) - 1
        self.rows[0][root] = text[-1]
        newest: dict[int, int] = {}
        grams = []
        for column in range(shown):
            # A token of a later iteration sees the oldest iteration up to its own column, and of
            # each iteration in between the one token on its diagonal.
            end = root + column + 1 if self.spine else 0
            seen = [self.rows[0][p] for p in range(root + 1, end)]
            gram = [self.rows[0][root + column]]
            for level in range(1, self.length - 1):
                gram.append(self.rows[level][root + column + level])
            chosen = int(MODEL.logits((*text, *seen, *gram[1:])).argmax())
            newest[root + column + self.length - 1] = chosen
            grams.append([*gram, chosen])
        self.rows = [*self.rows[1:], newest]
        return grams

    def move(self, root: int) -> None:
        """Forget what is behind, fill what is missing."""
        for level, row in enumerate(self.rows):
            self.rows[level] = self.fill(level, root) | {
                p: t for p, t in row.items() if root + level <= p < root + level + self.columns
            }

    def levels(self) -> list[list[int]]:
        return [[row[position] for position in sorted(row)] for row in self.rows]


@pytest.mark.parametrize(
    ("length", "columns", "nodes", "shown"),
    [(2, 4, 14, 4), (3, 3, 14, 3), (3, 5, 14, 4), (4, 2, 14, 2), (4, 3, 9, 1)],
)
def test_iterations_equal_those_of_a_window_written_out(
    length: int, columns: int, nodes: int, shown: int
) -> None:
    same, longest = compare(Naive(length, columns), nodes, shown)
    assert same
    assert longest > 1
    if shown > 1:  # the comparison can tell
        same, _ = compare(Naive(length, columns, spine=False), nodes, shown)
        assert not same


def compare(naive: Naive, nodes: int, shown: int) -> tuple[bool, int]:
    """Whether n-grams and windows are the same in all of a text, and its longest step."""
    drafter = Lookahead(naive.length, naive.columns)
    target = TabularTarget(MODEL.logits, VOCABULARY)
    decoder = AutoregressiveDecoder(target, drafter, Greedy(), Fixed(nodes, 8), StopRules((), 500))
    sequence = Generation.start(0, PROMPT, SamplingParams(max_new_tokens=60))
    decoder.open(sequence)
    added: list[list[int]] = []
    add = drafter._model.add
    drafter._model.add = lambda leader, run: (  # type: ignore[method-assign]  # listen in
        added.append([*leader, *run]),
        add(leader, run),
    )[1]
    longest = 0
    same = True
    while sequence.room > 10:  # where the rest of the text does not limit depth
        before = list(sequence.tokens)
        grams = naive.iterate(before, shown)
        decoder.step([sequence])
        same = same and added == grams
        added.clear()
        naive.move(len(sequence.tokens) - 1)
        window, _ = drafter._windows[0]
        expected = naive.levels()
        expected[0][0] = window.levels[0][0]  # stands for the root
        same = same and window.levels == expected
        longest = max(longest, len(sequence.tokens) - len(before))
    return same, longest


def test_the_comb_has_a_spine_and_teeth() -> None:
    drafter = Lookahead(length=4, columns=2)
    sequence = Generation.start(0, [1, 2, 3, 4, 5, 6, 7], SamplingParams())
    drafter.open(sequence)
    [draft] = drafter.propose([sequence], [Budget(10, 8)])
    # Nothing in the prompt repeats, so that the comb is all there is.
    paths = {tuple(draft.tokens[list(path)].tolist()) for path in trees.leaf_paths(draft)}
    assert paths == {(1, 2, 3)}  # columns that begin alike share nodes
    window, columns = drafter._windows[0]
    window.levels = [[0, 21], [30, 31], [40, 41]]
    assert columns == 2
    [draft] = drafter.propose([sequence], [Budget(10, 8)])
    paths = {tuple(draft.tokens[list(path)].tolist()) for path in trees.leaf_paths(draft)}
    assert paths == {(30, 40), (21, 31, 41)}


@pytest.mark.parametrize("depth", range(6))
def test_columns_fit_the_budget(depth: int) -> None:
    for length in (2, 3, 4):
        for nodes in range(16):
            drafter = Lookahead(length, columns=5)
            sequence = Generation.start(0, list(range(20)), SamplingParams())
            drafter.open(sequence)
            window, _ = drafter._windows[0]
            tokens = iter(range(100, 200))
            window.levels = [[next(tokens) for _ in range(5)] for _ in range(length - 1)]
            [draft] = drafter.propose([sequence], [Budget(nodes, depth)])
            assert len(draft) <= max(1, nodes) // 2 + 1
            assert len(draft) <= nodes
            assert trees.depths(draft).max(initial=0) <= depth
            _, columns = drafter._windows[0]
            assert columns <= 5
            if depth >= 5 and nodes >= 2 * length:
                assert columns


def test_rows_that_a_controller_cut_are_not_asked() -> None:
    drafter = Lookahead(length=3, columns=3)
    sequence = Generation.start(0, [1, 2, 3, 4, 5, 6, 7], SamplingParams())
    drafter.open(sequence)
    drafter.propose([sequence], [Budget(14, 8)])
    window, columns = drafter._windows[0]
    window.levels = [[0, 21, 22], [30, 31, 32]]
    [draft] = drafter.propose([sequence], [Budget(14, 8)])
    assert (columns, len(draft)) == (3, 5)
    whole = trees.path_to(draft, [*draft.tokens].index(31))  # column 1 alone
    pruned = trees.take(draft, np.array(whole))
    assert pruned.tokens.tolist() == [21, 31]
    logits = np.zeros((3, 100), np.float32)
    logits[2, 55] = 1.0
    sequence.tokens.append(8)
    drafter.observe(step_of([sequence], [pruned], [Verdict((), 8)], [Output(logits)]))
    fill = [[1, 2, 3, 4, 5, 6, 7][(7 + 1 + c) % 7] for c in range(3)]
    assert window.levels == [[30, 31, 32], [fill[0], 55, fill[2]]]


def test_guesses_stay_with_their_positions() -> None:
    window = JacobiWindow(3, 4, [9])
    window.levels = [[0, 1, 2, 3], [10, 11, 12, 13]]
    window.advance([20, 21, 22, 23], committed=3)
    assert window.levels == [[12, 13, 9, 9], [22, 23, 9, 9]]
    window.advance([1, 2, 3, 4], committed=9)
    assert window.levels == [[9] * 4] * 2


def test_n_grams_of_the_window_are_drafted_later() -> None:
    drafter = Lookahead(length=3, columns=1)
    sequence = Generation.start(0, [1, 2, 3], SamplingParams())
    drafter.open(sequence)
    window, _ = drafter._windows[0]
    window.levels = [[0], [40]]
    [draft] = drafter.propose([sequence], [Budget(4, 4)])
    assert draft.tokens.tolist() == [40]
    logits = np.zeros((2, 100), np.float32)
    logits[1, 50] = 1.0
    sequence.tokens.append(8)
    drafter.observe(step_of([sequence], [draft], [Verdict((), 8)], [Output(logits)]))
    drafter.open(other := Generation.start(1, [7, 3], SamplingParams()))
    [draft] = drafter.propose([other], [Budget(5, 4)])
    assert draft.tokens.tolist()[:2] == [40, 50]


@pytest.mark.parametrize(("length", "columns"), [(1, 3), (3, 0)])
def test_sizes_that_make_no_window_are_refused(length: int, columns: int) -> None:
    with pytest.raises(InvalidOption, match=f"not {min(length, columns)}"):
        Lookahead(length, columns)
