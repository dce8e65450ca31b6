"""The premium of a language in passes: what drafts give back to those who pay most.

    python -m benchmarks.tokens.passes --texts tokens --model smollm2-135m --record NAME

Each text is continued from its middle, greedily and at temperature 1, by every drafter; a forward
of the target is a pass. The premium in passes is the premium over tokens by forward: a language's
passes with drafts beside the passes of English without. Languages that are measured are kept in
`--out`, and an interrupted run goes on behind them.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.script import GOES_ON, Findings, add_output, run_script
from benchmarks.tokens.premiums import read_texts

from paceline.core.cache import read_text, write_atomically
from paceline.lab.measure import premium
from paceline.lab.measure.machine import dumps
from paceline.registry.loading import load_model, make_engine
from paceline.registry.options import Options

NODES = 7
"""Tokens of a draft at most; `auto` alone sizes its drafts by what they cost on this machine."""
MODES = {"greedy": 0.0, "t=1": 1.0}

_SIZED = ("auto", "none")


def measure(
    options: Options, drafters: Sequence[str], texts: Mapping[str, str], new_tokens: int, out: Path
) -> dict[str, Any]:
    """Return, and keep in `out`, premium and tokens by forward, by language, drafter and mode."""
    found: dict[str, Any] = json.loads(read_text(out, str(out), "")) if out.is_file() else {}
    loaded = load_model(options)
    sizes = {"nodes": NODES, "depth": NODES}
    engines = {
        name: make_engine(
            loaded, options, drafter=name, max_batch=1, **{} if name in _SIZED else sizes
        )
        for name in drafters
    }
    english = premium.cost(loaded.tokenizer, next(iter(texts.values()))).tokens
    for code, text in texts.items():
        each = found.setdefault(
            code, {"premium": premium.cost(loaded.tokenizer, text).tokens / english}
        )
        for name, engine in engines.items():
            for mode, temperature in MODES.items():
                key = f"{name}, {mode}"
                if key not in each:
                    each[key] = premium.tokens_per_forward(engine, [text], new_tokens, temperature)
        write_atomically(out, dumps(found))
        print(f"{code}: " + ", ".join(f"{k} {v:.2f}" for k, v in each.items()), file=sys.stderr)
    return found


def table(found: Mapping[str, Mapping[str, float]], drafters: Sequence[str]) -> list[list[Any]]:
    """Return a row by language: premium, then tokens by forward, then premium in passes of each."""
    keys = [f"{name}, {mode}" for name in drafters for mode in MODES]
    return [
        [code, round(each["premium"], 2)]
        + [f"{each[key]:.2f}, {each['premium'] / each[key]:.2f}" for key in keys]
        for code, each in found.items()
    ]


def findings(given: argparse.Namespace) -> Findings:
    """Measure, and put it as a table."""
    drafters = given.drafters.split(",")
    texts = read_texts(given.texts / "texts")
    found = measure(Options(model=given.model), drafters, texts, given.tokens, given.out)
    return Findings(
        title=f"Premiums in passes on {Path(given.model).stem}",
        topic="tokens",
        command="python -m benchmarks.tokens.passes --texts tokens --model "
        f"{Path(given.model).name}",
        columns=[
            "language",
            "premium",
            *(f"{name}, {mode}" for name in drafters for mode in MODES),
        ],
        rows=table(found, drafters),
        note="A cell is tokens by forward, and the premium over them.",
        data=found,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print a table or JSON, and write --record."""
    parser = argparse.ArgumentParser(prog="passes", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--texts", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--model", required=True)
    parser.add_argument("--drafters", default="auto,suffix-automaton", help="names with commas")
    parser.add_argument("--tokens", type=int, default=96, help="of each continuation")
    parser.add_argument("--out", type=Path, default=Path("passes.json"), help="measured so far")
    add_output(parser)
    return run_script(parser, findings, argv, stopped=GOES_ON)


if __name__ == "__main__":
    sys.exit(main())
