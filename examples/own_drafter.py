"""A drafter of one's own: guess that a token is followed by what followed it last time."""

from itertools import pairwise

import paceline
from paceline.core import tree as trees
from paceline.core.types import Budget, TokenTree
from paceline.drafters.base import Drafter
from paceline.sampling.generation import Generation, VerifiedDraft


class LastBigram(Drafter):
    """Walks from the root along the latest successor of each token."""

    name = "last-bigram"

    def __init__(self) -> None:
        self._successors: dict[int, dict[int, int]] = {}

    def open(self, sequence: Generation) -> None:
        """Learn from the prompt."""
        self._successors[sequence.id] = dict(pairwise(sequence.tokens))

    def draft(self, sequence: Generation, budget: Budget) -> TokenTree:
        """A chain as long as its budget allows."""
        following = self._successors[sequence.id]
        chain, token = [], sequence.root
        while token in following and len(chain) < min(budget.nodes, budget.depth):
            chain.append(token := following[token])
        return trees.chain(chain, self.name)

    def learn(self, verified: VerifiedDraft) -> None:
        """Learn from the tokens that the step committed."""
        sequence, _, verdict, _ = verified
        new = sequence.tokens[-(len(verdict.path) + 2) :]
        self._successors[sequence.id].update(pairwise(new))

    def close(self, sequence: Generation) -> None:
        """Forget the sequence."""
        self._successors.pop(sequence.id, None)


if __name__ == "__main__":
    engine = paceline.load(nodes=3)  # a fixed draft size; the drafter is replaced below
    engine.loop.drafter = LastBigram()
    answer = engine.generate("Say the days of the week, then say them again.", max_new_tokens=60)
    print(answer.text, f"\n{answer.stats.block_efficiency:.2f} tokens per forward")
