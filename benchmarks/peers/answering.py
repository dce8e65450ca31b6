"""The answering side of the audit's JSON lines, for scripts that run in an engine's environment.

Standard library only: nothing of paceline is installed there. The protocol is described in
docs/audit.md. Whatever the engine itself prints goes to standard error.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

Continuations = tuple[list[list[int]], int | None]
"""Tokens for each seed, and how many of all these had been drafted, if that is known."""

Distribution = list[tuple[int, float]]
"""Token ids with their probabilities."""

Timing = dict[str, Any]
"""The answer to a request of the kind "time", as docs/audit.md describes it."""

LEAST = 1e-6
"""Tokens that are less likely are left out of laws."""


def options(
    description: str,
    *,
    models: bool = True,
    tokens: int | None = None,
    context: int | None = 2048,
) -> argparse.ArgumentParser:
    """What every engine is started with; those that draft with a model have `models`."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True, help="GGUF file")
    parser.add_argument("--files", type=Path, required=True, help="folder for files made here")
    if models:
        parser.add_argument("--draft", choices=("prompt-lookup", "model"), default="prompt-lookup")
        parser.add_argument("--draft-model", type=Path, help="GGUF file; default: a coarse copy")
    parser.add_argument("--tokens", type=int, default=tokens, help="tokens of a draft")
    parser.add_argument("--context", type=int, default=context, help="longest prompt and text")
    parser.add_argument("--threads", type=int, help="of the processor; default: the engine's own")
    parser.add_argument("--batch", type=int, default=1, help="prompts together")
    parser.add_argument("--plain", action="store_true", help="load nothing that drafts")
    parser.add_argument("--drafts", action="store_true", help="load only what drafts")
    return parser


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
    distribution: Callable[[list[int], float], Distribution | None],
    timing: Callable[..., Timing] | None = None,
    batch: Callable[..., Timing] | None = None,
    logits: Callable[..., int] | None = None,
) -> None:
    """Answer requests until the input ends; an engine that raises has no answer, and says why.

    Args:
        lines: from `claim_output`.
        about: names, versions and settings.
        continuations: called with prompt, speculation, temperature, tokens and seeds by name.
        law: called with prompt and temperature.
        timing: called with prompt, speculation and tokens by name, from engines that know when
            their first token came; the others are timed from outside.
        batch: called with prompts, speculation and tokens by name, from engines that answer
            several prompts together; what `Arrivals.timing` gives.
        logits: called with tokens and path by name: writes float32 `[tokens, vocabulary]` there, as
            `numpy.save` does, and returns the number of rows.
    """
    timing = timing or timed_by_difference(continuations)

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
                answer = {
                    "law": distribution(request["law"]["prompt"], request["law"]["temperature"])
                }
            elif "time" in request:
                answer = timing(**request["time"])
            elif "batch" in request and batch is not None:
                answer = batch(**request["batch"])
            elif "logits" in request and logits is not None:
                answer = {"rows": logits(**request["logits"])}
            else:
                answer = {"error": f"no request of this kind: {sorted(request)}"}
        except Exception as error:
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        say(answer)


def timed_by_difference(continuations: Callable[..., Continuations]) -> Callable[..., Timing]:
    """Times an engine that only gives whole answers: less the time of an answer of one token."""

    def timing(prompt: list[int], speculation: bool, tokens: int) -> Timing:
        def clocked(count: int) -> tuple[list[int], float]:
            begun = time.perf_counter()
            rows, _ = continuations(prompt, speculation, 0.0, count, [0])
            return rows[0], time.perf_counter() - begun

        clocked(1)  # a prefix cache shall hold the prompt for both of the others, or for neither
        _, first = clocked(1)
        out, seconds = clocked(tokens)
        return {"tokens": out, "seconds": seconds, "first_seconds": first, "timed": "difference"}

    return timing


def law_of(logits: Any, temperature: float) -> Distribution:
    """The law of a row of logits, or of log-probabilities of all tokens by id, in a table."""
    import numpy as np

    table = logits if isinstance(logits, dict) else dict(enumerate(logits))
    ids = list(table)
    scaled = np.asarray(list(table.values()), dtype=np.float64) / temperature
    weights = np.exp(scaled - scaled.max())
    probs = weights / weights.sum()
    return [(int(ids[place]), float(probs[place])) for place in np.flatnonzero(probs > LEAST)]
