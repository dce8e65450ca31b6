"""Speculative Jacobi decoding (Teng et al. 2024, arXiv:2410.01699): the target drafts for itself.
The next window is drawn from the target's distributions at the guesses of the last forward. None
of them depends on a token of the window: the draft is factorised and p/q rules are exact for it.
Without sampling this is Jacobi iteration (Santilli et al. 2023, arXiv:2305.10427).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Self

from paceline.core import tree as trees
from paceline.core.options import arguments
from paceline.core.types import ROOT, Budget, Distribution, DraftSampling, Needs, TokenTree, Verdict
from paceline.drafters.base import Drafter, DrafterContext
from paceline.errors import BadLogits
from paceline.sampling.distributions import gumbel_max, one_hot
from paceline.sampling.generation import Generation, VerifiedDraft
from paceline.sampling.randomness import Draw, Purpose

# From a sequence and an absolute position to the distribution of a first guess there. It may depend
# on committed tokens alone.
Initial = Callable[[Generation, int], Distribution]


class Jacobi(Drafter):
    """Draft windows of guesses from the target's last forward; no model, no training."""

    name: ClassVar[str] = "jacobi"
    requires = "logits of rejected nodes"
    paper = "after SJD, Teng et al. 2024, arXiv:2410.01699"
    proof = "paceline.methods.proof:JACOBI"
    needs: Needs = Needs(node_logits=True)

    def __init__(self, vocab_size: int, *, needs_q: bool, initial: Initial | None = None) -> None:
        """Start without guesses.

        Args:
            vocab_size: vocabulary of the target.
            report_law: draw independently and report the distributions (for p/q rules) instead of
                sharing the target's Gumbel noise.
            initial: distribution of first guesses; the default repeats the last committed token.
        """
        self._needs_q = needs_q
        self.kind = "factorised" if needs_q else None
        self._initial = initial or (lambda sequence, position: one_hot(sequence.root, vocab_size))
        self._rows: dict[int, dict[int, Distribution]] = {}

    @classmethod
    def create(cls, context: DrafterContext) -> Self:
        chosen = arguments(cls, "drafter", context.options, "vocab_size", "report_law")
        return cls(context.target.vocab_size, needs_q=context.needs_q, **chosen)

    def open(self, sequence: Generation) -> None:
        self._rows[sequence.id] = {}

    def learn(self, verified: VerifiedDraft) -> None:
        sequence, draft, verdict, output = verified
        end = len(sequence.tokens)
        # A stop rule may have cut the run, but then the sequence is not drafted for again.
        begin = end - len(verdict.path) - 1
        known = self._rows[sequence.id]
        line = _line(draft, verdict)
        guesses = draft.tokens[line].tolist()
        rows = [0, *(node + 1 for node in line)]
        for position in range(begin, end):
            known.pop(position, None)
        for position in range(end, begin + len(guesses) + 1):
            # The sampler knows the committed tokens, so what it lacks are guesses after them.
            path = guesses[end - begin : position - begin]
            row = output.logits[rows[position - begin]]
            try:
                known[position] = sequence.sampler.proposal(row, path)
            except BadLogits:
                # A guess that could not stand may leave nothing possible after it.
                known.pop(position, None)

    def close(self, sequence: Generation) -> None:
        self._rows.pop(sequence.id, None)

    def draft(self, sequence: Generation, budget: Budget) -> TokenTree:
        root = len(sequence.tokens) - 1
        known = self._rows[sequence.id]
        tokens: list[int] = []
        rows: dict[int, Distribution] = {}
        for node in range(min(budget.nodes, budget.depth)):
            position = root + 1 + node
            distribution = known.get(position)
            if distribution is None:
                distribution = self._initial(sequence, position)
            if self._needs_q:
                draw = Draw(position, Purpose.DRAFT, root=root)
                tokens.append(
                    distribution.token(sequence.randomness.choice(distribution.probs, draw))
                )
            else:
                tokens.append(gumbel_max(distribution, position, sequence.randomness))
            rows[node - 1] = distribution
        if not tokens:
            return trees.EMPTY
        return trees.chain(
            tokens, self.name, DraftSampling("factorised", rows) if self._needs_q else None
        )


def _line(draft: TokenTree, verdict: Verdict) -> list[int]:
    # The accepted path, then first children: a window stays whole, and of another drafter's tree
    # one path is read.
    below = trees.children(draft)
    line = list(verdict.path)
    node = line[-1] if line else ROOT
    while node in below:
        node = below[node][0]
        line.append(node)
    return line
