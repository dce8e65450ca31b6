"""A drafter that repeats the last bigram, and a verifier that mirrors its random numbers."""

from itertools import pairwise
from typing import ClassVar

from paceline.core import tree as trees
from paceline.core.types import Budget, SamplingScheme, TokenTree, Verdict
from paceline.drafters.base import Drafter
from paceline.proof.cases import Draftable, Proof, straight
from paceline.registry.table import Index
from paceline.sampling.generation import Generation, VerifiedDraft
from paceline.sampling.randomness import Draw, Purpose, Randomness
from paceline.verifiers.base import TargetDistributions, Verifier, check_sampling, walk


class LastBigram(Drafter):
    """Guess that a token is followed by what followed it last time."""

    name: ClassVar[str] = "last-bigram"
    proof: ClassVar[str | None] = "paceline_plugin:PROOF"

    def __init__(self) -> None:
        self._successors: dict[int, dict[int, int]] = {}

    def open(self, sequence: Generation) -> None:
        self._successors[sequence.id] = dict(pairwise(sequence.tokens))

    def learn(self, verified: VerifiedDraft) -> None:
        sequence, _, verdict, _ = verified
        new = sequence.tokens[-(len(verdict.path) + 2) :]
        self._successors[sequence.id].update(pairwise(new))

    def close(self, sequence: Generation) -> None:
        self._successors.pop(sequence.id, None)

    def draft(self, sequence: Generation, budget: Budget) -> TokenTree:
        following = self._successors[sequence.id]
        chain, token = [], sequence.root
        while token in following and len(chain) < min(budget.nodes, budget.depth):
            chain.append(token := following[token])
        return trees.chain(chain, self.name)


class Mirrored(Verifier):
    """Sample-and-match from the other end of the distribution.

    With the seed of `sample-match`, an antithetic text: each draw is u there and 1 - u here.
    """

    name: ClassVar[str] = "mirrored"
    requires: ClassVar[str] = "deterministic drafts"
    lossless: ClassVar[bool] = True
    accepts: ClassVar[frozenset[SamplingScheme | None]] = frozenset({None})

    def verify(
        self, draft: TokenTree, target: TargetDistributions, randomness: Randomness
    ) -> Verdict:
        check_sampling(self, draft)

        def pick(node: int, depth: int) -> int:
            distribution = target.distribution(node)
            draw = Draw(target.position + depth, Purpose.TARGET)
            last = len(distribution.probs) - 1
            return distribution.token(last - randomness.choice(distribution.probs[::-1], draw))

        return walk(draft, pick)


# What `paceline audit inside` runs for the drafter. Verifiers are audited without being asked.
PROOF = Proof(
    (Draftable("last bigram", None, "chain", straight, drafter=lambda logits, size: LastBigram()),)
)

METHODS: Index = {
    "drafter": {"last-bigram": "paceline_plugin:LastBigram"},
    "verifier": {"mirrored": "paceline_plugin:Mirrored"},
}
