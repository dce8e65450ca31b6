"""Several steps of a rule in one forward, distributed as its own: rejection in its order.

Drafts are drawn from the present distributions. A rule that looks at distributions alone chooses
its places before it knows what stands there, so each place is the ordinary case of one draft with
its distribution.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np

from paceline.core.types import IntArray, ProbArray
from paceline.denoising.process import Context, Decision, Process, Terms, View
from paceline.denoising.unmasking import Rule, Unmasking
from paceline.errors import InvalidOption
from paceline.methods.canvas.freedave import FreeDave, StateLookahead
from paceline.sampling.distributions import from_dense, verified
from paceline.sampling.randomness import Draw, Purpose, Randomness

# By place, a token and the distribution that it was drawn from.
Drafted = Mapping[int, tuple[int, ProbArray]]


class Speculative(FreeDave):
    """Draft the rule's next steps from what is known, and accept each place with min(1, p/q).

    The distribution of texts is that of the rule alone. Greedy texts are the rule's own.
    """

    name: ClassVar[str] = "speculative"
    guarantee = "distribution of the inner rule"
    paper = "after Leviathan et al. 2023, arXiv:2211.17192"

    def __init__(self, inner: Rule, width: int = 4) -> None:
        """Wrap a rule; InvalidOption if it looks at what was drawn, or changes what is filled."""
        super().__init__(inner, width)
        if not (inner.standard and inner.ignores_draws and inner.monotone):
            raise InvalidOption(
                f"sampler '{self.name}' wraps rules that look at no draws and keep what they fill, "
                f"unlike '{inner.name}': use freedave>{inner.name}"
            )

    def check(self, terms: Terms) -> None:
        super().check(terms)
        if terms.constrained and not terms.params.greedy:
            raise InvalidOption(
                f"sampler '{self.name}' does not know what a constraint forbids before it draws: "
                f"use freedave>{self.inner.name}"
            )

    def process(self, context: Context) -> Process:
        if context.distributions.greedy:
            return super().process(context)
        return Rejecting(Drawing(context, self.inner), self.width)


class Drawing(Unmasking):
    """The standard process, with draws after the choice of places.

    Attributes:
        root: names the round, if this is a draft; None draws what stands.
        drafted: what the next step may accept.
        proposed: what the last step drew, if this is a draft.
    """

    root: int | None = None
    drafted: Drafted = MappingProxyType({})
    proposed: Drafted = MappingProxyType({})

    def drawn(self, scores: ProbArray, places: IntArray) -> View:
        # No picks: a rule that looked at them would fail.
        nothing: Any = np.full(len(places), np.nan)
        randomness, found = self.context.request.randomness, self.context.distributions(scores)
        return View(self.canvas, places, scores, found, nothing, randomness, redraw=self.drawn)

    def draw(self, view: View, choice: Decision) -> None:
        view.picks = np.full(len(view.places), -1)
        drawn = {}
        for index in map(int, choice.fill):
            distribution, place = view.probs[index], int(view.places[index])
            if not distribution.any():
                continue  # everything is banned there, and nothing is filled
            if self.root is not None:
                named = Draw(place, Purpose.DRAFT, root=self.root)
                token = view.randomness.choice(distribution, named)
                drawn[place] = token, distribution
            else:
                token = self._accepted(distribution, place, view.randomness)
            view.picks[index] = token
        self.proposed = drawn

    def _accepted(self, p: ProbArray, place: int, randomness: Randomness) -> int:
        if place not in self.drafted:
            return randomness.choice(p, Draw(place, Purpose.TARGET))
        token, q = self.drafted[place]
        root = self.canvas.step
        return verified(from_dense(p), from_dense(q), token, place, root, randomness)


class Rejecting(StateLookahead):
    """Walk along drafts whose tokens were drawn."""

    process: Drawing

    def draft(self, at: Unmasking) -> Unmasking:
        draft = at.fork()
        assert isinstance(draft, Drawing)
        draft.root = self.canvas.step
        return draft

    def expect(self, process: Unmasking, index: int) -> None:
        assert isinstance(process, Drawing)
        draft = self.drafts[index] if index < len(self.drafts) else None
        process.drafted = draft.proposed if isinstance(draft, Drawing) else {}

    def forget(self) -> None:
        # Drafts are lost, and others would be drawn: begin anew, and the text is the same again.
        self.process.restart()
        self.drafts = []
