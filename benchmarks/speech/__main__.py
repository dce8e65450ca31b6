"""Speech to text beside other engines: same weights, same sounds, by turns; time and wrong words.

    python benchmarks/peers/make.py speech
    python -m benchmarks.speech sounds --text BOOK.txt --minutes 60 --out sounds
    python -m benchmarks.speech compare --sounds sounds --model WHISPER --record NAME
    python -m benchmarks.speech same --sounds sounds --model WHISPER --drafter recycling
    python -m benchmarks.speech live --sounds sounds --model WHISPER --record NAME

A sound is a paragraph of a text that a voice speaks (hibari, from its package), so that its words
are known; any folder of `NAME.wav` and `NAME.txt` does as well. WHISPER is a directory of
CTranslate2, which faster-whisper reads too; `--ggml` is the same model for whisper.cpp. Live, a
clock counts the seconds of each step, and so much more sound has come when it ends.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

from benchmarks.script import Findings, add_output, run_script
from benchmarks.speech import live
from benchmarks.speech.same import COLUMNS as SAME
from benchmarks.speech.same import clips, elsewhere, rows, same, ways

from paceline.audio.read import read_sound
from paceline.core.cache import make_dir, read_text, write_atomically
from paceline.errors import EngineFailed, InvalidOption
from paceline.lab.audit.named import interpreter
from paceline.lab.measure import results
from paceline.listening.live import Live
from paceline.listening.windows import Listener, Listening
from paceline.registry.loading import load_model, make_engine
from paceline.registry.options import Options

OURS = "paceline"
Transcriber = Callable[[Path], tuple[str, float]]
"""Returns the text of a sound, and seconds that it took."""


class Worker:
    """A process in the environment "speech"."""

    def __init__(self) -> None:
        command = [str(interpreter("speech")), str(Path(__file__).with_name("worker.py"))]
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
        except OSError as error:
            raise EngineFailed(
                f"no environment for speech ({error}): run python benchmarks/peers/make.py speech"
            ) from error

    def ask(self, kind: str, **request: Any) -> dict[str, Any]:
        """Return its answer; raises EngineFailed if it has none."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps({"kind": kind} | request) + "\n")
        stdin.flush()
        line = stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line else {"error": "it ended"}
        if "error" in answer:
            raise EngineFailed(f"{kind}: {answer['error']}")
        return answer

    def close(self) -> None:
        """Let it end, and wait until it has."""
        self._process.communicate()


def paragraphs(text: str, longest: int = 1500) -> list[str]:
    """Return the paragraphs of a text, cut between sentences to `longest` characters."""
    found: list[str] = []
    for paragraph in text.split("\n\n"):
        line = " ".join(paragraph.split())
        part = ""
        for sentence in line.replace("; ", "; \0").replace(". ", ". \0").split("\0"):
            if part and len(part) + len(sentence) > longest:
                found.append(part.strip())
                part = ""
            part += sentence
        found.append(part.strip())
    return [each for each in found if len(each) > 40]


def make_sounds(worker: Worker, text: str, minutes: float, out: Path) -> float:
    """Speak paragraphs until there are enough minutes, and return these; what is there is kept."""
    make_dir(out)
    seconds = 0.0
    for number, each in enumerate(paragraphs(text)):
        if seconds >= 60 * minutes:
            break
        path = out / f"{number:04}.wav"
        said = path.with_suffix(".txt")
        if not said.is_file():
            worker.ask("speak", text=each, path=str(path), seed=number)
            write_atomically(said, each)
        seconds += (path.stat().st_size - 44) / 32_000
    return seconds / 60


def listener(model: str, threads: int, drafter: str, precision: str | None) -> Listener:
    """Return a Whisper of paceline."""
    loaded = load_model(Options(model=model, threads=threads, precision=precision))
    return Listener(make_engine(loaded, drafter=drafter, max_batch=1))


def ours(own: Listener) -> Transcriber:
    """Return paceline as a transcriber."""
    decode = own.engine.tokenizer.decode

    def write(path: Path) -> tuple[str, float]:
        begun = perf_counter()
        text = "".join(decode(each.tokens) for each in own.segments(read_sound(path)))
        return text, perf_counter() - begun

    return write


def compare(
    engines: Mapping[str, Transcriber], sounds: Sequence[Path], rounds: int
) -> tuple[dict[str, list[str]], dict[str, list[float]]]:
    """Return texts, one a sound, and seconds of each round, by engine; engines take turns."""
    texts: dict[str, list[str]] = {name: [] for name in engines}
    seconds: dict[str, list[float]] = {name: [] for name in engines}
    for number in range(rounds):
        spent = dict.fromkeys(engines, 0.0)
        for index, path in enumerate(sounds):
            names = list(engines)
            for name in names[index % len(names) :] + names[: index % len(names)]:
                text, took = engines[name](path)
                spent[name] += took
                if number == 0:
                    texts[name].append(text)
            print(f"round {number + 1}: {index + 1} of {len(sounds)}", end="\r", file=sys.stderr)
        for name, each in spent.items():
            seconds[name].append(each)
    print(file=sys.stderr)
    return texts, seconds


def table(
    wrong: Mapping[str, tuple[int, int]], seconds: Mapping[str, list[float]], spoken: float
) -> list[list[results.Cell]]:
    """Return rows: share of real time, speed beside the first peer, wrong words of a hundred."""
    rows: list[list[results.Cell]] = []
    first = seconds[OURS]
    for name, each in seconds.items():
        ratios = [other / mine for mine, other in zip(first, each, strict=True)]
        faster = (
            "" if name == OURS else f"{median(ratios):.2f} [{min(ratios):.2f}, {max(ratios):.2f}]"
        )
        errors, words = wrong[name]
        rate = 100 * errors / max(1, words)
        rows.append([name, round(median(each) / spoken, 4), faster, round(rate, 2), words])
    return rows


COLUMNS = ["engine", "share of real time", "paceline's speed, times its", "wrong words, %", "words"]


def _spoken(given: argparse.Namespace) -> tuple[list[Path], list[str], float]:
    # Sounds, their texts, and how many seconds all last.
    sounds = sorted(given.sounds.glob("*.wav"))[: given.count]
    if not sounds:
        raise InvalidOption(f"{given.sounds} has no WAV files: make them by `sounds`")
    texts = [read_text(each.with_suffix(".txt"), str(each), "give its text") for each in sounds]
    return sounds, texts, sum((each.stat().st_size - 44) / 32_000 for each in sounds)


def _findings(
    given: argparse.Namespace,
    what: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[results.Cell]],
    note: str | None = None,
    **more: Any,
) -> Findings:
    name = Path(given.model).name
    return Findings(
        title=f"{what}, {name}",
        topic="speech",
        command=f"python -m benchmarks.speech {given.kind} --sounds sounds --model {name}",
        columns=columns,
        rows=rows,
        note=note,
        data={"columns": columns, "rows": rows} | more,
        timed=True,
    )


def _sounds(given: argparse.Namespace, worker: Worker) -> None:
    text = read_text(given.text, f"cannot read {given.text}", "give a text in UTF-8")
    print(f"{make_sounds(worker, text, given.minutes, given.out):.1f} minutes in {given.out}")


def _live(given: argparse.Namespace, worker: Worker) -> Findings:
    sounds, references, spoken = _spoken(given)
    clock = process_time if given.threads == 1 else perf_counter
    wanted, runs = Listening(given.language), dict[tuple[str, bool], live.LiveRun]()
    texts: dict[str, list[str]] = {}
    for precision in given.precisions.split(","):
        own = listener(given.model, given.threads, "none", precision)
        engine = own.engine
        for number, path in enumerate(sounds):
            sound = read_sound(path)
            said = live.spoken([*own.segments(sound, wanted)], engine.tokenizer.decode)
            whole = f"the whole file, {precision}"
            texts.setdefault(whole, []).append(" ".join(each.word for each in said))
            for drafted in (True, False):
                run = runs.setdefault((precision, drafted), live.LiveRun())
                words = live.follow(run, Live(own, wanted), engine, sound, drafted, clock)
                run.late += live.delays(words, said)
                name = f"{precision}, {'drafted' if drafted else 'not drafted'}"
                texts.setdefault(name, []).append(" ".join(each.word for each in words))
            print(f"{precision}: {number + 1} of {len(sounds)}", end="\r", file=sys.stderr)
    print(file=sys.stderr)
    wrong = {}
    for name, each in texts.items():
        found = worker.ask("errors", references=references, texts=each)
        wrong[name] = round(100 * sum(found["wrong"]) / max(1, sum(found["words"])), 2)
    rows: list[list[results.Cell]] = []
    for precision in given.precisions.split(","):
        for drafted in (True, False):
            name = f"{precision}, {'drafted' if drafted else 'not drafted'}"
            rows.append([name, *live.figures(runs[precision, drafted], spoken), wrong[name]])
        whole = f"the whole file, {precision}"
        rows.append([whole, *[None] * (len(live.COLUMNS) - 2), wrong[whole]])
    what = f"Live captions: {spoken:.0f} s of speech on {given.threads} threads"
    return _findings(given, what, live.COLUMNS, rows, texts=texts)


def _compare(given: argparse.Namespace, worker: Worker) -> Findings:
    sounds, references, spoken = _spoken(given)
    engines: dict[str, Transcriber] = {}
    for name, precision in ((OURS, None), (f"{OURS} int8", "int8")):
        engines[name] = ours(listener(given.model, given.threads, given.drafter, precision))

    def peer(name: str, model: str) -> Transcriber:
        worker.ask("load", engine=name, model=model, threads=given.threads)

        def write(path: Path) -> tuple[str, float]:
            found = worker.ask("transcribe", engine=name, path=str(path))
            return found["text"], found["seconds"]

        return write

    for name in given.peers.split(","):
        engines[name] = peer(name, given.model)
    if given.ggml:
        engines["whisper.cpp"] = peer("whisper.cpp", given.ggml)
    for write in engines.values():
        write(sounds[0])  # warm
    texts, seconds = compare(engines, sounds, given.rounds)
    found = {
        name: worker.ask("errors", references=references, texts=each)
        for name, each in texts.items()
    }
    wrong = {name: (sum(each["wrong"]), sum(each["words"])) for name, each in found.items()}
    for name, (errors, words) in wrong.items():
        if 2 * errors > words:
            raise EngineFailed(f"{name} has most words wrong: its model is damaged, or another")
    rows = table(wrong, seconds, spoken)
    what = f"Speech to text by turns: {spoken / 60:.0f} minutes"
    note = f"Threads: {given.threads}; beam 1, greedy with fallback, rounds: {given.rounds}."
    return _findings(given, what, COLUMNS, rows, note, seconds=seconds, texts=texts)


def _same(given: argparse.Namespace) -> Findings:
    sounds = [*islice(clips(sorted(given.sounds.glob("*.wav")), given.seconds), given.count)]
    if not sounds:
        raise InvalidOption(f"{given.sounds} has no WAV files: make them by `sounds`")
    asked = Options(
        model=given.model,
        threads=given.threads,
        precision=given.precision,
        nodes=given.nodes,
        depth=given.nodes,
    )
    table, faults = [], []
    for temperature in given.temperature or [0.0, 0.7]:
        named = ways(given.drafter or ["recycling"], temperature)
        found, encoder = same(asked, sounds, named, temperature)
        for isa in given.isa or ():
            way, texts = elsewhere(isa, asked, sounds, temperature)
            named.append(way)
            found |= texts
        more, wrong = rows(named, found, encoder, temperature)
        table += more
        faults += [f"temperature {temperature}: {each}" for each in wrong]
    for fault in faults:
        print(fault, file=sys.stderr)
    length = "whole sounds" if given.seconds is None else f"pieces of {given.seconds:g} s"
    words = f"--sounds sounds --model {Path(given.model).name}"
    for name in ("seconds", "count", "precision", "nodes"):
        if (value := getattr(given, name)) is not None:
            words += f" --{name} {value:g}" if name == "seconds" else f" --{name} {value}"
    for name in ("drafter", "isa"):
        words += "".join(f" --{name} {each}" for each in getattr(given, name) or ())
    return Findings(
        title=f"One sound, one text: Whisper {Path(given.model).name}, {length}",
        topic="speech",
        command=f"python -m benchmarks.speech same {words}",
        columns=SAME,
        rows=table,
        note="Pieces are cut without regard to words; equal means every token of every text of a "
        "piece. Live captions are compared with the same steps without drafts, not with the whole "
        "file: what a Whisper hears of a part is not what it hears of the whole. The rule of what "
        "is near the best (`top-gap`) must differ, and so must another seed: a difference is "
        "found.",
        code=int(bool(faults)),
    )


def findings(given: argparse.Namespace) -> Findings | None:
    """Make sounds, or compare; all but `same` ask a worker."""
    if given.kind == "same":
        return _same(given)
    works = {"sounds": _sounds, "compare": _compare, "live": _live}
    with closing(Worker()) as worker:
        return works[given.kind](given, worker)


def main(argv: Sequence[str] | None = None) -> int:
    """Make sounds, or compare engines on them."""
    parser = argparse.ArgumentParser(prog="speech", description=(__doc__ or "").splitlines()[0])
    kinds = parser.add_subparsers(dest="kind", required=True)
    made = kinds.add_parser("sounds", help="speak a text")
    made.add_argument("--text", type=Path, required=True, help="in UTF-8, paragraphs apart")
    made.add_argument("--minutes", type=float, default=60.0)
    made.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    turns = kinds.add_parser("compare", help="write sounds down by turns")
    turns.add_argument("--ggml", help="the same model in whisper.cpp's form")
    turns.add_argument("--peers", default="faster-whisper int8,faster-whisper float32")
    turns.add_argument("--drafter", default="none")
    turns.add_argument("--rounds", type=int, default=3)
    alike = kinds.add_parser("same", help="write sounds down in many ways")
    alike.add_argument("--sounds", type=Path, required=True, metavar="FOLDER")
    alike.add_argument("--model", required=True)
    alike.add_argument("--drafter", action="append", help="repeatable; default: recycling")
    alike.add_argument("--nodes", type=int, help="of every draft; default: by cost")
    alike.add_argument("--isa", action="append", help="instruction set, as avx2; repeatable")
    alike.add_argument("--temperature", type=float, action="append", help="repeatable")
    alike.add_argument("--seconds", type=float, help="of the pieces that sounds are cut to")
    alike.add_argument("--count", type=int, help="of sounds at most")
    alike.add_argument("--precision")
    alike.add_argument("--threads", type=int, default=1)
    add_output(alike)
    comes = kinds.add_parser("live", help="caption sounds that come in their own time")
    comes.add_argument("--precisions", default="file,int8")
    comes.add_argument("--language", default="en")
    for each in (turns, comes):
        each.add_argument("--sounds", type=Path, required=True, metavar="FOLDER")
        each.add_argument("--model", required=True, help="directory of CTranslate2")
        each.add_argument("--threads", type=int, default=2, help="with 1, time is the processor's")
        each.add_argument("--count", type=int, help="of sounds at most")
        add_output(each)
    return run_script(parser, findings, argv)


if __name__ == "__main__":
    sys.exit(main())
