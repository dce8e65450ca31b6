"""Speculation of an any-subset model with itself: ASSD (arXiv:2504.20456).

The order of places is what is known, then the masked ones from the left. A clean row sees those
before it in this order; a mask row sees the clean rows before it, and gives the distribution of its
place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from paceline.core.options import within
from paceline.core.types import Attention, Distribution, IntArray, LogitArray, TokenLogprob
from paceline.denoising.canvas import Ask, tokens_at
from paceline.denoising.process import Context, Process, Sampler
from paceline.denoising.unmasking import constrain
from paceline.sampling.distributions import from_dense, verified
from paceline.sampling.randomness import Draw, Purpose
from paceline.sampling.sampler import logprobs, peak_of


class AnySubset(Sampler):
    """Draft places from what is decoded, then accept them in order by rejection.

    Two forwards a round, which fill at least two places: the first draft has the model's
    distribution. A forward for one place alone needs no second one.
    """

    name: ClassVar[str] = "assd"
    guarantee = "lossless: the joint distribution of an any-subset model"
    requires = "a denoiser of attention 'order'"
    paper = "ASSD, Guo and Ermon 2025, arXiv:2504.20456"
    needs: tuple[Attention, ...] = ("order",)

    def __init__(self, width: int = 10) -> None:
        """Set the number of drafts; 1 fills one place a forward."""
        within("width", width, 1, 256)
        self.width = width

    def process(self, context: Context) -> Process:
        return Rounds(context, self.width)


class Rounds:
    """Forwards that draft, and forwards that verify, in turn."""

    exact = True

    def __init__(self, context: Context, width: int) -> None:
        self.context, self.width = context, width
        self.logprobs: dict[int, TokenLogprob] = {}
        self.canvas = canvas = context.canvas()
        canvas.extend(canvas.end)
        canvas.block = canvas.span = range(canvas.begin, canvas.end)
        constraint = context.request.constraint
        self._constraint = None if constraint is None else constraint.start()
        masked = canvas.masked()
        self.order: IntArray = np.concatenate(
            [np.setdiff1d(np.arange(len(canvas.tokens)), masked), masked]
        )
        self.decoded = len(self.order) - len(masked)
        self.held = 0
        self.drafts: list[tuple[int, Distribution]] = []
        canvas.final = canvas.run()

    def ask(self) -> Ask:
        # Clean rows: decoded ones that are not cached, then drafts but the last. Then mask rows.
        drafts = self.drafts[:-1]
        known = self.decoded - self.held
        asked = self.order[self.decoded : self.decoded + (len(self.drafts) or self.width)]
        places = np.concatenate([self.order[self.held : self.decoded + len(drafts)], asked])
        tokens = tokens_at(self.canvas, places)
        clean = known + len(drafts)
        tokens[known:clean] = [token for token, _ in drafts]
        sees = np.eye(len(places), dtype=np.bool_)
        sees[:clean, :clean] = np.tri(clean)
        sees[clean:, :clean] = np.tri(len(asked), clean, known - 1)
        return Ask(tokens, places, sees, np.arange(clean, len(places)))

    def take(self, logits: LogitArray) -> Sequence[int]:
        known, begin = self.decoded - self.held, self.decoded
        stood = self._verified(logits) if self.drafts else self._drafted(logits)
        self.held = begin + stood
        self.canvas.step += 1
        self.canvas.final = self.canvas.run()
        return range(known + stood)

    def log_likelihood(self, end: int) -> float | None:
        # Each token was drawn given those before it in the order, and places ascend in it.
        return None if self.context.distributions.greedy else self.canvas.logprob(end)

    def forget(self) -> None:
        self.held = 0

    def _drafted(self, logits: LogitArray) -> int:
        # The distribution of the first place is the model's own.
        root, first = self.canvas.step, self.decoded
        for index, row in enumerate(logits):
            place = int(self.order[first + index])
            distribution = self._distribution(row, place)
            if index == 0:
                self._put(
                    place, row, distribution, self._pick(distribution, Draw(place, Purpose.TARGET))
                )
            elif distribution.probs.any():
                token = self._pick(distribution, Draw(place, Purpose.DRAFT, root=root))
                self.drafts.append((token, distribution))
            else:
                break
        return 0

    def _verified(self, logits: LogitArray) -> int:
        # Return how many clean rows of drafts hold what is now decoded.
        randomness, root = self.context.request.randomness, self.canvas.step
        drafts, self.drafts = self.drafts, []
        for index, (token, q) in enumerate(drafts):
            place = int(self.order[self.decoded])
            p = self._distribution(logits[index], place)
            if self.context.distributions.greedy:
                found = p.argmax()
            else:
                found = verified(p, q, token, place, root, randomness)
            self._put(place, logits[index], p, found)
            if found != token:
                return index
        return len(drafts) - 1

    def _distribution(self, row: LogitArray, place: int) -> Distribution:
        # Under what is decoded now. Drafted places may have none left: zeros.
        context, canvas, places = self.context, self.canvas, np.array([place])
        hold = context.options.ending == "hold"
        scores = context.distributions.scores(row[None], canvas, places, hold=hold)
        if self._constraint is not None:
            constrain(scores, places, canvas, self._constraint)
        if place == self.order[self.decoded]:
            peak_of(scores[0])
        return from_dense(context.distributions(scores)[0])

    def _pick(self, distribution: Distribution, draw: Draw) -> int:
        if self.context.distributions.greedy:
            return distribution.argmax()
        return self.context.request.randomness.choice(distribution.probs, draw)

    def _put(self, place: int, row: LogitArray, distribution: Distribution, token: int) -> None:
        self.canvas.put(place, token, float(np.log(distribution.prob(token))))
        self.decoded += 1
        top = self.context.request.params.logprobs
        if top is not None:
            self.logprobs[place] = logprobs(row, token, top)
