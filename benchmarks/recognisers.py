"""Recognisers that draft: pages that a model writes down, with a recogniser's text as prediction.

    python -m benchmarks.recognisers pages --texts FOLDER --model MODEL --record NAME
    python -m benchmarks.recognisers words --texts FOLDER --cppd FILE --font A.ttf --other B.ttf

`pages`: no model at hand reads a page, so a text model stands for one that does: the page is in
its prompt, and it is asked to repeat it. What a recogniser would have read is the page with
characters that are changed, lost or added at some rate; with `--cppd` also what that reads of the
page's words, which are drawn one by one and have neither case nor stops. Told are tokens by
forward, and whether the text is that without a prediction; beside stand other drafters, which know
the prompt.

`words`: words of the texts that training holds out, drawn in fonts that were learnt (`--font`) and
in others (`--other`), read by CPPD, by a twin that reads character by character from the same tower
(trained here, `--twin-steps`), and by a real recogniser, PP-OCRv5 (`--pp-ocr`, its ONNX file with
`ppocr_keys_v5.txt` beside it, a class a line, by onnxruntime): right words and milliseconds a word,
one at a time.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import perf_counter

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from paceline.errors import PacelineError
from paceline.lab.measure import results
from paceline.lab.measure.machine import dumps
from paceline.lab.measure.report import aligned
from paceline.lab.training.optimisers import adam, update
from paceline.methods.cppd.recogniser import (
    CLASSES,
    CPPD,
    LONGEST,
    Pictures,
    PostNormLayer,
    load_recogniser,
    spelt,
)
from paceline.methods.cppd.training import Spelling
from paceline.methods.cppd.words import apart, drawn, load_fonts, words_of
from paceline.registry.loading import load_model, make_engine
from paceline.registry.options import Options

RATES = (0.0, 0.02, 0.1, 0.3)
ASK = "Repeat the following text word for word, and nothing else.\n\n{page}"
LETTERS = "abcdefghijklmnopqrstuvwxyz"

Table = tuple[list[str], list[list[results.Cell]], dict[str, results.Cell]]
"""Columns, rows, and figures of the overview."""


def misread(page: str, rate: float, seed: int = 0) -> str:
    """Return a page of which so many characters are changed, lost or followed by another one."""
    rng, out = np.random.default_rng((seed, round(1000 * rate))), []
    for each in page:
        wrong, kind, other = rng.random() < rate, rng.integers(3), LETTERS[rng.integers(26)]
        out.append(("", other, each + other)[kind] if wrong else each)
    return "".join(out)


def pages(given: argparse.Namespace) -> Table:
    """Have a model repeat pages, by what is predicted and by other drafters."""
    options = Options(model=given.model, precision=given.precision, threads=given.threads)
    loaded = load_model(options)
    texts = [each.read_text().strip() for each in sorted(given.texts.glob("*.txt"))][: given.count]
    engines = {
        name: make_engine(loaded, options, drafter=name, max_batch=1, nodes=16, depth=16)
        for name in ("none", *given.drafter)
    }
    ways: dict[str, tuple[str, Callable[[str], str]]] = {
        "alone": ("none", lambda _: ""),
        **{f"drafts of {each}": (each, lambda _: "") for each in given.drafter},
        **{f"read, {rate:.0%} wrong": ("none", _wrong(rate)) for rate in RATES},
    }
    if given.cppd is not None:
        model, fonts = load_recogniser(given.cppd), load_fonts(given.font)

        def read(page: str) -> str:
            return " ".join(model.read(drawn(words_in(page), fonts, [0]).pictures))

        ways["read by CPPD"] = ("none", read)
    alone: list[Sequence[int]] = []
    rows: list[list[results.Cell]] = []
    for way, (name, predicted) in ways.items():
        tokens = forwards = same = 0
        for at, page in enumerate(texts):
            engine = engines[name]
            done = engine.generate(
                engine.tokenizer.prompt(ASK.format(page=page)),
                max_new_tokens=given.tokens,
                prediction=predicted(page),
            )
            alone += [done.token_ids] if way == "alone" else []
            same += done.token_ids == alone[at]
            tokens, forwards = tokens + len(done.token_ids), forwards + done.stats.target_forwards
        rows.append([way, len(texts), same, round(tokens / forwards, 2)])
        print(rows[-1], file=sys.stderr)
    told = "tokens per forward"
    shown = {f"{told}, {row[0]}": row[-1] for row in rows if str(row[0]).startswith("read, ")}
    return ["way", "pages", "the same", told], rows, shown


def _wrong(rate: float) -> Callable[[str], str]:
    return lambda page: misread(page, rate)


def words_in(page: str) -> list[str]:
    """Return the words of a page as CPPD spells them, in order."""
    return [each for word in page.split() for each in words_of(word)[:1]]


class Twin(nn.Module):
    """A decoder that reads the rows of a tower one character after another."""

    def __init__(self, model: CPPD, layers: int = 2) -> None:
        super().__init__()
        width = model.shape.width
        self.embed, self.says = nn.Embedding(CLASSES, width), nn.Linear(width, CLASSES)
        self.places = nn.Parameter(torch.zeros(LONGEST + 1, width))
        self.own, self.look = (
            nn.ModuleList(PostNormLayer(width) for _ in range(layers)) for _ in range(2)
        )

    def forward(self, rows: Tensor, before: Tensor) -> Tensor:
        """Return logits behind each of int64 `[n, characters]`, which begin with the end."""
        x = self.embed(before) + self.places[: before.shape[1]]
        for own, look in zip(self.own, self.look, strict=True):
            x = look(own(x, x, causal=True), rows)
        out: Tensor = self.says(x)
        return out

    @torch.no_grad()
    def read(self, tower: nn.Module, pictures: Pictures) -> list[str]:
        """Return the words of pictures, a pass a character."""
        rows = tower(torch.from_numpy(pictures).float())
        said = torch.zeros(len(pictures), 1, dtype=torch.long)
        while said.shape[1] <= LONGEST and not (said[:, 1:] == 0).any(1).all():
            said = torch.cat([said, self(rows, said)[:, -1:].argmax(-1)], dim=1)
        return [spelt(each) for each in said[:, 1:].tolist()]


def trained_twin(
    model: CPPD, batches: Iterator[tuple[list[str], Pictures]], steps: int, rate: float = 1e-3
) -> Twin:
    """Train a twin over the tower of a recogniser, which stays as it is."""
    torch.manual_seed(0)
    twin = Twin(model)
    rated = [adam(twin.parameters(), rate)]
    for _ in range(steps):
        words, pictures = next(batches)
        right = Spelling.of(words).classes
        with torch.no_grad():
            rows = model.tower(torch.from_numpy(pictures).float())
        before = functional.pad(right[:, :-1].clamp_min(0), (1, 0))
        said = twin(rows, before).flatten(0, 1)
        loss = functional.cross_entropy(said, right.flatten(), ignore_index=-1)
        update(twin.parameters(), rated, loss, 1.0)
    return twin.eval()


def pp_ocr(file: Path, threads: int) -> Callable[[Pictures], list[str]]:
    """Return how PP-OCRv5 reads pictures, one at a time, as words of CPPD's characters."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    keys = ["", *(file.parent / "ppocr_keys_v5.txt").read_text().splitlines()[1:]]

    def read(pictures: Pictures) -> list[str]:
        out = []
        for each in pictures:
            line = torch.from_numpy(each).float()[None, None] / 127.5 - 1
            line = functional.interpolate(line, (48, 192), mode="bilinear").expand(1, 3, -1, -1)
            [said] = session.run(None, {session.get_inputs()[0].name: line.numpy()})
            best = said[0].argmax(-1).tolist()
            kept = [at for at, last in zip(best, [0, *best], strict=False) if at != last]
            text = "".join(keys[at] for at in kept)
            out.append("".join(re.findall("[0-9a-z]", text.casefold())))
        return out

    return read


def words(given: argparse.Namespace) -> Table:
    """Read the same pictures in all ways."""
    torch.set_num_threads(given.threads)
    model, fonts = load_recogniser(given.cppd).eval(), load_fonts(given.font)
    texts = " ".join(each.read_text() for each in sorted(given.texts.glob("*.txt")))
    learnt, held = apart(words_of(texts))

    def batches() -> Iterator[tuple[list[str], Pictures]]:
        rng = np.random.default_rng(1)
        while True:
            some = [learnt[at] for at in rng.integers(len(learnt), size=32)]
            yield some, drawn(some, fonts, [int(rng.integers(1 << 31))]).pictures

    twin = trained_twin(model, batches(), given.twin_steps)
    readers: dict[str, Callable[[Pictures], list[str]]] = {
        "CPPD": model.read,
        "its autoregressive twin": lambda pictures: twin.read(model.tower, pictures),
    }
    if given.pp_ocr is not None:
        readers["PP-OCRv5 (CTC)"] = pp_ocr(given.pp_ocr, given.threads)
    shown = [drawn(held, each, [0]).pictures for each in (fonts, load_fonts(given.other)) if each]
    rows: list[list[results.Cell]] = []
    for name, read in readers.items():
        began = perf_counter()
        found = [[read(each[None])[0] for each in pictures] for pictures in shown]
        spent = 1000 * (perf_counter() - began) / len(held) / len(shown)
        right = [np.mean([a == b for a, b in zip(each, held, strict=True)]) for each in found]
        shares: list[results.Cell] = [round(100 * float(each), 1) for each in right]
        rows.append([name, len(held), *shares, round(spent, 2)])
    right_of = ["right, %", "right in other fonts, %"][: len(shown)]
    told = {f"right, {row[0]}, %": row[2] for row in rows}
    return ["reader", "words", *right_of, "milliseconds a word"], rows, told


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print a table or JSON, and write --record."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    kinds = parser.add_subparsers(dest="kind", required=True)
    for kind in (pages, words):
        own = kinds.add_parser(kind.__name__, help=str(kind.__doc__).partition("\n")[0])
        own.set_defaults(measure=kind)
        own.add_argument("--texts", type=Path, required=True, help="folder of NAME.txt")
        own.add_argument("--cppd", type=Path, help="weights of paceline train cppd")
        own.add_argument("--font", type=Path, action="append", default=[], help="TrueType file")
        own.add_argument("--threads", type=int, default=1, help="default: 1")
        own.add_argument("--json", action="store_true", help="print JSON")
        own.add_argument("--record", metavar="NAME", help="write docs/results/data/NAME.json")
    told = kinds.choices["pages"]
    told.add_argument("--model", default="smollm2-135m", help="default: smollm2-135m")
    told.add_argument("--precision", help="as of paceline")
    told.add_argument("--drafter", action="append", default=[], help="also drafts of this one")
    told.add_argument("--count", type=int, default=8, help="pages; default: 8")
    told.add_argument("--tokens", type=int, default=120, help="of a page at most; default: 120")
    read = kinds.choices["words"]
    read.add_argument("--other", type=Path, action="append", default=[], help="as --font")
    read.add_argument("--twin-steps", type=int, default=1000, help="default: 1000")
    read.add_argument("--pp-ocr", type=Path, help="ppocrv5_rec.onnx")
    given = parser.parse_args(argv)
    columns, rows, figures = given.measure(given)
    shown = [columns, *(list(map(str, row)) for row in rows)]
    print(dumps([columns, *rows]) if given.json else aligned(shown))
    if given.record is not None:
        results.record(
            Path("docs/results/data") / f"{given.record}.json",
            title=f"Recognisers that draft: {given.kind}",
            topic="tokens",
            command="python -m benchmarks.recognisers "
            + " ".join(sys.argv[1:] if argv is None else argv),
            columns=columns,
            rows=rows,
            figures=figures,
        )
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except PacelineError as error:
        sys.exit(str(error))
