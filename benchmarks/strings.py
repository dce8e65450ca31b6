"""Tokens of random and nasty strings, beside llama.cpp's from the same file.

    python benchmarks/peers/make.py llama-cpp-python
    python -m benchmarks.strings --model FILE.gguf --count 100000

Half of the strings are joined from hard parts (scripts, marks, spaces, digits, contractions,
control characters, special tokens' texts cut in two), half are random characters of all planes.
Special tokens are text on both sides. Where the tokenizer normalises, which llama.cpp does not, it
is given the normalised string.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import unicodedata
from collections.abc import Sequence
from pathlib import Path

from benchmarks.script import run_script

from paceline.lab.audit import named as peers
from paceline.models.source import resolve

PARTS = (
    *("a", "B", "Ab", "aB", "É", "é", "ß", "ʰ", "日本", "한국", "हिन्दी", "ก", "e\u0301", "ǅ", "Ω"),
    *("1", "12", "2345", "٣٤", "½", "Ⅷ", " ", "  ", "\t", "\n", "\r\n", "\n\n", "\u00a0", "\u3000"),
    *("'s", "'LL", "'Re", "'", "don't", ".", "...", "/", "//\n", "!=", "$", "_", "🙂", "\u200d"),
    *("\x7f", "\ufffd", "\U0010ffff", "def f(x):\n    return x", "https://a.b/c?d=1", "<|im_", "▁"),
)
_LLAMA = """
import json, sys
from llama_cpp import Llama
model = Llama(sys.argv[1], vocab_only=True, verbose=False)
for line in sys.stdin:
    found = model.tokenize(json.loads(line).encode(), add_bos=False, special=False)
    print(json.dumps(found))
"""


def strings(count: int, seed: int) -> list[str]:
    """Return `count` strings; no NUL and no surrogates, which the other side's interface lacks."""
    rng = random.Random(seed)

    def character() -> str:
        top = rng.choice((0x7F, 0x7FF, 0xFFFF, 0x10FFFF))
        while 0xD800 <= (code := rng.randint(1, top)) <= 0xDFFF:
            pass
        return chr(code)

    return [
        "".join(rng.choices(PARTS, k=rng.randint(1, 12)))
        if index % 2
        else "".join(character() for _ in range(rng.randint(1, 16)))
        for index in range(count)
    ]


def compare(given: argparse.Namespace) -> None:
    """Print each kind of difference with up to five examples."""
    source = resolve(given.model)
    tokenizer, python = source.tokenizer(), peers.command("llama-cpp-python")[0]
    texts = strings(given.count, given.seed)
    if given.normalise:
        texts = [unicodedata.normalize(given.normalise, text) for text in texts]
    asked = "".join(json.dumps(text) + "\n" for text in texts)
    run = [python, "-c", _LLAMA, str(Path(source.path).resolve())]
    answer = subprocess.run(run, input=asked, capture_output=True, text=True, check=True).stdout
    theirs = [json.loads(line) for line in answer.splitlines()]
    differing = [
        (text, own, other)
        for text, other in zip(texts, theirs, strict=True)
        if (own := list(tokenizer.encode(text))) != other
    ]
    found = {
        "model": source.name,
        "strings": len(texts),
        "differing": len(differing),
        "examples": differing[:5],
    }
    print(json.dumps(found) if given.json else json.dumps(found, indent=1, ensure_ascii=False))


def main(argv: Sequence[str] | None = None) -> int:
    """Compare, and print."""
    parser = argparse.ArgumentParser(prog="strings", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", required=True, help="a GGUF file, or its short name")
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--normalise", choices=("NFC",), help="as the tokenizer does")
    parser.add_argument("--json", action="store_true", help="print results as JSON")
    return run_script(parser, compare, argv)


if __name__ == "__main__":
    sys.exit(main())
