"""Drafters by name: options, merged ones, and names that lead nowhere."""

from __future__ import annotations

import pytest
from tests.helpers.drafter_context import context as drafter_context

from paceline.drafters.base import Drafter
from paceline.drafters.combine.bandit import Choose
from paceline.drafters.combine.merged import Merged
from paceline.errors import InvalidOption
from paceline.methods.lookahead import Lookahead
from paceline.proof.tabular import TabularModel, TabularTarget
from paceline.registry import table as registry
from paceline.registry.assembly import make_drafter
from paceline.registry.options import Options

TARGET = TabularTarget(TabularModel(5, 1, 1).logits, 5)


def make(text: str) -> Drafter:
    return make_drafter(text, drafter_context(TARGET, lambda: TARGET))


def test_options_reach_the_drafter() -> None:
    drafter = make("lookahead:length=3,columns=2")
    assert isinstance(drafter, Lookahead)
    with pytest.raises(InvalidOption, match="option length of drafter 'lookahead' must be a whole"):
        make("lookahead:length=long")
    with pytest.raises(InvalidOption, match="must be tree or path, not 'worst'"):
        make("suffix-tree:mode=worst")


@pytest.mark.parametrize("name", registry.names("drafter"))
def test_no_drafter_swallows_an_unknown_option(name: str) -> None:
    with pytest.raises(InvalidOption, match=r"option|needs"):
        make(f"{name}:colour=red")


def test_a_plus_merges() -> None:
    merged = make("prompt-lookup + recycling+suffix-tree:mode=path")
    assert isinstance(merged, Merged)
    assert [part.name for part in merged.parts] == ["prompt-lookup", "recycling", "suffix-tree"]
    assert merged.needs.node_logits


def test_the_way_to_merge_may_come_first() -> None:
    for text in ("graft:floor=0.2+recycling+prompt-lookup", "fuse+recycling+prompt-lookup"):
        merged = make(text)
        assert isinstance(merged, Merged)
        assert [part.name for part in merged.parts] == ["recycling", "prompt-lookup"]
    with pytest.raises(InvalidOption, match="combine 2 to"):
        make("graft+recycling")
    with pytest.raises(InvalidOption, match="has no option 'way'"):
        make("blend:way=fuse+recycling+aded")


def test_a_bar_lets_drafters_take_turns() -> None:
    for text in ("none|prompt-lookup+aded", "choose:seed=3|none|prompt-lookup+aded"):
        turns = make(text)
        assert isinstance(turns, Choose)
        assert [part.name for part in turns.parts] == ["none", "merged"]
        Options().check(text)
    with pytest.raises(InvalidOption, match="option seed of drafter 'choose' must be a whole"):
        make("choose:seed=x|none|aded")
    with pytest.raises(InvalidOption, match="combine 2 to"):
        make("choose|none")


@pytest.mark.parametrize("text", ["recycling+", "+recycling", "recycling++aded", "", "none|", "|"])
def test_an_empty_part_is_refused(text: str) -> None:
    with pytest.raises(InvalidOption, match="empty part"):
        Options().check(text)
    with pytest.raises(InvalidOption, match="empty part"):
        make(text)


def test_unknown_names_are_found_without_making_anything() -> None:
    with pytest.raises(InvalidOption, match="drafter 'magic' is unknown"):
        Options().check("recycling+magic:x=1")
    Options().check("graft:floor=0.1+draft-model+datastore:index=nowhere")
