"""Perplexity, speed and memory by position in a text that is longer than what is kept of it.

    python -m benchmarks.endless --model FILE.gguf --tokens 100000 --record endless-1500m

The text is real: the documents of this repository, or --text. Ways: *full* keeps all of it, up to
--full tokens and beyond the trained context; *window* keeps the newest alone; *sinks* also the
first ones, which is what endless texts do; *recomputed* reads the newest tokens again for every
token, the dear way that sinks stand for, at every --every-th token. Each bucket has the mean
negative log-likelihood of its tokens, in nats, the tokens read per second and the tokens cached;
the note below has all ways at the recomputed tokens. With --keep, what was read is kept in a file,
a way at a time, and the same command goes on. With --decode, sinks also go on by so many
tokens from the first bucket that has lost some, and from the last.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from benchmarks.script import Findings, add_output, run_script

from paceline.core import tree
from paceline.core.cache import write_atomically
from paceline.core.target import LEAVING, SINKS, Rows, room_of, whole
from paceline.errors import InvalidOption
from paceline.lab.measure.machine import machine
from paceline.models.pull import DEFAULT_MODEL
from paceline.models.source import ModelSource, resolve
from paceline.runtimes.cpu.target import CpuTarget
from paceline.runtimes.kv_cache import BLOCK, PagedCache

CHUNK = 64
"""Rows of a forward that all have logits."""
WAYS = ("full", "window", "sinks", "recomputed")

Row = dict[str, Any]
Part = tuple[int, list[float], float, int]
"""The end of some tokens, their nats, seconds, and blocks in use."""


def nats(logits: Any, tokens: Sequence[int]) -> list[float]:
    """Negative log-likelihood of each token by its row of logits."""
    wide = logits.astype(np.float64)
    most = wide.max(axis=1, keepdims=True)
    total = np.log(np.exp(wide - most).sum(axis=1)) + most[:, 0]
    return (total - wide[np.arange(len(tokens)), list(tokens)]).tolist()


def forget(target: CpuTarget, cache: PagedCache, tokens: Sequence[int]) -> None:
    """Let the oldest tokens leave, and the first ones with them."""
    blocks = LEAVING // BLOCK
    cache.discard()
    cache.pool.drop(cache.blocks[:blocks])
    del cache.blocks[:blocks]
    cache.gone += LEAVING


def slide(target: CpuTarget, cache: PagedCache, tokens: Sequence[int]) -> None:
    """Let the oldest tokens leave but for the first ones."""
    target.slide(cache, tokens[:SINKS])


def read(
    target: CpuTarget,
    tokens: Sequence[int],
    window: int,
    leave: Callable[[CpuTarget, PagedCache, Sequence[int]], None] | None,
    marks: dict[int, Any],
) -> Iterator[Part]:
    """Read a text in chunks; yield each chunk's end, nats, seconds and the blocks in use.

    Without `leave` all is kept. A copy of the cache is left in `marks` at the places that it names.
    """
    cache = target.open()
    if leave is not None:
        cache.window = window
    while cache.length < len(tokens) - 1:
        begin, start = perf_counter(), cache.length
        size = min(CHUNK, len(tokens) - 1 - start)
        if leave is not None:
            if not room_of(cache):
                leave(target, cache, tokens)
            size = min(size, room_of(cache))
        part = tokens[start : start + size]
        [output] = target.forward([Rows.draft(cache, part[:1], tree.chain(part[1:]))])
        found = nats(output.logits, tokens[start + 1 : start + size + 1])
        target.keep(cache, 1, range(size - 1))
        yield cache.length, found, perf_counter() - begin, len(cache.blocks)
        for mark in [each for each in marks if marks[each] is None and each <= cache.length]:
            marks[mark] = target.fork(cache)
    target.release(cache)


def recomputed(target: CpuTarget, tokens: Sequence[int], window: int, every: int) -> Iterator[Part]:
    """As `read`, for one token in `every`, behind the newest tokens read anew."""
    for end in range(every, len(tokens) - 1, every):
        begin, cache = perf_counter(), target.open()
        part = tokens[max(0, end - window) : end]
        target.prefill(cache, part[:-1])
        [output] = target.forward([Rows.draft(cache, part[-1:])])
        found = nats(output.logits, tokens[end : end + 1])
        blocks = len(cache.blocks)
        target.release(cache)
        yield end, found, perf_counter() - begin, blocks


def decoding(target: CpuTarget, cache: PagedCache, tokens: Sequence[int], count: int) -> float:
    """Tokens per second of going on greedily."""
    known, begin = list(tokens[: cache.length + 1]), perf_counter()
    for _ in range(count):
        if not room_of(cache):
            slide(target, cache, known)
        [output] = target.forward([Rows.draft(cache, known[-1:])])
        known.append(int(output.logits[0].argmax()))
        target.keep(cache, 1, ())
    return count / (perf_counter() - begin)


class _Kept:
    # What was read by way, in a file, which the same command goes on behind.
    def __init__(self, path: Path | None, about: str) -> None:
        self._path, self._about = path, about
        self.ways: dict[str, list[Part]] = {}
        self.decoded: list[tuple[int, float]] = []
        if path is not None and path.is_file():
            of, self.ways, self.decoded = json.loads(path.read_text(encoding="utf-8"))
            if of != about:
                raise InvalidOption(f"--keep {path} is of other settings: name another file")

    def save(self) -> None:
        if self._path is not None:
            write_atomically(self._path, json.dumps([self._about, self.ways, self.decoded]))


def _told(way: str, parts: Iterable[Part], tokens: int) -> list[Part]:
    # All parts, told as they come.
    found = []
    for part in parts:
        found.append(part)
        print(f"{way}: {part[0]} of {tokens}", end="\r", file=sys.stderr)
    print(file=sys.stderr)
    return found


def measure(given: argparse.Namespace, source: ModelSource) -> dict[str, Any]:
    """Read the text in every way.

    Raises:
        InvalidOption: the text is too short, a way unknown, the window does not fit, or what is
            kept is of other settings.
        PacelineError: the model cannot be loaded.
    """
    ways = given.ways.split(",")
    if unknown := sorted(set(ways) - set(WAYS)):
        raise InvalidOption(f"--ways {unknown[0]} is none of {', '.join(WAYS)}")
    if given.window % LEAVING or given.window < LEAVING:
        raise InvalidOption(f"--window {given.window} must be a multiple of {LEAVING}")
    paths = given.text or sorted(Path("docs").glob("*.md"))
    text = "\n\n".join(path.read_text() for path in paths)
    tokens = source.tokenizer().encode(text)[: given.tokens]
    if len(tokens) < given.tokens:
        raise InvalidOption(f"the text has {len(tokens)} tokens: give more, or fewer --tokens")
    trained = source.config.max_context
    most = max(given.full, trained)
    config = replace(source.config, max_context=most)  # its tables go on beyond it
    target = CpuTarget(
        config,
        source.weights(),
        given.precision or source.precision,
        kv_tokens=max(given.full, whole(given.window) * 3) + 1024,
        threads=given.threads,
    )
    target.memory.sharing = False
    places = [whole(given.window) + given.bucket, len(tokens) - 1]
    marks: dict[int, Any] = dict.fromkeys(places if given.decode else ())
    made: dict[str, Callable[[], Iterator[Part]]] = {
        "full": lambda: read(target, tokens[: given.full], given.window, None, {}),
        "window": lambda: read(target, tokens, given.window, forget, {}),
        "sinks": lambda: read(target, tokens, given.window, slide, marks),
        "recomputed": lambda: recomputed(target, tokens, given.window, given.every),
    }
    about = [
        source.fingerprint,
        hashlib.sha256(repr(tokens).encode()).hexdigest(),
        given.precision or source.precision,
    ]
    about += [given.window, given.full, given.every, given.decode]
    kept = _Kept(given.keep, json.dumps(about))
    for way in ways:
        if way in kept.ways:
            continue
        kept.ways[way] = _told(way, made[way](), len(tokens))
        if way == "sinks":
            kept.decoded = [
                (place, decoding(target, cache, tokens, given.decode))
                for place, cache in marks.items()
                if cache is not None
            ]
            for cache in filter(None, marks.values()):
                target.release(cache)  # the next way needs the room
        kept.save()
    buckets: dict[tuple[int, str], Row] = {}
    scores: dict[str, dict[int, float]] = {way: {} for way in ways}
    for way in ways:
        for end, found, seconds, blocks in kept.ways[way]:
            scores[way].update(zip(range(end - len(found) + 1, end + 1), found, strict=True))
            key = (end - 1) // given.bucket, way
            row = buckets.setdefault(
                key,
                {
                    "way": way,
                    "begin": key[0] * given.bucket,
                    "nats": [],
                    "seconds": 0.0,
                    "blocks": 0,
                },
            )
            row["nats"] += found
            row["seconds"] += seconds
            row["blocks"] = max(row["blocks"], blocks)
    rows = [
        {
            "begin": row["begin"],
            "way": row["way"],
            "tokens": len(row["nats"]),
            "nats": float(np.mean(row["nats"])),
            "tokens_per_second": len(row["nats"]) / row["seconds"],
            "cached_tokens": row["blocks"] * BLOCK,
        }
        for _, row in sorted(buckets.items(), key=lambda each: each[0])
    ]
    anew = [at for at in scores.get("recomputed", ()) if at > whole(given.window)]
    return {
        "recomputed_tokens": len(anew),
        "at_recomputed": {
            way: float(np.mean([known[at] for at in anew]))
            for way, known in scores.items()
            if anew and known.keys() >= set(anew)
        },
        "model": source.name,
        "trained_context": trained,
        "settings": {"window": given.window, "tokens": len(tokens), "full": given.full},
        "machine": machine(),
        "decoding": dict(kept.decoded),
        "rows": rows,
    }


COLUMNS = ("from token", "way", "tokens", "nats per token", "perplexity", "tokens cached")


def cells(found: dict[str, Any]) -> list[list[Any]]:
    """Rows of a results table."""
    return [
        [
            row["begin"],
            row["way"],
            row["tokens"],
            round(row["nats"], 3),
            round(math.exp(min(row["nats"], 20.0)), 2),
            row["cached_tokens"],
        ]
        for row in found["rows"]
        if row["way"] != "recomputed"  # of few tokens each: the note has all of them together
    ]


def note(found: dict[str, Any]) -> str:
    """What a table says below itself."""
    asked = found["settings"]
    said = (
        f"A text of {asked['tokens']} tokens; a window of {asked['window']}, {SINKS} sinks. The "
        f"model was trained on contexts of {found['trained_context']}. *full* keeps all, up to "
        f"{asked['full']} tokens; *recomputed* reads the window again for each token that it has."
    )
    if found["at_recomputed"]:
        means = (f"{way} {mean:.3f}" for way, mean in found["at_recomputed"].items())
        said += f" Nats at the {found['recomputed_tokens']} tokens read anew: {', '.join(means)}."
    if found["decoding"]:
        speeds = (f"{speed:.1f} from token {at}" for at, speed in found["decoding"].items())
        said += f" With sinks, tokens decoded per second: {', '.join(speeds)}."
    return said


def findings(given: argparse.Namespace) -> Findings:
    """Measure, and put it as a table."""
    found = measure(given, resolve(given.model))
    return Findings(
        title=f"{found['model']}: perplexity of a text that is longer than what is kept of it",
        topic="long-context",
        command=f"python -m benchmarks.endless --model {Path(given.model).name} --tokens "
        f"{given.tokens} --window {given.window} --full {given.full} --every {given.every} "
        f"--bucket {given.bucket} --ways {given.ways} --decode {given.decode}",
        columns=COLUMNS,
        rows=cells(found),
        note=note(found),
        data=found,
        timed=True,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, and write --record."""
    parser = argparse.ArgumentParser(prog="endless", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default=DEFAULT_MODEL, help="a GGUF file, or its short name")
    parser.add_argument("--precision", help="of the weights; as they are stored by default")
    parser.add_argument("--text", type=Path, nargs="+", help="files; the documents by default")
    parser.add_argument("--tokens", type=int, default=100_000)
    parser.add_argument("--window", type=int, default=2048)
    parser.add_argument("--full", type=int, default=12_000, help="tokens that are kept whole")
    parser.add_argument("--every", type=int, default=256, help="tokens between recomputed ones")
    parser.add_argument("--bucket", type=int, default=1000, help="tokens of a row")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--decode", type=int, default=0, help="tokens to decode for their speed")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--keep", type=Path, metavar="FILE", help="go on from here if stopped")
    add_output(parser)
    return run_script(parser, findings, argv)


if __name__ == "__main__":
    sys.exit(main())
