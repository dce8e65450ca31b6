"""SWIFT (Xia et al. 2024, arXiv:2410.06916): draft with sub-layers skipped, and search which.

The paper also verifies runner-ups of each token, leaves beside the chain: `runners`. None by
default, since rows are not free on a CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np

from paceline.core.options import require, within
from paceline.core.target import Half, Layer, Output, Rows, Target
from paceline.core.types import BoolArray, Budget, LogitArray, TokenTree
from paceline.errors import InvalidOption, OutOfMemory
from paceline.methods.layers.chains import GrowingChain, SelfDrafter
from paceline.methods.layers.search import MaskSearch
from paceline.sampling.generation import Generation, VerifiedDraft
from paceline.sampling.sampler import top_k_ids

_HALVES: tuple[Half, Half] = ("attention", "feed-forward")


class Swift(SelfDrafter):
    """Skip attention and feed-forward blocks, never of the first and last layer.

    While the search lasts, a step ends with a trial: one pass of the sub-layers that a mask leaves
    over the last tokens of a text. Its score, the matchness, is the share of tokens that their
    argmax meets. One search serves all texts.
    """

    name: ClassVar[str] = "swift"
    requires = "runtime cpu or torch"
    paper = "after SWIFT, Xia et al. 2024, arXiv:2410.06916"
    proof = "paceline.methods.layers.tables:SWIFT"

    def __init__(
        self,
        target: Target,
        layers: int,
        needs_q: bool = False,
        *,
        skip: float = 0.45,
        stop: float = 0.8,
        window: int = 32,
        pause: int = 1,
        trials: int = 1000,
        patience: int = 300,
        enough: float = 0.95,
        bayes: int = 25,
        seed: int = 0,
        runners: int = 0,
    ) -> None:
        """Set the search; the defaults are the paper's.

        Args:
            target: drafts and verifies.
            layers: of the target, 3 or more.
            needs_q: see `SelfDrafter`.
            skip: share of the sub-layers between first and last layer to skip.
            stop: a token that is less probable is the last of its draft.
            window: tokens of a trial.
            pause: steps from one trial to the next.
            trials: most trials; 0 keeps every second layer.
            patience: trials without a better mask that end the search.
            enough: matchness that ends it.
            bayes: of so many trials one is chosen by the Gaussian process.
            seed: of the search.
            runners: tokens verified beside each of the chain, as far as the budget goes.

        Raises:
            InvalidOption: a value is out of range, the target has too few layers, or runner-ups
                are for a rule that takes draws.
        """
        super().__init__(target, layers, needs_q)
        require(layers >= 3, "layers", layers, "3 or more: no layer is left to skip")
        for name, share in (("skip", skip), ("stop", stop), ("enough", enough)):
            within(name, share, 0, 1)
        for name, count in (("window", window), ("pause", pause), ("bayes", bayes)):
            require(count >= 1, name, count, "1 or more")
        require(trials >= 0 and seed >= 0, "trials and seed", (trials, seed), "0 or more")
        require(runners >= 0, "runners", runners, "0 or more")
        if runners and needs_q:
            raise InvalidOption("runner-ups are not drawn: use verifier 'coupled', or runners=0")
        self._runners, self._room = runners, dict[int, int]()
        self._found: dict[int, list[LogitArray]] = {}
        self._places = [(i, half) for i in range(1, layers - 1) for half in _HALVES]
        self._skip, self._stop, self._window, self._pause = skip, stop, window, pause
        self._settings = {"seed": seed, "every": bayes, "enough": enough, "patience": patience}
        self._trials = trials
        self.reset()

    def reset(self) -> None:
        count = round(self._skip * len(self._places))
        # Every second layer, and of fewer or more the nearest number of sub-layers.
        order = sorted(range(len(self._places)), key=lambda at: self._places[at][0] % 2)
        first = np.zeros(len(self._places), dtype=np.bool_)
        first[order[:count]] = True
        self.search = MaskSearch(first, limit=self._trials, **self._settings)  # type: ignore[arg-type]
        self._steps = 0

    def layers_without(self, mask: BoolArray) -> tuple[Layer, ...]:
        """Return the sub-layers left by a mask over those between the first and last layer."""
        skipped = {place for place, off in zip(self._places, mask, strict=True) if off}
        every = ((index, half) for index in range(self._count) for half in _HALVES)
        return tuple(place for place in every if place not in skipped)

    def _layers(self, sequence: Generation) -> tuple[Layer, ...]:
        return self.layers_without(self.search.best)

    def _stops(self, chain: GrowingChain, chance: float) -> bool:
        return chance < self._stop

    def propose(
        self, sequences: Sequence[Generation], budgets: Sequence[Budget]
    ) -> list[TokenTree]:
        for sequence, budget in zip(sequences, budgets, strict=True):
            self._room[sequence.id], self._found[sequence.id] = budget.nodes, []
        try:
            return super().propose(sequences, budgets)
        finally:
            self._found.clear()
            self._room.clear()

    def _logits(
        self, chains: Sequence[GrowingChain], found: Sequence[Output]
    ) -> Sequence[LogitArray]:
        rows = super()._logits(chains, found)
        for chain, logits in zip(chains, rows, strict=True):
            self._found[chain.sequence.id].append(logits.copy())
        return rows

    def _draft(self, chain: GrowingChain) -> TokenTree:
        draft, known = super()._draft(chain), self._found[chain.sequence.id]
        room = self._room[chain.sequence.id] - len(draft)
        if draft.scores is None or self._runners < 1 or room < 1:
            return draft
        beside: list[tuple[float, int, int]] = []
        for node, (token, logits) in enumerate(zip(chain.tokens, known, strict=False)):
            chances = np.exp(logits - logits.max())
            above = float(draft.scores[node - 1]) if node else 1.0
            best = [
                each for each in top_k_ids(chances, self._runners + 1).tolist() if each != token
            ]
            for each in best[: self._runners]:
                beside.append((above * float(chances[each] / chances.sum()), node - 1, each))
        beside = sorted(beside, key=lambda each: -each[0])[:room]
        scores, parents, tokens = map(list, zip(*beside, strict=True))
        return replace(
            draft,
            tokens=np.append(draft.tokens, tokens),
            parents=np.append(draft.parents, parents),
            scores=np.append(draft.scores, scores),
        )

    def observe(self, step: Sequence[VerifiedDraft]) -> None:
        self._steps += 1
        if self.search.done or self._steps % self._pause:
            return
        sequences = (each.sequence for each in step)
        known = [each for each in sequences if len(each.generated) > self._window]
        if not known:
            return
        mask = self.search.propose()
        sequence = known[self._steps % len(known)]
        try:
            score = self.matchness(sequence, mask)
        except OutOfMemory:
            return
        self.search.observe(mask, score)

    def matchness(self, sequence: Generation, mask: BoolArray) -> float:
        """Return the share of the last tokens that are the argmax without the masked sub-layers.

        Every token is predicted from the real ones before it: those before the window as the whole
        target has cached them. The cache does not change. Raises OutOfMemory.
        """
        root = len(sequence.tokens) - 1
        begin = max(0, root - self._window)
        copy = self._target.fork(sequence.cache)
        try:
            self._target.truncate(copy, begin)
            rows = Rows.draft(copy, sequence.tokens[begin:root], wanted=np.arange(root - begin))
            [found] = self._target.forward([rows], self.layers_without(mask))
            hits = found.logits.argmax(axis=1) == np.array(sequence.tokens[begin + 1 : root + 1])
        finally:
            self._target.release(copy)
        return float(hits.mean())
