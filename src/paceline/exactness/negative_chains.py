"""Wrong verifiers and drafters of chains and paths: negative controls, as in `negative`."""

from __future__ import annotations

from collections.abc import Sequence as List
from dataclasses import replace
from typing import ClassVar

from paceline.drafters.base import Drafter
from paceline.drafters.jacobi import Jacobi
from paceline.exactness.tabular import LawOf
from paceline.law import residual
from paceline.randomness import Draw, Purpose, Randomness
from paceline.sequence import Sequence
from paceline.types import ROOT, Budget, Law, LawKind, TokenTree, Verdict
from paceline.verifiers.base import TargetLaws, Verifier
from paceline.verifiers.block import chance, verify_path
from paceline.verifiers.multipath_block import Competition


class BlockWithEarlyExit(Verifier):
    """Block verification whose coins are tossed from the root down, ending at the first failure."""

    name: ClassVar[str] = "block-with-early-exit"
    lossless: ClassVar[bool] = False
    accepts: ClassVar[frozenset[LawKind | None]] = frozenset({"iid"})

    def verify(self, draft: TokenTree, target: TargetLaws, randomness: Randomness) -> Verdict:
        assert draft.law is not None
        rows, weight, root = draft.law.rows, 1.0, target.position - 1
        for node, token in enumerate(draft.tokens.tolist()):
            p, q, position = target.law(node - 1), rows[node - 1], target.position + node
            onward = min(1.0, weight * p.prob(token) / q.prob(token))
            last = node == len(draft) - 1
            accept = onward if last else chance(target.law(node), rows[node], onward)
            if not randomness.bernoulli(accept, Draw(position, Purpose.ACCEPT, root=root)):
                rest = residual(p, q, weight)
                draw = Draw(position, Purpose.RESIDUAL, root=root)
                return Verdict(tuple(range(node)), rest.token(randomness.choice(rest.probs, draw)))
            weight = onward
        depth = len(draft)
        law = target.law(depth - 1)
        bonus = randomness.choice(law.probs, Draw(target.position + depth, Purpose.TARGET))
        return Verdict(tuple(range(depth)), law.token(bonus))


class MultipathByPlainLaw(Verifier):
    """Selects among all paths and verifies the selected one as if it had been the only one."""

    name: ClassVar[str] = "multipath-by-plain-law"
    lossless: ClassVar[bool] = False
    accepts: ClassVar[frozenset[LawKind | None]] = frozenset({"paths"})

    def verify(self, draft: TokenTree, target: TargetLaws, randomness: Randomness) -> Verdict:
        assert draft.law is not None
        paths, path, rows = draft.law.paths, list[int](), list[Law]()
        while paths := tuple(each for each in paths if len(each) > len(path)):
            children = [each[len(path)] for each in paths]
            rows.append(draft.law.rows[path[-1] if path else ROOT])
            competition = Competition(target.law(path[-1] if path else ROOT), rows[-1])
            node = children[competition.best(draft.tokens[children].tolist())]
            paths = tuple(each for each in paths if each[len(path)] == node)
            path.append(node)
        return verify_path(draft, path, rows, target, randomness)


class ReportsLowerRows(Drafter):
    """Drafter whose chains report another distribution, such as that of the level below."""

    name: ClassVar[str] = "reports-lower-rows"

    def __init__(self, drafter: Drafter, lower: LawOf) -> None:
        self._drafter = drafter
        self._lower = lower

    def open(self, sequence: Sequence) -> None:
        self._drafter.open(sequence)

    def propose(self, sequences: List[Sequence], budgets: List[Budget]) -> list[TokenTree]:
        drafts = self._drafter.propose(sequences, budgets)
        return [self._misreport(s, d) for s, d in zip(sequences, drafts, strict=True)]

    def close(self, sequence: Sequence) -> None:
        self._drafter.close(sequence)

    def _misreport(self, sequence: Sequence, draft: TokenTree) -> TokenTree:
        if draft.law is None:
            return draft
        context = tuple(sequence.tokens)
        rows = {
            parent: self._lower((*context, *draft.tokens[: parent + 1].tolist()))
            for parent in draft.law.rows
        }
        return replace(draft, law=replace(draft.law, rows=rows))


class JacobiWithOldRows(Jacobi):
    """Redraws its window, but reports the rows of earlier draws."""

    name: ClassVar[str] = "jacobi-with-old-rows"
    _reported: dict[int, Law]

    def open(self, sequence: Sequence) -> None:
        super().open(sequence)
        self._reported = {}

    def propose(self, sequences: List[Sequence], budgets: List[Budget]) -> list[TokenTree]:
        [sequence], [draft] = sequences, super().propose(sequences, budgets)
        if draft.law is None:
            return [draft]
        first = len(sequence.tokens) + 1
        rows = {
            parent: self._reported.get(first + parent, law)
            for parent, law in draft.law.rows.items()
        }
        self._reported = {first + parent: law for parent, law in draft.law.rows.items()}
        return [replace(draft, law=replace(draft.law, rows=rows))]
