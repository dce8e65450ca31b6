"""Greedy multi-path block verification (after Thomas and Pal 2026, arXiv:2602.16961).

Of several paths that were drawn independently, one is selected, node by node, by an order of the
tokens that favours what the drafter proposes too rarely, and that one is verified as a block.
Selection changes the law of the path. With F the draft mass of all tokens up to x in the order and
F- that of those before x, the last of k draws in the order is x with probability F^k - F-^k. Block
verification with this law in place of q is exact.

Selection among many draws bends a law that is nearly right out of shape, and then costs more than
it gains. So the number of draws that compete is settled at each node, from p, q and what has been
accepted so far: as many as make the node's own acceptance largest. The law is taken given the
paths that came this far and go on, so it holds for paths that end early as well, and where one
path is left this is plain block verification.
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


class MultipathBlock(Verifier):
    """Lossless for independent paths."""

    name: ClassVar[str] = "multipath-block"
    lossless: ClassVar[bool] = True
    accepts: ClassVar[frozenset[LawKind | None]] = frozenset({"paths"})

    def verify(self, draft: TokenTree, target: TargetLaws, randomness: Randomness) -> Verdict:
        """Select a path, then verify it as a block."""
        check_law(self, draft)
        path, rows = self.select(draft, target)
        return verify_path(draft, path, rows, target, randomness)

    def select(self, draft: TokenTree, target: TargetLaws) -> tuple[list[int], list[Law]]:
        """The nodes of the selected path, and the law that each of them was selected from.

        Raises:
            IncompatibleDraft: as `verify`.
        """
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
                node = children[competition.last(draft.tokens[children[:count]].tolist())]
            token = int(draft.tokens[node])
            weight = min(1.0, weight * p.prob(token) / q.prob(token))
            paths = tuple(each for each in paths if each[len(path)] == node)
            path.append(node)
            rows.append(q)
        return path, rows


class Competition:
    """Draws from one law, of which the last in an order is selected.

    The order ascends in p / q and must not depend on what was drawn. Ratios that agree to 8 binary
    digits count as equal, and then the higher token id is the later: such short keys sort in
    linear time.
    """

    def __init__(self, p: Law, q: Law) -> None:
        """Order the tokens.

        Args:
            p: the target's law.
            q: the law of the draws.
        """
        self._q = q
        target = p.at(q.ids)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            ratios = (target / q.probs).astype(np.float32)
        # Bits of floats above 0 sort like the floats: 8 of exponent, then 8 of the fraction.
        self._keys = (ratios.view(np.uint32) >> 15).astype(np.uint16)
        self._order = np.argsort(self._keys, kind="stable")
        self._target = target[self._order]
        self._masses = q.probs[self._order]
        self._upper = np.cumsum(self._masses)

    def last(self, tokens: Sequence[int]) -> int:
        """Index into `tokens`, drawn tokens, of the last in the order."""
        return max(range(len(tokens)), key=lambda index: self._place(tokens[index]))

    def below(self, token: int) -> float:
        """Mass of the tokens before `token` in the order."""
        key, index = self._place(token)
        before = self._keys < key
        before[:index] |= self._keys[:index] == key
        return float(np.dot(before, self._q.probs))

    def law(self, most: int, weight: float) -> tuple[int, Law]:
        """How many draws compete, at most `most`, and the law of the last of them.

        As many as make the mass largest that is accepted here, sum min(weight p, law).

        Args:
            most: number of draws there are.
            weight: share of the mass of the selected path so far that is accepted.
        """
        # F^k - F-^k = q (F^(k-1) + F^(k-2) F- + ... + F-^(k-1)) loses no digits where q is small.
        # In place: fresh arrays of a whole vocabulary cost more than the arithmetic.
        wanted = weight * self._target
        lower = self._upper - self._masses
        power, factor, scratch = np.ones_like(lower), np.ones_like(lower), np.empty_like(lower)
        best, count, kept = float(np.minimum(wanted, self._masses, out=scratch).sum()), 1, factor
        for number in range(2, most + 1):
            power *= lower
            factor *= self._upper
            factor += power
            np.multiply(self._masses, factor, out=scratch)
            accepted = float(np.minimum(wanted, scratch, out=scratch).sum())
            if accepted > best:
                best, count, kept = accepted, number, factor.copy()
        if count == 1:
            return 1, self._q
        probs = np.empty_like(kept)
        probs[self._order] = np.multiply(self._masses, kept, out=scratch)
        return count, Law(probs, self._q.ids, self._q.size)

    def _place(self, token: int) -> tuple[int, int]:
        ids = self._q.ids
        index = token if ids is None else int(np.searchsorted(ids, token))
        return int(self._keys[index]), index
