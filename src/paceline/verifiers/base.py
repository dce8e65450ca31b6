"""Verifier contract, and shared parts of rules: checks of drafts, and the sample-and-match walk."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Protocol, Self, get_args

from paceline.core import tree as trees
from paceline.core.options import arguments
from paceline.core.types import (
    ROOT,
    Capabilities,
    Described,
    Distribution,
    LogitArray,
    Needs,
    SamplingScheme,
    TokenTree,
    Verdict,
)
from paceline.errors import IncompatibleDraft
from paceline.sampling.randomness import Randomness


@dataclass(frozen=True, slots=True)
class VerifierContext:
    """Inputs for building a verifier.

    Attributes:
        target: capabilities of the target whose drafts it verifies.
        model: fingerprint of the target's weights, for rules with trained heads.
        encode: text to token ids, for rules with prompts of their own.
        options: what the user set, as text.
    """

    target: Capabilities
    model: str
    encode: Callable[[str], list[int]]
    options: Mapping[str, str] = field(default_factory=dict)


# All kinds of drafts, however drawn.
ANY: frozenset[SamplingScheme | None] = frozenset({None, *get_args(SamplingScheme)})

# Chains alone, or trees, of which chains are the simplest.
Shape = Literal["chain", "tree"]

# Largest distance of a draft row's mass from one; rounding of float32 rows stays below it.
_SUMS_TO_ONE = 1e-6


class TargetDistributions(Protocol):
    """Target's processed distributions at the root and at each node of a draft."""

    @property
    def position(self) -> int:
        """Return the absolute position of the first drafted token."""
        ...

    def distribution(self, node: int) -> Distribution:
        """Return the distribution of the token after `node` (`ROOT` for the root)."""
        ...

    def sample(self, node: int, position: int, randomness: Randomness) -> int:
        """Return the Gumbel-max token of `position` at `node`; cheaper than the distribution."""
        ...

    def soft(self, node: int) -> Distribution:
        """Return the distribution, at temperature 1 where the request is greedy."""
        ...

    def hidden(self, node: int) -> LogitArray:
        """Return float32 `[hidden_size]`, final hidden state at `node`, if the rule `needs` it."""
        ...


class Verifier(Described, ABC):
    """Pure rule from draft, target distributions and randomness to accepted path and next token."""

    lossless: ClassVar[bool]
    # Kinds of draft distribution that the rule is defined for; None stands for deterministic
    # drafts.
    accepts: ClassVar[frozenset[SamplingScheme | None]]
    # Draft shapes that the rule is defined for.
    shape: ClassVar[Shape] = "tree"
    # Whether the guarantee holds at temperature 0 alone.
    greedy_only: ClassVar[bool] = False
    # Whether the rule's own tokens are the Gumbel-max winners of their position: drafts drawn
    # with the same noise agree more often.
    gumbel_coupled: ClassVar[bool] = False
    needs: ClassVar[Needs] = Needs()

    @classmethod
    def create(cls, context: VerifierContext) -> Self:
        """Build a rule with the user's options. Raises InvalidOption."""
        return cls(**arguments(cls, "verifier", context.options))

    @abstractmethod
    def verify(
        self, draft: TokenTree, target: TargetDistributions, randomness: Randomness
    ) -> Verdict:
        """Return the accepted path of `draft` and the token after it.

        Raises:
            IncompatibleDraft: the rule does not hold for the way the draft was drawn.
        """

    def extend(self, draft: TokenTree) -> TokenTree:
        """Return the tree that the target must see to verify `draft`. Nodes may be added after
        the draft's own; no verdict's path may hold them. The default adds nothing.
        """
        return draft


def check_sampling(verifier: Verifier, draft: TokenTree) -> None:
    """Raise IncompatibleDraft unless the rule is exact for the draft's kind; empty drafts pass."""
    kind = None if draft.sampling is None else draft.sampling.kind
    if len(draft) and kind not in verifier.accepts:
        known = ", ".join(sorted(k or "deterministic" for k in verifier.accepts))
        raise IncompatibleDraft(
            f"verifier '{verifier.name}' takes {known} drafts, but this draft is "
            f"{kind or 'deterministic'}; use verifier 'coupled' or 'sample-match'"
        )


def row(verifier: Verifier, draft: TokenTree, parent: int) -> Distribution:
    """Return the distribution that the children of `parent` were drawn from.

    Raises:
        IncompatibleDraft: there is none, or it does not sum to one.
    """
    distribution = None if draft.sampling is None else draft.sampling.rows.get(parent)
    if distribution is None:
        raise IncompatibleDraft(
            f"verifier '{verifier.name}': the draft reports no distribution for the children of "
            f"{trees.node_name(parent)}; the drafter must report the row it drew from"
        )
    mass = float(distribution.probs.sum())
    if not abs(mass - 1) < _SUMS_TO_ONE or distribution.probs.min() < 0:
        raise IncompatibleDraft(
            f"verifier '{verifier.name}': the draft distribution at {trees.node_name(parent)} sums "
            f"to {mass:.6g} or holds negative entries; it must be a distribution"
        )
    return distribution


def drawn_mass(verifier: Verifier, q: Distribution, draft: TokenTree, node: int) -> float:
    """Return q of the token at `node`. IncompatibleDraft: zero, so it was not drawn from q."""
    token = int(draft.tokens[node])
    mass = q.prob(token)
    if not mass > 0:
        raise IncompatibleDraft(
            f"verifier '{verifier.name}': node {node} holds token {token}, which its distribution "
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
    if draft.sampling is None:
        return
    for parent, drawn in draft.sampling.draws.items():
        if len(drawn) > 1:
            raise IncompatibleDraft(
                f"verifier '{verifier.name}' takes chains, but this draft drew {len(drawn)} times "
                f"at {trees.node_name(parent)}; use verifier 'sample-match'"
            )
    # A row was reported where a child was drawn, so a row without a child tells of a lost one.
    last = max(draft.sampling.rows, default=ROOT)
    if len(draft) and last >= len(draft) - 1:
        raise IncompatibleDraft(
            f"verifier '{verifier.name}': the draft reports a distribution for the children of "
            f"{trees.node_name(last)}, which has none; a sampled draft must be verified as drawn"
        )


def walk(draft: TokenTree, pick: Callable[[int, int], int]) -> Verdict:
    """Descend while the token that `pick(node, depth)` returns is a child (sample-and-match).

    Every emitted token is picked: the output distribution is that of `pick` for any tree.
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
