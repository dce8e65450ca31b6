"""The contract of a verifier, and the walk that several rules share."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Protocol

from paceline import tree as trees
from paceline.errors import IncompatibleDraft
from paceline.randomness import Randomness
from paceline.sampling import Law
from paceline.types import ROOT, LawKind, TokenTree, Verdict


class TargetLaws(Protocol):
    """The target's processed law at the root and at each node of a draft."""

    @property
    def position(self) -> int:
        """Absolute position of the first drafted token."""
        ...

    def law(self, node: int) -> Law:
        """Law of the token after `node` (`ROOT` for the root)."""
        ...


class Verifier(Protocol):
    """A pure rule: draft, target laws and randomness in; accepted path and next token out."""

    name: ClassVar[str]
    lossless: ClassVar[bool]
    accepts: ClassVar[frozenset[LawKind | None]]
    """Draft laws the rule is exact for; None stands for deterministic drafts."""

    def verify(self, draft: TokenTree, target: TargetLaws, randomness: Randomness) -> Verdict:
        """Decide the accepted path of `draft` and the token after it.

        Raises:
            IncompatibleDraft: the rule does not hold for the way the draft was drawn.
        """
        ...


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


def walk(draft: TokenTree, pick: Callable[[int, int], int]) -> Verdict:
    """Descend from the root while the token that `pick(node, depth)` names is a child.

    What is emitted is always the picked token, so the output law is that of `pick` whatever the
    tree holds (sample-and-match).
    """
    below = trees.children(draft)
    path: list[int] = []
    node = ROOT
    while True:
        token = pick(node, len(path))
        for child in below.get(node, ()):
            if draft.tokens[child] == token:
                node = child
                path.append(child)
                break
        else:
            return Verdict(tuple(path), token)
