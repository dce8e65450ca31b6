"""What hears chunk by chunk: wrong words, and how late each is written.

    python -m benchmarks.causal whisper --sounds SOUNDS --model WHISPER --adapter causal
    python -m benchmarks.causal conformer --sounds SOUNDS --weights FILE

SOUNDS is a folder of NAME.wav and NAME.txt, whose names end as those that training held out, or any
other. A word is late by the time from its end (`methods.careless.spoken.word_ends`) to the chunk
from which on it stays. Words count by their letters, without case and signs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from itertools import takewhile
from pathlib import Path
from statistics import mean

from benchmarks.script import Findings, add_output, run_script

from paceline.audio.mel import RATE
from paceline.audio.read import read_sound
from paceline.core.types import LogitArray
from paceline.lab.measure import results
from paceline.listening.agreement import edits_to
from paceline.methods.careless.spoken import with_texts, word_ends

NOTE = (
    "Late: on the sound's clock, behind word ends by shares of letters and 0.1 s. Sounds that "
    "training held out, of the voice that it learned from."
)
COLUMNS = ["hears", "chunk, ms", "wrong words, %", "words", "late, s", "late, 90%"]
Row = list[results.Cell]


def words_of(text: str) -> list[str]:
    """Return the words of a text as they are compared."""
    kept = "".join(each if each.isalnum() else " " for each in text.casefold().replace("'", ""))
    return kept.split()


# Captions of a sound: seconds that were heard, and the text then; the last one stays.
Told = Sequence[tuple[float, str]]


class Score:
    """Wrong words and delays over some sounds."""

    def __init__(self) -> None:
        self.wrong = self.words = 0
        self.late: list[float] = []

    def add(self, told: Told, text: str, ends: Sequence[float]) -> None:
        spoken = text.split()
        right = [
            (word, end) for each, end in zip(spoken, ends, strict=True) for word in words_of(each)
        ]
        names, final = [word for word, _ in right], words_of(told[-1][1])
        self.words += len(names)
        self.wrong += edits_to(names, final)[-1]
        since = [0.0] * len(final)
        for place in range(len(final)):
            since[place] = next(at for at, each in stays(told, final) if each > place)
        for a, b, size in SequenceMatcher(None, names, final, autojunk=False).get_matching_blocks():
            self.late += [since[b + k] - right[a + k][1] for k in range(size)]

    def row(self, name: str, chunk: float) -> Row:
        late = sorted(self.late)
        last = late[int(0.9 * (len(late) - 1))] if late else None
        return [
            name,
            round(1000 * chunk) if chunk else None,
            round(100 * self.wrong / max(1, self.words), 1),
            self.words,
            round(mean(late), 2) if late and chunk else None,
            round(last, 2) if last is not None and chunk else None,
        ]


def stays(told: Told, final: Sequence[str]) -> Iterator[tuple[float, int]]:
    """Yield from which second on so many of the first words of the last caption stay."""
    kept: list[tuple[float, int]] = []
    least = len(final)
    for at, text in reversed(told):
        found = words_of(text)
        pairs = zip(found, final, strict=False)
        least = min(least, len(list(takewhile(lambda pair: pair[0] == pair[1], pairs))))
        kept.append((at, least))
    yield from reversed(kept)


def of_whisper(given: argparse.Namespace) -> Iterator[Row]:
    """Yield a row for the sound as a whole, and for chunks, without the adapter and with it."""
    from paceline.listening.windows import Listener
    from paceline.methods.careless.captions import ROW, CausalCaptions
    from paceline.registry.loading import load_model, make_engine
    from paceline.registry.options import Options

    sounds = [(read_sound(path), text) for path, text in with_texts(given.sounds)][: given.count]
    for adapter in (None, given.adapter):
        options = Options(model=given.model, threads=given.threads)
        if adapter:
            options = Options(model=given.model, threads=given.threads, adapter=(adapter,))
        loaded = load_model(options)
        listener = Listener(make_engine(loaded, drafter="none", max_batch=1))
        decode = loaded.tokenizer.decode
        if adapter is None:
            score = Score()
            for sound, text in sounds:
                found = "".join(decode(each.tokens) for each in listener.segments(sound))
                score.add([(0.0, found)], text, word_ends(sound, text.split()).tolist())
            yield score.row("the whole sound", 0)
        for chunk in given.chunks:
            score = Score()
            for sound, text in sounds if adapter else sounds[: given.untrained]:
                own, told = CausalCaptions(listener, chunk, given.look_back), []
                for at, piece in pieces(sound, round(chunk * ROW * RATE)):
                    if own.push(piece):
                        told.append((at, decode([*own.final, *own.caption])))
                own.end()
                told.append((len(sound) / RATE, decode([*own.final, *own.caption])))
                own.let_go()
                score.add(told, text, word_ends(sound, text.split()).tolist())
            yield score.row("chunks" if adapter is None else "chunks, trained", chunk * ROW)


def of_conformer(given: argparse.Namespace) -> Iterator[Row]:
    """Yield a row for each length of a chunk."""
    from paceline.methods.conformer.encoder import STACKED, CpuConformer, load_conformer
    from paceline.methods.conformer.stream import ConformerStream

    model = CpuConformer(*load_conformer(given.weights), given.threads)
    seconds = STACKED / 100
    for chunk in given.chunks:
        score = Score()
        for path, text in with_texts(given.sounds)[: given.count]:
            sound, stream = read_sound(path), ConformerStream(model, chunk)
            told = []
            for at, piece in pieces(sound, round(chunk * seconds * RATE)):
                stream.push(piece)
                told.append((at, stream.text))
            stream.end()
            told.append((len(sound) / RATE, stream.text))
            score.add(told, text, word_ends(sound, text.split()).tolist())
        yield score.row("one model", chunk * seconds)


def pieces(sound: LogitArray, size: int) -> Iterator[tuple[float, LogitArray]]:
    """Yield seconds that have come, and what came last."""
    for begin in range(0, len(sound), size):
        yield min(begin + size, len(sound)) / RATE, sound[begin : begin + size]


def numbers(text: str) -> list[int]:
    """Return the numbers of an option."""
    return [*map(int, text.split(","))]


def findings(given: argparse.Namespace) -> Findings:
    """Measure, and put it as a table."""
    whisper, rows = given.kind == "whisper", list[Row]()
    for row in (of_whisper if whisper else of_conformer)(given):
        rows.append(row)
        print(*row, flush=True, file=sys.stderr)
    what = Path(given.model if whisper else given.weights).name
    return Findings(
        title=f"Speech that is heard chunk by chunk: {given.kind}",
        topic="speech",
        command=f"python -m benchmarks.causal {given.kind} ({what})",
        columns=COLUMNS,
        rows=rows,
        note=NOTE,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, and write --record."""
    parser = argparse.ArgumentParser(prog="causal", description=(__doc__ or "").splitlines()[0])
    kinds = parser.add_subparsers(dest="kind", required=True)
    for kind, chunks in (("whisper", "15,25,50"), ("conformer", "1,4,14,28")):
        made = kinds.add_parser(kind)
        made.add_argument("--sounds", type=Path, required=True, metavar="FOLDER")
        if kind == "whisper":
            made.add_argument("--model", required=True)
            made.add_argument("--adapter", required=True)
            made.add_argument("--look-back", type=int, help="tokens that may change; default all")
            made.add_argument(
                "--untrained", type=int, default=4, help="sounds without it: it rambles"
            )
        else:
            made.add_argument("--weights", type=Path, required=True)
        made.add_argument(
            "--chunks", type=lambda text: [*map(int, text.split(","))], default=chunks
        )
        made.add_argument("--count", type=int, help="of sounds at most")
        made.add_argument("--threads", type=int, default=1)
        add_output(made)
    return run_script(parser, findings, argv)


if __name__ == "__main__":
    sys.exit(main())
