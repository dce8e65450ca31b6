"""The answering side of the audit's JSON lines, for scripts that run in an engine's environment.

Standard library only: nothing of paceline is installed there. The protocol is described in
docs/audit.md. Whatever the engine itself prints goes to standard error.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any, TextIO

Continuations = tuple[list[list[int]], int | None]
"""Tokens for each seed, and how many of all these had been drafted, if that is known."""

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
    continuations: Callable[..., Continuations],
    law: Callable[[list[int], float], Law | None],
) -> None:
    """Answer requests until the input ends; an engine that raises has no answer, and says why.

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
        try:
            if "continue" in request:
                tokens, accepted = continuations(**request["continue"])
                answer: dict[str, Any] = {"tokens": tokens, "accepted": accepted}
            elif "law" in request:
                answer = {"law": law(request["law"]["prompt"], request["law"]["temperature"])}
            else:
                answer = {"error": f"no request of this kind: {sorted(request)}"}
        except Exception as error:
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        say(answer)


def law_of(logits: Any, temperature: float) -> Law:
    """The law of a row of logits, or of log-probabilities of all tokens by id, in a table."""
    import numpy as np

    table = logits if isinstance(logits, dict) else dict(enumerate(logits))
    ids = list(table)
    scaled = np.asarray(list(table.values()), dtype=np.float64) / temperature
    weights = np.exp(scaled - scaled.max())
    probs = weights / weights.sum()
    return [(int(ids[place]), float(probs[place])) for place in np.flatnonzero(probs > LEAST)]
