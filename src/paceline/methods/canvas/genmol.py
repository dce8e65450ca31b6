"""Noisy confidence, and spans that are filled anew if it betters them: GenMol (2501.06158)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, NamedTuple, Self

import numpy as np

from paceline.core.options import within
from paceline.core.types import LogitArray, TokenLogprob
from paceline.denoising.canvas import Ask, tokens_at, visible
from paceline.denoising.counts import MOST, chances
from paceline.denoising.process import Context, Decision, Terms, View, best
from paceline.denoising.unmasking import Rule, Unmasking, Wrapper
from paceline.errors import InvalidOption
from paceline.sampling.randomness import Draw, Purpose

Objective = Callable[[Sequence[int]], float]


class GenMol(Rule):
    """Fill the places whose picks have the largest log-probability plus noise, which fades."""

    name: ClassVar[str] = "genmol"
    paper = "GenMol, Lee et al. 2025, arXiv:2501.06158"
    fresh = True
    ignores_draws = False

    def __init__(self, randomness: float = 0.5, per_step: int = 1) -> None:
        within("randomness", randomness, 0, 1e6)
        within("per_step", per_step, 1, MOST)
        self._randomness, self._per_step = randomness, per_step

    def choose(self, view: View, state: None) -> Decision:
        left = len(view.places) / len(view.canvas.block)
        noise = -np.log(-np.log(chances(view, view.canvas.step, Purpose.TARGET)))
        with np.errstate(divide="ignore"):
            worth = np.log(view.picked) + self._randomness * left * noise
        return Decision(best(worth, self._per_step))


class Remask(Wrapper):
    """When the text is complete, mask a random span and fill it anew; keep it if it is better.

    Better is a higher objective, or pseudo-likelihood: the sum of each place's log-probability
    given all others, from a forward over the text.
    """

    name: ClassVar[str] = "remask"
    requires = "a rule: remask>genmol; a denoiser with full attention"
    paper = "after GenMol, Lee et al. 2025, arXiv:2501.06158"
    standard = False

    def __init__(
        self, inner: Rule, rounds: int = 8, span: int = 4, objective: Objective | None = None
    ) -> None:
        """Set how often, and how many places; `objective` takes the answer's tokens."""
        super().__init__(inner)
        within("rounds", rounds, 0, 64)
        within("span", span, 1, MOST)
        self.rounds, self.span, self.objective = rounds, span, objective
        self.needs = ("full",)
        self.monotone, self.ignores_draws = False, False

    def check(self, terms: Terms) -> None:
        super().check(terms)
        if terms.plan.name != "none":
            raise InvalidOption(
                f"sampler 'remask' asks the whole text again, not what cache '{terms.plan.name}' "
                "leaves out: use cache none"
            )
        if terms.constrained:
            raise InvalidOption(
                "sampler 'remask' changes the middle of a text, which a constraint cannot follow: "
                "leave out one of the two"
            )

    def process(self, context: Context) -> Unmasking:
        return _GenMolProcess(context, self)


class _Best(NamedTuple):
    score: float
    tokens: list[int]
    end: int
    logprobs: dict[int, TokenLogprob]


class _GenMolProcess(Unmasking):
    rule: Remask

    def restart(self) -> None:
        self.best: _Best | None = None
        self.scores: list[float] = []
        self._scoring = False
        super().restart()

    def fork(self) -> Self:
        other = super().fork()
        other.scores = list(self.scores)
        return other

    @property
    def anew(self) -> bool:
        # The first text is the inner rule's own.
        return super().anew or bool(self.scores)

    def ask(self) -> Ask:
        if not self._scoring:
            return super().ask()
        places, facts = np.arange(len(self.canvas.tokens)), self.context.facts
        sees = visible(places, places, facts.attention, self.span)
        wanted = places[self.canvas.begin :] - int(facts.shifted)
        return Ask(tokens_at(self.canvas, places), places, sees, wanted)

    def take(self, logits: LogitArray) -> Sequence[int]:
        if not self._scoring:
            return super().take(logits)
        self._scoring = False
        canvas = self.canvas
        x = logits.astype(np.float64)
        x[:, canvas.mask] = -np.inf
        answer = canvas.tokens[canvas.begin :]
        peaks = x.max(axis=1)
        sums = peaks + np.log(np.exp(x - peaks[:, None]).sum(axis=1))
        self._judge(float((x[np.arange(len(answer)), answer] - sums).sum()))
        return ()

    def settle(self) -> None:
        super().settle()
        canvas, objective = self.canvas, self.rule.objective
        complete = canvas.final == len(canvas.tokens)
        if complete and not self.rule.rounds:
            return
        canvas.final = canvas.begin
        if complete and objective is None:
            self._scoring = True
        elif complete and objective is not None:
            self._judge(objective(canvas.tokens[canvas.begin :]))

    def _judge(self, score: float) -> None:
        canvas = self.canvas
        self.scores.append(score)
        if self.best is None or score > self.best.score:
            self.best = _Best(score, list(canvas.tokens), canvas.end, dict(self.logprobs))
        canvas.tokens, canvas.end = list(self.best.tokens), self.best.end
        self.logprobs = dict(self.best.logprobs)
        while len(self.scores) <= self.rule.rounds:
            self._mask(len(self.scores))
            if len(canvas.masked()):
                self.fresh, self.state = True, self.rule.begin(canvas)
                return
            self.scores.append(self.best.score)  # all of the span was given
        canvas.final = len(canvas.tokens)

    def _mask(self, round: int) -> None:
        # Mask a span of the answer, but for what was given.
        canvas = self.canvas
        size = min(self.rule.span, len(canvas.tokens) - canvas.begin)
        starts = len(canvas.tokens) - canvas.begin - size + 1
        named = Draw(round, Purpose.ACCEPT)
        start = canvas.begin + int(starts * self.context.request.randomness.uniform(1, named)[0])
        canvas.block = range(start, start + size)
        for place in canvas.block:
            if place not in canvas.pinned:
                canvas.tokens[place] = canvas.mask
