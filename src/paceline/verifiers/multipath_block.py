"""Greedy multi-path block verification (after Thomas and Pal 2026, arXiv:2602.16961). Of
independent paths one is selected node by node by highest p / q; block verification with the
distribution of the selected path in place of q is exact. Changed: p / q is binned, which saves
a sort, and each node takes the number of competing draws that maximises its own acceptance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb
from typing import ClassVar, NamedTuple

import numpy as np

from paceline.core.types import ROOT, Distribution, SamplingScheme, TokenTree, Verdict
from paceline.sampling.randomness import Randomness
from paceline.verifiers.base import TargetDistributions, Verifier, check_sampling, drawn_mass, row
from paceline.verifiers.block import verify_path
from paceline.verifiers.multi_draft import drawn_children

# Groups of tokens by p / q: sign, 8 bits of exponent and 5 of the fraction.
_GROUPS = 1 << 14


class MultipathBlock(Verifier):
    """Lossless for independent paths."""

    name: ClassVar[str] = "multipath-block"
    requires = "independent paths drawn from a draft model"
    paper = "after GBV, Thomas and Pal 2026, arXiv:2602.16961"
    lossless: ClassVar[bool] = True
    accepts: ClassVar[frozenset[SamplingScheme | None]] = frozenset({"paths"})

    def verify(
        self, draft: TokenTree, target: TargetDistributions, randomness: Randomness
    ) -> Verdict:
        check_sampling(self, draft)
        path, rows = self.select(draft, target)
        return verify_path(draft, path, rows, target, randomness)

    def select(
        self, draft: TokenTree, target: TargetDistributions
    ) -> tuple[list[int], list[Distribution]]:
        """Return the selected path, and the distributions that its nodes were selected from."""
        drawn_children(self, draft)  # for its checks
        paths = () if draft.sampling is None else draft.sampling.paths
        path: list[int] = []
        rows: list[Distribution] = []
        node, weight = ROOT, 1.0
        while paths := tuple(each for each in paths if len(each) > len(path)):
            children = [each[len(path)] for each in paths]
            p, q = target.distribution(node), row(self, draft, node)
            for child in set(children):
                drawn_mass(self, q, draft, child)  # for its check
            node = children[0]
            if len(children) > 1:
                competition = Competition(p, q)
                count, q = competition.distribution(len(children), weight)
                node = children[competition.best(draft.tokens[children[:count]].tolist())]
            token = int(draft.tokens[node])
            weight = min(1.0, weight * p.prob(token) / q.prob(token))
            paths = tuple(each for each in paths if each[len(path)] == node)
            path.append(node)
            rows.append(q)
        return path, rows


class Competition:
    """Best of k draws from q by p / q, with ratios binned to 5 binary digits.

    The best draw is the first of the highest group. With F the draft mass of all groups up to a
    token's own and F- of the lower ones, the best of k draws is x with probability
    q(x) (F^k - F-^k) / (F - F-); no sort is needed.
    """

    def __init__(self, p: Distribution, q: Distribution) -> None:
        self._q = q
        target = p.at(q.ids)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            ratios = (target / q.probs).astype(np.float32)
        # Bits of floats above 0 sort like the floats: 8 of exponent, then 5 of the fraction.
        groups = ratios.view(np.uint32) >> 18
        # Most groups are empty: the others are numbered through, in the same order.
        if len(groups) < _GROUPS:
            _, self._groups = np.unique(groups, return_inverse=True)
        else:
            present = np.zeros(_GROUPS, dtype=np.bool_)
            present[groups] = True
            self._groups = (np.cumsum(present) - 1)[groups]
        self._wanted = np.bincount(self._groups, target)
        self._masses = np.bincount(self._groups, q.probs)
        self._upper = np.cumsum(self._masses)

    def best(self, tokens: Sequence[int]) -> int:
        """Return the index into `tokens`, in the order drawn, of the selected one."""
        groups = [int(self._groups[self._index(token)]) for token in tokens]
        return groups.index(max(groups))

    def masses(self, token: int) -> tuple[float, float]:
        """Return the draft mass of the groups below a token's, and of its own group."""
        group = self._groups[self._index(token)]
        mass = float(self._masses[group])
        return float(self._upper[group]) - mass, mass

    def distribution(self, most: int, weight: float) -> tuple[int, Distribution]:
        """Return the number of competing draws, at most `most`, and the selected one's
        distribution.

        The number maximises the accepted mass sum min(weight p, selected), with p / q taken as
        constant within a group; `weight` is the accepted share of the path so far.
        """
        # (F^k - F-^k) / (F - F-) = F^(k-1) + F^(k-2) F- + ... loses no digits in small groups.
        wanted = weight * self._wanted
        lower = self._upper - self._masses
        power, factor = np.ones(len(lower)), np.ones(len(lower))
        best, count, kept = float(np.minimum(wanted, self._masses).sum()), 1, factor
        for number in range(2, most + 1):
            power = power * lower
            factor = factor * self._upper + power
            accepted = float(np.minimum(wanted, self._masses * factor).sum())
            if accepted > best:
                best, count, kept = accepted, number, factor
        if count == 1:
            return 1, self._q
        probs = kept[self._groups]
        probs *= self._q.probs
        return count, Distribution(probs, self._q.ids, self._q.size)

    def _index(self, token: int) -> int:
        ids = self._q.ids
        return token if ids is None else int(np.searchsorted(ids, token))


@dataclass(frozen=True, slots=True)
class MeasuredChain:
    """Drawn chain; per token, the distribution it was drawn from and the target's at its parent."""

    tokens: Sequence[int]
    draft: Sequence[Distribution]
    target: Sequence[Distribution]


class _State(NamedTuple):
    # One way that the paths may have reached a prefix: `paths` pass through it, a share
    # `weight` of the selected path's mass is accepted, and that mass is `lift` times Q.

    paths: int
    weight: float
    lift: float


def accepted(chain: MeasuredChain, count: int) -> float:
    """Return `chain`'s estimate of the accepted tokens per round with `count` paths.

    The mean over chains drawn from the drafter is the expectation; one path is block verification.
    """
    states, total = [_State(count, 1.0, 1.0)], 0.0
    for token, q, p in zip(chain.tokens, chain.draft, chain.target, strict=True):
        mass, wanted = q.prob(token), p.prob(token)
        competition = Competition(p, q) if states[0].paths > 1 else None
        lower, group = competition.masses(token) if competition else (0.0, mass)
        following: list[_State] = []
        for paths, weight, lift in states:
            competing, selected = 1, mass
            if competition and paths > 1:
                competing, distribution = competition.distribution(paths, weight)
                selected = distribution.prob(token)
            weight = min(1.0, weight * wanted / selected)
            total += lift * selected / mass * weight
            for agreeing in range(1, competing + 1):
                share = _share(competing, agreeing, mass, group, lower)
                others = paths - competing
                for more in range(others + 1):
                    chance = comb(others, more) * mass**more * (1 - mass) ** (others - more)
                    following.append(_State(agreeing + more, weight, lift * share / mass * chance))
        states = sorted(following, reverse=True)
    return total


def _share(draws: int, agreeing: int, mass: float, group: float, lower: float) -> float:
    # Probability that a token is the best of `draws` and is drawn `agreeing` times. With t
    # draws in its group and all others in lower ones, it must be the first of the t.
    return sum(
        comb(draws, t)
        * lower ** (draws - t)
        * comb(t - 1, agreeing - 1)
        * mass**agreeing
        * (group - mass) ** (t - agreeing)
        for t in range(agreeing, draws + 1)
    )
