"""What memories of constant size still know of an hour of sound (Flash-VStream, VideoStreaming).

    python -m benchmarks.watching.memories --sounds FOLDER --record streams-memories

An hour of speech, in which sounds of other kinds come at random minutes: sirens, bells, rain and so
on, short ones or long ones. Frames are two seconds of the log-mels that a Whisper reads. Another
sound of a kind is then heard, and asked when there was one like it: its nearest row of a memory,
and the frame of the hour nearest to that. Memories of as many rows are the clusters, frames drawn
with equal chances (a reservoir) and the newest ones.

Summaries of clips are what a model makes of a clip and of its last summary. No model was trained to
summarise sound: frames enter a text model by a random projection, scaled as its embeddings are, and
the summary that is nearest to one of the sound asked for names a clip. Beside it, means of clips.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from benchmarks.script import Findings, add_output, run_script

from paceline.audio.mel import HOP, RATE, WINDOW, log_mel
from paceline.audio.read import read_sound
from paceline.core.types import LogitArray
from paceline.errors import InvalidOption
from paceline.lab.measure import results
from paceline.methods.streams.memories import ClipMemory, Sizes, StarMemory
from paceline.models.pull import DEFAULT_MODEL
from paceline.models.source import resolve
from paceline.runtimes.cpu.target import CpuTarget

SECONDS, PATCHES, COARSE = 2, 10, 2
"""Of a frame: how long it is, its rows, and those of a cluster."""
EVENTS = (3, 30)  # frames of the other sounds, in an hour each
ASKED = 3  # frames of a question, of which the middle one counts
ROWS = 25  # of each memory: the paper's clusters
CLIP, SUMMARY, LAYERS = 15, 4, 10
"""Frames of a clip, rows of its summary, and layers of the model that makes it."""
Floats = npt.NDArray[np.float64]
Row = dict[str, Any]


def _tone(hertz: Any, seconds: float) -> Floats:
    turns = np.cumsum(np.broadcast_to(hertz, int(seconds * RATE))) / RATE
    return np.sin(2 * np.pi * turns)


def _every(sound: Floats, gap: float, seconds: float) -> Floats:
    out = np.zeros(int(seconds * RATE))
    for begin in range(0, len(out), int(gap * RATE)):
        part = sound[: len(out) - begin]
        out[begin : begin + len(part)] += part
    return out


def _fading(hertz: float, draws: np.random.Generator) -> Floats:
    fade = np.exp(-np.arange(int(1.5 * RATE)) / (0.3 * RATE))
    return sum(_tone(hertz * part, 1.5) for part in (1, 2.76, 5.4)) * fade / 3


def _siren(draws: np.random.Generator, seconds: float) -> Floats:
    slow = _tone(draws.uniform(0.4, 0.6), seconds)
    return _tone(draws.uniform(700, 800) + 300 * slow, seconds)


def _beeps(draws: np.random.Generator, seconds: float) -> Floats:
    return _every(_tone(draws.uniform(950, 1050), 0.1), draws.uniform(0.45, 0.55), seconds)


def _rain(draws: np.random.Generator, seconds: float) -> Floats:
    return draws.standard_normal(int(seconds * RATE)) / 3


def _waves(draws: np.random.Generator, seconds: float) -> Floats:
    return np.cumsum(_rain(draws, seconds)) / 60 * (1 + _tone(draws.uniform(0.2, 0.3), seconds)) / 2


def _bell(draws: np.random.Generator, seconds: float) -> Floats:
    return _every(_fading(draws.uniform(380, 420), draws), 1.6, seconds)


def _clock(draws: np.random.Generator, seconds: float) -> Floats:
    click = draws.standard_normal(80) * np.exp(-np.arange(80) / 15)
    return _every(click, draws.uniform(0.22, 0.28), seconds)


def _hum(draws: np.random.Generator, seconds: float) -> Floats:
    return sum(_tone(50 * part, seconds) / part for part in range(1, 9)) * draws.uniform(0.3, 0.4)


def _chord(draws: np.random.Generator, seconds: float) -> Floats:
    low = draws.uniform(210, 230)
    return sum(_tone(low * part, seconds) for part in (1, 5 / 4, 3 / 2, 2)) / 4


def _birds(draws: np.random.Generator, seconds: float) -> Floats:
    chirp = _tone(np.linspace(3000, draws.uniform(4500, 5000), int(0.12 * RATE)), 0.12)
    return _every(chirp, draws.uniform(0.25, 0.35), seconds)


def _drum(draws: np.random.Generator, seconds: float) -> Floats:
    beat = _tone(np.linspace(120, 50, int(0.2 * RATE)), 0.2) * np.linspace(1, 0, int(0.2 * RATE))
    return _every(beat, draws.uniform(0.35, 0.45), seconds)


KINDS: Sequence[Callable[[np.random.Generator, float], Floats]] = (
    *(_siren, _beeps, _rain, _waves, _bell, _clock, _hum, _chord, _birds, _drum),
)


def hour(sounds: Path, minutes: int, seed: int, event: int) -> tuple[LogitArray, dict[int, int]]:
    """Return samples of speech with other sounds in it, and by kind the frame where it begins.

    A sound has `event` frames.

    InvalidOption: there are not so many minutes.
    """
    parts, have = list[LogitArray](), 0
    for path in sorted(sounds.glob("*.wav")):
        parts.append(read_sound(path))
        have += len(parts[-1])
        if have >= minutes * 60 * RATE:
            break
    else:
        raise InvalidOption(f"{sounds} has {have / RATE / 60:.1f} minutes of WAV: give more")
    sound = np.concatenate(parts)[: minutes * 60 * RATE]
    draws, most = np.random.default_rng((seed, 0)), len(sound) // (SECONDS * RATE * event) - 1
    if most < len(KINDS):
        raise InvalidOption(f"--minutes {minutes} has no room for {len(KINDS)} sounds: give more")
    places = draws.choice(most, len(KINDS), replace=False)
    begins = {kind: int(at) * event for kind, at in enumerate(places)}
    for kind, at in begins.items():
        begin = at * SECONDS * RATE
        sound[begin : begin + event * SECONDS * RATE] = heard(kind, seed, event * SECONDS)
    return sound, begins


def heard(kind: int, seed: int, seconds: float) -> LogitArray:
    """Return a sound of a kind; another by another seed."""
    draws = np.random.default_rng((seed, 1, kind))
    return (0.3 * KINDS[kind](draws, seconds)).astype(np.float32)


def frames_of(sound: LogitArray) -> LogitArray:
    """Return frames `[n, PATCHES, 80]`, means of log-mels; windows of 30 seconds as a Whisper's."""
    parts = [sound[begin : begin + WINDOW] for begin in range(0, len(sound), WINDOW)]
    mels = np.concatenate([log_mel(each) for each in parts])
    rows = mels.reshape(-1, SECONDS * RATE // HOP // PATCHES, mels.shape[1]).mean(axis=1)
    return rows.reshape(-1, PATCHES, mels.shape[1])


def coarse(frames: LogitArray) -> Floats:
    """Return `[n, COARSE * width]`, as a memory clusters them."""
    parts = frames.reshape(len(frames), COARSE, -1, frames.shape[2])
    return parts.mean(axis=2, dtype=np.float64).reshape(len(frames), -1)


def nearest(points: Floats, rows: Floats) -> npt.NDArray[np.int64]:
    """Return of each point the row that is nearest."""
    return np.array([((rows - each) ** 2).sum(axis=1).argmin() for each in points])


def reservoir(count: int, seed: int) -> list[int]:
    """Return `ROWS` of so many frames, kept with equal chances while they come."""
    draws, kept = np.random.default_rng((seed, 2)), list[int]()
    for at in range(count):
        place = at if at < ROWS else int(draws.integers(at + 1))
        if at < ROWS:
            kept.append(at)
        elif place < ROWS:
            kept[place] = at
    return kept


class Questions(NamedTuple):
    """Frames of an hour and of questions as points, where each kind begins, and how long it is."""

    points: Floats
    asked: Floats
    begins: dict[int, int]
    event: int


def about(name: str, rows: Floats, asked: Questions) -> Row:
    """How many questions a memory answers, and how far it is from all that was heard."""
    points = asked.points
    found = nearest(rows[nearest(asked.asked, rows)], points)
    begins = asked.begins
    right = [0 <= at - begins[kind] < asked.event for kind, at in enumerate(found.tolist())]
    apart = ((points - rows[nearest(points, rows)]) ** 2).sum(axis=1).mean()
    spread = ((points - points.mean(axis=0)) ** 2).sum(axis=1).mean()
    return {"memory": name, "rows": len(rows), "right": mean(right), "lost": apart / spread}


def measure(given: argparse.Namespace) -> list[Row]:
    """Compare memories over an hour. PacelineError: the sounds cannot be read, or are too few."""
    rows = []
    for event in EVENTS:
        sound, begins = hour(given.sounds, given.minutes, given.seed, event)
        parts = [heard(kind, given.seed + 1, ASKED * SECONDS) for kind in range(len(KINDS))]
        frames = frames_of(np.concatenate([sound, *parts]))
        count = given.minutes * 60 // SECONDS
        last = frames[count + ASKED // 2 :][: len(KINDS) * ASKED : ASKED]
        asked = Questions(coarse(frames[:count]), coarse(last), begins, event)
        points = asked.points
        drawn = [points[reservoir(count, seed)] for seed in range(given.seeds)]
        found = [about("all frames", points, asked)]
        found.append(about("the newest frames", points[-ROWS:], asked))
        found.append(_mean(about("drawn frames", each, asked) for each in drawn))
        found.append(_mean(clusters(frames[:count], asked, seed) for seed in range(given.seeds)))
        heard_last = frames[count:].reshape(len(KINDS), ASKED, *frames.shape[1:])
        found += clips(frames[:count], heard_last, asked, given.model)
        rows += [row | {"seconds": event * SECONDS} for row in found]
    return rows


def clusters(frames: LogitArray, asked: Questions, seed: int) -> Row:
    """Let a memory see the frames one by one."""
    memory, spent = StarMemory(Sizes(temporal=ROWS, coarse=COARSE), seed=seed), list[float]()
    sizes = set()
    for at in range(len(frames)):
        begin = perf_counter()
        memory.add(frames[at : at + 1])
        spent.append(perf_counter() - begin)
        if at >= ROWS:
            sizes.add(len(memory.rows()))
    assert memory.weights.sum() == len(frames)
    tenth = max(1, len(spent) // 10)
    first, last = mean(spent[ROWS : ROWS + tenth]), mean(spent[-tenth:])
    row = about("clusters", memory.centroids, asked)
    print(f"seed {seed}: {row}", file=sys.stderr, flush=True)
    return row | {"first": 1e3 * first, "last": 1e3 * last, "all rows": max(sizes)}


def clips(frames: LogitArray, last: LogitArray, asked: Questions, model: str) -> list[Row]:
    """Let a model summarise clips of an hour and the questions, `[kinds, frames, ...]`.

    PacelineError: the model cannot be loaded.
    """
    source = resolve(model)
    weights = source.weights()
    target = CpuTarget(source.config, weights, source.precision, kv_tokens=1024, threads=2)
    draws, embed = np.random.default_rng(0), weights["embed"]
    size = float(np.sqrt((np.asarray(embed[:1000], dtype=np.float64) ** 2).mean()))
    begin = np.asarray(embed[:SUMMARY], dtype=np.float32)
    points = asked.points
    into = draws.standard_normal((points.shape[1], source.config.hidden_size))
    mean_of, spread = points.mean(axis=0), points.std(axis=0)

    def rows(some: LogitArray) -> LogitArray:
        found = ((coarse(some) - mean_of) / spread) @ into
        scaled: Floats = found * (size / np.sqrt((found**2).mean()))
        return scaled.astype(np.float32)

    memory = ClipMemory(target, LAYERS, begin, most=len(frames) // CLIP)
    spent = list[float]()
    for at in range(0, len(frames), CLIP):
        start = perf_counter()
        memory.add(rows(frames[at : at + CLIP]))
        spent.append(perf_counter() - start)
    own = [ClipMemory(target, LAYERS, begin).add(rows(each)).mean(axis=0) for each in last]
    means = points.reshape(-1, CLIP, points.shape[1]).mean(axis=1)
    nearest_mean = nearest(np.array([coarse(each).mean(axis=0) for each in last]), means)
    picked = {
        "summaries of clips": [memory.select(each, 1)[0] for each in own],
        "means of clips": nearest_mean.tolist(),
    }
    tenth = max(1, len(spent) // 10)
    times = {"first": 1e3 * mean(spent[1 : 1 + tenth]), "last": 1e3 * mean(spent[-tenth:])}
    found = list[Row]()
    for name, of in picked.items():
        right = [
            asked.begins[kind] < (at + 1) * CLIP and at * CLIP < asked.begins[kind] + asked.event
            for kind, at in enumerate(of)
        ]
        size_of = SUMMARY if name.startswith("summaries") else 1
        row = {"memory": name, "rows": len(means) * size_of, "right": mean(right), "lost": None}
        found.append(row | times)
    return found


def _mean(found: Any) -> Row:
    found = list(found)
    keys = [key for key in found[0] if key != "memory"]
    return {"memory": found[0]["memory"]} | {key: mean(row[key] for row in found) for key in keys}


COLUMNS = ("sounds of, s", "memory", "rows", "questions answered, %", "lost of the spread, %")


def cells(rows: Sequence[Row]) -> list[list[results.Cell]]:
    """Rows of the table."""
    return [
        [
            row["seconds"],
            row["memory"],
            row["rows"],
            round(100 * row["right"], 1),
            row["lost"] if row["lost"] is None else round(100 * row["lost"], 1),
        ]
        for row in rows
    ]


def findings(given: argparse.Namespace) -> Findings:
    """Measure, and put it as a table."""
    rows = measure(given)
    long = {row["memory"]: row for row in rows[len(rows) // 2 :]}
    star, told = long["clusters"], long["summaries of clips"]
    return Findings(
        title=f"Flash-VStream and VideoStreaming: {given.minutes} minutes in constant memory",
        topic="methods",
        command=f"python -m benchmarks.watching.memories --sounds FOLDER --minutes {given.minutes}",
        columns=COLUMNS,
        rows=cells(rows),
        note=f"{given.minutes * 60 // SECONDS} frames of two seconds, log-mels of speech by a "
        f"synthetic voice, with {len(KINDS)} other sounds at random minutes; means of "
        f"{given.seeds} seeds. An answer is right if the frame lies in the sound that is asked "
        "for. Lost is the mean squared distance of a frame from its nearest row, of that from the "
        f"mean. The whole memory has at most {star['all rows']:.0f} rows, its weights sum to the "
        f"frames, and a frame takes {star['first']:.1f} ms in the first tenth and "
        f"{star['last']:.1f} ms in the last. The paper: constant memory and time over hours of "
        f"video. Clips of {CLIP * SECONDS} s: right if a clip holds a part of the sound. "
        f"{LAYERS} layers of {Path(given.model).name}, which nobody trained to summarise, over the "
        f"last summary, a clip and {SUMMARY} rows take {told['first']:.1f} ms a clip in the first "
        f"tenth and {told['last']:.1f} ms in the last.",
        figures={
            "long sounds found by clusters, %": round(100 * star["right"], 1),
            "by drawn frames, %": round(100 * long["drawn frames"]["right"], 1),
            "by summaries, %": round(100 * told["right"], 1),
            "by means of clips, %": round(100 * long["means of clips"]["right"], 1),
        },
        data=rows,
        timed=True,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, and write --record."""
    parser = argparse.ArgumentParser(prog="memories", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sounds", type=Path, required=True, metavar="FOLDER", help="of speech")
    parser.add_argument("--minutes", type=int, default=60)
    parser.add_argument("--model", default=DEFAULT_MODEL, help="which summarises clips")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0, help="of the hour")
    add_output(parser)
    return run_script(parser, findings, argv)


if __name__ == "__main__":
    sys.exit(main())
