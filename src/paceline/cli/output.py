"""What commands print: streamed text, dim remarks, strict JSON."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import typer

from paceline.bench.strict_json import dumps
from paceline.cli.interrupt import Interrupt
from paceline.engine import Completion, Engine, Event


def print_json(value: Any) -> None:
    """One JSON object on standard output."""
    typer.echo(dumps(value))


def write(text: str) -> None:
    """Text on standard output at once, escape codes and all."""
    sys.stdout.write(text)
    sys.stdout.flush()


def remark(text: str) -> None:
    """A dim line on standard error."""
    typer.echo(typer.style(text, dim=True), err=True)  # plain where it is no terminal


def follow(
    engine: Engine, request: int, interrupt: Interrupt, show: Callable[[Event], None]
) -> Completion:
    """Step until a request ends or the user interrupts; the completion, cancelled if need be."""
    while not interrupt:
        for event in engine.step():
            if event.request == request:
                show(event)
                if event.completion is not None:
                    return event.completion
    completion = engine.cancel(request)
    assert completion is not None
    return completion


def summary(engine: Engine, completion: Completion) -> str:
    """One line: how fast, and why."""
    stats = completion.stats
    parts = [f"{stats.committed_tokens} tokens at {stats.tokens_per_second:.1f} tokens/s"]
    if stats.target_forwards:
        forwards = f"{stats.block_efficiency:.2f} tokens per forward"
        costs = engine.decoder.controller.costs
        if costs is not None:
            rows = round(1 + stats.drafted_tokens / stats.target_forwards)
            forwards += f" at {costs.c(rows):.2f} times the cost of a plain one"
        parts.append(f"{forwards} ({stats.target_forwards} forwards)")
    if stats.first_token_seconds is not None:
        parts.append(f"first token after {stats.first_token_seconds:.2f} s")
    config = engine.config
    parts.append(" ".join(str(config.get(key)) for key in ("runtime", "precision", "drafter")))
    rule = engine.decoder.verifier
    if not rule.lossless:
        parts.append(f"lossy: verifier {rule.name}")
    if config.get("kv_lossy"):
        parts.append(f"lossy: key-value cache {config['kv_precision']}")
    return "; ".join(parts)
