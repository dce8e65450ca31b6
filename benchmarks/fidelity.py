"""How near the next-token distributions of paceline and llama.cpp are, over a real text.

    python benchmarks/peers/make.py llama-cpp-python
    python -m benchmarks.fidelity --model FILE.gguf --text docs/exactness.md --reference

Both read the same tokens of the same file. *Top 1* is the share of positions where the most
probable token is the same; KL is in nats, of paceline's distribution from llama.cpp's; perplexity
is of the text. Both round activations, each in its own way: with --reference each is also compared
with the file's weights in float32, without any rounding of activations (four times the memory).
"""

from __future__ import annotations

import argparse
import gc
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.peers.engines import start
from benchmarks.script import run_script

from paceline.core import tree
from paceline.core.target import Rows, Target
from paceline.core.types import LogitArray
from paceline.errors import EngineFailed, InvalidOption
from paceline.lab.audit.remote import JsonlEngine
from paceline.lab.measure.machine import dumps, machine
from paceline.models.pull import DEFAULT_MODEL
from paceline.models.source import resolve
from paceline.registry.loading import load_model

CHUNK = 64
"""Rows of a pass."""

Figures = dict[str, Any]


def own_logits(target: Target, tokens: Sequence[int]) -> LogitArray:
    """Float32 `[tokens, vocabulary]`: logits after each of the tokens."""
    cache, out = target.open(), []
    for begin in range(0, len(tokens), CHUNK):
        part = tokens[begin : begin + CHUNK]
        [output] = target.forward([Rows.draft(cache, part[:1], tree.chain(part[1:]))])
        out.append(output.logits.copy())
        target.keep(cache, 1, range(len(part) - 1))
    target.release(cache)
    return np.concatenate(out)


def log_probabilities(logits: LogitArray) -> Any:
    """Float64 `[rows, vocabulary]`."""
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    return wide - np.log(np.exp(wide).sum(axis=1, keepdims=True))


def compare(reference: LogitArray, other: LogitArray) -> Figures:
    """How far `other` is from `reference`, row by row."""
    if reference.shape != other.shape:
        raise InvalidOption(f"logits of different shapes: {reference.shape} and {other.shape}")
    same, kls = [], []
    for begin in range(0, len(reference), CHUNK):  # in float64, all rows would take gigabytes
        p, q = (log_probabilities(each[begin : begin + CHUNK]) for each in (reference, other))
        same += (p.argmax(axis=1) == q.argmax(axis=1)).tolist()
        kls += (np.exp(p) * (p - q)).sum(axis=1).clip(min=0).tolist()
    return {
        "rows": len(same),
        "top_1": float(np.mean(same)),
        "kl_mean": float(np.mean(kls)),
        "kl_median": float(np.median(kls)),
        "kl_99": float(np.quantile(kls, 0.99)),
    }


def perplexity(logits: LogitArray, tokens: Sequence[int]) -> float:
    """Of tokens 1 and following, by the rows before them."""
    total = 0.0
    for begin in range(0, len(tokens) - 1, CHUNK):
        told = tokens[begin + 1 : begin + 1 + CHUNK]
        rows = log_probabilities(logits[begin : begin + len(told)])
        total -= float(rows[np.arange(len(told)), told].sum())
    return float(np.exp(total / (len(tokens) - 1)))


def peer_logits(engine: JsonlEngine, tokens: Sequence[int]) -> LogitArray:
    """What an engine writes for a request of the kind "logits"; EngineFailed if it cannot."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "logits.npy"
        engine.ask("logits", {"tokens": list(tokens), "path": str(path)})
        if not path.exists():
            raise EngineFailed("the engine wrote no logits")
        found: LogitArray = np.load(path)
    return found


def measure(given: argparse.Namespace) -> dict[str, Any]:
    """All figures.

    Raises:
        PacelineError: the model or the text cannot be read, or the engine is not there.
    """
    source = resolve(given.model)
    text = "\n\n".join(path.read_text(encoding="utf-8") for path in given.text)
    tokens = source.tokenizer().encode(text)[: given.tokens]
    if len(tokens) < given.tokens:
        raise InvalidOption(f"--text has {len(tokens)} tokens: name more files, or fewer --tokens")
    flags = ("--plain", "--context", str(len(tokens) + CHUNK))
    engine = start("llama-cpp-python", source, given.threads, *flags)
    try:
        peer, about = peer_logits(engine, tokens), engine.about()
    finally:
        engine.close()

    def own(precision: str | None) -> LogitArray:
        loaded = load_model(given.model, precision=precision, threads=given.threads)
        logits = own_logits(loaded.target, tokens)
        del loaded
        gc.collect()
        return logits

    ours = own(given.precision)
    out: dict[str, Any] = {
        "model": source.name,
        "text": [str(path) for path in given.text],
        "tokens": len(tokens),
        "machine": machine(),
        "about": about,
        "paceline_from_llama_cpp": compare(peer, ours),
        "perplexity": {"paceline": perplexity(ours, tokens), "llama.cpp": perplexity(peer, tokens)},
    }
    if given.reference:
        exact = own("fp32")
        out["paceline_from_float32"] = compare(exact, ours)
        out["llama_cpp_from_float32"] = compare(exact, peer)
        out["perplexity"]["float32"] = perplexity(exact, tokens)
    return out


def plain(found: dict[str, Any]) -> str:
    """The figures for people."""
    lines = [f"{found['model']}, {found['tokens']} tokens"]
    for name, figures in found.items():
        if isinstance(figures, dict) and "top_1" in figures:
            lines.append(
                f"{name.replace('_', ' ')}: top 1 {figures['top_1']:.2%}, KL mean "
                f"{figures['kl_mean']:.5f}, median {figures['kl_median']:.5f}, 99% "
                f"{figures['kl_99']:.5f}"
            )
    lines += [f"perplexity, {name}: {value:.4f}" for name, value in found["perplexity"].items()]
    return "\n".join(lines)


def tell(given: argparse.Namespace) -> None:
    """Measure, print, and write --out."""
    if given.tokens < 2:
        raise InvalidOption(f"--tokens must be 2 or more, not {given.tokens}")
    found = measure(given)
    text = dumps(found, indent=1)
    if given.out is not None:
        given.out.write_text(text + "\n", encoding="utf-8")
    print(text if given.json else plain(found))


def main(argv: Sequence[str] | None = None) -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="fidelity", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default=DEFAULT_MODEL, help="a GGUF file, or its short name")
    parser.add_argument("--text", type=Path, nargs="+", required=True, help="files")
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--precision", help="of paceline's weights; default: as the file has them")
    parser.add_argument("--reference", action="store_true", help="compare with float32 as well")
    parser.add_argument("--threads", type=int, default=2, help="of both")
    parser.add_argument("--out", type=Path, help="JSON file")
    parser.add_argument("--json", action="store_true", help="print results as JSON")
    return run_script(parser, tell, argv, faults=(UnicodeDecodeError,))


if __name__ == "__main__":
    sys.exit(main())
