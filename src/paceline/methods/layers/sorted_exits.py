"""S2D (Kavehzadeh et al. 2024, arXiv:2407.01955): one draft model, sorted by exits, that drafts for
several targets.

Each token comes from the first exit that is confident. A deeper segment goes on from the states
that the exit before it left, and fills its keys and values for the tokens that ended earlier.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, ClassVar, Self, cast

import numpy as np

from paceline.core.options import arguments, require, within
from paceline.core.target import Layer, Output, Rows, Target
from paceline.core.types import Capabilities, LogitArray
from paceline.drafters.base import DrafterContext, check_layers
from paceline.drafters.draft_model import DraftModel
from paceline.drafters.resources import Loaded
from paceline.methods.layers.chains import top_probability
from paceline.trees.base import TreeExpansion
from paceline.trees.choice import expansion_for


class Filled:
    """How far the segments of a cache are filled.

    Attributes:
        lengths: by segment, rows with keys and values; the first has all.
        tokens: of the rows that the last segment lacks.
        states: by segment but the last, `[width]` after it for each row that the next one lacks.
    """

    def __init__(self, segments: int, length: int) -> None:
        self.lengths = [length] * segments
        self.tokens: list[int] = []
        self.states: list[list[LogitArray]] = [[] for _ in range(segments - 1)]

    def cut(self, length: int) -> None:
        """Forget rows from `length` on."""
        self.lengths = [min(each, length) for each in self.lengths]
        for begin, rows in zip(self.lengths[1:], self.states, strict=True):
            del rows[length - begin :]
        del self.tokens[length - self.lengths[-1] :]


class SortedModel:
    """What `DraftModel` needs of a model, whose every row takes the first exit that is confident.

    Logits are a function of the tokens alone, and the exit is chosen before any draw.
    """

    def __init__(self, model: Target, exits: Sequence[int], confidence: float) -> None:
        """Bind a model; `exits` are numbers of layers, ascending, the last one all."""
        self._model, self._confidence = model, confidence
        self._segments = [tuple(range(*each)) for each in pairwise((0, *exits))]
        self._filled: dict[int, Filled] = {}  # by the cache's identity
        self.taken = [0] * len(exits)  # rows by exit

    @property
    def capabilities(self) -> Capabilities:
        return self._model.capabilities

    def open(self) -> Any:
        return self._model.open()

    def prefill(self, cache: Any, tokens: Sequence[int]) -> None:
        self._model.prefill(cache, tokens)

    def truncate(self, cache: Any, length: int, hold: bool = False) -> None:
        self._model.truncate(cache, length)

    def release(self, cache: Any) -> None:
        self._filled.pop(id(cache), None)
        self._model.release(cache)

    def keep(self, cache: Any, num_new: int, path: Sequence[int]) -> None:
        """Do nothing: `forward` kept the rows."""

    def forward(self, rows: Sequence[Rows], layers: Sequence[Layer] | None = None) -> list[Output]:
        """Run and keep new tokens, without drafts; return the roots' logits alone."""
        for each in rows:
            self._known(each.cache).tokens.extend(each.tokens)
        logits: dict[int, LogitArray] = {}
        live = list(range(len(rows)))
        for segment in range(len(self._segments)):
            if live:
                found = self._run([rows[at].cache for at in live], segment)
                logits |= zip(live, found, strict=True)
            last = segment + 1 == len(self._segments)
            sure = [at for at in live if last or top_probability(logits[at]) >= self._confidence]
            self.taken[segment] += len(sure)
            live = [at for at in live if at not in sure]
        return [Output(logits[at][None]) for at in range(len(rows))]

    def _known(self, cache: Any) -> Filled:
        # After `truncate`, or a forward that failed, the cache is shorter.
        known = self._filled.setdefault(id(cache), Filled(len(self._segments), cache.length))
        known.cut(cache.length)
        return known

    def _run(self, caches: Sequence[Any], segment: int) -> list[LogitArray]:
        # Logits of the newest rows, after the segment has run over all rows that it lacks.
        rows, known = [], [self._filled[id(each)] for each in caches]
        for cache, each in zip(caches, known, strict=True):
            begin = each.lengths[segment]
            self._model.truncate(cache, begin, hold=True)
            inputs = np.stack(each.states[segment - 1]) if segment else None
            tokens = each.tokens[begin - each.lengths[-1] :]
            rows.append(Rows.draft(cache, tokens, inputs=inputs))
        outputs = self._model.forward(rows, self._segments[segment])
        for cache, each, output in zip(caches, known, outputs, strict=True):
            count = len(output.state)
            self._model.keep(cache, count, ())
            each.lengths[segment] += count
            if segment:
                each.states[segment - 1].clear()
            if segment < len(each.states):
                each.states[segment].extend(output.state.copy())
            else:
                each.tokens.clear()
        return [output.logits[-1].copy() for output in outputs]


class SortedExits(DraftModel):
    """Draft chains with a model of several exits, each token by the first that is confident."""

    name: ClassVar[str] = "s2d"
    requires = (
        "runtime cpu or torch; a model with the same vocabulary (--draft-model), best one that "
        "was trained to exit early (paceline train drafter s2d)"
    )
    paper = "after S2D, Kavehzadeh et al. 2024, arXiv:2407.01955"
    proof = "paceline.methods.layers.tables:SORTED"

    def __init__(
        self,
        model: Target,
        layers: int,
        vocab_size: int,
        growth: TreeExpansion,
        spacing: int = 1,
        confidence: float = 0.6,
        recent: int = 256,
    ) -> None:
        """Bind the draft model.

        Args:
            model: of so many `layers`.
            vocab_size: of the target.
            growth: of chains.
            spacing: an exit lies behind every so many layers, and the last behind all.
            confidence: least probability of an exit's most likely token. One draft model serves
                several targets, each with a confidence of its own.
            recent: as of drafter `draft-model`.

        Raises:
            InvalidOption: another vocabulary, or an option is out of range.
        """
        require(1 <= spacing <= layers, "spacing", spacing, f"from 1 to {layers}")
        within("confidence", confidence, 0, 1)
        self.exits = (*range(spacing, layers, spacing), layers)
        self.model = SortedModel(model, self.exits, confidence)
        super().__init__(cast(Any, self.model), vocab_size, growth, recent)

    @classmethod
    def create(cls, context: DrafterContext, model: Loaded | None = None) -> Self:
        """Load the draft model, if none is given; options are the constructor's.

        Raises:
            InvalidOption: an unknown option, or a verifier that takes no chains.
            RuntimeUnavailable: the draft model's runtime does not run some layers alone.
        """
        given = ("model", "layers", "vocab_size", "growth")
        chosen = arguments(cls, "drafter", context.options, *given)
        growth = expansion_for(context.accepts, "chain")
        small = (model or context.resources.draft_model(cls.name)).target
        check_layers(cls.name, "runs layers of the draft model alone", small.capabilities)
        layers = int(cast(Any, small).config.layers)
        vocabulary = context.target.vocab_size
        return cls(small, layers, vocabulary, growth, **chosen)
