"""The answering side of the audit's JSON lines, for scripts that run in an engine's environment.

Standard library only: nothing of paceline is installed there. The protocol is described in
docs/audit.md. Whatever the engine itself prints goes to standard error.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any, TextIO

Law = list[tuple[int, float]]
"""Token ids with their probabilities."""

LEAST = 1e-6
"""Tokens that are less likely are left out of laws."""


def claim_output() -> TextIO:
    """The real standard output; from now on everything else that prints goes to standard error.

    Call it before the engine is imported.
    """
    lines = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return lines


def serve(
    lines: TextIO,
    about: dict[str, str],
    continuations: Callable[..., list[list[int]]],
    law: Callable[[list[int], float], Law | None],
) -> None:
    """Answer requests until the input ends.

    Args:
        lines: from `claim_output`.
        about: names, versions and settings.
        continuations: called with prompt, speculation, temperature, tokens and seeds by name.
        law: called with prompt and temperature.
    """

    def say(answer: dict[str, Any]) -> None:
        lines.write(json.dumps(answer) + "\n")
        lines.flush()

    say({"about": about})
    for line in sys.stdin:
        request = json.loads(line)
        if "continue" in request:
            say({"tokens": continuations(**request["continue"])})
        elif "law" in request:
            say({"law": law(request["law"]["prompt"], request["law"]["temperature"])})
        else:
            say({"error": f"no request of this kind: {sorted(request)}"})


def law_of(logits: Any, temperature: float) -> Law:
    """The law of a row of logits, anything that numpy takes."""
    import numpy as np

    scaled = np.asarray(logits, dtype=np.float64) / temperature
    weights = np.exp(scaled - scaled.max())
    probs = weights / weights.sum()
    return [(int(token), float(probs[token])) for token in np.flatnonzero(probs > LEAST)]
