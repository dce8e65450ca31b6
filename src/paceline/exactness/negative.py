"""Wrong verifiers and drafters: negative controls, unregistered, each a plausible mistake."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import numpy as np

from paceline import tree as trees
from paceline.exactness.drafting import Propose
from paceline.exactness.tabular import LawOf
from paceline.law import gumbel_max, residual
from paceline.randomness import Draw, Purpose, Randomness
from paceline.types import Budget, DraftLaw, Law, LawKind, TokenTree, Verdict
from paceline.verifiers.base import TargetLaws, Verifier, walk


class WrongChainRule(Verifier):
    """Token rejection with replaceable acceptance and correction."""

    name: ClassVar[str] = "wrong-chain-rule"
    lossless: ClassVar[bool] = False
    accepts: ClassVar[frozenset[LawKind | None]] = frozenset({"iid"})

    def acceptance(self, p: float, q: float) -> float:
        return min(1.0, p / q)

    def correction(self, p: Law, q: Law, node: int) -> Law:
        return residual(p, q)

    def verify(self, draft: TokenTree, target: TargetLaws, randomness: Randomness) -> Verdict:
        assert draft.law is not None
        root = target.position - 1
        for node, token in enumerate(draft.tokens.tolist()):
            p = target.law(node - 1)
            q = draft.law.rows[node - 1]
            position = target.position + node
            accept = self.acceptance(p.prob(token), q.prob(token))
            if not randomness.bernoulli(accept, Draw(position, Purpose.ACCEPT, root=root)):
                rest = self.correction(p, q, node)
                draw = Draw(position, Purpose.RESIDUAL, root=root)
                return Verdict(tuple(range(node)), rest.token(randomness.choice(rest.probs, draw)))
        depth = len(draft)
        law: Law = target.law(depth - 1)
        bonus = randomness.choice(law.probs, Draw(target.position + depth, Purpose.TARGET))
        return Verdict(tuple(range(depth)), law.token(bonus))


class CorrectsFromTarget(WrongChainRule):
    """Draws the correction from p instead of the residual."""

    def correction(self, p: Law, q: Law, node: int) -> Law:
        return p


class AlwaysAccepts(WrongChainRule):
    """Emits the draft distribution."""

    def acceptance(self, p: float, q: float) -> float:
        return 1.0


class AcceptsByTargetMass(WrongChainRule):
    """Accepts a sampled token with probability p instead of p/q."""

    def acceptance(self, p: float, q: float) -> float:
        return p


class ResidualNotNormalised(WrongChainRule):
    """Uses (p - q)+ as if it summed to one, and fills the missing mass with p."""

    def correction(self, p: Law, q: Law, node: int) -> Law:
        rest = np.maximum(p.probs - q.at(p.ids), 0.0)
        return Law(rest + (1 - rest.sum()) * p.probs, p.ids, p.size)


class ResidualOfRawLogits(WrongChainRule):
    """Accepts by processed distributions but draws the correction from the raw target."""

    def __init__(self, raw: Callable[[int], Law]) -> None:
        self._raw = raw

    def correction(self, p: Law, q: Law, node: int) -> Law:
        return residual(self._raw(node), q)


class MatchesOrRetries(Verifier):
    """Sample-and-match that draws again when the first draw was not drafted."""

    name: ClassVar[str] = "matches-or-retries"
    lossless: ClassVar[bool] = False
    accepts: ClassVar[frozenset[LawKind | None]] = frozenset({None})

    def verify(self, draft: TokenTree, target: TargetLaws, randomness: Randomness) -> Verdict:
        below = trees.children(draft)

        def pick(node: int, depth: int) -> int:
            law = target.law(node)
            drafted = {int(draft.tokens[child]) for child in below.get(node, ())}
            token = -1
            for index in range(2):
                draw = Draw(target.position + depth, Purpose.TARGET, index)
                token = law.token(randomness.choice(law.probs, draw))
                if token in drafted:
                    break
            return token

        return walk(draft, pick)


class RepeatsNoise(Verifier):
    """Coupled verification with noise keyed by the round and not by the position."""

    name: ClassVar[str] = "repeats-noise"
    lossless: ClassVar[bool] = False
    accepts: ClassVar[frozenset[LawKind | None]] = frozenset({None})

    def verify(self, draft: TokenTree, target: TargetLaws, randomness: Randomness) -> Verdict:
        return walk(
            draft, lambda node, depth: gumbel_max(target.law(node), target.position, randomness)
        )


def top_one_as_sampled(law: LawOf) -> Propose:
    """Build a drafter that takes the argmax and declares it drawn."""

    def propose(context: tuple[int, ...], randomness: Randomness, budget: Budget) -> TokenTree:
        tokens: list[int] = []
        rows: dict[int, Law] = {}
        for node in range(min(budget.depth, budget.nodes)):
            q = law((*context, *tokens))
            rows[node - 1] = q
            tokens.append(q.argmax())
        return trees.chain(tokens, "top-one", DraftLaw("iid", rows))

    return propose


def drops_unlikely(law: LawOf, threshold: float) -> Propose:
    """Build a drafter that drops a drawn token because of its own low probability."""

    def propose(context: tuple[int, ...], randomness: Randomness, budget: Budget) -> TokenTree:
        tokens: list[int] = []
        rows: dict[int, Law] = {}
        root = len(context) - 1
        for node in range(min(budget.depth, budget.nodes)):
            q = law((*context, *tokens))
            draw = Draw(len(context) + node, Purpose.DRAFT, root=root)
            token = q.token(randomness.choice(q.probs, draw))
            if q.prob(token) < threshold:
                break
            rows[node - 1] = q
            tokens.append(token)
        return trees.chain(tokens, "drops-unlikely", DraftLaw("iid", rows))

    return propose


def peeks_at_target(law: LawOf) -> Propose:
    """Build a drafter that draws under the target's draw names, so drafts depend on the outcome."""

    def propose(context: tuple[int, ...], randomness: Randomness, budget: Budget) -> TokenTree:
        tokens: list[int] = []
        for node in range(min(budget.depth, budget.nodes)):
            q = law((*context, *tokens))
            draw = Draw(len(context) + node, Purpose.TARGET)
            tokens.append(q.token(randomness.choice(q.probs, draw)))
        return trees.chain(tokens, "peeks")

    return propose
