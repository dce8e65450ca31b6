"""Greedy multi-path block verification (after Thomas and Pal 2026, arXiv:2602.16961). Of
independent paths one is selected node by node by highest p / q; block verification with the
distribution of the selected path in place of q is exact. Changed: p / q is binned, which saves
a sort, and each node takes the number of competing draws that maximises its own acceptance.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from paceline.randomness import Randomness
from paceline.types import ROOT, Law, LawKind, TokenTree, Verdict
from paceline.verifiers.base import TargetLaws, Verifier, check_law, drawn_mass, row
from paceline.verifiers.block import verify_path
from paceline.verifiers.multi_draft import drawn_children

# Groups of tokens by p / q: sign, 8 bits of exponent and 5 of the fraction.
_GROUPS = 1 << 14


class MultipathBlock(Verifier):
    """Lossless for independent paths."""

    name: ClassVar[str] = "multipath-block"
    lossless: ClassVar[bool] = True
    accepts: ClassVar[frozenset[LawKind | None]] = frozenset({"paths"})

    def verify(self, draft: TokenTree, target: TargetLaws, randomness: Randomness) -> Verdict:
        check_law(self, draft)
        path, rows = self.select(draft, target)
        return verify_path(draft, path, rows, target, randomness)

    def select(self, draft: TokenTree, target: TargetLaws) -> tuple[list[int], list[Law]]:
        """Return the selected path, and the distributions that its nodes were selected from."""
        drawn_children(self, draft)  # for its checks
        paths = () if draft.law is None else draft.law.paths
        path: list[int] = []
        rows: list[Law] = []
        node, weight = ROOT, 1.0
        while paths := tuple(each for each in paths if len(each) > len(path)):
            children = [each[len(path)] for each in paths]
            p, q = target.law(node), row(self, draft, node)
            for child in set(children):
                drawn_mass(self, q, draft, child)  # for its check
            node = children[0]
            if len(children) > 1:
                competition = Competition(p, q)
                count, q = competition.law(len(children), weight)
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

    def __init__(self, p: Law, q: Law) -> None:
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

    def law(self, most: int, weight: float) -> tuple[int, Law]:
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
        return count, Law(probs, self._q.ids, self._q.size)

    def _index(self, token: int) -> int:
        ids = self._q.ids
        return token if ids is None else int(np.searchsorted(ids, token))
