"""Words pooled from their bytes, beside bytes and subwords: next words of models of minutes.

    python -m benchmarks.tokens.word_pooled --text FILE --minutes 10 --record tokens-word-pooled

Three models of 2 million weights learn the same text for the same time of one core. *Words*: the
bytes of each word and some class tokens go through a small encoder, the class vectors are the word,
a causal model reads words, and a small decoder spells the next one from what it gives
(2310.11628). No row of a word sees another word, but in the causal model. *Bytes* and *subwords*,
of byte-pair encoding within words, are causal models of the usual kind. All read runs of so many
words.

A next word is right if its most likely spelling, byte by byte or token by token, is that word, and
ends there. Words are rare that are in the first part of the text, which is learned, less than
`RARE` times. Kinds that are measured are kept in `--out`.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from time import process_time
from typing import Any, NamedTuple

import numpy as np
import torch
from benchmarks.script import GOES_ON, Findings, add_output, run_script
from torch import Tensor, nn
from torch.nn import functional

from paceline.core.cache import read_text, write_atomically
from paceline.errors import PromptError
from paceline.lab.measure import premium
from paceline.lab.measure.machine import dumps
from paceline.lab.training.recipe import cosine
from paceline.models.text import BYTES

KINDS = ("bytes", "subwords", "words")
WIDTH, HEADS = 192, 6  # of models over tokens or words
INNER, INNER_HEADS, CLASSES = 96, 3, 4  # of what pools and spells a word
LONGEST, END = 15, 256  # bytes of a word; the end of one, as it is spelled
SIZES = (0, 3, 6, LONGEST)  # of words that are pooled and spelled together
RUN, BATCH = 48, 6  # words of a run, runs of a step
SUBWORDS, RARE = 2048, 5
PEAK = 2e-3

_WORD = re.compile(rb" ?[\w\x80-\xff]{1,15}| ?[^\w\s\x80-\xff]{1,15}|\s")


def words(text: str) -> list[bytes]:
    """Return words: letters or signs, with a space before them; white space; at most `LONGEST`."""
    found = _WORD.findall(text.encode())
    return [part for each in found for part in (each[:LONGEST], each[LONGEST:]) if part]


def begins(last: int, first: int) -> bool:
    """Return whether a byte behind another begins a word."""

    def kind(byte: int) -> int:
        return 0 if bytes([byte]).isspace() else 1 + bool(byte < 128 and not _letter(byte))

    return kind(first) == 0 or (last != ord(" ") and kind(first) != kind(last))


def _letter(byte: int) -> bool:
    return bytes([byte]).isalnum() or byte == ord("_")


def layers(width: int, heads: int, count: int) -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(
        width, heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True
    )
    norm = nn.LayerNorm(width)
    return nn.TransformerEncoder(layer, count, norm, enable_nested_tensor=False)


def causal(rows: int) -> Tensor:
    return torch.triu(torch.ones(rows, rows, dtype=torch.bool), 1)


class Guess(NamedTuple):
    """What a model says of the next words of runs.

    Attributes:
        nats: the surprise of all of them.
        right: bool `[runs, RUN - 1]`; the last word has no end in models of tokens, and counts as
            wrong everywhere.
    """

    nats: Tensor
    right: Tensor


class Flat(nn.Module):
    """A causal model over the tokens of runs of words, each by `encode`."""

    def __init__(self, spelled: Sequence[bytes], encode: Callable[[bytes], list[int]]) -> None:
        super().__init__()
        self.spelled, self.encode = spelled, encode
        self.embed = nn.Embedding(len(spelled), WIDTH)
        nn.init.normal_(self.embed.weight, std=0.02)
        self.places = nn.Parameter(torch.zeros(RUN * LONGEST, WIDTH))
        self.layers = layers(WIDTH, HEADS, 4)

    def rows(self, run: Sequence[bytes]) -> list[list[int]]:
        return [self.encode(word) for word in run]

    def guess(self, runs: Sequence[Sequence[bytes]]) -> Guess:
        """Read runs; see `Guess`."""
        coded = [self.rows(run) for run in runs]
        flat = [torch.tensor([token for word in run for token in word]) for run in coded]
        ids = nn.utils.rnn.pad_sequence(flat, batch_first=True, padding_value=-1)
        rows = ids.shape[1]
        x = self.embed(ids.clamp(min=0)) + self.places[:rows]
        logits = self.layers(x, causal(rows)) @ self.embed.weight.T
        wanted = ids[:, 1:].clone()
        for at, run in enumerate(coded):
            wanted[at, : len(run[0]) - 1] = -1  # the first word stands behind nothing
        nats = functional.cross_entropy(
            logits[:, :-1].flatten(0, 1), wanted.flatten(), ignore_index=-1, reduction="sum"
        )
        said, right = logits.argmax(-1).tolist(), torch.zeros(len(runs), RUN - 1, dtype=torch.bool)
        for at, run in enumerate(coded):
            end = len(run[0])
            for number, word in enumerate(run[1:-1]):
                begin, end = end, end + len(word)
                last = self.spelled[word[-1]][-1]
                ends = begins(last, self.spelled[said[at][end - 1]][0])
                right[at, number] = ends and said[at][begin - 1 : end - 1] == word
        return Guess(nats, right)


def as_bytes(runs: Sequence[Sequence[bytes]]) -> Tensor:
    """Return bytes `[words, LONGEST]` of all words, -1 where there are none."""
    flat = [word for run in runs for word in run]
    out = np.full((len(flat), LONGEST), -1)
    for at, word in enumerate(flat):
        out[at, : len(word)] = np.frombuffer(word, np.uint8)
    return torch.from_numpy(out)


def by_size(spelled: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield places of words of about one size, and their bytes without what none has."""
    sizes = (spelled >= 0).sum(1)
    for low, most in pairwise(SIZES):
        at = ((sizes > low) & (sizes <= most)).nonzero()[:, 0]
        if len(at):
            yield at, spelled[at, :most]


class Pooled(nn.Module):
    """A causal model over words, between what pools their bytes and what spells them."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(END + 1, INNER)
        nn.init.normal_(self.embed.weight, std=0.02)
        self.classes = nn.Parameter(torch.randn(CLASSES, INNER) * 0.02)
        self.pool_places = nn.Parameter(torch.zeros(LONGEST, INNER))
        self.spell_places = nn.Parameter(torch.zeros(LONGEST, INNER))
        self.pooling, self.spelling = layers(INNER, INNER_HEADS, 1), layers(INNER, INNER_HEADS, 2)
        self.into = nn.Linear(CLASSES * INNER, WIDTH)
        self.out = nn.Linear(WIDTH, CLASSES * INNER)
        self.places = nn.Parameter(torch.zeros(RUN, WIDTH))
        self.layers = layers(WIDTH, HEADS, 3)

    def pool(self, spelled: Tensor) -> Tensor:
        """Return words `[n, WIDTH]` of bytes `[n, most]`, each of its own alone."""
        rows = self.embed(spelled.clamp(min=0)) + self.pool_places[: spelled.shape[1]]
        x = torch.cat([self.classes.expand(len(spelled), -1, -1), rows], 1)
        absent = functional.pad(spelled < 0, (CLASSES, 0))
        read = self.pooling(x, src_key_padding_mask=absent)[:, :CLASSES]
        pooled: Tensor = self.into(read.flatten(1))
        return pooled

    def spell(self, given: Tensor, spelled: Tensor) -> Tensor:
        """Return logits `[n, most + 1, END + 1]` of bytes and the end, behind those before."""
        most = spelled.shape[1]
        rows = self.embed(spelled.clamp(min=0)) + self.spell_places[:most]
        x = torch.cat([self.out(given).unflatten(1, (CLASSES, INNER)), rows], 1)
        read = self.spelling(x, causal(CLASSES + most))[:, CLASSES - 1 :]
        logits: Tensor = read @ self.embed.weight.T
        return logits

    def guess(self, runs: Sequence[Sequence[bytes]]) -> Guess:
        """Read runs; see `Guess`."""
        spelled = as_bytes(runs)
        pooled = torch.zeros(len(spelled), WIDTH)
        for at, some in by_size(spelled):
            pooled = pooled.index_copy(0, at, self.pool(some))
        x = pooled.unflatten(0, (len(runs), RUN))
        given = self.layers(x + self.places, causal(RUN))[:, :-1].flatten(0, 1)
        wanted = spelled.unflatten(0, (len(runs), RUN))[:, 1:].flatten(0, 1)
        nats, right = torch.zeros(()), torch.zeros(len(wanted), dtype=torch.bool)
        for at, some in by_size(wanted):
            logits, behind = self.spell(given[at], some), functional.pad(some, (0, 1), value=-1)
            ends = torch.arange(behind.shape[1]) == (some >= 0).sum(1, keepdim=True)
            behind = torch.where(ends, END, behind)
            nats = nats + functional.cross_entropy(
                logits.flatten(0, 1), behind.flatten(), ignore_index=-1, reduction="sum"
            )
            right[at] = ((logits.argmax(-1) == behind) | (behind < 0)).all(1)
        found = right.unflatten(0, (len(runs), -1))
        found[:, -1] = False
        return Guess(nats, found)


def subwords(learned: Sequence[bytes]) -> Flat:
    """Learn byte-pair encoding within words, and return its model."""
    from tokenizers import Tokenizer, models, trainers

    core = Tokenizer(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=SUBWORDS, initial_alphabet=list(BYTES), show_progress=False
    )
    letters = {byte: char for char, byte in BYTES.items()}

    def shown(word: bytes) -> str:
        return "".join(letters[byte] for byte in word)

    # A word is a text of its own, so that no token crosses two.
    core.train_from_iterator((shown(word) for word in learned), trainer)
    count = core.get_vocab_size()
    spelled = [bytes(BYTES[char] for char in core.id_to_token(i) or "") for i in range(count)]
    known: dict[bytes, list[int]] = {}

    def encode(word: bytes) -> list[int]:
        if word not in known:
            known[word] = list(core.encode(shown(word)).ids)
        return known[word]

    return Flat(spelled, encode)


def model_of(kind: str, learned: Sequence[bytes]) -> Flat | Pooled:
    """Make the model of a kind, of random numbers."""
    torch.manual_seed(0)
    if kind == "words":
        return Pooled()
    return Flat([bytes([i]) for i in range(256)], list) if kind == "bytes" else subwords(learned)


def train(model: Flat | Pooled, learned: Sequence[bytes], seconds: float) -> int:
    """Train for so many seconds of a core; return how many runs were read."""
    rng, begin = np.random.default_rng(0), process_time()
    optimiser = torch.optim.AdamW(model.parameters(), PEAK, betas=(0.9, 0.95))
    step, gone = 0, 0.0
    while gone < seconds:
        gone = process_time() - begin
        rate = cosine(int(gone * 100), peak=PEAK, steps=int(seconds * 100), warm=int(seconds * 3))
        optimiser.param_groups[0]["lr"] = max(rate, PEAK / 20)
        starts = rng.integers(0, len(learned) - RUN, BATCH)
        runs = [learned[at : at + RUN] for at in starts]
        size = sum(len(word) for run in runs for word in run[1:])
        nats = model.guess(runs).nats
        optimiser.zero_grad()
        (nats / size).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        if step % 200 == 0:
            print(f"{step}: {nats.item() / size / math.log(2):.3f}", file=sys.stderr, flush=True)
        step += 1
    return step * BATCH


def measure(
    kind: str, learned: Sequence[bytes], held: Sequence[bytes], seconds: float
) -> dict[str, float]:
    """Train a kind, and read what is held out."""
    model = model_of(kind, learned)
    read = train(model, learned, seconds)
    counts = Counter(learned)
    hits, rare_hits, words_read, rare, nats, size = 0, 0, 0, 0, 0.0, 0
    runs = [held[at : at + RUN] for at in range(0, len(held) - RUN + 1, RUN)]
    with torch.no_grad():
        for at in range(0, len(runs), BATCH):
            some = runs[at : at + BATCH]
            found = model.guess(some)
            nats += found.nats.item()
            for run, right in zip(some, found.right.tolist(), strict=True):
                size += sum(map(len, run[1:]))
                for word, hit in zip(run[1:-1], right, strict=False):
                    hits, words_read = hits + hit, words_read + 1
                    if counts[word] < RARE:
                        rare_hits, rare = rare_hits + hit, rare + 1
    return {
        "weights": sum(each.numel() for each in model.parameters()),
        "runs": read,
        "bits a byte": nats / size / math.log(2),
        "next words": hits / words_read,
        "rare words": rare_hits / max(1, rare),
        "rare": rare,
        "words": words_read,
    }


def findings(given: argparse.Namespace) -> Findings:
    """Train and measure, and put it as a table."""
    torch.set_num_threads(1)
    text = words(premium.read_language(given.text))
    learned, held = text[: len(text) * 19 // 20], text[len(text) * 19 // 20 :]
    if len(held) < RUN:
        raise PromptError(f"{given.text} has {len(text)} words: give some thousands")
    found: dict[str, Any] = json.loads(read_text(given.out, "", "")) if given.out.is_file() else {}
    for kind in given.kinds.split(","):
        if kind not in found:
            found[kind] = measure(kind, learned, held, 60 * given.minutes)
            write_atomically(given.out, dumps(found))
    about = next(iter(found.values()))
    return Findings(
        title="Word-pooled tokens beside bytes and subwords",
        topic="tokens",
        command=f"python -m benchmarks.tokens.word_pooled --text FILE --minutes {given.minutes:g}",
        columns=[
            "kind",
            "weights, M",
            "runs read",
            "bits a byte",
            "next words right",
            "rare words",
        ],
        rows=[
            [
                kind,
                round(each["weights"] / 1e6, 2),
                each["runs"],
                round(each["bits a byte"], 3),
                f"{100 * each['next words']:.1f}%",
                f"{100 * each['rare words']:.2f}%",
            ]
            for kind, each in found.items()
        ],
        note=f"{len(learned)} words learned, for {given.minutes:g} minutes of one core each; "
        f"{about['words']} held out, of which {about['rare']} were learned less than {RARE} times. "
        f"A run has {RUN} words.",
        figures={
            f"next words of {kind}, %": round(100 * each["next words"], 1)
            for kind, each in found.items()
        },
        data=found,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Train and measure, print a table or JSON, and write --record."""
    parser = argparse.ArgumentParser(
        prog="word_pooled", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--text", type=Path, required=True, help="the last twentieth is held out")
    parser.add_argument("--minutes", type=float, default=10, help="of one core, of each kind")
    parser.add_argument("--kinds", default=",".join(KINDS), help="with commas")
    parser.add_argument("--out", type=Path, default=Path("word_pooled.json"), help="found so far")
    add_output(parser)
    return run_script(parser, findings, argv, stopped=GOES_ON)


if __name__ == "__main__":
    sys.exit(main())
