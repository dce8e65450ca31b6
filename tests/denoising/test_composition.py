"""What goes into what: every registered wrapper around every registered rule, two deep, is refused
with one line or, at the setting that changes nothing, the rule alone.
"""

from __future__ import annotations

import inspect
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from tests.denoising.test_wrappers import weights
from tests.helpers.canvases import decode

from paceline.denoising.unmasking import Rule
from paceline.errors import InvalidOption
from paceline.methods.canvas.speculative import Drawing
from paceline.proof.table_denoiser import TableDenoiser, random_joint
from paceline.registry import table as registry
from paceline.registry.samplers import make_sampler

# Wrappers at the setting that changes nothing, and what they are not for.
OWN = {"cfg", "guided", "remask", "wedlm"}  # steps of their own
ALONE = {"assd", "tidar", "linear-spec", "lexical-units", "freedave", "speculative"}
REFUSED = {
    "cfg:scale=0": OWN,
    "credit:alpha=0": OWN,
    "prophet:early=inf,middle=inf,late=inf": OWN,
    "revise:share=0": OWN,
    "remask:rounds=0": OWN,
    "wedlm:window=9": {*OWN, "revise", "dream"},
    "freedave:width=1": {"wedlm"},
    "speculative:width=1": {*OWN, "revise", "genmol"},
}
NEUTRAL = {text.split(":")[0]: text for text in REFUSED}
NAMES = [each.name for each in registry.methods() if each.kind == "sampler"]
RULES = [name for name in NAMES if name not in NEUTRAL]
PARAMS: tuple[dict[str, Any], ...] = ({}, {"temperature": 1.0, "seed": 3})


def goes(names: list[str]) -> bool:
    """Whether an expression of these samplers, the outermost first, is for use."""
    inner = set(names[1:])
    if len(names) == 1:
        return names[0] not in NEUTRAL
    # A rule that plans its steps, or changes what it has filled, does so inside a wrapper, too.
    deep = {"revise", "dream", "genmol"} & inner
    refused = REFUSED[NEUTRAL[names[0]]]
    bad = refused & {names[1], *deep} or ALONE & {names[1]}
    return not bad and names[0] not in inner and goes(names[1:])


def test_every_sampler_is_in_the_table() -> None:
    wraps = {
        name
        for name in NAMES
        if "inner" in inspect.signature(registry.find("sampler", name).load()).parameters
    }
    assert wraps == set(NEUTRAL)
    rules = {name for name in RULES if issubclass(registry.find("sampler", name).load(), Rule)}
    assert set(NAMES) - rules - wraps == ALONE - wraps


def alone(names: list[str], filter: str, params: dict[str, Any], index: int = 0) -> Any:
    """Decode; texts with a window go over the order of filling, as far as a table sees it."""
    texts = [filter if name == "filter" else NEUTRAL.get(name, name) for name in names]
    attention = "order" if "wedlm" in names else "full"
    joint = random_joint(3, 5, index)
    made = TableDenoiser(joint, attention=attention, autoregressive=True)  # type: ignore[arg-type]
    found = decode(made, ">".join(texts), **params)
    fills = [fill[:3] for fill in found.work.process.canvas.trace]
    return found.generated, fills


def accepted(self: Drawing, p: Any, place: int, randomness: Any) -> int:
    # As the rule draws, so that texts can be compared, and not only distributions.
    places = self.canvas.masked()[:1] * 0 + place
    return int(self.context.distributions.picks(p[None], places)[0])


@pytest.mark.parametrize("params", PARAMS, ids=["greedy", "drawn"])
def test_pairs_are_refused_or_at_the_neutral_setting_the_rule(
    params: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Drawing, "_accepted", accepted)
    filter = weights(tmp_path / "filter", 5)
    known = {rule: alone([rule], filter, params) for rule in RULES if rule not in ALONE}
    ran = 0
    for outer in NEUTRAL:
        chains = [[outer, each] for each in NAMES]
        chains += [[outer, each, rule] for each in NEUTRAL for rule in RULES]
        for chain in chains:
            if not goes(chain):
                with pytest.raises(InvalidOption) as error:
                    make_sampler(">".join(NEUTRAL.get(name, name) for name in chain))
                assert "\n" not in str(error.value)
                continue
            assert alone(chain, filter, params) == known[chain[-1]], chain
            ran += 1
    assert ran > 150


def test_wrappers_at_work_change_what_the_rule_does() -> None:
    # The neutral settings are not the only ones that the wrappers have.
    for text in ("credit:alpha=9", "prophet:early=-1", "revise", "remask", "freedave", "wedlm"):
        attention = "order" if text == "wedlm" else "full"
        rule, different = "counts:per_step=2", 0
        for index in range(8):
            joint = random_joint(3, 5, index)
            plain = decode(TableDenoiser(joint), rule, temperature=1.0)
            made = TableDenoiser(joint, attention=attention)  # type: ignore[arg-type]
            option = "wedlm:window=2" if text == "wedlm" else text
            found = decode(made, f"{option}>{rule}", temperature=1.0)
            one, other = (
                (each.work.process.canvas.trace, each.stats.target_forwards)
                for each in (found, plain)
            )
            different += one != other
        assert different, text


@pytest.mark.parametrize("name", NAMES)
def test_given_places_stand_and_odd_requests_end(name: str, tmp_path: Path) -> None:
    """All places given, the first ones, one; a temperature near 0; places that may hold nothing."""
    text = {"filter": weights(tmp_path / "filter", 8), "wedlm": "wedlm:window=2>entropy"}.get(name)
    text = text or (f"{name}>counts" if name in NEUTRAL else name)
    facts: dict[str, Any] = {"attention": "order" if name in ("wedlm", "assd") else "full"}
    facts["autoregressive"] = name in ("guided", "tidar", "linear-spec", "lexical-units")
    made = TableDenoiser(random_joint(3, 5, 0), **facts)
    for given in (dict.fromkeys(range(5), 1), {0: 1, 1: 2}, {4: 1}, {0: 2, 2: 0, 4: 1}):
        for temperature in (0.0, 1e-320, 1.0):
            found = decode(made, text, forced_tokens=given, temperature=temperature)
            assert {at: found.generated[at] for at in given} == given, temperature
            assert len(found.generated) == 5
    # Behind its joint a table has nothing but the end, which is banned but at the first mask.
    assert len(decode(made, text, max_new_tokens=8, ending="hold").generated) == 6


def test_a_repeated_wrapper_is_refused() -> None:
    for one, other in permutations(("credit", "prophet"), 2):
        with pytest.raises(InvalidOption, match=f"'{one}' stands twice"):
            make_sampler(f"{one}>{other}>{one}>counts")
