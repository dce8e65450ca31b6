"""Pictures of 16 x 16 pixels: line by line, in Jacobi windows, and by neighbours.

    python -m benchmarks.pixels train --order lines --out LINES
    python -m benchmarks.pixels train --order neighbours --out NEIGHBOURS
    python -m benchmarks.pixels measure --lines LINES --neighbours NEIGHBOURS --record pixels

A picture has a ground, up to three discs, boxes and bars, of four levels of grey, and some pixels
of any. Two models of one shape and training learn them. The first draws pixel by pixel, plain and
with speculative Jacobi windows (SJD) of `--window` pixels, whose first guesses repeat the last
pixel or the line above; the second draws all pixels of a distance from the corner in one pass
(NAR). Told are forwards of a picture, how many pictures are those of plain decoding, and bits per
pixel by the model that drew them, of held-out pictures and of those drawn. Time is not measured.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
from benchmarks.endless import nats
from benchmarks.script import Findings, add_output, run_script
from benchmarks.small_llama import LAYERS, WIDTH, config_json, fresh, learn, trained_on, write

from paceline.core import tree
from paceline.core.target import Rows
from paceline.core.types import Distribution, IntArray, SamplingParams
from paceline.drafters.base import Drafter, NoDrafter
from paceline.engine.loop import AutoregressiveDecoder
from paceline.engine.stopping import StopRules
from paceline.lab.measure import results
from paceline.methods.jacobi import Initial, Jacobi
from paceline.methods.neighbours import Neighbours, Rings
from paceline.models.source import DirectorySource
from paceline.policy.controller import Fixed
from paceline.runtimes.cpu.target import CpuTarget
from paceline.sampling.distributions import one_hot
from paceline.sampling.generation import Generation
from paceline.sampling.randomness import KeyedRandomness
from paceline.verifiers.base import Verifier
from paceline.verifiers.matching import Coupled
from paceline.verifiers.rejection import Rejection

SIDE, LEVELS = 16, 4
PIXELS, START = SIDE * SIDE, LEVELS
NOISE = 0.02
"""Share of pixels of any level."""


def picture(rng: np.random.Generator) -> IntArray:
    """Draw a picture, int64 `[SIDE, SIDE]`."""
    out = np.full((SIDE, SIDE), rng.integers(LEVELS))
    row, column = np.indices(out.shape)
    for _ in range(rng.integers(1, 4)):
        kind, level = rng.integers(3), rng.integers(LEVELS)
        y, x, size = rng.integers(SIDE), rng.integers(SIDE), rng.integers(2, 6)
        if kind == 0:
            inside = (row - y) ** 2 + (column - x) ** 2 <= size**2
        elif kind == 1:
            inside = (abs(row - y) <= size) & (abs(column - x) <= rng.integers(2, 6))
        else:
            inside = (row if rng.integers(2) else column) // size % 2 == 0
        out[inside] = level
    any_level = rng.random(out.shape) < NOISE
    return np.where(any_level, rng.integers(LEVELS, size=out.shape), out)


def train(given: argparse.Namespace) -> None:
    """Train a model and write it to `--out`."""
    import torch
    from torch.nn import functional

    neighbours = given.order == "neighbours"
    grid, axes = Rings((SIDE, SIDE)), 1 + neighbours  # a head for each axis
    config = config_json((LEVELS + 1) * axes, PIXELS + 64, begin=START)
    model = fresh(config, given.seed)
    rows = grid.order[:PIXELS] if neighbours else np.arange(PIXELS)
    sees = torch.from_numpy(grid.sees[:PIXELS, :PIXELS])[None, None] if neighbours else None
    places = torch.from_numpy(rows)[None].expand(given.batch, -1)
    # Of each cell the rows that its neighbours have, and which of them there are.
    row_of = np.zeros(PIXELS + 1, np.int64)
    row_of[rows] = np.arange(PIXELS)
    above = torch.from_numpy(row_of[grid.parents + 1])
    some = torch.from_numpy((grid.parents >= 0) | (np.arange(PIXELS) == 0)[:, None])[..., None]

    def losses(boxes: IntArray) -> Any:
        start = np.full((len(boxes), 1), START)
        ids = torch.from_numpy(
            np.concatenate([start, boxes.reshape(len(boxes), -1)], axis=1)[:, rows]
        )
        said = model.packed(ids, places[:1].expand(len(boxes), -1), sees)
        if neighbours:
            said = said.unflatten(-1, (axes, LEVELS + 1))[:, above, torch.arange(axes)]
            said = (said * some).sum(2) / some.sum(1)
        labels = torch.from_numpy(boxes.reshape(-1))
        return functional.cross_entropy(said.flatten(0, 1), labels)

    def loss_of(step: int) -> Any:
        rng = np.random.default_rng((given.seed, step))
        return losses(np.stack([picture(rng) for _ in range(given.batch)]))

    def keep(steps: int, seconds: int) -> None:
        with torch.no_grad():
            bits = losses(held).item() / np.log(2)
        about = {"order": given.order, "batch": given.batch, "steps": steps}
        write(given.out, model, config, about | {"seconds": seconds, "bits": round(bits, 4)})

    held = np.stack([picture(np.random.default_rng((given.seed, 2**32, at))) for at in range(64)])
    learn(model, given.steps, loss_of, keep, every=250)


def repeating(back: int) -> Initial:
    """First guesses repeat the pixel so many places before, of those that are drawn."""

    def initial(sequence: Generation, position: int) -> Distribution:
        root = len(sequence.tokens) - 1
        behind = -(-(position - root) // back) * back
        return one_hot(sequence.tokens[max(position - behind, 0)], LEVELS + 1)

    return initial


def draw(target: Any, drafter: Drafter, rule: Verifier, window: int, seed: int) -> tuple[Any, int]:
    """Return a picture that is drawn line by line, and its forwards."""
    stops = StopRules((), target.capabilities.max_context)
    decoder = AutoregressiveDecoder(target, drafter, rule, Fixed(window, window), stops)
    params = SamplingParams(temperature=1, seed=seed, max_new_tokens=PIXELS, banned_tokens=(START,))
    sequence = Generation.start(0, [START], params)
    decoder.open(sequence)
    while sequence.finish_reason is None:
        decoder.step([sequence])
    decoder.close(sequence)
    return np.array(sequence.tokens[1:]).reshape(SIDE, SIDE), sequence.stats.target_forwards


def bits_by_lines(target: Any, box: IntArray) -> float:
    """Bits per pixel of a picture, line by line."""
    cache, pixels = target.open(), box.ravel().tolist()
    [out] = target.forward([Rows.draft(cache, [START], tree.chain(pixels[:-1]))])
    found = sum(nats(out.logits, pixels)) / PIXELS / np.log(2)
    target.release(cache)
    return float(found)


def loaded(folder: Path) -> CpuTarget:
    source = DirectorySource(folder)
    return CpuTarget(source.config, source.weights(), "fp32", threads=1, kv_tokens=1024)


COLUMNS = ("way", "forwards", "pictures of plain decoding", "bits, held out", "bits, drawn")


def measure(given: argparse.Namespace) -> list[list[results.Cell]]:
    """Draw `--pictures` pictures in all ways.

    PacelineError: a model cannot be read.
    """
    lines, near = loaded(given.lines), loaded(given.neighbours)
    system = Neighbours(near, (SIDE, SIDE), LEVELS + 1)
    held = [picture(np.random.default_rng((1, 2**32, at))) for at in range(given.pictures)]
    known = mean(bits_by_lines(lines, each) for each in held)
    plain: list[Any] = []
    table: list[list[results.Cell]] = []

    def tell(
        way: str, drawn: Sequence[tuple[Any, int]], held_out: float, bits: list[float]
    ) -> None:
        same = sum(np.array_equal(a, b) for (a, _), b in zip(drawn, plain, strict=True))
        error = 1.96 * stdev(bits) / len(bits) ** 0.5
        table.append(
            [
                way,
                round(mean(count for _, count in drawn), 1),
                f"{same} of {len(drawn)}",
                round(held_out, 3),
                f"{mean(bits):.3f} \u00b1 {error:.3f}",
            ]
        )
        print(*table[-1], file=sys.stderr, flush=True)

    def by_lines(way: str, drafter: Drafter, rule: Verifier) -> None:
        drawn = [draw(lines, drafter, rule, given.window, seed) for seed in range(given.pictures)]
        plain.extend(each for each, _ in drawn if len(plain) < given.pictures)
        tell(way, drawn, known, [bits_by_lines(lines, each) for each, _ in drawn])

    by_lines("lines, plain", NoDrafter(), Coupled())
    for name, rule in (("shared noise", Coupled()), ("rejection", Rejection())):
        for guess, back in (("the last pixel", 1), ("the line above", SIDE)):
            drafter = Jacobi(LEVELS + 1, needs_q=rule.name == "rejection", initial=repeating(back))
            by_lines(f"lines, SJD by {name}, first {guess}", drafter, rule)
    boxes = [(system.draw(KeyedRandomness(seed)), system.passes) for seed in range(given.pictures)]
    known_near = mean(system.nats(each) / PIXELS / np.log(2) for each in held)
    bits = [system.nats(each) / PIXELS / np.log(2) for each, _ in boxes]
    tell("neighbours", boxes, known_near, bits)
    return table


def findings(given: argparse.Namespace) -> Findings:
    """Measure, and put it as a table."""
    rows = measure(given)
    learned = [trained_on(folder) for folder in (given.lines, given.neighbours)]
    best = min(rows[1:-1], key=lambda row: float(str(row[1])))
    return Findings(
        title=f"Pictures of {SIDE} x {SIDE} pixels: Jacobi windows and neighbours",
        topic="drafters",
        command="".join(
            f"python -m benchmarks.pixels train --order {each['order']} --steps {each['steps']} "
            f"--out {each['order'].upper()}\n"
            for each in learned
        )
        + "python -m benchmarks.pixels measure --lines LINES --neighbours NEIGHBOURS "
        f"--pictures {given.pictures}",
        columns=COLUMNS,
        rows=rows,
        note=f"Two models of {LAYERS} layers and width {WIDTH}, each trained on "
        f"{learned[0]['steps'] * learned[0]['batch']} pictures of {LEVELS} levels of grey. "
        f"{given.pictures} pictures a way, at temperature 1; windows of {given.window}. Bits are "
        "by the model that draws, with 95% intervals of the mean.",
        figures={
            "forwards, SJD": best[1],
            "forwards, neighbours": rows[-1][1],
            "forwards, plain": rows[0][1],
        },
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Train, or measure."""
    parser = argparse.ArgumentParser(prog="pixels", description=(__doc__ or "").splitlines()[0])
    kinds = parser.add_subparsers(dest="kind", required=True)
    learned = kinds.add_parser("train", help="train a model")
    learned.set_defaults(work=train)
    learned.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    learned.add_argument("--order", choices=("lines", "neighbours"), required=True)
    learned.add_argument("--steps", type=int, default=600)
    learned.add_argument("--batch", type=int, default=8)
    learned.add_argument("--seed", type=int, default=0)
    told = kinds.add_parser("measure", help="draw pictures")
    told.set_defaults(work=findings)
    told.add_argument("--lines", type=Path, required=True, metavar="FOLDER")
    told.add_argument("--neighbours", type=Path, required=True, metavar="FOLDER")
    told.add_argument("--pictures", type=int, default=32)
    told.add_argument("--window", type=int, default=16)
    add_output(told)
    return run_script(parser, lambda given: given.work(given), argv)


if __name__ == "__main__":
    sys.exit(main())
