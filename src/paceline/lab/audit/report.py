"""Audit report: records, JSON, text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from paceline.lab.audit.engine import Token


@dataclass(frozen=True, slots=True)
class GreedyTexts:
    """Greedy continuations of one prompt, with and without speculation.

    Attributes:
        difference: index of the first different token, or None.
        on: token there with speculation, None if the continuation had ended.
        off: token there without.
        gap: logit of `off` minus logit of `on`, from `gap_by` ("engine" or "referee").
        repeatable: whether two runs without speculation agreed.
    """

    prompt: str
    tokens: int
    difference: int | None
    on: Token | None
    off: Token | None
    gap: float | None
    gap_by: str | None
    repeatable: bool


@dataclass(frozen=True, slots=True)
class DistributionTest:
    """One test that two distributions are equal.

    Attributes:
        test: "first token", against the engine's own probabilities, or "sequences", with against
            without speculation.
        adjusted: p-value after Holm's correction for all tests of the report.
        where: cells that differ most, such as "token 2" or "prefix 3".
        distance: total variation on those cells; positive by chance alone.
        detectable: by power, the least detectable bias in total variation, or None.
    """

    prompt: str
    test: Literal["first token", "sequences"]
    samples: int
    tokens: int
    p_value: float
    adjusted: float
    where: str
    distance: float
    detectable: Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class Report:
    """Results of an audit; `level` is the familywise false alarm probability."""

    about: Mapping[str, str]
    settings: Mapping[str, Any]
    greedy: tuple[GreedyTexts, ...]
    distributions: tuple[DistributionTest, ...]
    level: float
    near_tie: float

    @property
    def identical(self) -> int:
        """Greedy prompts with the same tokens with and without speculation."""
        return sum(each.difference is None for each in self.greedy)

    @property
    def near_ties(self) -> int:
        """Greedy differences that rounding can explain."""
        return sum(each.gap is not None and abs(each.gap) <= self.near_tie for each in self.greedy)

    @property
    def rejected(self) -> tuple[DistributionTest, ...]:
        return tuple(each for each in self.distributions if each.adjusted <= self.level)

    @property
    def passed(self) -> bool:
        """True if no test rejects and every greedy difference is a near-tie."""
        explained = self.identical + self.near_ties
        return not self.rejected and explained == len(self.greedy)

    def as_dict(self) -> dict[str, Any]:
        values = asdict(self)
        return {
            "laws": values.pop("distributions"),
            **values,
            "identical": self.identical,
            "near_ties": self.near_ties,
            "rejected": len(self.rejected),
            "passed": self.passed,
        }


def plain_report(report: Report) -> str:
    """Format the report as lines of text."""
    lines = [f"{key}: {value}" for key, value in report.about.items()]
    if report.greedy:
        lines += ["", *_greedy(report)]
    if report.distributions:
        lines += ["", *_distributions(report)]
    return "\n".join(lines)


def _greedy(report: Report) -> list[str]:
    other = len(report.greedy) - report.identical
    lines = [
        f"greedy: {report.identical} of {len(report.greedy)} identical, {report.near_ties} of "
        f"{other} differences within {report.near_tie:g} of a tie"
    ]
    for each in report.greedy:
        if each.difference is not None:
            gap = "unknown" if each.gap is None else f"{each.gap:.3f} ({each.gap_by})"
            lines.append(
                f"  token {each.difference + 1} of {each.tokens}: {each.on!r} instead of "
                f"{each.off!r}, gap {gap}: {each.prompt!r}"
            )
    unstable = sum(not each.repeatable for each in report.greedy)
    if unstable:
        lines.append(f"  {unstable} prompts differ between two runs without speculation")
    return lines


def _distributions(report: Report) -> list[str]:
    lines = [
        f"distributions: {len(report.rejected)} of {len(report.distributions)} tests reject "
        f"equality at {report.level:g} for all together"
    ]
    for each in report.distributions:
        seen = ", ".join(
            f"{power} {'none' if bias is None else f'{bias:.3f}'}"
            for power, bias in each.detectable.items()
        )
        lines.append(
            f"  {each.test}, {each.samples} x {each.tokens}: p {each.p_value:.4f}, adjusted "
            f"{each.adjusted:.4f}, distance {each.distance:.3f} at {each.where}; would have "
            f"seen: {seen}: {each.prompt!r}"
        )
    return lines
