"""Tokens of the Declaration of Human Rights by language and vocabulary, beside English.

    python -m benchmarks.tokens.texts --out tokens
    python -m benchmarks.tokens.premiums --texts tokens --model smollm2-135m --record NAME

A premium is tokens of a language over tokens of English for the same text (2305.15425,
2510.21909).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

from benchmarks.script import Findings, add_output, run_script
from benchmarks.tokens.texts import CODES

from paceline.errors import PacelineError
from paceline.lab.measure import premium, results
from paceline.models.gguf import GGUFFile
from paceline.models.source import resolve
from paceline.models.text import Tokenizer
from paceline.models.tokenizer import tokenizer_from_directory, tokenizer_from_gguf


def vocabularies(folder: Path, models: Sequence[str]) -> dict[str, Tokenizer]:
    """Return tokenizers by name: of models, then of a folder, without those that are refused."""
    found = {source.name: source.tokenizer() for source in map(resolve, models)}
    for path in sorted(folder.iterdir()):
        try:
            found[path.stem] = (
                tokenizer_from_directory(path, ())
                if path.is_dir()
                else tokenizer_from_gguf(GGUFFile(path))
            )
        except PacelineError as error:
            print(f"left out: {error}", file=sys.stderr)
    return found


def premiums(
    texts: Mapping[str, str], tokenizers: Mapping[str, Tokenizer]
) -> dict[str, dict[str, float]]:
    """Return premiums by vocabulary and language; the first text is the reference.

    Of two vocabularies that are alike in all of them the first stands.
    """
    first = next(iter(texts))
    out: dict[str, dict[str, float]] = {}
    for name, tokenizer in tokenizers.items():
        counts = {code: premium.cost(tokenizer, text).tokens for code, text in texts.items()}
        each = {code: round(count / counts[first], 3) for code, count in counts.items()}
        if each not in out.values():
            out[name] = each
    return out


def read_texts(folder: Path) -> dict[str, str]:
    """Return texts by code, English first; raises PromptError as `read_language` does."""
    return {code: premium.read_language(folder / f"{code}.txt") for code in CODES}


def table(
    found: Mapping[str, Mapping[str, float]], shown: Sequence[str]
) -> list[list[results.Cell]]:
    """Return a row by language: median, least and most of all vocabularies, and some of them."""
    rows: list[list[results.Cell]] = []
    for code in CODES[1:]:
        each = {name: by[code] for name, by in found.items()}
        least, most = min(each, key=each.__getitem__), max(each, key=each.__getitem__)
        rows.append(
            [
                code,
                round(median(each.values()), 2),
                f"{each[least]:.2f} ({least})",
                f"{each[most]:.2f} ({most})",
                *(round(each[name], 2) for name in shown),
            ]
        )
    return rows


def findings(given: argparse.Namespace) -> Findings:
    """Count, and put it as a table."""
    tokenizers = vocabularies(given.texts / "vocabularies", given.model)
    found = premiums(read_texts(given.texts / "texts"), tokenizers)
    shown = list(found)[: len(given.model)]
    return Findings(
        title=f"Premiums of {len(CODES) - 1} languages over {len(found)} vocabularies",
        topic="tokens",
        command="python -m benchmarks.tokens.premiums --texts tokens",
        columns=["language", "median", "least", "most", *shown],
        rows=table(found, shown),
        data=found,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Count, print a table or JSON, and write --record."""
    parser = argparse.ArgumentParser(prog="premiums", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--texts", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--model", action="append", default=[], help="counted too, and shown")
    add_output(parser)
    return run_script(parser, findings, argv)


if __name__ == "__main__":
    sys.exit(main())
