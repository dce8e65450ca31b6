"""Forwards over passes: laid out as rows, run, and every pass given what is its own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paceline import tree as trees
from paceline.errors import OutOfMemory
from paceline.runtimes.openvino_batch import Batch
from paceline.runtimes.openvino_profile import Counted
from paceline.runtimes.openvino_steps import Outcome, Steps
from paceline.runtimes.paged_cache import PagedCache
from paceline.target import Output, Pass
from paceline.types import LogitArray

_CHUNK = 512
"""Prompt tokens per prefill pass."""


class Forwards:
    """Runs passes by `Steps`.

    Attributes:
        seconds: what the last forward took, inputs and outputs left out.
    """

    def __init__(self, steps: Steps, hidden_size: int) -> None:
        """For a model of that width."""
        self.seconds = 0.0
        self._steps = steps
        self._hidden_size = hidden_size

    def prefill(
        self, cache: PagedCache, tokens: Sequence[int], features: bool = False
    ) -> LogitArray | None:
        """Append `tokens` in chunks. Where chunks end does not change a bit of the cache."""
        seen = [np.zeros((0, 4 * self._hidden_size), dtype=np.float32)]
        for start in range(0, len(tokens), _CHUNK):
            chunk = list(tokens[start : start + _CHUNK])
            batch = self._steps.batch()
            first = batch.add(cache, chunk, trees.EMPTY)
            batch.logit_rows.append(first)  # the LM head needs a row; its result is not used
            if features:
                batch.feature_rows += range(first, first + len(chunk))
            outcome = self._run(batch)
            cache.length += len(chunk)
            if features:
                seen.append(outcome.output("features").copy())
        return np.concatenate(seen) if features else None

    def forward(self, passes: Sequence[Pass], rows: int) -> list[Output]:
        """One ragged forward, padded as if of `rows` rows at least. Logits and features are views
        that the next forward overwrites."""
        if not passes:
            return []
        batch, spans = self._batch(passes, rows)
        outcome = self._run(batch)
        logits = outcome.output("logits")
        hidden = outcome.output("hidden") if any(each.hidden for each in passes) else None
        features = outcome.output("features") if batch.feature_rows else None
        likeliest = outcome.likeliest()
        return [
            Output(
                logits[rows],
                hidden[rows].copy() if each.hidden and hidden is not None else None,
                features[read] if each.features and features is not None else None,
                likeliest[rows] if each.likeliest else (),
            )
            for each, (rows, read) in zip(passes, spans, strict=True)
        ]

    def counted(self, passes: Sequence[Pass], runs: int) -> Counted:
        """Repeat a forward on an instance whose nodes count their time; it commits nothing."""
        return self._steps.counted(self._batch(passes, 0)[0], runs)

    def _batch(self, passes: Sequence[Pass], rows: int) -> tuple[Batch, list[tuple[slice, slice]]]:
        """The inputs of a forward, and what `_add` says of each pass."""
        batch = self._steps.batch()
        try:
            spans = [_add(batch, each) for each in passes]
        except OutOfMemory:
            for each in passes:  # their branches would keep others from trying with less
                each.cache.discard()
            raise
        self._steps.pad(batch, rows)
        return batch, spans

    def _run(self, batch: Batch) -> Outcome:
        outcome = self._steps.run(batch)
        self.seconds = outcome.seconds
        return outcome


def _add(batch: Batch, each: Pass) -> tuple[slice, slice]:
    """Add one pass's rows to the batch.

    Returns:
        Which rows of the logits and of the features are the pass's.
    """
    logits, features = len(batch.logit_rows), len(batch.feature_rows)
    draft = each.draft or trees.EMPTY
    first = batch.add(each.cache, each.pending, draft)
    last, behind = first + len(each.pending) - 1, first + len(each.pending) + len(draft)
    batch.logit_rows += range(last, behind)
    if each.features:
        batch.feature_rows += range(first, behind)
    batch.likeliest = batch.likeliest or each.likeliest
    return slice(logits, len(batch.logit_rows)), slice(features, len(batch.feature_rows))
