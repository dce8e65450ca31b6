"""paceline under its own audit from outside, on the real model."""

from __future__ import annotations

import pytest
from tests.real.conftest import load

from paceline.lab.audit.checks import AuditExtent
from paceline.lab.audit.named import PacelineEngine
from paceline.lab.audit.outside import run

pytestmark = pytest.mark.real

PLAN = AuditExtent(greedy_prompts=2, greedy_tokens=24, samples=20, tokens=2)


def test_paceline_passes_from_outside() -> None:
    engine = PacelineEngine(load("int8"), drafter="prompt-lookup", nodes=4, depth=4)
    plan = AuditExtent(**{**PLAN.as_dict(), "check_prompts": PLAN.check_prompts[:1]})
    report = run(engine, plan)
    assert report.passed
    assert report.identical == len(report.greedy) == 2
    assert [each.test for each in report.distributions] == ["first token", "sequences"]
    assert all(each.repeatable for each in report.greedy)
