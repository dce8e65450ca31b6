"""The reference in NumPy: the golden bits without the native kernels, and other orders are seen."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.helpers import target_contract as contract
from tests.helpers import tiny_model as tiny
from tests.runtimes import tiny_cpu

from paceline.core.target import Rows, RuntimeOptions
from paceline.core.types import SamplingParams
from paceline.errors import InvalidOption
from paceline.lab.measure.fingerprint import CASES, RandomWeights, TinyModel, fingerprint
from paceline.models.families import FAMILIES
from paceline.models.source import resolve
from paceline.registry.loading import load_model, make_engine
from paceline.runtimes.cpu.target import CpuTarget
from paceline.runtimes.reference import arithmetic
from paceline.runtimes.reference.formats import Matrix
from paceline.runtimes.reference.target import ReferenceTarget

GOLDEN = json.loads((Path(__file__).parents[1] / "native" / "fingerprints.json").read_text())
# Families have matrices in all formats by turns.
NAMES = [*(family.hf for family in FAMILIES), "llama int8", "llama int4", "llama fp32"]
TOKENS = np.random.default_rng(3).integers(320, size=20).tolist()


def reference(case: TinyModel) -> ReferenceTarget:
    weights = RandomWeights(case.config, case.kinds)
    return ReferenceTarget(case.config, weights, case.precision)


@pytest.mark.parametrize("name", NAMES)
def test_its_logits_are_golden(name: str) -> None:
    """After a long prompt, in trees, in a ragged batch: those of every processor."""
    assert fingerprint(reference(CASES[name])) == GOLDEN["built_in"][name]


def logits(target: Any) -> Any:
    return target.forward([Rows.draft(target.open(), TOKENS)])[0].logits[0].copy()


@pytest.mark.real
@pytest.mark.slow
def test_those_of_the_default_model_are_the_same() -> None:
    source = resolve("smollm2-135m")
    loaded = CpuTarget.load(source, RuntimeOptions(threads=2)), ReferenceTarget.load(source)
    assert np.array_equal(*map(logits, loaded))


def twice(a: Any, b: Any, c: Any) -> Any:
    return np.float32(a) * np.float32(b) + np.float32(c)


def backwards(x: Any, matrix: Matrix) -> Any:
    scales, minima = (
        None if each is None else each[:, ::-1] for each in (matrix.scales, matrix.minima)
    )
    numbers = matrix.numbers[:, ::-1] if scales is None else matrix.numbers[:, ::-1, ::-1]
    return arithmetic.product(x[:, ::-1], Matrix(numbers, scales, minima))


# What is right, and what is not: orders of sums, multiply-adds rounded twice, other functions.
WRONG: dict[str, tuple[str, Any]] = {
    "last inputs first": ("ops.product", backwards),
    "lanes one by one": ("arithmetic.folded", arithmetic.in_order),
    "two roundings": ("arithmetic.fma", twice),
    "NumPy's exponential": ("arithmetic.exponential", np.exp),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_other_arithmetic_is_seen(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES["llama"]
    expected, found = logits(case.target()), logits(reference(case))
    assert np.array_equal(found, expected)
    place, function = WRONG[wrong]
    monkeypatch.setattr(f"paceline.runtimes.reference.{place}", function)
    other = logits(reference(case))
    assert not np.array_equal(other, expected)
    assert np.abs(other - expected).max() < 0.1 * np.abs(expected).max()


def rounded(x: Fraction) -> float:
    """To the nearest float32, of two the even one."""
    if not x:
        return 0.0
    exponent = x.numerator.bit_length() - x.denominator.bit_length()
    step = Fraction(2) ** max(exponent - 23, -149)
    return float(round(x / step) * step)


def test_multiply_adds_are_rounded_once() -> None:
    rng = np.random.default_rng(4)
    a, b, c = rng.standard_normal((3, 2000)).astype(np.float32)
    c[::2] = -(a * b)[::2]  # what is left of the product
    # Close to half-way between two numbers, which float64 cannot tell: usual ones and small ones.
    last, small = 2.0**-23, 2.0**-126
    a[:4] = 1 + last, -1 - last, small * (1 + last), -small * (1 + last)
    b[:4] = (1 - last) * 2.0**-24
    c[:4] = 1 + last, -1 - last, small / 2 + last * small, -small / 2 - last * small
    found = arithmetic.fma(a, b, c)
    exact = [
        rounded(Fraction(x) * Fraction(y) + Fraction(z))
        for x, y, z in zip(*map(np.ndarray.tolist, (a, b, c)), strict=True)
    ]
    assert found.tolist() == exact
    naive = (a.astype(np.float64) * b + c).astype(np.float32)
    assert (naive[:4] != found[:4]).all()


@pytest.mark.parametrize("precision", ["file", "int4"])
def test_the_contract(precision: str) -> None:
    shape = tiny_cpu.config(layers=4)
    target = ReferenceTarget(shape, tiny_cpu.weights(shape), precision)
    contract.check_nodes_equal_their_paths(target, 0, contract.DRAFT)
    contract.check_keep(target, contract.ACROSS, 0)
    contract.check_truncate(target, 0)
    contract.check_fork(target, 0)
    contract.check_ragged_batches(target, 0)
    contract.check_features(target, 0)


def test_it_writes_the_text_of_the_cpu_runtime(tmp_path: Path) -> None:
    tiny.save_gguf(tmp_path / "tiny.gguf", tiny_cpu.config())
    params = SamplingParams(temperature=0.7, seed=3, max_new_tokens=20, ignore_eos=True)
    found = []
    for runtime in ("cpu", "reference"):
        loaded = load_model(str(tmp_path / "tiny.gguf"), runtime=runtime)
        assert loaded.target.capabilities.runtime == runtime
        engine = make_engine(loaded, drafter="recycling", nodes=6, depth=3)
        found.append(engine.generate([5, 9, 17, 5, 9], params).token_ids)
    assert found[0] == found[1]


def test_it_does_not_draft_unless_told_to() -> None:
    """To time drafts in it would take minutes."""
    loaded = load_model("lists-blockffn", runtime="reference")
    assert make_engine(loaded).config["drafter"] == "none"
    assert make_engine(loaded, drafter="recycling", depth=1).config["drafter"] == "recycling"


def test_wrong_precisions_are_refused() -> None:
    shape = tiny_cpu.config()
    for options in ({"precision": "int3"}, {"kv_precision": "u8"}):
        with pytest.raises(InvalidOption, match="is unknown"):
            ReferenceTarget(shape, tiny_cpu.weights(shape), **options)
