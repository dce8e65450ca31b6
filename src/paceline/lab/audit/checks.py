"""Tests that an engine samples from one distribution with and without speculation."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from paceline.core.options import Allowed, at_least, check_fields, require
from paceline.core.types import BoolArray, IntArray, ProbArray
from paceline.lab.audit.engine import END, Token
from paceline.lab.audit.report import DistributionTest

# Family of cells: "token" or "prefix", and the position in the continuation, from 1.
Group = tuple[str, int]

# Outcomes with a smaller expected count are pooled.
LEAST_EXPECTED = 5.0


def holm(p_values: Sequence[float]) -> list[float]:
    """Return adjusted p-values (Holm 1979): familywise control under any dependence."""
    adjusted = [0.0] * len(p_values)
    running = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        running = max(running, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = running
    return adjusted


@dataclass(frozen=True, slots=True)
class Cells:
    """A distribution pooled into cells; outcomes without an `index` belong to the last cell."""

    index: Mapping[Token, int]
    probs: ProbArray

    def count(self, outcomes: Sequence[Token]) -> IntArray:
        last = len(self.probs) - 1
        places = [self.index.get(outcome, last) for outcome in outcomes]
        return np.bincount(places, minlength=last + 1)


def pool(distribution: Mapping[Token, float], samples: int) -> Cells:
    """Pool `distribution` for `samples` draws; missing mass belongs to the last cell."""
    floor = LEAST_EXPECTED / samples
    likely = sorted(
        (o for o, p in distribution.items() if p >= floor), key=lambda o: -distribution[o]
    )
    probs = [distribution[outcome] for outcome in likely]
    rest = max(0.0, 1.0 - math.fsum(probs))
    whole = np.array([*probs, rest])
    return Cells({outcome: i for i, outcome in enumerate(likely)}, whole / whole.sum())


def deviance(counts: npt.NDArray[np.int64], probs: ProbArray) -> ProbArray:
    """Return the G statistic, 2 sum n log(n / expected), of each row of `[..., cells]` counts."""
    expected = probs * counts.sum(axis=-1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(counts > 0, counts * np.log(counts / expected), 0.0)
    result: ProbArray = 2 * terms.sum(axis=-1)
    return result


def fit(outcomes: Sequence[Token], cells: Cells, resamples: int, seed: int) -> float:
    """Return the Monte-Carlo p-value of the multinomial G test that `outcomes` follow `cells`."""
    counts = cells.count(outcomes)
    seen = float(deviance(counts, cells.probs))
    drawn = np.random.default_rng(seed).multinomial(len(outcomes), cells.probs, resamples)
    return (1 + int((deviance(drawn, cells.probs) >= seen - 1e-9).sum())) / (1 + resamples)


class Features:
    """Cell counts of two samples of sequences, in groups.

    Cells of ("token", t) are the tokens at position t, of ("prefix", t) the first t tokens. Rare
    cells are pooled per group. Cells depend on the union of both samples, so permutation tests
    stay exact.
    """

    def __init__(self, sequences: Sequence[Sequence[Token]], smaller: int) -> None:
        length = len(sequences[0]) if sequences else 0
        floor = LEAST_EXPECTED * len(sequences) / smaller
        self.groups: list[Group] = []
        self.slices: list[slice] = []
        columns: list[npt.NDArray[np.float64]] = []
        width = 0
        for kind, position in [("prefix", 1)] + [
            (kind, t) for t in range(2, length + 1) for kind in ("token", "prefix")
        ]:
            start = 0 if kind == "prefix" else position - 1
            values = [tuple(s[start:position]) for s in sequences]
            cells = [value for value, n in Counter(values).items() if n >= floor]
            place = {value: i for i, value in enumerate(cells)}
            index = np.array([place.get(value, len(cells)) for value in values])
            if len(np.unique(index)) < 2:
                continue
            block = np.zeros((len(sequences), int(index.max()) + 1))
            block[np.arange(len(sequences)), index] = 1
            columns.append(block)
            self.groups.append((kind, position))
            self.slices.append(slice(width, width + block.shape[1]))
            width += block.shape[1]
        membership = np.concatenate(columns, axis=1) if columns else np.zeros((len(sequences), 0))
        kinds, kind_of = np.unique(membership, axis=0, return_inverse=True)
        # float64 `[kinds, cells]`: indicator of the cells of each distinct sequence.
        self.kinds: npt.NDArray[np.float64] = kinds
        # int64 `[sequences]`: index into `kinds`.
        self.kind: IntArray = kind_of.reshape(-1)

    def tally(self, first: int) -> tuple[IntArray, IntArray]:
        """Return int64 `[kinds]`: counts of the first `first` sequences, and of all, by kind."""
        size = len(self.kinds)
        part = np.bincount(self.kind[:first], minlength=size)
        return part, np.bincount(self.kind, minlength=size)

    def statistics(
        self, first: npt.NDArray[np.float64], second: npt.NDArray[np.float64]
    ) -> ProbArray:
        """Return the two-sample chi-square by group, float64 `[..., groups]`."""
        if not self.groups:
            return np.zeros((*first.shape[:-1], 0))
        n = first[..., self.slices[0]].sum(axis=-1, keepdims=True)
        m = second[..., self.slices[0]].sum(axis=-1, keepdims=True)
        both = first + second
        with np.errstate(divide="ignore", invalid="ignore"):
            terms = (first * np.sqrt(m / n) - second * np.sqrt(n / m)) ** 2 / both
        terms = np.where(both > 0, terms, 0.0)
        return np.stack([terms[..., part].sum(axis=-1) for part in self.slices], axis=-1)


@dataclass(frozen=True, slots=True)
class TwoSample:
    """Outcome of a two-sample test on the largest standardised statistic over groups.

    `location` and `scale` are mean and deviation of each group's statistic under permutation,
    `maxima` the largest standardised statistic of each permutation.
    """

    p_value: float
    group: Group | None
    location: ProbArray
    scale: ProbArray
    maxima: ProbArray


def compare(features: Features, first: int, resamples: int, seed: int) -> TwoSample:
    """Test by permutation that the first sequences and the others have one distribution.

    Statistics are standardised over all relabellings, the true one included: exact.
    """
    if not features.groups:
        return TwoSample(1.0, None, np.zeros(0), np.ones(0), np.zeros(0))
    seen, total = features.tally(first)
    # Relabelling at random draws the first sample from all sequences without replacement.
    drawn = np.random.default_rng(seed).multivariate_hypergeometric(total, first, resamples)
    counts = np.concatenate([seen[None], drawn]) @ features.kinds
    values = features.statistics(counts, total @ features.kinds - counts)
    location, scale = values.mean(axis=0), values.std(axis=0)
    scale[scale == 0] = 1.0
    standard = (values - location) / scale
    maxima = standard.max(axis=1)
    exceeding = int((maxima[1:] >= maxima[0] - 1e-9).sum())
    group = features.groups[int(standard[0].argmax())]
    return TwoSample((1 + exceeding) / (1 + resamples), group, location, scale, maxima[1:])


_STEPS = 9
_RUNS = 400


def halves(probs: ProbArray) -> BoolArray:
    """Return whether each cell is in the heavier half: largest first, each to the lighter side."""
    heavy = np.zeros(len(probs), dtype=np.bool_)
    sides = [0.0, 0.0]
    for cell in np.argsort(-probs, kind="stable"):
        side = int(sides[1] < sides[0])
        heavy[cell] = side == 0
        sides[side] += float(probs[cell])
    return heavy if sides[0] >= sides[1] else ~heavy


def shifted(probs: ProbArray, heavy: BoolArray, bias: float) -> ProbArray:
    """Move mass `bias` from the heavier half to the other, in proportion."""
    if heavy.all():  # nowhere to go
        return probs
    light = probs[~heavy].sum()
    parts = probs / light if light > 0 else np.ones(len(probs)) / (~heavy).sum()
    moved = np.where(heavy, probs * (1 - bias / probs[heavy].sum()), probs + bias * parts)
    distribution: ProbArray = moved / moved.sum()  # rounding can take a lone outcome past 1
    return distribution


def detectable_fit(
    cells: Cells, samples: int, level: float, power: float, resamples: int, seed: int
) -> float | None:
    """Return the least bias that `fit` detects with probability `power`, or None."""
    heavy = halves(cells.probs)
    generator = np.random.default_rng(seed)
    null = deviance(generator.multinomial(samples, cells.probs, resamples), cells.probs)
    critical = np.quantile(null, 1 - level)

    def found(bias: float) -> float:
        probs = shifted(cells.probs, heavy, bias)
        drawn = np.random.default_rng(seed + 1).multinomial(samples, probs, resamples)
        return float((deviance(drawn, cells.probs) > critical).mean())

    return _least(found, float(cells.probs[heavy].sum()), power)


def detectable_difference(
    features: Features, first: int, test: TwoSample, level: float, power: float, seed: int
) -> float | None:
    """Return the least bias at the worst position that `compare` detects, or None.

    Both samples are resampled from all sequences, the first (of `first`) with the distribution at
    one position shifted. `level` is after correction for other tests.
    """
    if not features.groups:
        return None
    critical = float(np.quantile(test.maxima, 1 - level))
    _, total = features.tally(first)
    distribution = total / total.sum()
    draws = np.random.default_rng(seed)
    other = draws.multinomial(int(total.sum()) - first, distribution, _RUNS) @ features.kinds
    worst = 0.0
    for group, part in zip(features.groups, features.slices, strict=True):
        if group[0] == "prefix" and group[1] > 1:
            continue
        cells = features.kinds[:, part]
        probs = distribution @ cells
        heavy = halves(probs)

        def found(
            bias: float,
            cells: npt.NDArray[np.float64] = cells,
            probs: ProbArray = probs,
            heavy: BoolArray = heavy,
        ) -> float:
            biased = distribution * (cells @ (shifted(probs, heavy, bias) / probs))
            biased /= biased.sum()  # rounding can take a lone kind past 1
            drawn = np.random.default_rng(seed + 1).multinomial(first, biased, _RUNS)
            values = features.statistics(drawn @ features.kinds, other)
            standard = (values - test.location) / test.scale
            return float((standard.max(axis=1) > critical).mean())

        least = _least(found, float(probs[heavy].sum()), power)
        if least is None:
            return None
        worst = max(worst, least)
    return worst


def _least(found: Callable[[float], float], most: float, power: float) -> float | None:
    # Bisection over the bias.
    low, high = 0.0, most
    if found(high) < power:
        return None
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if found(middle) < power:
            low = middle
        else:
            high = middle
    return high


LAW_PROMPTS: tuple[str, ...] = (
    "The dog likes the cat. The cat likes the bird. The bird likes the dog. The dog likes the",
    "one two one two three one two one two three one two",
    "Anna said that she liked the book. Ben said that he liked the film. Carla said that",
    "She saw a fox, a dog and a hen. He saw a dog, a fox and a cow. They saw a",
)


# Logits: the error of int8 quantization.
NEAR_TIE = 0.5


_WARM = Allowed(lambda value: 0 < value < math.inf, "more than 0")
_GAP = Allowed(lambda value: 0 <= value < math.inf, "0 or more, and finite")


@dataclass(frozen=True, slots=True)
class AuditExtent:
    """Extent of an audit, with help and bounds of the command's options.

    Raises InvalidOption for a value out of its bounds.

    Attributes:
        check_prompts: raw texts for the distribution tests.
        samples: per text and setting of speculation.
        tokens: at least 2: the last token is never drafted.
    """

    prompts: Annotated[Path | None, "Spec-Bench JSONL. Default: built-in mix."] = None
    greedy_prompts: Annotated[
        int, "Prompts decoded greedily; 0 is none.", Allowed(lambda n: n >= 0, "0 (none) or more")
    ] = 12
    greedy_tokens: Annotated[int, "Length of each, in tokens.", at_least(2)] = 64
    check_prompts: Annotated[tuple[str, ...], "Raw texts."] = LAW_PROMPTS[:3]
    samples: Annotated[
        int,
        "Samples per prompt and side; 0 is none.",
        Allowed(lambda n: n == 0 or 20 <= n <= 10**6, "0 (none), or 20 to a million"),
    ] = 300
    tokens: Annotated[
        int, "Length of each sample, in tokens.", Allowed(lambda n: 2 <= n <= 64, "from 2 to 64")
    ] = 4
    temperature: Annotated[float, "Of the samples.", _WARM] = 1.0
    level: Annotated[
        float,
        "Probability of a false alarm, over all.",
        Allowed(lambda share: 0 < share < 0.5, "between 0 and 0.5"),
    ] = 0.01
    near_tie: Annotated[float, "Logits that count as a near-tie.", _GAP] = NEAR_TIE
    seed: Annotated[int, "Keys all randomness.", at_least(0)] = 0

    def __post_init__(self) -> None:
        check_fields(self)
        some = bool(self.samples or self.greedy_prompts)
        require(some, "samples", self.samples, "20 or more without greedy_prompts")

    def as_dict(self) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in self.__slots__}
        return values | {"prompts": None if self.prompts is None else str(self.prompts)}


_POWERS = {"80%": 0.8, "90%": 0.9}


@dataclass(frozen=True, slots=True)
class Trial:
    """Samples of one prompt, with speculation on and off."""

    title: str
    on: list[tuple[Token, ...]]
    off: list[tuple[Token, ...]]
    distribution: Mapping[Token, float] | None = None


def tests(trials: Sequence[Trial], plan: AuditExtent) -> tuple[DistributionTest, ...]:
    """Run all tests of the trials, with Holm's correction."""
    number = sum(1 + (trial.distribution is not None) for trial in trials)
    if not number:
        return ()
    level = plan.level / number  # Holm's first step: the level of a single deviating test
    resamples = max(1999, math.ceil(4 / level))
    tests: list[DistributionTest] = []
    for trial in trials:
        if trial.distribution is not None:
            tests.append(_first_token(trial, trial.distribution, plan, level, resamples))
        tests.append(_sequences(trial, plan, level, resamples))
    adjusted = holm([each.p_value for each in tests])
    return tuple(replace(each, adjusted=value) for each, value in zip(tests, adjusted, strict=True))


def _first_token(
    trial: Trial,
    distribution: Mapping[Token, float],
    plan: AuditExtent,
    level: float,
    resamples: int,
) -> DistributionTest:
    outcomes = [tokens[0] if tokens else END for tokens in trial.on]
    cells = pool(distribution, len(outcomes))
    share = cells.count(outcomes) / len(outcomes)
    return DistributionTest(
        trial.title,
        "first token",
        len(outcomes),
        1,
        fit(outcomes, cells, resamples, plan.seed),
        1.0,
        "token 1",
        float(np.abs(share - cells.probs).sum() / 2),
        {
            name: detectable_fit(cells, len(outcomes), level, power, resamples, plan.seed)
            for name, power in _POWERS.items()
        },
    )


def _sequences(trial: Trial, plan: AuditExtent, level: float, resamples: int) -> DistributionTest:
    def filled(tokens: tuple[Token, ...]) -> tuple[Token, ...]:
        return (*tokens, *[END] * (plan.tokens - len(tokens)))

    size = len(trial.on)
    features = Features([*map(filled, trial.on), *map(filled, trial.off)], size)
    test = compare(features, size, resamples, plan.seed)
    distance, where = 0.0, "nowhere"
    if test.group is not None:
        cells = features.kinds[:, features.slices[features.groups.index(test.group)]]
        part, total = features.tally(size)
        shares = part / size - (total - part) / (total - part).sum()
        distance = float(np.abs(shares @ cells).sum() / 2)
        where = " ".join(map(str, test.group))
    return DistributionTest(
        trial.title,
        "sequences",
        size,
        plan.tokens,
        test.p_value,
        1.0,
        where,
        distance,
        {
            name: detectable_difference(features, size, test, level, power, plan.seed)
            for name, power in _POWERS.items()
        },
    )
