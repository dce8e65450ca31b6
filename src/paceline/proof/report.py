"""Audit report: records, JSON, text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from paceline.proof.audited_engine import Token


@dataclass(frozen=True, slots=True)
class Greedy:
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
    greedy: tuple[Greedy, ...]
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


# Markdown tables of reports on several engines:

# A report's JSON, or `{"failed": "one line"}`.
Found = Mapping[str, Any]

NOTHING = "\N{EN DASH}"

GREEDY = ("configuration", "version", "identical", "gaps at first differences", "near-ties")
LAWS = (
    *("configuration", "accepted drafts", "p first token", "p sequences", "largest difference"),
    *("seen at 80%", "seen at 90%", "laws"),
)


def summary_tables(found: Mapping[str, Found]) -> str:
    """Format both tables, and a line for each failed engine, from reports by configuration."""
    reports = {name: each for name, each in found.items() if "failed" not in each}
    parts = []
    greedy = {name: each for name, each in reports.items() if each["greedy"]}
    if greedy:
        parts.append(_table(GREEDY, [_greedy_row(name, each) for name, each in greedy.items()]))
    distributions = {name: each for name, each in reports.items() if each["laws"]}
    if distributions:
        parts.append(
            _table(LAWS, [_distribution_row(name, each) for name, each in distributions.items()])
        )
    failed = [f"- `{name}`: {each['failed']}" for name, each in found.items() if "failed" in each]
    if failed:
        parts.append("Failed:\n\n" + "\n".join(failed))
    return "\n\n".join(parts)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _named(name: str, report: Found) -> str:
    return f"{name} (lossy)" if report["about"].get("lossless") == "False" else name


def _greedy_row(name: str, report: Found) -> list[str]:
    different = [each for each in report["greedy"] if each["difference"] is not None]
    gaps = sorted(each["gap"] for each in different if each["gap"] is not None)
    unknown = len(different) - len(gaps)
    shown = [f"{gap:.2f}" for gap in gaps] + [f"{unknown} unknown"] * (unknown > 0)
    return [
        _named(name, report),
        report["about"].get("version", NOTHING),
        f"{report['identical']} of {len(report['greedy'])}",
        ", ".join(shown) or NOTHING,
        f"{report['near_ties']} of {len(different)}" if different else NOTHING,
    ]


def _distribution_row(name: str, report: Found) -> list[str]:
    # Least p-values and worst power over the prompts.

    def least(test: str) -> str:
        adjusted = [each["adjusted"] for each in report["laws"] if each["test"] == test]
        return f"{min(adjusted):.2g}" if adjusted else NOTHING

    def seen(power: str) -> str:
        biases = [each["detectable"][power] for each in report["laws"]]
        return "none" if None in biases else f"{max(biases):.2f}"

    most = max(report["laws"], key=lambda each: (-each["adjusted"], each["distance"]))
    return [
        _named(name, report),
        report["about"].get("accepted drafts", "unknown"),
        least("first token"),
        least("sequences"),
        f"{most['distance']:.2f} at {most['where']}",
        seen("80%"),
        seen("90%"),
        "**differ**" if report["rejected"] else "no difference found",
    ]
