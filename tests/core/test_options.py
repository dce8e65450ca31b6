"""Options of methods: read from text by the types that constructors declare, or refused."""

from __future__ import annotations

import pytest

from paceline.core.options import arguments
from paceline.errors import InvalidOption
from paceline.methods.reflective import PROMPT, Reflective
from paceline.methods.relaxed import Relaxed
from paceline.methods.top_gap import TopGap
from paceline.methods.typical import Typical
from paceline.proof.tabular import TabularModel, TabularTarget
from paceline.verifiers.base import VerifierContext
from paceline.verifiers.matching import Coupled


def test_values_get_the_types_of_the_constructor() -> None:
    assert arguments(TopGap, "verifier", {"beta": "3", "gap": "1.5"}) == {"beta": 3, "gap": 1.5}
    assert arguments(Typical, "verifier", {"greedy_next": "false"}) == {"greedy_next": False}


@pytest.mark.parametrize(
    ("rule", "options", "says"),
    [
        (TopGap, {"tau": "3"}, "has no option 'tau': use beta, gap"),
        (TopGap, {"beta": "2.5"}, "option beta of verifier 'top-gap' must be a whole number"),
        (Typical, {"delta": "much"}, "must be a number, not 'much'"),
        (Typical, {"greedy_next": "1"}, "must be true or false"),
        (Coupled, {"beta": "1"}, "verifier 'coupled' has no option 'beta': it has none"),
        (Reflective, {"prompt": "1"}, "has no option 'prompt': use alpha"),
    ],
)
def test_wrong_options_are_named_with_the_choices(
    rule: type, options: dict[str, str], says: str
) -> None:
    with pytest.raises(InvalidOption, match=says):
        arguments(rule, "verifier", options)


def made(rule: type, **options: str) -> object:
    """A rule as the engine makes it."""
    target = TabularTarget(TabularModel(4, 1, 1).logits, 4).capabilities
    return rule.create(VerifierContext(target, "model", lambda text: [len(text)], options))


def test_rules_are_made_from_text() -> None:
    rule = made(Relaxed, ratio="1.5")
    assert isinstance(rule, Relaxed)
    assert rule.ratio == 1.5
    with pytest.raises(InvalidOption, match="ratio must be 1"):
        made(Relaxed, ratio="0.5")
    assert isinstance(made(Coupled), Coupled)


def test_the_reflection_prompt_is_in_the_targets_tokens() -> None:
    rule = made(Reflective, alpha="0.5")
    assert isinstance(rule, Reflective)
    assert rule.alpha == 0.5
    assert rule.prompt.tolist() == [len(PROMPT)]
