"""What a step costs as its context grows, plain and drafted, by precision of the key-value cache.

    python benchmarks/context.py --out results
    python benchmarks/context.py --contexts 256,1024 --kv fp32,fp16 --rounds 2

A plain step brings one token. A drafted step brings between one and all of its rows, so both ends
are given, and how many tokens it must bring to be worth its price. Beside the times: what a token's
keys and values take, stated and seen, the largest difference between logits of drafted and of plain
steps (0: drafts change nothing, at that length either), and what rounding the cache does to the
distribution of the next token (KL against fp32, in nats, over 32 tokens of text). Precisions take
turns.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from paceline.core import tree
from paceline.core.target import Pass, Target
from paceline.core.types import LogitArray
from paceline.errors import InvalidOption, PacelineError
from paceline.measure.machine import dumps, machine
from paceline.measure.prompts import BUILT_IN
from paceline.measure.report import aligned
from paceline.registry.loading import load_model

CONTEXTS = (128, 256, 512, 1024, 2048, 4096, 8152)
REPEATS = 5
"""Forwards of one kind in a row, of which the first is not counted."""
JUDGED = 32
"""Tokens of text by which distributions are compared."""
REFERENCE = "fp32"

Row = dict[str, Any]


def measure(
    targets: Mapping[str, Target],
    text: Sequence[int],
    contexts: Sequence[int],
    rows: int,
    rounds: int,
) -> list[Row]:
    """A row per context and target.

    Args:
        targets: by precision of their caches.
        text: token ids; repeated to the length needed.
        contexts: tokens cached, ascending.
        rows: of a drafted step.
        rounds: turns of every target at every context.

    Raises:
        InvalidOption: a context leaves no room for the steps.
    """
    room = min(target.capabilities.max_context for target in targets.values())
    if contexts[-1] + max(rows, JUDGED) > room:
        raise InvalidOption(
            f"context {contexts[-1]} and a step do not fit into {room} tokens: use at most "
            f"{room - max(rows, JUDGED)}"
        )
    tokens = np.resize(np.asarray(text, dtype=np.int64), room).tolist()
    for target in targets.values():
        target.warm_up()
    caches = {name: target.open() for name, target in targets.items()}
    names = list(targets)
    out = []
    for context in contexts:
        filled = {
            name: _fill(targets[name], cache, tokens, context) for name, cache in caches.items()
        }
        times: dict[tuple[str, int], list[float]] = {
            (name, size): [] for name in targets for size in (1, rows)
        }
        for turn in range(rounds):
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                for size in (1, rows):
                    chain = tree.chain(tokens[context + 1 : context + size])
                    times[name, size] += _times(targets[name], caches[name], tokens[context], chain)
        distributions = {
            name: _distributions(targets[name], caches[name], tokens[context:]) for name in targets
        }
        for name, target in targets.items():
            plain, drafted = median(times[name, 1]), median(times[name, rows])
            out.append(
                {
                    "kv_precision": name,
                    "context": context,
                    "rows": rows,
                    "plain_ms": 1000 * plain,
                    "drafted_ms": 1000 * drafted,
                    "drafted_ms_per_row": 1000 * drafted / rows,
                    "worth_from": drafted / plain,
                    **filled[name],
                    "drafted_difference": _difference(target, caches[name], tokens[context:], rows),
                    "kl_to_fp32": _kl(distributions[REFERENCE], distributions[name])
                    if REFERENCE in distributions
                    else None,
                }
            )
    for name, cache in caches.items():
        targets[name].release(cache)
    return out


def _fill(target: Target, cache: Any, tokens: Sequence[int], context: int) -> dict[str, Any]:
    """Append text up to `context` tokens; what that took for each token."""
    first, before, begin = cache.length, _resident(), perf_counter()
    target.prefill(cache, tokens[first:context])
    added = context - first
    grown = None if before is None else (_resident() or 0) - before
    return {
        "prefill_ms_per_token": 1000 * (perf_counter() - begin) / added,
        # At first, memory that every forward needs comes with it.
        "seen_bytes_per_token": None if first < 512 or grown is None else grown / added,
    }


def _resident() -> int | None:
    """Bytes of this process in memory; None where the system does not say."""
    gc.collect()
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return None


def _times(target: Target, cache: Any, root: int, chain: tree.TokenTree) -> list[float]:
    """Seconds of forwards that commit nothing."""
    out = []
    for _ in range(REPEATS):
        begin = perf_counter()
        target.forward([Pass(cache, [root], chain)])
        out.append(perf_counter() - begin)
    return out[1:]


def _distributions(target: Target, cache: Any, tokens: Sequence[int]) -> LogitArray:
    """Logits after each of the first `JUDGED` tokens, from one pass."""
    [output] = target.forward([Pass(cache, tokens[:1], tree.chain(tokens[1:JUDGED]))])
    return output.logits.copy()


def _difference(target: Target, cache: Any, tokens: Sequence[int], rows: int) -> float:
    """Largest difference of logits between a drafted step and plain ones."""
    [output] = target.forward([Pass(cache, tokens[:1], tree.chain(tokens[1:rows]))])
    drafted, length = output.logits.copy(), cache.length
    worst = 0.0
    for row, token in zip(drafted, tokens, strict=False):
        [output] = target.forward([Pass(cache, [token])])
        worst = max(worst, float(np.abs(output.logits[0] - row).max()))
        target.keep(cache, 1, ())
    target.truncate(cache, length)
    return worst


def _kl(reference: LogitArray, other: LogitArray) -> float:
    """Mean KL(reference || other) per row, in nats."""

    def logs(logits: LogitArray) -> Any:
        wide = logits.astype(np.float64)
        wide -= wide.max(axis=1, keepdims=True)
        return wide - np.log(np.exp(wide).sum(axis=1, keepdims=True))

    p, q = logs(reference), logs(other)
    return max(0.0, float((np.exp(p) * (p - q)).sum(axis=1).mean()))


TITLES = (
    *("kv", "context", "plain ms", "drafted ms", "ms/row", "worth from", "prefill ms/token"),
    *("KiB/token seen", "drafted - plain", "KL to fp32"),
)


def table(found: Sequence[Row]) -> str:
    """The rows for people."""

    def shown(value: float | None, pattern: str) -> str:
        return "-" if value is None else format(value, pattern)

    lines = [list(TITLES)]
    for row in found:
        seen = row["seen_bytes_per_token"]
        lines.append(
            [
                row["kv_precision"],
                str(row["context"]),
                f"{row['plain_ms']:.2f}",
                f"{row['drafted_ms']:.2f}",
                f"{row['drafted_ms_per_row']:.2f}",
                f"{row['worth_from']:.2f} tokens",
                f"{row['prefill_ms_per_token']:.2f}",
                shown(None if seen is None else seen / 1024, ".1f"),
                f"{row['drafted_difference']:.2g}",
                shown(row["kl_to_fp32"], ".2g"),
            ]
        )
    return aligned(lines)


def plot(found: Sequence[Row], path: Path) -> bool:
    """Milliseconds by context as SVG; False without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    figure = Figure((6, 3.6), layout="constrained")
    axes = figure.add_subplot()
    colours = {"fp32": "#0b84c6", "fp16": "#d95f02"}
    for name in dict.fromkeys(row["kv_precision"] for row in found):
        mine = [row for row in found if row["kv_precision"] == name]
        where = [row["context"] for row in mine]
        for kind, line in (("plain", "-"), ("drafted", "--")):
            label = f"{name}, {kind}" + (f" ({mine[0]['rows']} rows)" if kind == "drafted" else "")
            values = [row[f"{kind}_ms"] for row in mine]
            axes.plot(where, values, line, marker="o", color=colours[name], label=label)
    axes.set_xscale("log", base=2)
    axes.set_xticks([row["context"] for row in found], [str(row["context"]) for row in found])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.set_xlabel("tokens of context")
    axes.set_ylabel("ms per step")
    axes.grid(alpha=0.25)
    axes.legend(frameon=False)
    figure.savefig(path, format="svg", metadata={"Date": None})
    return True


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, and write --out."""
    parser = argparse.ArgumentParser(prog="context", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--contexts", default=",".join(map(str, CONTEXTS)), help="ascending")
    parser.add_argument("--kv", default="fp32,fp16", help="precisions of the cache")
    parser.add_argument("--precision", help="of weights; default: as the model's file has them")
    parser.add_argument("--rows", type=int, default=8, help="of a drafted step, 2 or more")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--out", type=Path, help="folder for context.json and context.svg")
    parser.add_argument("--json", action="store_true", help="print results as JSON")
    given = parser.parse_args(argv)
    try:
        contexts = [int(part) for part in given.contexts.split(",")]
        if contexts != sorted(set(contexts)) or contexts[0] < 1:
            raise InvalidOption(f"--contexts {given.contexts} must ascend from 1 or more")
        if given.rows < 2 or given.rounds < 1:
            raise InvalidOption("--rows must be 2 or more and --rounds 1 or more")
        loaded = {
            kv: load_model(
                given.model,
                precision=given.precision,
                threads=given.threads,
                kv_precision=kv,
            )
            for kv in given.kv.split(",")
        }
        text = next(iter(loaded.values())).tokenizer.encode(
            "\n\n".join(turn for prompt in BUILT_IN for turn in prompt.turns)
        )
        targets = {kv: each.target for kv, each in loaded.items()}
        found = measure(targets, text, contexts, given.rows, given.rounds)
    except (PacelineError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    caches = {
        kv: {
            "bytes_per_token": target.capabilities.kv_bytes_per_token,
            "mib_at_8192": target.capabilities.kv_bytes_per_token * 8192 / 2**20,
            "bit_exact": target.capabilities.bit_exact,
        }
        for kv, target in targets.items()
    }
    settings = {
        "model": given.model,
        "precision": given.precision,
        "threads": given.threads,
        "rounds": given.rounds,
    }
    results = {"settings": settings, "machine": machine(), "caches": caches, "rows": found}
    if given.out is not None:
        given.out.mkdir(parents=True, exist_ok=True)
        (given.out / "context.json").write_text(dumps(results, indent=1) + "\n", encoding="utf-8")
        if not plot(found, given.out / "context.svg"):
            print("no plot: pip install 'paceline[report]'", file=sys.stderr)
    if given.json:
        print(dumps(results, indent=1))
        return 0
    print(table(found))
    for kv, about in caches.items():
        exact = "bit-exact" if about["bit_exact"] else "not bit-exact"
        print(
            f"{kv}: {about['bytes_per_token'] / 1024:.1f} KiB a token, "
            f"{about['mib_at_8192']:.0f} MiB at 8192 tokens; drafts are {exact}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
