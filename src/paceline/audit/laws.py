"""Tests that an engine samples from one distribution with and without speculation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from paceline.audit.engine import END, Token
from paceline.audit.plan import Plan
from paceline.audit.power import detectable_difference, detectable_fit
from paceline.audit.report import LawTest
from paceline.audit.statistics import Features, compare, fit, holm, pool

_POWERS = {"80%": 0.8, "90%": 0.9}


@dataclass(frozen=True, slots=True)
class Trial:
    """Samples of one prompt, with speculation on and off."""

    title: str
    on: list[tuple[Token, ...]]
    off: list[tuple[Token, ...]]
    law: Mapping[Token, float] | None = None


def tests(trials: Sequence[Trial], plan: Plan) -> tuple[LawTest, ...]:
    """Run all tests of the trials, with Holm's correction."""
    number = sum(1 + (trial.law is not None) for trial in trials)
    if not number:
        return ()
    level = plan.level / number  # Holm's first step: the level of a single deviating test
    resamples = max(1999, math.ceil(4 / level))
    tests: list[LawTest] = []
    for trial in trials:
        if trial.law is not None:
            tests.append(_first_token(trial, trial.law, plan, level, resamples))
        tests.append(_sequences(trial, plan, level, resamples))
    adjusted = holm([each.p_value for each in tests])
    return tuple(replace(each, adjusted=value) for each, value in zip(tests, adjusted, strict=True))


def _first_token(
    trial: Trial, law: Mapping[Token, float], plan: Plan, level: float, resamples: int
) -> LawTest:
    outcomes = [tokens[0] if tokens else END for tokens in trial.on]
    cells = pool(law, len(outcomes))
    share = cells.count(outcomes) / len(outcomes)
    return LawTest(
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


def _sequences(trial: Trial, plan: Plan, level: float, resamples: int) -> LawTest:
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
    return LawTest(
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
