"""What the audit runs every pair on: sizes of vocabulary and draft, and sampling parameters."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from paceline.exactness.draft_laws import Draftable
from paceline.exactness.tabular import LogitsOf, TabularModel
from paceline.types import LogitArray, SamplingParams
from paceline.verifiers.base import Verifier

PROMPT = (0,)
"""What every case starts from."""

SHARPNESS = 1.5
"""Standard deviation of the logits: far enough from uniform that truncation bites, and not so far
that it leaves single tokens."""

LOOP_TOKENS = 3
"""Output of a whole decode loop, in tokens: several rounds for short drafts."""


@dataclass(frozen=True, slots=True)
class Case:
    """One size and one setting of the sampler.

    Attributes:
        vocabulary: number of tokens.
        depth: of the draft.
        width: draws per level, or paths; 1 for chains.
        temperature: 0 is greedy.
        top_p: 1 is off.
        loop: whether the whole decode loop runs, and not one round of it alone.
    """

    vocabulary: int
    depth: int
    width: int
    temperature: float
    top_p: float
    loop: bool = False

    def __str__(self) -> str:
        """In words."""
        return (
            f"vocabulary {self.vocabulary}, depth {self.depth}, width {self.width}, temperature "
            f"{self.temperature:g}, top-p {self.top_p:g}, "
            f"{'whole loop' if self.loop else 'one round'}"
        )

    @property
    def horizon(self) -> int:
        """How many tokens are compared: all that one round may emit, or the loop's output."""
        return LOOP_TOKENS if self.loop else self.depth + 1

    @property
    def params(self) -> SamplingParams:
        """Sampling parameters of the target."""
        return SamplingParams(
            temperature=self.temperature, top_p=self.top_p, max_new_tokens=self.horizon
        )

    @property
    def draft_params(self) -> SamplingParams:
        """Sampling parameters of the drafter: the target's, but it draws for greedy targets too."""
        return SamplingParams(temperature=self.temperature or 1.0, top_p=self.top_p)

    def models(self) -> tuple[LogitsOf, LogitsOf]:
        """Logits of the target, and of a drafter that equals it after every other context.

        So rows that agree and rows that do not are met in one draft.
        """
        seed = 100 * self.vocabulary + 10 * self.depth + self.width
        target = TabularModel(self.vocabulary, 4, seed, SHARPNESS)
        other = TabularModel(self.vocabulary, 4, seed + 1000, SHARPNESS)

        def drafter(context: tuple[int, ...]) -> LogitArray:
            return (target if sum(context) % 2 else other).logits(context)

        return target.logits, drafter


@dataclass(frozen=True, slots=True)
class Grid:
    """Which cases an audit runs.

    Attributes:
        vocabularies: sizes of vocabulary.
        depths: depths of drafts.
        widths: widths of drafts that branch.
        samplings: temperature and top-p of each setting; rules for greedy requests alone get
            temperature 0 instead.
        loops: largest vocabulary, depth and width of the cases that run the whole decode loop.
        max_runs: most combinations of outcomes per case, see `most`.
        noise_sizes: vocabulary, depth and width (1 for chains) of the cases that continuous noise
            is sampled on.
        noise_samplings: their temperature and top-p.
        seeds: samples per case of continuous noise, see `samples`.
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
        """The cases of one pair, single rounds first."""
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
        """How many combinations of outcomes a case may have; with more it is left out.

        A fourth suffices for rules that read no draft law, where drafts matter little. For others
        the first setting gets four times as many, so that larger drafts are met at least there.
        Loops take longer and get half.
        """
        if case.loop:
            return self.most(verifier, replace(case, loop=False)) // 2
        if None in verifier.accepts:
            return self.max_runs // 4
        first = (case.temperature, case.top_p) == self.samplings[0]
        return self.max_runs * (4 if first else 1)

    def samples(self, verifier: Verifier, drafts: Draftable, case: Case) -> int:
        """How many samples `case` gets if its noise is continuous; it must run the whole loop.

        A fourth suffices at temperature 0, where every token must agree, and for rules that read
        no draft law.
        """
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
"""A few minutes on two cores."""

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
"""Under half a minute."""
