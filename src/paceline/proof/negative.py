"""Wrong verifiers and drafters: negative controls, unregistered, each a plausible mistake."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

import numpy as np

from paceline.core import tree as trees
from paceline.core.types import (
    ROOT,
    Budget,
    Distribution,
    DraftSampling,
    SamplingScheme,
    TokenTree,
    Verdict,
)
from paceline.proof.cases import Propose
from paceline.proof.tabular import DistributionOf
from paceline.sampling.distributions import AGREE, gumbel_max, residual
from paceline.sampling.randomness import Draw, Purpose, Randomness
from paceline.sampling.sampler import top_k_ids
from paceline.trees.base import LevelExpansion, Names
from paceline.verifiers.base import TargetDistributions, Verifier, drawn_mass, walk
from paceline.verifiers.block import chance, verify_path
from paceline.verifiers.k_seq import scale
from paceline.verifiers.multi_draft import MultiDraft, Siblings
from paceline.verifiers.multipath_block import Competition
from paceline.verifiers.recursive import Recursive, RecursiveDistinct


class WrongChainRule(Verifier):
    """Token rejection with replaceable acceptance and correction."""

    name: ClassVar[str] = "wrong-chain-rule"
    lossless: ClassVar[bool] = False
    accepts: ClassVar[frozenset[SamplingScheme | None]] = frozenset({"iid"})

    def acceptance(self, p: float, q: float) -> float:
        return min(1.0, p / q)

    def correction(self, p: Distribution, q: Distribution, node: int) -> Distribution:
        return residual(p, q)

    def verify(
        self, draft: TokenTree, target: TargetDistributions, randomness: Randomness
    ) -> Verdict:
        assert draft.sampling is not None
        root = target.position - 1
        for node, token in enumerate(draft.tokens.tolist()):
            p = target.distribution(node - 1)
            q = draft.sampling.rows[node - 1]
            position = target.position + node
            accept = self.acceptance(p.prob(token), q.prob(token))
            if not randomness.bernoulli(accept, Draw(position, Purpose.ACCEPT, root=root)):
                rest = self.correction(p, q, node)
                draw = Draw(position, Purpose.RESIDUAL, root=root)
                return Verdict(tuple(range(node)), rest.token(randomness.choice(rest.probs, draw)))
        depth = len(draft)
        distribution: Distribution = target.distribution(depth - 1)
        bonus = randomness.choice(distribution.probs, Draw(target.position + depth, Purpose.TARGET))
        return Verdict(tuple(range(depth)), distribution.token(bonus))


class CorrectsFromTarget(WrongChainRule):
    """Draws the correction from p instead of the residual."""

    def correction(self, p: Distribution, q: Distribution, node: int) -> Distribution:
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

    def correction(self, p: Distribution, q: Distribution, node: int) -> Distribution:
        rest = np.maximum(p.probs - q.at(p.ids), 0.0)
        return Distribution(rest + (1 - rest.sum()) * p.probs, p.ids, p.size)


class ResidualOfRawLogits(WrongChainRule):
    """Accepts by processed distributions but draws the correction from the raw target."""

    def __init__(self, raw: Callable[[int], Distribution]) -> None:
        self._raw = raw

    def correction(self, p: Distribution, q: Distribution, node: int) -> Distribution:
        return residual(self._raw(node), q)


class MatchesOrRetries(Verifier):
    """Sample-and-match that draws again when the first draw was not drafted."""

    name: ClassVar[str] = "matches-or-retries"
    lossless: ClassVar[bool] = False
    accepts: ClassVar[frozenset[SamplingScheme | None]] = frozenset({None})

    def verify(
        self, draft: TokenTree, target: TargetDistributions, randomness: Randomness
    ) -> Verdict:
        below = trees.children(draft)

        def pick(node: int, depth: int) -> int:
            distribution = target.distribution(node)
            drafted = {int(draft.tokens[child]) for child in below.get(node, ())}
            token = -1
            for index in range(2):
                draw = Draw(target.position + depth, Purpose.TARGET, index)
                token = distribution.token(randomness.choice(distribution.probs, draw))
                if token in drafted:
                    break
            return token

        return walk(draft, pick)


class RepeatsNoise(Verifier):
    """Coupled verification with noise keyed by the round and not by the position."""

    name: ClassVar[str] = "repeats-noise"
    lossless: ClassVar[bool] = False
    accepts: ClassVar[frozenset[SamplingScheme | None]] = frozenset({None})

    def verify(
        self, draft: TokenTree, target: TargetDistributions, randomness: Randomness
    ) -> Verdict:
        return walk(
            draft,
            lambda node, depth: gumbel_max(target.distribution(node), target.position, randomness),
        )


def top_one_as_sampled(distribution: DistributionOf) -> Propose:
    """Build a drafter that takes the argmax and declares it drawn."""

    def propose(context: tuple[int, ...], randomness: Randomness, budget: Budget) -> TokenTree:
        tokens: list[int] = []
        rows: dict[int, Distribution] = {}
        for node in range(min(budget.depth, budget.nodes)):
            q = distribution((*context, *tokens))
            rows[node - 1] = q
            tokens.append(q.argmax())
        return trees.chain(tokens, "top-one", DraftSampling("iid", rows))

    return propose


def drops_unlikely(distribution: DistributionOf, threshold: float) -> Propose:
    """Build a drafter that drops a drawn token because of its own low probability."""

    def propose(context: tuple[int, ...], randomness: Randomness, budget: Budget) -> TokenTree:
        tokens: list[int] = []
        rows: dict[int, Distribution] = {}
        root = len(context) - 1
        for node in range(min(budget.depth, budget.nodes)):
            q = distribution((*context, *tokens))
            draw = Draw(len(context) + node, Purpose.DRAFT, root=root)
            token = q.token(randomness.choice(q.probs, draw))
            if q.prob(token) < threshold:
                break
            rows[node - 1] = q
            tokens.append(token)
        return trees.chain(tokens, "drops-unlikely", DraftSampling("iid", rows))

    return propose


def peeks_at_target(distribution: DistributionOf) -> Propose:
    """Build a drafter that draws under the target's draw names, so drafts depend on the outcome."""

    def propose(context: tuple[int, ...], randomness: Randomness, budget: Budget) -> TokenTree:
        tokens: list[int] = []
        for node in range(min(budget.depth, budget.nodes)):
            q = distribution((*context, *tokens))
            draw = Draw(len(context) + node, Purpose.TARGET)
            tokens.append(q.token(randomness.choice(q.probs, draw)))
        return trees.chain(tokens, "peeks")

    return propose


class BlockWithEarlyExit(Verifier):
    """Block verification whose coins are tossed from the root down, ending at the first failure."""

    name: ClassVar[str] = "block-with-early-exit"
    lossless: ClassVar[bool] = False
    accepts: ClassVar[frozenset[SamplingScheme | None]] = frozenset({"iid"})

    def verify(
        self, draft: TokenTree, target: TargetDistributions, randomness: Randomness
    ) -> Verdict:
        assert draft.sampling is not None
        rows, weight, root = draft.sampling.rows, 1.0, target.position - 1
        for node, token in enumerate(draft.tokens.tolist()):
            p, q, position = target.distribution(node - 1), rows[node - 1], target.position + node
            onward = min(1.0, weight * p.prob(token) / q.prob(token))
            last = node == len(draft) - 1
            accept = onward if last else chance(target.distribution(node), rows[node], onward)
            if not randomness.bernoulli(accept, Draw(position, Purpose.ACCEPT, root=root)):
                rest = residual(p, q, weight)
                draw = Draw(position, Purpose.RESIDUAL, root=root)
                return Verdict(tuple(range(node)), rest.token(randomness.choice(rest.probs, draw)))
            weight = onward
        depth = len(draft)
        distribution = target.distribution(depth - 1)
        bonus = randomness.choice(distribution.probs, Draw(target.position + depth, Purpose.TARGET))
        return Verdict(tuple(range(depth)), distribution.token(bonus))


class MultipathByPlainDistribution(Verifier):
    """Selects among all paths and verifies the selected one as if it had been the only one."""

    name: ClassVar[str] = "multipath-by-plain-distribution"
    lossless: ClassVar[bool] = False
    accepts: ClassVar[frozenset[SamplingScheme | None]] = frozenset({"paths"})

    def verify(
        self, draft: TokenTree, target: TargetDistributions, randomness: Randomness
    ) -> Verdict:
        assert draft.sampling is not None
        paths, path, rows = draft.sampling.paths, list[int](), list[Distribution]()
        while paths := tuple(each for each in paths if len(each) > len(path)):
            children = [each[len(path)] for each in paths]
            rows.append(draft.sampling.rows[path[-1] if path else ROOT])
            competition = Competition(target.distribution(path[-1] if path else ROOT), rows[-1])
            node = children[competition.best(draft.tokens[children].tolist())]
            paths = tuple(each for each in paths if each[len(path)] == node)
            path.append(node)
        return verify_path(draft, path, rows, target, randomness)


class ForgetsToNormalise(Recursive):
    """Tries the next sibling against (p - q)+ without normalising it."""

    name: ClassVar[str] = "forgets-to-normalise"
    lossless: ClassVar[bool] = False

    def _decide(self, at: Siblings) -> int | Distribution:
        p = at.p
        for sibling, (child, token) in enumerate(zip(at.children, at.tokens, strict=True)):
            mass = drawn_mass(self, at.q, at.draft, child)
            if at.coin(min(1.0, p.prob(token) / mass), sibling):
                return child
            rest = np.maximum(p.probs - at.q.at(p.ids), 0.0)
            p = Distribution(rest, p.ids, p.size) if rest.sum() > AGREE else p
        return p


class KeepsRejected(RecursiveDistinct):
    """Leaves a rejected sibling in q, though drawing was without replacement."""

    name: ClassVar[str] = "keeps-rejected"
    lossless: ClassVar[bool] = False

    def _remaining(self, q: Distribution, token: int) -> Distribution | None:
        return q


class SortsSiblings(RecursiveDistinct):
    """Tries the most likely sibling first instead of the one drawn first."""

    name: ClassVar[str] = "sorts-siblings"
    lossless: ClassVar[bool] = False

    def _decide(self, at: Siblings) -> int | Distribution:
        ordered = sorted(at.children, key=lambda child: -at.q.prob(int(at.draft.tokens[child])))
        return super()._decide(at._replace(children=ordered))


class MergesRepeats(Recursive):
    """Tries a token that was drawn twice only once."""

    name: ClassVar[str] = "merges-repeats"
    lossless: ClassVar[bool] = False

    def _decide(self, at: Siblings) -> int | Distribution:
        return super()._decide(at._replace(children=list(dict.fromkeys(at.children))))


class CorrectsUnscaled(MultiDraft):
    """k-SEQ that corrects from (p - q)+, as after a single draw."""

    name: ClassVar[str] = "corrects-unscaled"
    lossless: ClassVar[bool] = False
    accepts: ClassVar[frozenset[SamplingScheme | None]] = frozenset({"iid", "paths"})

    def _decide(self, at: Siblings) -> int | Distribution:
        rho = scale(at.p, at.q, len(at.children))
        for sibling, (child, token) in enumerate(zip(at.children, at.tokens, strict=True)):
            if at.coin(min(1.0, at.p.prob(token) / (rho * at.q.prob(token))), sibling):
                return child
        return residual(at.p, at.q)


class ForgetsTheArgmax(MultiDraft):
    """Tests the drawn token of top-and-one drafts against the whole row."""

    name: ClassVar[str] = "forgets-the-argmax"
    lossless: ClassVar[bool] = False
    accepts: ClassVar[frozenset[SamplingScheme | None]] = frozenset({"top_and_one"})

    def _decide(self, at: Siblings) -> int | Distribution:
        token = at.tokens[-1]
        accepted = at.coin(min(1.0, at.p.prob(token) / at.q.prob(token)), 0)
        return at.children[-1] if accepted else residual(at.p, at.q)


class ClaimsTheArgmax(LevelExpansion):
    """Takes a row's most likely tokens as children and declares them drawn."""

    name: ClassVar[str] = "claims-the-argmax"
    kind: ClassVar[SamplingScheme | None] = "without_replacement"

    def _children(self, q: Distribution, count: int, names: Names, draws: Randomness) -> list[int]:
        return [q.token(index) for index in top_k_ids(q.probs, count).tolist()]


def prunes_unlikely(propose: Propose, threshold: float) -> Propose:
    """Build a drafter that prunes drawn nodes of low draft probability, with their rows."""

    def pruned(context: tuple[int, ...], randomness: Randomness, budget: Budget) -> TokenTree:
        tree = propose(context, randomness, budget)
        if tree.sampling is None:
            return tree
        kept: list[int] = []
        for node, (token, parent) in enumerate(
            zip(tree.tokens.tolist(), tree.parents.tolist(), strict=True)
        ):
            likely = tree.sampling.rows[parent].prob(token) >= threshold
            if likely and (parent == ROOT or parent in kept):
                kept.append(node)
        new = {ROOT: ROOT} | {node: index for index, node in enumerate(kept)}
        smaller = trees.take(replace(tree, sampling=None), np.array(kept, dtype=np.int64))
        parents = set(smaller.parents.tolist())
        rows = {new[old]: row for old, row in tree.sampling.rows.items() if new.get(old) in parents}
        return replace(smaller, sampling=DraftSampling(tree.sampling.kind, rows))

    return pruned
