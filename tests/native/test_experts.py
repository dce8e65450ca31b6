"""Mixtures of experts: the bits of the reference, the same for a row in any company."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.native import formats

from paceline.models.ops import Experts
from paceline.native.library import CMatrix
from paceline.native.packed import Packed
from paceline.native.program import GATES, Program
from paceline.runtimes.reference.formats import matrix
from paceline.runtimes.reference.ops import ReferenceOps

RNG = np.random.default_rng(3)
COUNT, EPS = 6, 1e-5
KINDS = ("F32", "F16", "Q8_0", "Q4_1", "Q4_K", "Q6_K")


class Mixture:
    """Router and experts of one layer, weights from given scores."""

    def __init__(
        self,
        kind: str,
        *,
        used: int = 0,
        sum_to_one: bool = False,
        sigmoid: bool = False,
        factor: float = 1.0,
        gated: bool = True,
        groups: tuple[int, int] = (1, 1),
        activation: str = "silu",
        every: bool = False,
        threads: int = 2,
        poisoned: int | None = None,
        missing: int | None = None,
    ) -> None:
        self.experts = Experts(COUNT, used, sum_to_one, sigmoid, factor, gated)
        self.experts = replace(self.experts, groups=groups[0], groups_used=groups[1])
        self.threads, self.activation = threads, activation
        self.width = width = formats.inputs_of(kind, 2)
        inner = formats.inputs_of(kind, 3)
        packed = Packed()
        self.known: dict[str, Any] = {}
        matrices: list[list[CMatrix]] = []
        for part, (outputs, inputs) in enumerate(((inner, width), (inner, width), (width, inner))):
            made = [formats.blocks(kind, outputs, inputs, 10 * part + e) for e in range(COUNT)]
            name = ("gate", "up", "down")[part]
            self.known |= {f"e.{e}.{name}": matrix(kind, raw) for e, (raw, _) in enumerate(made)}
            matrices.append([packed.matrix(kind, raw, inputs) for raw, _ in made])
        if poisoned is not None:
            raw = np.full((width, inner), np.nan, np.float32).view(np.uint8)
            matrices[2][poisoned] = packed.matrix("F32", raw, inner)
        if missing is not None:
            old = matrices[2][missing]
            matrices[2][missing] = CMatrix(old.outputs, old.inputs, old.kind, 0, None, None)
        if not gated:
            matrices = matrices[1:]
        self.norm = (1 + 0.1 * np.random.default_rng(4).standard_normal(COUNT)).astype(np.float32)
        self.vectors = {"router_norm": self.norm, "router_offset": 3 * self.norm[::-1] - 3}
        self.program = program = Program(packed)
        self.x, self.scores = program.buffer("rows", width), program.buffer("rows", COUNT)
        self.weights = program.buffer("rows", COUNT)
        self.more, self.out = program.buffer("rows", width), program.buffer("rows", width)
        norm = None if used else self.norm
        offset = self.vectors["router_offset"] if sigmoid else None
        shape: Any = {"used": used, "sum_to_one": sum_to_one, "norm": norm, "eps": EPS}
        shape |= {"groups": groups, "sigmoid": sigmoid, "factor": factor, "offset": offset}
        program.route("route", self.scores, self.weights, **shape)
        program.mix(
            "mix",
            matrices,
            self.x,
            self.weights,
            self.out,
            activation=GATES[activation],
            residual=self.more,
            every=every,
        )

    def __call__(self, x: Any, scores: Any, more: Any) -> Any:
        counts = {"rows": len(x)}
        self.program.run(counts, {}, self.threads, operations=0)  # makes room for the rows
        for columns, values in ((self.x, x), (self.scores, scores), (self.more, more)):
            self.program.read(columns, len(x))[:] = values
        self.program.run(counts, {}, self.threads)
        return self.program.read(self.out, len(x)).copy()

    def expected(self, x: Any, scores: Any, more: Any) -> tuple[Any, Any]:
        """Weights and result by the reference, for which this is `Formats`."""
        ops: Any = Scored(self, self.known.get, EPS, None)
        weights = ops.route(scores, "router", self.experts)
        made = ops.mix(x, weights, "e", self.experts, activation=self.activation, residual=more)
        return weights, made

    def vector(self, name: str) -> Any:
        return self.vectors.get(name)

    required = vector

    def parts(self, names: Any, *, pair: bool = False) -> Any:
        return names

    def bias(self, name: str) -> None: ...


class Scored(ReferenceOps):
    """Routes by given scores."""

    def linear(self, x: Any, names: Any, **more: Any) -> Any:
        return x if names == ["router"] else super().linear(x, names, **more)


def given(made: Mixture, rows: int) -> tuple[Any, Any, Any]:
    x, more = RNG.standard_normal((2, rows, made.width)).astype(np.float32)
    return x, RNG.standard_normal((rows, COUNT)).astype(np.float32), more


ROUTERS: dict[str, dict[str, Any]] = {
    "softmax": {"used": 2},
    "sum to one": {"used": 3, "sum_to_one": True},
    "all": {"used": COUNT},
    "relu": {"gated": False},
    "relu, gated": {},
    "sigmoid": {"used": 2, "sigmoid": True, "factor": 2.5, "gated": False, "activation": "relu2"},
    "groups": {"used": 3, "sigmoid": True, "sum_to_one": True, "groups": (3, 2)},
    "a group of a softmax": {"used": 2, "groups": (2, 1)},
    "sigmoid, sum to one": {"used": 3, "sigmoid": True, "sum_to_one": True},
}


@pytest.mark.parametrize("router", ROUTERS)
@pytest.mark.parametrize("kind", KINDS)
def test_it_is_the_mixture_of_the_reference(kind: str, router: str) -> None:
    made = Mixture(kind, **ROUTERS[router])
    for rows in (1, 2, 7, 40):
        data = given(made, rows)
        weights, expected = made.expected(*data)
        assert np.array_equal(made(*data), expected)
        assert np.array_equal(made.program.read(made.weights, rows), weights)


@pytest.mark.parametrize("router", ["sum to one", "relu"])
@pytest.mark.parametrize("kind", KINDS)
def test_company_threads_and_reading_all_change_no_bit(kind: str, router: str) -> None:
    made = Mixture(kind, **ROUTERS[router])
    data = given(made, 41)
    data[1][5] = -1.0  # uses no expert, or the first ones of equal scores
    whole = made(*data)
    for options in ({"threads": 1}, {"threads": 5}, {"every": True}):
        assert np.array_equal(Mixture(kind, **ROUTERS[router], **options)(*data), whole)
    for rows in range(1, 41):
        begin = 7 * rows % (42 - rows)
        part = slice(begin, begin + rows)
        assert np.array_equal(made(*(each[part] for each in data)), whole[part])
    order = np.random.default_rng(1).permutation(41)
    assert np.array_equal(made(*(each[order] for each in data)), whole[order])


def test_of_equal_scores_the_first_experts_are_used() -> None:
    made = Mixture("F32", used=2)
    x, _, more = given(made, 2)
    made(x, np.array([[0, 1, 1, 1, 0, 1], [2, 2, 2, 2, 2, 2]], np.float32), more)
    assert [set(np.flatnonzero(row)) for row in made.program.read(made.weights, 2)] == [
        {1, 2},
        {0, 1},
    ]


def test_a_row_without_experts_keeps_what_it_had() -> None:
    made = Mixture("Q8_0")
    x, scores, more = given(made, 3)
    scores[1] = -np.abs(scores[1])
    assert np.array_equal(made(x, scores, more)[1], more[1])


@pytest.mark.parametrize("options", [{"used": 2}, {}, {"used": 2, "sigmoid": True}])
@pytest.mark.parametrize("where", ["score", "row"])
@pytest.mark.parametrize("odd", [np.nan, np.inf])
def test_what_is_not_finite_shows_in_its_own_row_alone(
    options: dict[str, Any], where: str, odd: float
) -> None:
    if where == "score" and options.get("sigmoid"):
        odd = np.nan  # that of infinity is 1
    made = Mixture("Q8_0", **options)
    data = given(made, 9)
    sound = made(*data)
    data[1 if where == "score" else 0][4, 3] = odd
    found = made(*data)
    assert not np.isfinite(found[4]).all()
    others = np.arange(9) != 4
    assert np.array_equal(found[others], sound[others])


SCRIPT = """
import numpy as np
from tests.native.test_experts import COUNT, Mixture, given
made = Mixture("F32", used=1, missing=2, every={every})
x, scores, more = given(made, 5)
scores[:, 2] = -9
assert np.array_equal(made(x, scores, more), Mixture("F32", used=1)(x, scores, more))
"""


@pytest.mark.parametrize("every", [False, True])
def test_an_expert_that_no_row_uses_is_not_read(every: bool) -> None:
    """Its weights are not even there: reading all experts ends the process."""
    command = [sys.executable, "-c", SCRIPT.format(every=every)]
    done = subprocess.run(command, capture_output=True, check=False)
    assert (done.returncode < 0) == every, done.stderr


def test_an_expert_with_broken_weights_shows_in_its_own_rows_alone() -> None:
    sound, broken = Mixture("F32", used=2), Mixture("F32", used=2, poisoned=3)
    data = given(sound, 20)
    expected, found = sound(*data), broken(*data)
    used = sound.program.read(sound.weights, 20)[:, 3] != 0
    assert used.any()
    assert not used.all()
    assert not np.isfinite(found[used]).any()
    assert np.array_equal(found[~used], expected[~used])
