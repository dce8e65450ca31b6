"""Frequent pairs of a prompt's tokens as one row each (dynamic tokenisation): what it costs.

    python -m benchmarks.tokens.texts --out tokens
    python -m benchmarks.tokens.dynamic --texts tokens --model FILE.gguf --record tokens-dynamic

Pairs of neighbours within a pretoken or a word are merged, the most frequent first, as byte-pair
encoding does (2411.18553). Which ones is a function of the prompt alone. A merged piece is a row of
the target's store and takes one position; the answer is written in the model's own tokens. This is
lossy. Its embedding is the mean of its tokens', or that of a small transformer over them, trained
for `--minutes` of a core to give vocabulary's tokens from shorter tokens that spell them.

Agreement: of the tokens that the model writes behind the plain prompt, how many it would write
behind the merged one, given those before. Lost: of the logarithm of the probability of the text
that follows, by token. What is measured is kept in `--out`, and an interrupted run goes on.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import mean
from time import process_time
from typing import Any, Literal

import numpy as np
from benchmarks.endless import nats
from benchmarks.script import GOES_ON, Findings, add_output, run_script
from benchmarks.tokens.premiums import read_texts

from paceline.core.cache import read_text, write_atomically
from paceline.core.rows import RowStore
from paceline.core.target import Rows
from paceline.core.types import IntArray, LogitArray
from paceline.lab.measure import results
from paceline.lab.measure.machine import dumps
from paceline.models.source import resolve
from paceline.models.text import Tokenizer
from paceline.runtimes.cpu.target import CpuTarget

Piece = tuple[int, ...]
"""Tokens that are one row."""
Boundary = Literal["pretoken", "word"]
Embed = Callable[[Sequence[Piece]], LogitArray]
"""Gives rows `[n, width]` of pieces."""

EVERY = 10**6
"""Merges: until no pair occurs twice."""
SETTINGS: tuple[tuple[Boundary, int], ...] = (("pretoken", EVERY), ("word", 8), ("word", EVERY))
LANGUAGES = "eng,fra,deu_1996,rus,fin,tur,arb,hin,tam,kat,tha,mya,cmn_hans,jpn"
INNER, HEADS, BATCH = 256, 4, 256  # of the trained network
MOST_PARTS = 16  # that it reads; longer pieces have their mean


def words(tokenizer: Tokenizer, text: str, boundary: Boundary) -> list[list[int]]:
    """Return a text's tokens by pretoken, or by word: what begins with white space."""
    read = tokenizer.core.encode(text, add_special_tokens=False)
    spelled = [tokenizer.bytes_of(token) for token in read.ids]
    out: list[list[int]] = []
    for at, token in enumerate(read.ids):
        if boundary == "pretoken":
            begins = at == 0 or read.word_ids[at] != read.word_ids[at - 1]
        else:
            begins = at == 0 or spelled[at][:1].isspace() or spelled[at - 1][-1:] == b"\n"
        if begins:
            out.append([])
        out[-1].append(token)
    return out


def merged(prompt: Sequence[Sequence[int]], merges: int) -> list[Piece]:
    """Merge the most frequent pair within words, so many times; of equal ones the first.

    Pairs that occur once stay.
    """
    pieces: list[list[Piece]] = [[(token,) for token in word] for word in prompt]
    for _ in range(merges):
        pairs = Counter(pair for word in pieces for pair in pairwise(word))
        [(best, count)] = pairs.most_common(1) or [(((), ()), 0)]
        if count < 2:
            break
        pieces = [_joined(word, best) for word in pieces]
    return [piece for word in pieces for piece in word]


def _joined(word: Sequence[Piece], pair: tuple[Piece, Piece]) -> list[Piece]:
    out: list[Piece] = []
    at = 0
    while at < len(word):
        joins = tuple(word[at : at + 2]) == pair
        out.append(pair[0] + pair[1] if joins else word[at])
        at += 2 if joins else 1
    return out


def as_ids(pieces: Sequence[Piece], store: RowStore, name: str, embed: Embed) -> list[int]:
    """Return ids of tokens, and of rows for what is merged; `name` tells one `embed` from others.

    Errors are those of `RowStore.hold`.
    """
    out: list[int] = []
    for piece in pieces:
        if len(piece) == 1:
            out.append(piece[0])
            continue
        run = store.hold(f"{name} {piece}".encode(), 1)
        if not run.filled:
            store.fill(run, embed([piece]))
        out.append(run.first)
        store.drop(run)
    return out


def mean_of(table: LogitArray) -> Embed:
    """Return the mean of tokens' embeddings, the baseline."""
    return lambda pieces: np.stack([table[list(each)].mean(axis=0) for each in pieces])


class Splits:
    """Vocabulary's tokens as shorter tokens that spell them, drawn anew each time."""

    def __init__(self, tokenizer: Tokenizer, size: int) -> None:
        spelled = {token: tokenizer.bytes_of(token) for token in range(size)}
        self._spelled = {t: each for t, each in spelled.items() if t not in tokenizer.special}
        self._known = {each: token for token, each in self._spelled.items() if each}
        self.tokens = [token for token, each in self._spelled.items() if len(each) > 2]

    def draw(self, token: int, rng: random.Random, whole: float = 0.0) -> Piece:
        """Return a piece; a part is left whole with the probability `whole`."""
        spelled = self._spelled[token]
        cuts = [
            cut
            for cut in range(1, len(spelled))
            if spelled[:cut] in self._known and spelled[cut:] in self._known
        ]
        if not cuts or rng.random() < whole:
            return (token,)
        cut = rng.choice(cuts)
        left, right = (self._known[each] for each in (spelled[:cut], spelled[cut:]))
        return self.draw(left, rng, 0.5) + self.draw(right, rng, 0.5)


def network(width: int) -> Any:
    """Make a transformer of two layers over the embeddings of a piece's tokens.

    It adds to their mean, at first nothing.
    """
    import torch

    class Parts(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layer = torch.nn.TransformerEncoderLayer(
                INNER, HEADS, 4 * INNER, 0.0, "gelu", batch_first=True, norm_first=True
            )
            self.into = torch.nn.Linear(width, INNER)
            self.places = torch.nn.Parameter(torch.zeros(MOST_PARTS, INNER))
            self.layers = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.out = torch.nn.Linear(INNER, width)
            torch.nn.init.zeros_(self.out.weight)
            torch.nn.init.zeros_(self.out.bias)

        def forward(self, parts: Any, there: Any) -> Any:
            """Rows `[n, width]` of parts `[n, most, width]`, of which bool `there` are real."""
            share = (there / there.sum(1, keepdim=True))[..., None]
            size = parts.std()
            x = self.layers(self.into(parts / size) + self.places[: parts.shape[1]], None, ~there)
            return (parts * share).sum(1) + size * self.out((x * share).sum(1))

    return Parts()


def padded(pieces: Sequence[Piece]) -> tuple[IntArray, IntArray]:
    """Return tokens `[n, most]`, and which are real."""
    most = max(map(len, pieces))
    ids = np.array([[*each, *([0] * (most - len(each)))] for each in pieces], np.int64)
    return ids, np.array([[at < len(each) for at in range(most)] for each in pieces])


def trained(table: LogitArray, tokenizer: Tokenizer, minutes: float, file: Path) -> Embed:
    """Return a network's rows: of a file, or of one that is trained and written there."""
    import torch
    from safetensors.torch import load_file, save_file

    torch.manual_seed(0)
    model, embeddings = network(table.shape[1]), torch.from_numpy(table)

    def rows(pieces: Sequence[Piece]) -> Any:
        ids, there = map(torch.from_numpy, padded(pieces))
        return model(embeddings[ids], there)

    if file.is_file():
        model.load_state_dict(load_file(file))
    else:
        splits, rng, begin = Splits(tokenizer, len(table)), random.Random(0), process_time()
        optimiser = torch.optim.AdamW(model.parameters(), 1e-3)
        step, gone = 0, 0.0
        while gone < 1:
            gone = (process_time() - begin) / (60 * minutes)
            optimiser.param_groups[0]["lr"] = 1e-3 * min(1, step / 100) * max(0.02, 1 - gone)
            chosen = [(t, splits.draw(t, rng)) for t in rng.choices(splits.tokens, k=BATCH)]
            some = [(t, each) for t, each in chosen if 1 < len(each) <= MOST_PARTS]
            wanted = embeddings[[token for token, _ in some]]
            pieces = [each for _, each in some]
            loss = (rows(pieces) - wanted).square().mean() / embeddings.var()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            if step % 200 == 0:
                with torch.no_grad():
                    plain = torch.from_numpy(mean_of(table)(pieces))
                    other = ((plain - wanted).square().mean() / embeddings.var()).item()
                print(f"{step}: {loss.item():.3f}, mean {other:.3f}", file=sys.stderr, flush=True)
            step += 1
        save_file(model.state_dict(), file)

    def embed(pieces: Sequence[Piece]) -> LogitArray:
        [piece] = pieces
        if len(piece) > MOST_PARTS:
            return mean_of(table)(pieces)
        with torch.no_grad():
            found: LogitArray = rows(pieces).numpy()
        return found

    return embed


def behind(target: Any, ids: Sequence[int], runs: Iterable[Sequence[int]]) -> list[LogitArray]:
    """Return logits `[n, vocabulary]` of the tokens of each run, behind a prompt."""
    cache = target.open()
    target.prefill(cache, ids[:-1])
    out = []
    for run in runs:
        asked = [ids[-1], *run[:-1]]
        [found] = target.forward([Rows.draft(cache, asked, wanted=np.arange(len(asked)))])
        out.append(np.array(found.logits))
    target.release(cache)
    return out


def greedy(target: Any, ids: Sequence[int], count: int) -> list[int]:
    """Return what a target writes behind a prompt."""
    cache = target.open()
    target.prefill(cache, ids[:-1])
    out = [ids[-1]]
    while len(out) <= count:
        [found] = target.forward([Rows.draft(cache, out[-1:])])
        target.keep(cache, 1, ())
        out.append(int(np.argmax(found.logits[-1])))
    target.release(cache)
    return out[1:]


def surprise(logits: LogitArray, run: Sequence[int]) -> float:
    """Return the mean of -log p of a run's tokens."""
    return mean(nats(logits, run))


def told(
    target: Any, tokenizer: Tokenizer, text: str, embeds: Mapping[str, Embed], next_tokens: int
) -> dict[str, dict[str, float]]:
    """Measure one prompt: all of a text but the last tokens, cut where a word begins."""
    by_word = words(tokenizer, text, "word")
    while len(by_word) > 1 and sum(map(len, by_word[-1:])) < next_tokens:
        by_word[-2:] = [[*by_word[-2], *by_word[-1]]]
    *head, last = by_word
    plain = [token for word in head for token in word]
    before = tokenizer.decode(plain)
    runs = [greedy(target, plain, next_tokens), last[:next_tokens]]
    base = surprise(behind(target, plain, runs[1:])[0], runs[1])
    out = {}
    for boundary, merges in SETTINGS:
        pieces = merged(words(tokenizer, before, boundary), merges)
        some: dict[str, float] = {"fewer": 1 - len(pieces) / len(plain)}
        for name, embed in embeds.items():
            written, follows = behind(target, as_ids(pieces, target.rows, name, embed), runs)
            some[f"agreement, {name}"] = float(np.mean(written.argmax(axis=1) == runs[0]))
            some[f"lost, {name}"] = surprise(follows, runs[1]) - base
        out[f"{boundary}, {'every pair' if merges == EVERY else merges}"] = some
    return out


def measure(given: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    """Return, and keep in `--out`, what is measured by language and setting; and the embeddings.

    Errors are those of `resolve` and of texts.
    """
    found: dict[str, Any] = json.loads(read_text(given.out, "", "")) if given.out.is_file() else {}
    source = resolve(given.model)
    tokenizer, weights = source.tokenizer(), source.weights()
    target = CpuTarget(source.config, weights, kv_tokens=4096, threads=given.threads)
    table = weights.stored("embed").rows(np.arange(source.config.vocab_size))
    embeds = {"mean": mean_of(table)}
    if given.minutes:
        embeds["trained"] = trained(table, tokenizer, given.minutes, given.network)
    texts = read_texts(given.texts / "texts")
    size = given.tokens + given.next
    for code in given.languages.split(","):
        if code in found:
            continue
        ids = tokenizer.plain(texts[code])
        each = [
            told(target, tokenizer, part, embeds, given.next)
            for at in range(given.prompts)
            if (part := tokenizer.decode(ids[at * size : (at + 1) * size]).strip("\ufffd"))
        ]
        found[code] = {
            setting: {key: mean(one[setting][key] for one in each) for key in some}
            for setting, some in each[0].items()
        }
        write_atomically(given.out, dumps(found))
        print(f"{code}: {found[code]}", file=sys.stderr, flush=True)
    return found, list(embeds)


def table_of(found: Mapping[str, Any], embeds: Sequence[str]) -> list[list[results.Cell]]:
    """Return a row by language and setting."""
    return [
        [code, setting, f"{100 * some['fewer']:.0f}%"]
        + [f"{100 * some[f'agreement, {name}']:.0f}%" for name in embeds]
        + [f"{some[f'lost, {name}']:.2f}" for name in embeds]
        for code, each in found.items()
        for setting, some in each.items()
    ]


def findings(given: argparse.Namespace) -> Findings:
    """Measure, and put it as a table."""
    found, embeds = measure(given)
    large = [
        max(some[f"agreement, {name}"] for name in embeds)
        for each in found.values()
        for some in each.values()
        if some["fewer"] >= 0.2
    ]
    return Findings(
        title=f"Dynamic tokenisation of prompts, {Path(given.model).stem}",
        topic="tokens",
        command="python -m benchmarks.tokens.dynamic --texts tokens --model "
        f"{Path(given.model).name} --languages {','.join(found)} --tokens {given.tokens} "
        f"--prompts {given.prompts} --minutes {given.minutes:g}",
        columns=["language", "merged within, times", "fewer rows"]
        + [f"{what}, {name}" for what in ("agreement", "lost") for name in embeds],
        rows=table_of(found, embeds),
        note=f"{given.prompts} x {given.tokens} tokens are read in each language, and the "
        f"{given.next} behind them judged; *lost*: nats a token. It is no option: none is offered "
        "below 98% agreement at 20% fewer rows.",
        figures={
            f"of {len(large)} with 20% fewer rows, 98% agree in": sum(e >= 0.98 for e in large),
            "best agreement of these, %": round(100 * max(large, default=0)),
        },
        data=found,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print a table or JSON, and write --record."""
    parser = argparse.ArgumentParser(prog="dynamic", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--texts", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--model", required=True, help="runs on the CPU")
    parser.add_argument("--languages", default=LANGUAGES, help="codes with commas")
    parser.add_argument("--tokens", type=int, default=256, help="of a prompt")
    parser.add_argument("--next", type=int, default=32, help="tokens behind it")
    parser.add_argument("--prompts", type=int, default=2, help="of a language")
    parser.add_argument(
        "--minutes", type=float, default=0, help="of a core, to train; 0: means alone"
    )
    parser.add_argument("--threads", type=int, help="default all cores")
    parser.add_argument("--network", type=Path, default=Path("dynamic.safetensors"))
    parser.add_argument("--out", type=Path, default=Path("dynamic.json"), help="measured so far")
    add_output(parser)
    return run_script(parser, findings, argv, stopped=GOES_ON)


if __name__ == "__main__":
    sys.exit(main())
