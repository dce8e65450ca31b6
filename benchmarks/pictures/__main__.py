"""Train what lets a text model see, and ask it about pictures that nobody has drawn before.

    python -m benchmarks.pictures train --out connector-smollm2-135m
    python -m benchmarks.pictures ask --mmproj connector-smollm2-135m
    python -m benchmarks.pictures prompts --out prompts
    python -m benchmarks.pictures drafts --mmproj connector-smollm2-135m --held prompts/held.jsonl \
        EAGLE-3=eagle3:weights=eagle3.safetensors ViSpec=vispec:weights=vispec.safetensors

The tower dinov2-small (fetched) and the text model stay; what lies between them learns from drawn
scenes. Ctrl-C saves, and the same command goes on. What the tower saw is kept in `OUT.seen.npy`,
which may be deleted after. The folder is for `paceline chat --mmproj`. `prompts` draws pictures and
asks about them: a file to write texts of with `paceline train data`, which drafters learn from, and
one that is held out, behind which `drafts` compares them.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.pictures.connector import JUDGED, ConnectorRecipe, ConnectorTask
from benchmarks.pictures.drafts import COLUMNS, drafted, make_prompts
from benchmarks.pictures.files import looking, publish, published, vision_for
from benchmarks.pictures.scenes import KINDS, ask, draw

import paceline
from paceline.cli.train import train
from paceline.errors import PacelineError
from paceline.lab.measure import results
from paceline.lab.training.card import table
from paceline.lab.training.setup import use_threads
from paceline.models.pictures import Picture
from paceline.models.pull import DEFAULT_MODEL
from paceline.models.shown import PictureWords
from paceline.models.source import resolve
from paceline.registry.options import Options
from paceline.runtimes.torch.model import TorchModel

_NUMBERS = ("steps", "batch", "questions", "pictures", "seed")


def learn(out: Path, model: str, threads: int, recipe: ConnectorRecipe, start: Path | None) -> None:
    """Train a connector to `out`, or go on with it; a published one is what it begins with."""
    use_threads(threads)
    source = resolve(model)
    vision, tokenizer = vision_for(source), source.tokenizer()
    tokenizer.pictures = PictureWords.of(vision, tokenizer.special_ids)
    dtype = torch.bfloat16 if recipe.training_precision == "bf16" else torch.float32
    text = TorchModel(source.config, source.weights(), torch.device("cpu"), dtype)
    kept = out.with_name(f"{out.name}.seen.npy")
    begun = None if start is None else published(start)
    task = ConnectorTask(recipe, text, tokenizer, vision, looking(vision, threads), kept, begun)
    words = recipe.words(*_NUMBERS, "matrix_rate")
    command = f"python -m benchmarks.pictures train --model {source.name} {words}"
    if start is not None:
        command += " --from FIRST"
    train(task, out, lambda run: publish(run, out, source, command), as_json=False, whole=True)


def answered(mmproj: str, model: str, threads: int, *, blind: bool = False) -> dict[str, Any]:
    """Return the shares of right answers of the engine by kind, greedy, on held-out scenes.

    Half of the scenes have a pair of colour and shape that was in none of the training. `blind`
    shows another scene than the one that is asked about.
    """
    engine = paceline.load(model, mmproj=mmproj, threads=threads, max_batch=8)
    chats, expected = [], []
    for number in range(JUDGED):
        rng = np.random.default_rng((1, number))
        scene = draw(rng, 224, held_out=number % 2 == 1)
        shown = draw(rng, 224) if blind else scene
        for kind in KINDS:
            if (question := ask(rng, scene, kind)) is not None:
                picture = {"type": "image", "image": Picture(shown.pixels)}
                text = {"type": "text", "text": question.asked}
                chats.append([{"role": "user", "content": [picture, text]}])
                expected.append(question)
    found = engine.generate(chats, max_new_tokens=96, temperature=0.0)
    right: dict[str, list[bool]] = {kind: [] for kind in KINDS}
    for question, each in zip(expected, found, strict=True):
        right[question.kind].append(each.text.strip() == question.answer)
    return {kind: float(np.mean(each)) for kind, each in right.items()}


def show_drafts(given: argparse.Namespace) -> None:
    """Print what drafters bring, and write --record."""
    options = Options(model=given.model, mmproj=given.mmproj, threads=given.threads)
    rows = drafted(given.drafters, given.held, given.count, given.tokens, options)
    print(table(COLUMNS, [list(map(str, row)) for row in rows]))
    if given.record is not None:
        results.record(
            Path("docs/results/data") / f"{given.record}.json",
            f"Drafts behind drawn pictures and behind texts, {Path(given.model).stem}",
            "drafters",
            "python -m benchmarks.pictures drafts --mmproj CONNECTOR --held held.jsonl "
            + " ".join(given.drafters),
            COLUMNS,
            rows,
            note=f"Chains of five, greedy, {given.tokens} tokens or up to the end; intervals hold "
            "95 of 100 means of prompts drawn anew. All drafters learned from the same texts, as "
            "many tokens each.",
            figures={f"{row[0]}, pictures": row[2] for row in rows[:8:2]},
        )


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    first, second, prompts, drafts = map(commands.add_parser, ("train", "ask", "prompts", "drafts"))
    for each in (first, prompts):
        each.add_argument("--out", type=Path, required=True)
    for each in (second, drafts):
        each.add_argument("--mmproj", required=True)
    prompts.add_argument("--count", type=int, default=320, help="to learn from")
    prompts.add_argument("--held-out", type=int, default=48)
    drafts.add_argument("drafters", nargs="+", metavar="LABEL=NAME:OPTIONS")
    drafts.add_argument("--held", type=Path, required=True, metavar="FILE", help="JSONL")
    drafts.add_argument("--count", type=int, default=40, help="prompts of each kind, at most 40")
    drafts.add_argument("--tokens", type=int, default=64)
    drafts.add_argument("--record", metavar="NAME", help="also write docs/results/data/NAME.json")
    defaults = ConnectorRecipe()
    first.add_argument("--from", type=Path, dest="start", metavar="FOLDER", help="to begin with")
    first.add_argument("--matrix-rate", type=float, default=defaults.matrix_rate)
    for name in _NUMBERS:
        first.add_argument(f"--{name}", type=int, default=getattr(defaults, name))
    for each in (first, second, drafts):
        each.add_argument("--model", default=DEFAULT_MODEL)
        each.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    if given.command == "train":
        numbers = {name: getattr(given, name) for name in _NUMBERS}
        recipe = ConnectorRecipe(**numbers, matrix_rate=given.matrix_rate)
        learn(given.out, given.model, given.threads, recipe, given.start)
        return
    if given.command == "prompts":
        make_prompts(given.out, given.count, given.held_out)
        return
    if given.command == "drafts":
        show_drafts(given)
        return
    asked = given.mmproj, given.model, given.threads
    seeing, blind = answered(*asked), answered(*asked, blind=True)
    rows = [(kind, f"{seeing[kind]:.0%}", f"{blind[kind]:.0%}") for kind in KINDS]
    print(table(("question", "right", "right with another picture"), rows))


if __name__ == "__main__":
    try:
        main()
    except PacelineError as error:
        sys.exit(f"error: {error}")
