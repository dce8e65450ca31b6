"""Speculative Jacobi decoding (Teng et al. 2024, arXiv:2410.01699): the target drafts for itself.

A window of guessed tokens runs ahead of the committed text. Every forward over it gives, beside
what verification needs, the target's law at each later position, given the guesses of that
forward. The next window is drawn from those laws: they depend on committed tokens and on earlier
guesses, but on no token of the window itself, so the draft is factorised and p/q rules are exact
for it. Positions that no forward has seen start from a law of the caller's choice. Without
sampling this is Jacobi iteration towards the greedy text (Santilli et al. 2023, arXiv:2305.10427).
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as List
from typing import ClassVar, Self

from paceline import tree as trees
from paceline.drafters.base import Drafter, DrafterContext
from paceline.errors import BadLogits
from paceline.law import gumbel_max, one_hot
from paceline.options import arguments
from paceline.randomness import Draw, Purpose
from paceline.sequence import Sequence
from paceline.target import Output
from paceline.types import ROOT, Budget, DraftLaw, Law, Needs, TokenTree, Verdict

Initial = Callable[[Sequence, int], Law]
"""From a sequence and an absolute position to the law of a first guess there. It may depend on
committed tokens alone."""


class Jacobi(Drafter):
    """Windows of guesses, redrawn from the target's own last forward; no model, no training."""

    name: ClassVar[str] = "jacobi"
    needs: Needs = Needs(node_logits=True)

    def __init__(
        self, vocab_size: int, *, report_law: bool, initial: Initial | None = None
    ) -> None:
        """Start without guesses.

        Args:
            vocab_size: vocabulary of the target.
            report_law: draw independently and report the rows (for p/q rules) instead of sharing
                the target's noise.
            initial: law of first guesses; the default repeats the last committed token.
        """
        self._report_law = report_law
        self.kind = "factorised" if report_law else None
        self._initial = initial or (lambda sequence, position: one_hot(sequence.root, vocab_size))
        self._rows: dict[int, dict[int, Law]] = {}

    @classmethod
    def create(cls, context: DrafterContext) -> Self:
        """A drafter for the target's vocabulary."""
        chosen = arguments(cls, "drafter", context.options, "vocab_size", "report_law")
        return cls(context.target.vocab_size, report_law=context.report_law, **chosen)

    def open(self, sequence: Sequence) -> None:
        """Nothing is known of any position yet."""
        self._rows[sequence.id] = {}

    def propose(self, sequences: List[Sequence], budgets: List[Budget]) -> list[TokenTree]:
        """One window per sequence, as deep as its budget."""
        return [self._window(s, b) for s, b in zip(sequences, budgets, strict=True)]

    def observe(
        self,
        sequences: List[Sequence],
        drafts: List[TokenTree],
        verdicts: List[Verdict],
        outputs: List[Output],
    ) -> None:
        """Keep the target's laws at the positions that are still open."""
        for sequence, draft, verdict, output in zip(
            sequences, drafts, verdicts, outputs, strict=True
        ):
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
                    known[position] = sequence.sampler.law(row, path)
                except BadLogits:
                    # A guess that could not stand may leave nothing possible after it.
                    known.pop(position, None)

    def close(self, sequence: Sequence) -> None:
        """Forget the sequence's window."""
        self._rows.pop(sequence.id, None)

    def _window(self, sequence: Sequence, budget: Budget) -> TokenTree:
        root = len(sequence.tokens) - 1
        known = self._rows[sequence.id]
        tokens: list[int] = []
        rows: dict[int, Law] = {}
        for node in range(min(budget.nodes, budget.depth)):
            position = root + 1 + node
            law = known.get(position)
            if law is None:
                law = self._initial(sequence, position)
            if self._report_law:
                draw = Draw(position, Purpose.DRAFT, root=root)
                tokens.append(law.token(sequence.randomness.choice(law.probs, draw)))
            else:
                tokens.append(gumbel_max(law, position, sequence.randomness))
            rows[node - 1] = law
        if not tokens:
            return trees.EMPTY
        return trees.chain(
            tokens, self.name, DraftLaw("factorised", rows) if self._report_law else None
        )


def _line(draft: TokenTree, verdict: Verdict) -> list[int]:
    """The accepted path and what hangs under its end, first children first: a window stays whole,
    and of another drafter's tree one path is read."""
    below = trees.children(draft)
    line = list(verdict.path)
    node = line[-1] if line else ROOT
    while node in below:
        node = below[node][0]
        line.append(node)
    return line
