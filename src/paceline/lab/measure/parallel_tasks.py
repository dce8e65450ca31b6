"""Tasks for parallel decoding: prompts with known answers, drawn from a seed, and their graders.

Lists of waiting people, latin squares and sudokus are tasks of ParallelBench (arXiv:2510.04767),
written from its description with names and wording of our own. Sums, expressions and brackets are
ours. All words are whole tokens of one small vocabulary, and numbers are written digit by digit.
"""

from __future__ import annotations

import math
import re
import tomllib
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import permutations
from typing import NamedTuple

import numpy as np

from paceline.core.options import require
from paceline.core.types import IntArray
from paceline.errors import InvalidOption

_NAMES = (
    "Abo Baro Bomi Cade Culo Dana Edun Elva Fabo Filu Galo Gomi Hano Hilde Ivo Jerro Kavi Leki "
    "Miro Nadu Orla Pelo Rina Tibe"
)
NAMES = tuple(_NAMES.split())
LETTERS = tuple("ABCDEFGH")
ANSWER = "=>"  # ends every prompt
HELD_OUT = 8  # one problem of so many is never trained on

Random = np.random.Generator
_UNUSED = Random(np.random.PCG64(0))  # what is changed at a place draws nothing


class Grade(NamedTuple):
    """How good an answer is.

    Attributes:
        strict: it is right and there is nothing else in it.
        loose: right after words that do not belong to answers of the task were dropped; a shuffle
            may be the given order.
        score: in [0, 1]: right places, or properties that hold.
    """

    strict: bool
    loose: bool
    score: float


class Problem(NamedTuple):
    """A draw of a task: what its templates fill in, one right answer, and what is held out."""

    fields: dict[str, str]
    answer: tuple[str, ...]
    key: str


Grader = Callable[[Problem, tuple[str, ...]], Grade]
Change = Callable[[Random, list[str], str, int], Sequence[str]]
"""Changes a line, given another name and a place from 0."""


@dataclass(frozen=True, slots=True)
class Exercise:
    """A prompt and one right answer, both as words with single spaces between."""

    task: str
    template: int
    prompt: str
    answer: str
    problem: Problem


class Task(NamedTuple):
    """A kind of problem.

    Attributes:
        templates: three wordings.
        draw: draws a problem.
        grade: grades the words of an answer.
        words: those that answers consist of, beside others that `loose` ignores.
    """

    templates: tuple[str, ...]
    draw: Callable[[Random], Problem]
    grade: Grader
    words: frozenset[str]


def cases(
    task: str, count: int, seed: int, *, held_out: bool = True, template: int | None = None
) -> Iterator[Exercise]:
    """Draw cases of a task, the same for the same seed; of all templates by turns, or of one.

    Raises InvalidOption if the task or the template is unknown.
    """
    known = find_task(task)
    require(template is None or 0 <= template < 3, "template", template, "0, 1 or 2")
    rng = np.random.default_rng((seed, zlib.crc32(task.encode()), held_out))
    for index in range(count):
        yield draw(known, task, rng, held_out, index % 3 if template is None else template)


def draw(task: Task, name: str, rng: Random, held_out: bool, template: int) -> Exercise:
    """Draw one case; of the problems one in `HELD_OUT`, by name, is in the held-out part."""
    problem = task.draw(rng)
    while (zlib.crc32(problem.key.encode()) % HELD_OUT == 0) != held_out:
        problem = task.draw(rng)
    prompt = f"{task.templates[template].format(**problem.fields)} {ANSWER}"
    return Exercise(name, template, prompt, " ".join(problem.answer), problem)


def grade(case: Exercise, text: str) -> Grade:
    """Grade an answer as text; whatever follows an end token must be cut off before."""
    task, words = TASKS[case.task], tuple(text.split())
    found = task.grade(case.problem, words)
    if found.strict:
        return found
    kept = task.grade(case.problem, tuple(word for word in words if word in task.words))
    return Grade(False, kept.loose, kept.score)


def find_task(name: str) -> Task:
    """Return a task; InvalidOption if it is unknown."""
    if name not in TASKS:
        raise InvalidOption(f"unknown task {name!r}: give one of {', '.join(TASKS)}")
    return TASKS[name]


def words() -> list[str]:
    """Return all words of prompts and answers, in the order of the vocabulary."""
    texts = " ".join(template for task in TASKS.values() for template in task.templates)
    wording = sorted({word for word in texts.split() if not word.startswith("{")})
    marks = [ANSWER, *"_;+-*()[]", *"0123456789"]
    return list(dict.fromkeys([*marks, *LETTERS, *NAMES, *wording]))


def one_step_chance(answers: Sequence[Sequence[str]]) -> float:
    """Return the chance of a right answer, all places drawn at once from their marginals at T=1.

    `answers` are the right ones: equally long, equally likely.
    """
    counts = [Counter(place) for place in zip(*answers, strict=True)]
    chances = (
        math.prod(count[word] / len(answers) for count, word in zip(counts, each, strict=True))
        for each in answers
    )
    return sum(chances)


def _names(rng: Random, count: int) -> tuple[str, ...]:
    return tuple(NAMES[i] for i in rng.choice(len(NAMES), count, replace=False))


def _line(change: Change, *, places: int = 0) -> Callable[[Random], Problem]:
    # There are `places` more to put a name at than there are names.
    def drawn(rng: Random) -> Problem:
        *line, other = _names(rng, int(rng.integers(3, 7)) + 1)
        place = int(rng.integers(len(line) + places))
        answer = tuple(change(rng, list(line), other, place))
        fields = {"x": " ".join(line), "a": other, "i": str(place + 1)}
        return Problem(fields, answer, " ".join(sorted(line)))

    return drawn


def _shuffled(rng: Random, line: list[str], _other: str, _place: int) -> list[str]:
    while (found := [line[i] for i in rng.permutation(len(line))]) == line:
        pass
    return found


def _same(problem: Problem, words: tuple[str, ...]) -> Grade:
    right = sum(a == b for a, b in zip(problem.answer, words, strict=False))
    score = right / max(len(problem.answer), len(words))
    return Grade(words == problem.answer, words == problem.answer, score)


def _permuted(problem: Problem, words: tuple[str, ...]) -> Grade:
    given = problem.fields["x"].split()
    right = sorted(words) == sorted(given)
    common = (Counter(words) & Counter(given)).total()
    return Grade(right and list(words) != given, right, common / max(len(given), len(words)))


def _anywhere(change: Change, *, places: int = 0) -> Grader:
    # Any place will do.
    def grade(problem: Problem, words: tuple[str, ...]) -> Grade:
        line, other = problem.fields["x"].split(), problem.fields["a"]
        answers = (change(_UNUSED, line, other, i) for i in range(len(line) + places))
        grades = [_same(problem._replace(answer=tuple(each)), words) for each in answers]
        return max(grades, key=lambda each: each.score)

    return grade


def _insert(_rng: Random, line: list[str], other: str, place: int) -> list[str]:
    return [*line[:place], other, *line[place:]]


def _remove(_rng: Random, line: list[str], _other: str, place: int) -> list[str]:
    return [*line[:place], *line[place + 1 :]]


def _replace(_rng: Random, line: list[str], other: str, place: int) -> list[str]:
    return [*line[:place], other, *line[place + 1 :]]


_SIDE = 4


@cache
def latin_squares() -> IntArray:
    """Return all 576 latin squares over 0 to 3, int64 `[576, 16]`."""
    found: list[tuple[int, ...]] = [()]
    for _ in range(_SIDE):
        found = [
            (*rows, *row)
            for rows in found
            for row in permutations(range(_SIDE))
            if all(
                row[c] not in rows[c::_SIDE]  # the column so far
                for c in range(_SIDE)
            )
        ]
    return np.array(found, dtype=np.int64)


@cache
def sudokus() -> IntArray:
    """Return all 288 squares whose boxes of two by two have no repeat either, int64 `[288, 16]`."""
    squares = latin_squares()
    boxes = squares.reshape(-1, 2, 2, 2, 2).swapaxes(2, 3).reshape(-1, _SIDE, _SIDE)
    good: IntArray = squares[(np.sort(boxes) == np.arange(_SIDE)).all((1, 2))]
    return good


def _latin(rng: Random) -> Problem:
    symbols = [LETTERS[i] for i in rng.choice(len(LETTERS), _SIDE, replace=False)]
    square = latin_squares()[rng.integers(len(latin_squares()))]
    answer = tuple(symbols[i] for i in square)
    return Problem({"x": " ".join(symbols)}, answer, "".join(sorted(symbols)))


def _grade_latin(problem: Problem, words: tuple[str, ...]) -> Grade:
    symbols = sorted(problem.fields["x"].split())
    lines = [words[i * _SIDE : (i + 1) * _SIDE] for i in range(_SIDE)]
    lines += [words[i : _SIDE**2 : _SIDE] for i in range(_SIDE)]
    good = [sorted(line) == symbols for line in lines]
    right = all(good) and len(words) == _SIDE**2
    return Grade(right, right, sum(good) / len(good))


def _sudoku(rng: Random) -> Problem:
    # 6 to 12 holes, half of them 12, and only one way to fill them.
    grids, places = sudokus(), _SIDE**2
    while True:
        grid = grids[rng.integers(len(grids))]
        holes = 12 if rng.random() < 0.5 else int(rng.integers(6, 12))
        shown = rng.choice(places, places - holes, replace=False)
        if np.count_nonzero((grids[:, shown] == grid[shown]).all(1)) == 1:
            break
    answer = tuple(str(each + 1) for each in grid)
    clues = " ".join(answer[i] if i in shown else "_" for i in range(places))
    return Problem({"x": clues}, answer, clues)


def _digits(number: int) -> str:
    return " ".join(str(number))


def _sums(rng: Random) -> Problem:
    numbers = [int(each) for each in rng.integers(1, 100, int(rng.integers(2, 4)))]
    totals = np.cumsum(numbers)[1:].tolist()
    asked = " + ".join(_digits(each) for each in numbers)
    answer = " ; ".join(_digits(each) for each in totals)
    return Problem({"x": asked}, tuple(answer.split()), asked)


_PRIORITY = {"+": 1, "-": 1, "*": 2}


def value_of(words: Sequence[str]) -> int | None:
    """Return the value of an expression of one-digit numbers, + - * and brackets, else None."""
    rest = list(words)

    def term(least: int) -> int:
        word = rest.pop(0)
        if word == "(":
            value = term(1)
            if rest.pop(0) != ")":
                raise ValueError("not closed")
        else:
            if not re.fullmatch("[0-9]", word):
                raise ValueError("not a digit")
            value = int(word)
        while rest and _PRIORITY.get(rest[0], 0) >= least:
            sign = rest.pop(0)
            right = term(_PRIORITY[sign] + 1)
            value = value * right if sign == "*" else value + (right if sign == "+" else -right)
        return value

    try:
        value = term(1)
    except (IndexError, ValueError):
        return None
    return None if rest else value


def _expression(rng: Random) -> Problem:
    while True:
        words = [str(rng.integers(1, 10))]
        for _ in range(int(rng.integers(2, 4))):
            sign, digit = "+-*"[rng.integers(3)], str(rng.integers(1, 10))
            if rng.random() < 0.3 and len(words) > 1 and words[0] != "(":
                words = ["(", *words, ")"]
            words = [*words, sign, digit]
        value = value_of(words)
        if value is not None and 0 <= value < 100:
            return Problem({"x": _digits(value)}, tuple(words), " ".join(words))


def _grade_expression(problem: Problem, words: tuple[str, ...]) -> Grade:
    value, asked = value_of(words), int(problem.fields["x"].replace(" ", ""))
    score = 0.0 if value is None else 1 / (1 + abs(value - asked))
    return Grade(value == asked, value == asked, score)


def _brackets(rng: Random) -> Problem:
    pairs = int(rng.integers(3, 6))
    words: list[str] = []
    waiting: list[str] = []
    opened = 0
    while opened < pairs or waiting:
        if opened < pairs and (not waiting or rng.random() < 0.5):
            kind = int(rng.integers(2))
            words.append("(["[kind])
            waiting.append(")]"[kind])
            opened += 1
        else:
            words.append(waiting.pop())
    fields = {"n": str(pairs), "d": str(_depth(words))}
    return Problem(fields, tuple(words), " ".join(words))


def _depth(words: Sequence[str]) -> int | None:
    # None if the brackets are not balanced.
    waiting: list[str] = []
    deepest = 0
    for word in words:
        if word in ("(", "["):
            waiting.append(")" if word == "(" else "]")
        elif not waiting or waiting.pop() != word:
            return None
        deepest = max(deepest, len(waiting))
    return None if waiting else deepest


def _grade_brackets(problem: Problem, words: tuple[str, ...]) -> Grade:
    depth = _depth(words)
    good = [
        depth is not None,
        len(words) == 2 * int(problem.fields["n"]),
        depth == int(problem.fields["d"]),
    ]
    return Grade(all(good), all(good), sum(good) / len(good))


_DRAWN: dict[str, tuple[Callable[[Random], Problem], Grader]] = {
    "copy": (_line(lambda _rng, line, _other, _place: line), _same),
    "reverse": (_line(lambda _rng, line, _other, _place: line[::-1]), _same),
    "sort": (_line(lambda _rng, line, _other, _place: sorted(line)), _same),
    "shuffle": (_line(_shuffled), _permuted),
    "insert-index": (_line(_insert, places=1), _same),
    "insert-random": (_line(_insert, places=1), _anywhere(_insert, places=1)),
    "remove-index": (_line(_remove), _same),
    "remove-random": (_line(_remove), _anywhere(_remove)),
    "replace-index": (_line(_replace), _same),
    "replace-random": (_line(_replace), _anywhere(_replace)),
    "latin-square": (_latin, _grade_latin),
    "sudoku": (_sudoku, _same),
    "sums": (_sums, _same),
    "expression": (_expression, _grade_expression),
    "brackets": (_brackets, _grade_brackets),
}
_TOLD = tomllib.loads(
    files("paceline.lab.measure").joinpath("parallel_tasks.toml").read_text(encoding="utf-8")
)
_WORDS = {"names": NAMES, "letters": LETTERS}

TASKS: dict[str, Task] = {
    name: Task(
        tuple(_TOLD[name]["templates"]),
        *drawn,
        frozenset(_WORDS.get(_TOLD[name]["words"], _TOLD[name]["words"])),
    )
    for name, drawn in _DRAWN.items()
}
"""Tasks by name."""
