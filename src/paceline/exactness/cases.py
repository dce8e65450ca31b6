"""Audit cases: vocabulary and draft sizes, and sampling parameters."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from paceline.exactness.draft_laws import Draftable
from paceline.exactness.tabular import LogitsOf, TabularModel
from paceline.types import LogitArray, SamplingParams
from paceline.verifiers.base import Verifier

# Prompt of every case.
PROMPT = (0,)

# Standard deviation of the logits: truncation has an effect, but leaves several tokens.
SHARPNESS = 1.5

# Output tokens of a whole decode loop: several rounds for short drafts.
LOOP_TOKENS = 3


@dataclass(frozen=True, slots=True)
class Case:
    """One size and one setting of the sampler: `width` is draws per level, or paths; 1 for chains.

    `loop` runs the whole decode loop instead of one round.
    """

    vocabulary: int
    depth: int
    width: int
    temperature: float
    top_p: float
    loop: bool = False

    def __str__(self) -> str:
        return (
            f"vocabulary {self.vocabulary}, depth {self.depth}, width {self.width}, temperature "
            f"{self.temperature:g}, top-p {self.top_p:g}, "
            f"{'whole loop' if self.loop else 'one round'}"
        )

    @property
    def horizon(self) -> int:
        # Compared tokens: all that one round may emit, or the loop's output.
        return LOOP_TOKENS if self.loop else self.depth + 1

    @property
    def params(self) -> SamplingParams:
        return SamplingParams(
            temperature=self.temperature, top_p=self.top_p, max_new_tokens=self.horizon
        )

    @property
    def draft_params(self) -> SamplingParams:
        # The drafter draws for greedy targets, too.
        return SamplingParams(temperature=self.temperature or 1.0, top_p=self.top_p)

    def models(self) -> tuple[LogitsOf, LogitsOf]:
        # The drafter equals the target after every other context, so that one draft meets both
        # equal and unequal rows.
        seed = 100 * self.vocabulary + 10 * self.depth + self.width
        target = TabularModel(self.vocabulary, 4, seed, SHARPNESS)
        other = TabularModel(self.vocabulary, 4, seed + 1000, SHARPNESS)

        def drafter(context: tuple[int, ...]) -> LogitArray:
            return (target if sum(context) % 2 else other).logits(context)

        return target.logits, drafter


@dataclass(frozen=True, slots=True)
class Grid:
    """Cases of an audit.

    Attributes:
        samplings: temperature and top-p; greedy-only verifiers get temperature 0 instead.
        loops: largest vocabulary, depth and width of cases of the whole decode loop.
        noise_sizes: vocabulary, depth and width (1 for chains) of cases with continuous noise.
    """

    vocabularies: tuple[int, ...]
    depths: tuple[int, ...]
    widths: tuple[int, ...]
    samplings: tuple[tuple[float, float], ...]
    loops: tuple[int, int, int]
    max_runs: int
    noise_sizes: tuple[tuple[int, int, int], ...]
    noise_samplings: tuple[tuple[float, float], ...]
    seeds: int

    def cases(self, verifier: Verifier, drafts: Draftable) -> Iterator[Case]:
        """Yield the cases of one pair, single rounds first."""
        widths = (1,) if drafts.shape == "chain" else self.widths
        samplings = ((0.0, 1.0),) if verifier.greedy_only else self.samplings
        for vocabulary, depth, width in product(self.vocabularies, self.depths, widths):
            for temperature, top_p in samplings if drafts.build is not None else ():
                yield Case(vocabulary, depth, width, temperature, top_p)
        noisy = self._noise_sizes(drafts)
        for sizes in product(self.vocabularies, self.depths, widths):
            if all(map(operator.le, sizes, self.loops)) or sizes in noisy:
                for temperature, top_p in samplings:
                    yield Case(*sizes, temperature, top_p, loop=True)

    def most(self, verifier: Verifier, case: Case) -> int:
        """Return the most combinations of outcomes of a case; larger cases are left out.

        Verifiers that read no draft distribution get a fourth; for others the first setting gets
        more, so that larger drafts occur at least there. Loops are slower and get half.
        """
        if case.loop:
            return self.most(verifier, replace(case, loop=False)) // 2
        if None in verifier.accepts:
            return self.max_runs // 4
        first = (case.temperature, case.top_p) == self.samplings[0]
        return self.max_runs * (4 if first else 1)

    def samples(self, verifier: Verifier, drafts: Draftable, case: Case) -> int:
        """Return the samples of `case` if its noise is continuous; only whole loops get any."""
        sizes = case.vocabulary, case.depth, case.width
        settings = *self.noise_samplings, (0.0, 1.0)
        sampled = sizes in self._noise_sizes(drafts) and (case.temperature, case.top_p) in settings
        if not (case.loop and sampled):
            return 0
        few = case.temperature == 0 or None in verifier.accepts
        return self.seeds // 4 if few else self.seeds

    def _noise_sizes(self, drafts: Draftable) -> tuple[tuple[int, int, int], ...]:
        if drafts.shape == "tree":
            return self.noise_sizes
        return tuple((vocabulary, depth, 1) for vocabulary, depth, _ in self.noise_sizes)


# A few minutes on two cores.
FULL = Grid(
    vocabularies=(2, 3, 4),
    depths=(1, 2, 3),
    widths=(1, 2, 3),
    samplings=((1.0, 1.0), (0.7, 1.0), (1.0, 0.8), (1.5, 0.85), (0.0, 1.0)),
    loops=(3, 2, 2),
    max_runs=2000,
    noise_sizes=((3, 2, 2), (4, 3, 3)),
    noise_samplings=((1.0, 1.0), (1.5, 0.85)),
    seeds=2000,
)

# Under half a minute.
QUICK = Grid(
    vocabularies=(2, 3),
    depths=(1, 2),
    widths=(1, 2),
    samplings=((1.0, 1.0), (1.5, 0.85)),
    loops=(2, 2, 2),
    max_runs=200,
    noise_sizes=((3, 2, 2),),
    noise_samplings=((1.5, 0.85),),
    seeds=400,
)
