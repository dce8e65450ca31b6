"""Steps, as drafters and controllers hear of them."""

from collections.abc import Sequence

import numpy as np

from paceline.core import tree as trees
from paceline.core.target import Output
from paceline.core.types import TokenTree, Verdict
from paceline.sampling.generation import Generation, VerifiedDraft


def step_of(
    sequences: Sequence[Generation],
    drafts: Sequence[TokenTree] = (),
    verdicts: Sequence[Verdict] = (),
    outputs: Sequence[Output] = (),
) -> list[VerifiedDraft]:
    """What became of the sequences' drafts; by default they are empty, and outputs of zeros."""
    count = len(sequences)
    drafts = drafts or [trees.EMPTY] * count
    verdicts = verdicts or [Verdict((), 0)] * count
    outputs = outputs or [Output(np.zeros((1 + len(draft), 1), np.float32)) for draft in drafts]
    parts = zip(sequences, drafts, verdicts, outputs, strict=True)
    return [VerifiedDraft(*each) for each in parts]
