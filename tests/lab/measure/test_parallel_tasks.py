"""Tasks for parallel decoding: graders, the split, and closed forms against enumeration."""

from __future__ import annotations

from itertools import permutations, product

import pytest

from paceline.errors import InvalidOption
from paceline.lab.measure.parallel_tasks import (
    NAMES,
    TASKS,
    Exercise,
    Problem,
    cases,
    grade,
    latin_squares,
    one_step_chance,
    sudokus,
    value_of,
    words,
)


def case(task: str, answer: str = "", **fields: str) -> Exercise:
    problem = Problem(fields, tuple(answer.split()), "")
    return Exercise(task, 0, "", answer, problem)


@pytest.mark.parametrize("task", TASKS)
def test_answers_are_right_and_short_and_of_known_words(task: str) -> None:
    known = set(words())
    for each in cases(task, 60, 0):
        assert grade(each, each.answer) == (True, True, 1.0)
        assert {*each.prompt.split(), *each.answer.split()} <= known
        assert len(each.answer.split()) <= 24
        assert each.prompt.endswith(" =>")


@pytest.mark.parametrize("task", TASKS)
def test_wrong_answers_fail(task: str) -> None:
    for each in cases(task, 30, 1):
        right = each.answer.split()
        for wrong in (right[:-1], [*right, right[-1]], ["A", *right[1:], "A"], []):
            found = grade(each, " ".join(wrong))
            if task == "remove-random" or (task == "expression" and found.strict):
                continue  # another name may have left; another expression may have the value
            assert not found.strict, (each, wrong)


@pytest.mark.parametrize("task", TASKS)
def test_other_words_are_dropped_loosely_only(task: str) -> None:
    for each in cases(task, 10, 2):
        found = grade(each, f"the {each.answer} =>")
        assert (found.strict, found.loose) == (False, True)


def test_the_same_seed_gives_the_same_cases() -> None:
    first = list(cases("sort", 20, 3))
    assert first == list(cases("sort", 20, 3))
    assert first != list(cases("sort", 20, 4))
    assert {each.template for each in first} == {0, 1, 2}
    assert {each.template for each in cases("sort", 5, 3, template=2)} == {2}


@pytest.mark.parametrize("task", ["copy", "latin-square", "sudoku", "sums", "brackets"])
def test_held_out_problems_are_never_trained_on(task: str) -> None:
    apart = {each.problem.key for each in cases(task, 200, 0)}
    seen = {each.problem.key for each in cases(task, 400, 0, held_out=False)}
    assert not apart & seen


def test_unknown_tasks_and_templates_are_named() -> None:
    with pytest.raises(InvalidOption, match="unknown task 'walk'"):
        next(cases("walk", 1, 0))
    with pytest.raises(InvalidOption, match="template must be"):
        next(cases("copy", 1, 0, template=3))


def test_random_lists_are_graded_by_membership() -> None:
    put = case("replace-random", x="Abo Baro Cade", a="Dana")
    assert grade(put, "Abo Dana Cade").strict
    assert not grade(put, "Abo Baro Cade").strict
    assert not grade(put, "Dana Dana Cade").strict
    assert not grade(put, "Dana Abo Baro").strict
    assert grade(case("insert-random", x="Abo Baro", a="Dana"), "Abo Baro Dana").strict
    assert not grade(case("insert-random", x="Abo Baro", a="Dana"), "Baro Abo Dana").strict
    assert grade(case("remove-random", x="Abo Baro Cade", a=""), "Abo Cade").strict
    assert not grade(case("remove-random", x="Abo Baro Cade", a=""), "Cade Abo").strict
    mix = case("shuffle", x="Abo Baro")
    assert grade(mix, "Baro Abo").strict
    assert grade(mix, "Abo Baro")[:2] == (False, True)  # the order that was given


def test_squares() -> None:
    assert len({tuple(each) for each in latin_squares()}) == 576
    assert len({tuple(each) for each in sudokus()}) == 288
    square = case("latin-square", x="A B C D")
    assert grade(square, "A B C D B A D C C D A B D C B A").strict
    found = grade(square, "A B C D B A D C C D A B D C B B")
    assert not found.strict
    assert found.score == 6 / 8  # a row and a column are spoilt


def test_sudokus_have_one_solution() -> None:
    for each in cases("sudoku", 20, 5):
        clues = each.problem.fields["x"].split()
        fits = [
            grid
            for grid in sudokus() + 1
            if all(clue in ("_", str(cell)) for clue, cell in zip(clues, grid, strict=True))
        ]
        assert len(fits) == 1


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2 + 3 * 4", 14),
        ("( 2 + 3 ) * 4", 20),
        ("9 - 2 - 3", 4),
        ("2 * 3 * 4 - 5", 19),
        ("2 +", None),
        ("( 2", None),
        ("2 3", None),
        ("2 + 3 )", None),
        ("", None),
    ],
)
def test_values_of_expressions(text: str, value: int | None) -> None:
    assert value_of(text.split()) == value


def test_values_agree_with_python() -> None:
    for each in cases("expression", 200, 0, held_out=False):
        assert value_of(each.answer.split()) == eval(each.answer)


def test_brackets() -> None:
    nested = case("brackets", n="3", d="2")
    assert grade(nested, "( [ ] ) ( )").strict
    assert not grade(nested, "( [ ) ] ( )").strict  # crossed
    assert not grade(nested, "( ) ( ) ( )").strict  # not deep enough
    assert not grade(nested, "( ( ) )").strict  # a pair is missing


@pytest.mark.parametrize("n", [2, 3, 4])
def test_chances_in_one_step_are_those_of_enumeration(n: int) -> None:
    shuffled = [[str(i) for i in each] for each in permutations(range(n))]
    shares = sum(len(set(each)) == n for each in product(range(n), repeat=n)) / n**n
    assert one_step_chance(shuffled) == pytest.approx(shares)
    line = list(NAMES[:n])
    replaced = [[*line[:i], "x", *line[i + 1 :]] for i in range(n)]
    assert one_step_chance(replaced) == pytest.approx((1 - 1 / n) ** (n - 1), rel=1e-12)
