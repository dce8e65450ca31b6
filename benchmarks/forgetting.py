"""Texts that lose their lightest tokens (SpAtten) beside those that lose their oldest.

    python -m benchmarks.forgetting --tokens 1536 --windows 512,256 --record forgetting

A text, the documents of this repository, is read in chunks; what is kept of it has at most a
window, the first tokens and those that leave next. Told are the mean negative log-likelihood of the
tokens behind the place where the smallest window first loses some, in nats; how many of 32 tokens
that a model goes on by, greedily from `--places`, are those of the whole text, up to the first that
is another; and the bytes of keys and values that a forward of one token reads at the end. On torch,
by attention that tells what it pays: time is not measured.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.endless import nats
from benchmarks.script import Findings, add_output, run_script

from paceline.core import tree
from paceline.core.target import LEAVING, SINKS, Rows, room_of, whole
from paceline.errors import InvalidOption
from paceline.lab.measure import results
from paceline.methods.spatten import Leaving, PrunedTarget
from paceline.models.pull import DEFAULT_MODEL
from paceline.models.source import resolve

CHUNK, LONGER = 32, 32
"""Rows of a forward; tokens that a text goes on by."""

COLUMNS = ("kept", "leave", "nats per token", f"agree, of {LONGER}", "KiB read by a token")


def goes_on(target: PrunedTarget, cache: Any, token: int) -> list[int]:
    """Greedy tokens behind one that is not cached; the cache is spent."""
    out = []
    for _ in range(LONGER):
        if cache.window and not room_of(cache):
            target.slide(cache, ())
        [output] = target.forward([Rows.draft(cache, [token])])
        target.keep(cache, 1, ())
        token = int(output.logits[0].argmax())
        out.append(token)
    return out


def read(
    target: PrunedTarget, tokens: Sequence[int], window: int, places: Sequence[int]
) -> tuple[list[float], list[list[int]], int]:
    """Nats of each token but the first, how texts go on, bytes that a token reads at the end."""
    cache, found, texts = target.open(), list[float](), list[list[int]]()
    cache.window = window
    while cache.length < len(tokens) - 1:
        start = cache.length
        size = min(CHUNK - start % CHUNK, len(tokens) - 1 - start)
        if window:
            if not room_of(cache):
                target.slide(cache, tokens[:SINKS])
            size = min(size, room_of(cache))
        part = tokens[start : start + size]
        [output] = target.forward([Rows.draft(cache, part[:1], tree.chain(part[1:]))])
        found += nats(output.logits, tokens[start + 1 : start + size + 1])
        target.keep(cache, 1, range(size - 1))
        if cache.length in places:
            texts.append(goes_on(target, target.fork(cache), tokens[cache.length]))
    before = target.read_bytes
    target.forward([Rows.draft(cache, tokens[-1:])])
    return found, texts, target.read_bytes - before


def measure(given: argparse.Namespace) -> list[list[results.Cell]]:
    """Return the rows of the table.

    Raises:
        InvalidOption: the text is too short, or a window is none.
        PacelineError: the model cannot be loaded.
    """
    windows = [int(each) for each in given.windows.split(",")]
    if any(each < LEAVING or each % LEAVING for each in windows):
        raise InvalidOption(f"--windows {given.windows} must be multiples of {LEAVING}")
    source = resolve(given.model)
    text = "\n\n".join(path.read_text() for path in sorted(Path("docs").glob("*.md")))
    tokens = source.tokenizer().encode(text)[: given.tokens]
    first = whole(min(windows))
    if len(tokens) <= first + CHUNK:
        raise InvalidOption(f"a text of {len(tokens)} tokens loses none: give more --tokens")
    step = (len(tokens) - first) // given.places // CHUNK * CHUNK
    places = [first // CHUNK * CHUNK + step * each for each in range(1, given.places + 1)]
    ways: list[tuple[int, Leaving | None]] = [(0, None)]
    ways += [(window, rule) for window in windows for rule in ("lightest", "oldest")]
    table: list[list[results.Cell]] = []
    expected: list[list[int]] = []
    for window, rule in ways:
        weights = source.weights()
        target = PrunedTarget(source.config, weights, leaving=rule or "lightest")
        found, texts, size = read(target, tokens, window, places)
        expected = expected or texts
        same = [
            len(list(takewhile(lambda pair: pair[0] == pair[1], zip(ours, theirs, strict=True))))
            for ours, theirs in zip(texts, expected, strict=True)
        ]
        kept = f"{SINKS + window} to {whole(window)}" if window else "all"
        table.append(
            [
                kept,
                rule or "-",
                round(mean(found[first:]), 3),
                round(mean(same), 1),
                round(size / 1024),
            ]
        )
        print(*table[-1], file=sys.stderr, flush=True)
    return table


def findings(given: argparse.Namespace) -> Findings:
    """Measure, and put it as a table."""
    return Findings(
        title=f"Tokens that leave by weight, {Path(given.model).stem}",
        topic="long-context",
        command=f"python -m benchmarks.forgetting --model {Path(given.model).name} --tokens "
        f"{given.tokens} --windows {given.windows} --places {given.places}",
        columns=COLUMNS,
        rows=measure(given),
        note=f"A text of {given.tokens} tokens; {LEAVING} leave at once, half of the window "
        f"stays in any case, as do the first {SINKS}. Agreement: tokens up to the first that "
        f"differs from the whole text's, from {given.places} places.",
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, and write --record."""
    parser = argparse.ArgumentParser(prog="forgetting", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default=DEFAULT_MODEL, help="a GGUF file, or its short name")
    parser.add_argument("--tokens", type=int, default=1536)
    parser.add_argument("--windows", default="512,256", help="tokens kept behind the first ones")
    parser.add_argument("--places", type=int, default=6, help="where texts go on")
    add_output(parser)
    return run_script(parser, findings, argv)


if __name__ == "__main__":
    sys.exit(main())
