"""The contract of a verifier, and what several rules share: checks of drafts, and the walk."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, Literal, Protocol, Self

from paceline import tree as trees
from paceline.errors import IncompatibleDraft
from paceline.options import arguments
from paceline.randomness import Randomness
from paceline.types import ROOT, Law, LawKind, LogitArray, Needs, TokenTree, Verdict
from paceline.verifiers.context import VerifierContext

Shape = Literal["chain", "tree"]
"""What drafts look like: chains alone, or trees of which chains are the simplest."""

_SUMS_TO_ONE = 1e-6
"""How far the mass of a draft's row may be from one; rounding of float32 rows stays below it."""


class TargetLaws(Protocol):
    """The target's processed law at the root and at each node of a draft."""

    @property
    def position(self) -> int:
        """Absolute position of the first drafted token."""
        ...

    def law(self, node: int) -> Law:
        """Law of the token after `node` (`ROOT` for the root)."""
        ...

    def winner(self, node: int, position: int, randomness: Randomness) -> int:
        """The token that wins under the noise of `position` by the law at `node`; cheaper than to
        ask for the law."""
        ...

    def soft(self, node: int) -> Law:
        """As `law`, but at temperature 1 where the request is greedy: how near others came."""
        ...

    def hidden(self, node: int) -> LogitArray:
        """float32 `[hidden_size]`, final hidden state at `node`, for rules whose `needs` say so."""
        ...


class Verifier(ABC):
    """A pure rule: draft, target laws and randomness in; accepted path and next token out."""

    name: ClassVar[str]
    lossless: ClassVar[bool]
    accepts: ClassVar[frozenset[LawKind | None]]
    """Draft laws the rule is defined for; None stands for deterministic drafts."""
    shape: ClassVar[Shape] = "tree"
    """Draft shapes the rule is defined for."""
    greedy_only: ClassVar[bool] = False
    """Whether the rule's promise holds at temperature 0 alone."""
    follows_noise: ClassVar[bool] = False
    """Whether its own tokens are those that win under the noise of their position (`gumbel_max`):
    drafts drawn with it agree oftener."""
    needs: ClassVar[Needs] = Needs()

    @classmethod
    def create(cls, context: VerifierContext) -> Self:
        """A rule with the options that the user set.

        Raises:
            InvalidOption: an option is unknown or out of range.
        """
        return cls(**arguments(cls, "verifier", context.options))

    @abstractmethod
    def verify(self, draft: TokenTree, target: TargetLaws, randomness: Randomness) -> Verdict:
        """Decide the accepted path of `draft` and the token after it.

        Raises:
            IncompatibleDraft: the rule does not hold for the way the draft was drawn.
        """

    def extend(self, draft: TokenTree) -> TokenTree:
        """What the target must see to verify `draft`: nodes may be added behind the draft's own,
        which no verdict's path may hold. The default adds nothing."""
        return draft


def check_law(verifier: Verifier, draft: TokenTree) -> None:
    """Raise IncompatibleDraft unless `verifier` is exact for the law of `draft`.

    An empty draft fits every rule: there is nothing to verify.
    """
    kind = None if draft.law is None else draft.law.kind
    if len(draft) and kind not in verifier.accepts:
        known = ", ".join(sorted(k or "deterministic" for k in verifier.accepts))
        raise IncompatibleDraft(
            f"verifier '{verifier.name}' takes {known} drafts, but this draft is "
            f"{kind or 'deterministic'}; use verifier 'coupled' or 'sample-match'"
        )


def row(verifier: Verifier, draft: TokenTree, parent: int) -> Law:
    """The law that the children of `parent` were drawn from, checked to be one.

    Raises:
        IncompatibleDraft: there is none, or it does not sum to one.
    """
    law = None if draft.law is None else draft.law.rows.get(parent)
    if law is None:
        raise IncompatibleDraft(
            f"verifier '{verifier.name}': the draft reports no law for the children of "
            f"{trees.node_name(parent)}; the drafter must report the row it drew from"
        )
    mass = float(law.probs.sum())
    if not abs(mass - 1) < _SUMS_TO_ONE or law.probs.min() < 0:
        raise IncompatibleDraft(
            f"verifier '{verifier.name}': the draft law at {trees.node_name(parent)} sums to "
            f"{mass:.6g} or holds negative entries; it must be a distribution"
        )
    return law


def drawn_mass(verifier: Verifier, q: Law, draft: TokenTree, node: int) -> float:
    """q of the token at `node`, which was drawn from q and so has some.

    Raises:
        IncompatibleDraft: q gives the token no probability.
    """
    token = int(draft.tokens[node])
    mass = q.prob(token)
    if not mass > 0:
        raise IncompatibleDraft(
            f"verifier '{verifier.name}': node {node} holds token {token}, which its draft law "
            "gives no probability; the drafter must report the row it drew from"
        )
    return mass


def check_chain(verifier: Verifier, draft: TokenTree) -> None:
    """Raise IncompatibleDraft if `draft` has branches, repeated draws, or lost a drawn token."""
    if not trees.is_chain(draft):
        raise IncompatibleDraft(
            f"verifier '{verifier.name}' takes chains, but this draft has branches; "
            "use verifier 'sample-match'"
        )
    if draft.law is None:
        return
    for parent, drawn in draft.law.draws.items():
        if len(drawn) > 1:
            raise IncompatibleDraft(
                f"verifier '{verifier.name}' takes chains, but this draft drew {len(drawn)} times "
                f"at {trees.node_name(parent)}; use verifier 'sample-match'"
            )
    # A row was reported where a child was drawn, so a row without a child tells of a lost one.
    last = max(draft.law.rows, default=ROOT)
    if len(draft) and last >= len(draft) - 1:
        raise IncompatibleDraft(
            f"verifier '{verifier.name}': the draft reports a law for the children of "
            f"{trees.node_name(last)}, which has none; a sampled draft must be verified as drawn"
        )


def walk(draft: TokenTree, pick: Callable[[int, int], int]) -> Verdict:
    """Descend from the root while the token that `pick(node, depth)` names is a child.

    What is emitted is always the picked token, so the output law is that of `pick` whatever the
    tree holds (sample-and-match).
    """
    below = trees.places(draft)
    path: list[int] = []
    node = ROOT
    while True:
        token = pick(node, len(path))
        child = below.get((node, token))
        if child is None:
            return Verdict(tuple(path), token)
        path.append(child)
        node = child
