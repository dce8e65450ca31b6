"""Which growth a draft model uses for a verifier, where nobody chose one."""

from __future__ import annotations

from paceline.errors import InvalidOption
from paceline.growth.base import Growth
from paceline.growth.branching import Branching
from paceline.growth.iid import Iid
from paceline.growth.paths import Paths
from paceline.growth.shared_noise import SharedNoise
from paceline.growth.top_and_one import TopAndOne
from paceline.types import LawKind
from paceline.verifiers.base import Shape


def growth_for(accepts: frozenset[LawKind | None], shape: Shape) -> Growth:
    """Drafts that the rule is exact for: with the target's own noise where it needs no law, chains
    where it takes no branches, and otherwise the tree it accepts most of.

    Args:
        accepts: `Verifier.accepts`.
        shape: `Verifier.shape`.

    Raises:
        InvalidOption: the rule is exact for nothing that a draft model can draw.
    """
    if None in accepts:
        return SharedNoise([1])
    trees: tuple[Growth, ...] = (Branching([2, 1]), TopAndOne([2, 1]), Paths(2))
    for growth in (Iid([1]),) if shape == "chain" else (*trees, Iid([1])):
        if growth.kind in accepts:
            return growth
    known = ", ".join(sorted(kind or "deterministic" for kind in accepts))
    raise InvalidOption(f"a draft model cannot draw {known} drafts: use another drafter")
