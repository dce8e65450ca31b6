"""Growths by name, and that every rule that takes drawn drafts gets drafts that it accepts."""

from __future__ import annotations

from importlib import import_module
from inspect import isabstract
from pathlib import Path
from pkgutil import iter_modules

import pytest

from paceline import trees as package
from paceline.core import tree as trees
from paceline.core.types import Budget
from paceline.errors import IncompatibleDraft, InvalidOption
from paceline.proof.cases import grown
from paceline.proof.tabular import TabularDistributions, TabularModel
from paceline.registry import table as registry
from paceline.sampling.randomness import KeyedRandomness
from paceline.trees.base import TreeExpansion
from paceline.trees.choice import expansion_for, named_expansion
from paceline.trees.deterministic import ExpandRerank, SharedNoise, Static
from paceline.trees.drawn import Branching, Iid, Paths, StochasticBeam
from paceline.trees.drawn import TopAndOne as TopAndOneGrowth
from paceline.trees.dyspec import Dynamic, Threshold
from paceline.trees.shapes import FALCON, MEDUSA, TOKEN_RECYCLING, RankCounts
from paceline.verifiers.base import Verifier
from paceline.verifiers.k_seq import KSeq
from paceline.verifiers.matching import Coupled, SampleMatch
from paceline.verifiers.recursive import Recursive, RecursiveDistinct
from paceline.verifiers.rejection import Rejection
from paceline.verifiers.top_and_one import TopAndOne

MODEL, OTHER = TabularModel(5, 2, 1), TabularModel(5, 2, 2)


@pytest.mark.parametrize(
    ("verifier", "name"),
    [
        (Coupled(), "shared-noise"),
        (SampleMatch(), "shared-noise"),
        (Rejection(), "iid"),
        (Recursive(), "paths"),
        (KSeq(), "paths"),
        (RecursiveDistinct(), "branching"),
        (TopAndOne(), "top-and-one"),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_the_rule_takes_what_grows(verifier: Verifier, name: str) -> None:
    growth = expansion_for(verifier.accepts, verifier.shape)
    assert growth.name == name
    assert growth.kind in verifier.accepts
    for seed in range(5):
        draft = grown(growth, OTHER.distribution)((0,), KeyedRandomness(seed), Budget(6, 3))
        assert trees.is_chain(draft) or verifier.shape == "tree"
        verifier.verify(
            draft, TabularDistributions(MODEL.distribution, (0,), draft), KeyedRandomness(seed)
        )


def test_a_rule_for_parallel_drafts_alone_gets_none() -> None:
    with pytest.raises(InvalidOption, match="cannot draw factorised drafts"):
        expansion_for(frozenset({"factorised"}), "chain")


EVERY = [
    ("iid-3.2.1", "iid"),
    ("paths-4", "paths"),
    ("branching-3.2.1", "branching"),
    ("top-and-one-3", "top-and-one"),
    ("shared-noise-2.1", "shared-noise"),
    ("stochastic-beam-2", "stochastic-beam"),
    ("dynamic", "dynamic"),
    ("threshold-0.05", "threshold"),
    ("expand-rerank-3.2-0.01", "expand-rerank"),
    ("expand-rerank-3.2", "expand-rerank"),
    ("static-recycling", "static"),
]


def the_draft(growth: TreeExpansion) -> list[list[int]]:
    draft = grown(growth, OTHER.distribution)((0,), KeyedRandomness(3), Budget(30, 4))
    return [draft.tokens.tolist(), draft.parents.tolist()]


@pytest.mark.parametrize(
    ("text", "growth"),
    [
        ("iid-3.2.1", Iid([3, 2, 1])),
        ("paths-4", Paths(4)),
        ("branching-3.2.1", Branching([3, 2, 1])),
        ("branching", Branching([2, 1])),
        ("top-and-one-3", TopAndOneGrowth([3])),
        ("shared-noise-2.1", SharedNoise([2, 1])),
        ("shared-noise", SharedNoise([1])),
        ("stochastic-beam-2", StochasticBeam(2)),
        ("dynamic", Dynamic()),
        ("threshold-0.05", Threshold(0.05)),
        ("expand-rerank", ExpandRerank()),
        ("expand-rerank-3", ExpandRerank(3)),
        ("expand-rerank-3.2", ExpandRerank(3, 2)),
        ("expand-rerank-3-0.2", ExpandRerank(3, floor=0.2)),
        ("expand-rerank-3.2-0.2", ExpandRerank(3, 2, 0.2)),
        ("static", Static(MEDUSA)),
        ("static-medusa", Static(MEDUSA)),
        ("static-recycling", Static(TOKEN_RECYCLING)),
        ("static-falcon", Static(FALCON)),
    ],
)
def test_a_name_with_sizes_is_that_growth(text: str, growth: TreeExpansion) -> None:
    found = named_expansion(text)
    assert type(found) is type(growth)
    assert the_draft(found) == the_draft(growth)


def test_every_growth_has_a_name() -> None:
    for module in iter_modules(package.__path__):
        import_module(f"paceline.trees.{module.name}")
    shipped, names = [TreeExpansion], set[str]()
    while shipped:
        below = shipped.pop().__subclasses__()
        shipped += below
        here = [each for each in below if each.__module__.startswith("paceline.trees.")]
        names |= {each.name for each in here if not isabstract(each)}
    assert names == {name for _, name in EVERY}
    for name in names:
        assert named_expansion(name).name == name


def test_a_static_shape_is_built_from_rank_counts(tmp_path: Path) -> None:
    counts = RankCounts("mine", 2, 2)
    for rank in (0, 0, 1, None):
        counts.add(0, 2, rank)
    counts.add(1, 2, 0)
    counts.save(tmp_path / "my-ranks-1.2.json")
    found = named_expansion(f"static-3@{tmp_path}/my-ranks-1.2.json")
    assert the_draft(found) == the_draft(Static(((0,), (0, 0), (1,))))
    RankCounts("mine", 2, 2).save(tmp_path / "none.json")
    for text, says in (
        (f"static-3@{tmp_path}/none.json", "makes an empty shape: measure longer"),
        (f"static-0@{tmp_path}/my-ranks-1.2.json", "with 0 nodes makes an empty shape"),
        (f"static-x@{tmp_path}/my-ranks-1.2.json", "is written static-medusa"),
        ("static-3@absent.json", "cannot read absent.json"),
    ):
        with pytest.raises(InvalidOption, match=says):
            named_expansion(text)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "unknown growth ''.*branching.*static"),
        ("branchy-2", "unknown growth 'branchy-2': use iid, paths, branching"),
        ("branching3", "unknown growth"),
        ("Branching", "unknown growth"),
        ("branching-3,2", "growth 'branching' is written branching-2.1 .children per node.* not"),
        ("branching-", None),
        ("branching-3.", "is written"),
        ("branching--1", "is written"),
        ("branching-x", "is written"),
        ("branching-1_0", "is written"),
        ("branching-99999", "is written"),
        ("branching-0", r"branching factors of 1 or more, not \[0\]"),
        ("paths-2.1", "growth 'paths' is written paths-2 .how many chains., not 'paths-2.1'"),
        ("paths-0", "needs 1 or more paths"),
        ("stochastic-beam-0", "a width of 1 or more"),
        ("dynamic-3", "growth 'dynamic' is written dynamic .it has no sizes."),
        ("threshold-x", "is written threshold-0.1"),
        ("threshold-nan", r"a threshold in \(0, 1\]"),
        ("threshold-2", "not 2.0"),
        ("expand-rerank-4.6.2", "is written expand-rerank-4.6-0.02"),
        ("expand-rerank-4-x", "is written"),
        ("expand-rerank-4-0.1-2", "is written"),
        ("expand-rerank-0", "needs a width and levels of 1 or more"),
        ("expand-rerank-4-1.5", r"a floor in \[0, 1\)"),
        ("static-eagle", "medusa, recycling, falcon or NODES@FILE"),
    ],
)
def test_a_name_that_is_none_is_refused_with_what_there_is(text: str, says: str | None) -> None:
    if says is None:
        assert named_expansion(text).name == "branching"  # nothing behind the dash: the defaults
        return
    with pytest.raises(InvalidOption, match=says) as caught:
        named_expansion(text)
    assert "\n" not in str(caught.value)


RULES = [
    registry.find("verifier", name).load()()
    for name in registry.names("verifier")
    if registry.find("verifier", name).guarantee.startswith("lossless")
]


@pytest.mark.parametrize("verifier", RULES, ids=lambda rule: rule.name)
@pytest.mark.parametrize("text", [text for text, _ in EVERY])
def test_a_named_growth_is_taken_by_the_rule_or_refused(verifier: Verifier, text: str) -> None:
    """What the choice lets through, the rule verifies; what it refuses, the rule would too."""
    refusal = None
    try:
        growth = expansion_for(verifier.accepts, verifier.shape, text)
    except InvalidOption as error:
        refusal = str(error)
        growth = named_expansion(text)
    assert (growth.kind in verifier.accepts and verifier.shape == "tree") == (refusal is None)
    if refusal is not None:
        assert f"growth '{growth.name}'" in refusal
        assert "use another" in refusal
    for seed in range(5):
        draft = grown(growth, OTHER.distribution)((0,), KeyedRandomness(seed), Budget(8, 3))
        distributions = TabularDistributions(MODEL.distribution, (0,), draft)
        if refusal is None:
            verifier.verify(draft, distributions, KeyedRandomness(seed))
        elif growth.kind not in verifier.accepts or not trees.is_chain(draft):
            with pytest.raises(IncompatibleDraft):
                verifier.verify(draft, distributions, KeyedRandomness(seed))


@pytest.mark.parametrize(
    "text", ["iid-1", "paths-1", "stochastic-beam-1", "expand-rerank-1", "branching-1.1"]
)
def test_growths_of_width_one_are_chains(text: str) -> None:
    growth = named_expansion(text)
    assert growth.chain
    assert expansion_for(frozenset({growth.kind}), "chain", text).name == growth.name
    for seed in range(5):
        assert trees.is_chain(
            grown(growth, OTHER.distribution)((0,), KeyedRandomness(seed), Budget(6, 4))
        )


@pytest.mark.parametrize("text", ["iid-1.2", "paths-2", "stochastic-beam-2", "dynamic", "static"])
def test_growths_that_branch_are_refused_where_chains_are_taken(text: str) -> None:
    kind = named_expansion(text).kind
    with pytest.raises(InvalidOption, match="branches, and the verifier takes chains"):
        expansion_for(frozenset({kind}), "chain", text)
