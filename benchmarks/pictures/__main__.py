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
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from benchmarks.pictures.connector import JUDGED, ConnectorRecipe, ConnectorTask
from benchmarks.pictures.drafts import COLUMNS, drafted, make_prompts
from benchmarks.pictures.files import looking, publish, published, vision_for
from benchmarks.pictures.scenes import KINDS, ask, draw
from benchmarks.script import Findings, add_output, run_script

import paceline
from paceline.cli.train import train
from paceline.lab.training.setup import use_threads
from paceline.models.pictures import Picture
from paceline.models.pull import DEFAULT_MODEL
from paceline.models.shown import PictureWords
from paceline.models.source import resolve
from paceline.registry.options import Options
from paceline.runtimes.torch.model import TorchModel

_NUMBERS = ("steps", "word_steps", "batch", "questions", "pictures", "seed")


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


def answered(
    mmproj: str, model: str, threads: int, *, blind: bool = False
) -> dict[str, dict[str, float]]:
    """Return the shares of right answers of the engine by set and kind, greedy, on held-out scenes.

    The sets are new scenes, and scenes with a pair of colour and shape that was in none of the
    training. `blind` shows another scene than the one that is asked about.
    """
    engine = paceline.load(model, mmproj=mmproj, threads=threads, max_batch=8)
    shares = {}
    for name, held_out in (("new scenes", False), ("new pairs", True)):
        chats, expected = [], []
        for number in range(JUDGED):
            rng = np.random.default_rng((2, number, held_out))
            scene = draw(rng, 224, held_out=held_out)
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
        shares[name] = {kind: float(np.mean(each)) for kind, each in right.items()}
    return shares


def shown_drafts(given: argparse.Namespace) -> Findings:
    """Compare drafters behind pictures and behind texts."""
    options = Options(model=given.model, mmproj=given.mmproj, threads=given.threads)
    rows = drafted(given.drafters, given.held, given.count, given.tokens, options)
    return Findings(
        title=f"Drafts behind drawn pictures and behind texts, {Path(given.model).stem}",
        topic="drafters",
        command="python -m benchmarks.pictures drafts --mmproj CONNECTOR --held held.jsonl "
        + " ".join(given.drafters),
        columns=COLUMNS,
        rows=rows,
        note=f"Chains of five, greedy, {given.tokens} tokens or up to the end; intervals hold 95 "
        "of 100 means of prompts drawn anew. All drafters learned from the same texts, as many "
        "tokens each.",
        figures={f"{row[0]}, pictures": row[2] for row in rows[:8:2]},
    )


def shown_answers(given: argparse.Namespace) -> Findings:
    """Ask about held-out scenes, with their pictures and with others'."""
    asked = given.mmproj, given.model, given.threads
    seeing, blind = answered(*asked), answered(*asked, blind=True)
    return Findings(
        title=f"Questions about drawn pictures, {Path(given.model).stem}",
        topic="drafters",
        command="python -m benchmarks.pictures ask --mmproj CONNECTOR",
        columns=["question", *(f"{each}, right, %" for each in seeing), "of other pictures, %"],
        rows=[
            [
                kind,
                *(round(100 * part[kind], 1) for part in (*seeing.values(), blind["new scenes"])),
            ]
            for kind in KINDS
        ],
        note=f"Greedy, {JUDGED} scenes each, right to the last letter. New pairs: each scene has a "
        "colour on a shape that no scene of the training had.",
    )


def learned(given: argparse.Namespace) -> None:
    """Train a connector."""
    numbers = {name: getattr(given, name) for name in (*_NUMBERS, "matrix_rate")}
    learn(given.out, given.model, given.threads, ConnectorRecipe(**numbers), given.start)


def main(argv: Sequence[str] | None = None) -> int:
    """Train, ask, draw prompts, or compare drafters."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    works = {
        "train": learned,
        "ask": shown_answers,
        "prompts": lambda given: make_prompts(given.out, given.count, given.held_out),
        "drafts": shown_drafts,
    }
    kinds = [commands.add_parser(name) for name in works]
    for each, work in zip(kinds, works.values(), strict=True):
        each.set_defaults(work=work)
    trains, asks, prompts, drafts = kinds
    defaults = ConnectorRecipe()
    for name in (*_NUMBERS, "matrix_rate"):
        usual = getattr(defaults, name)
        trains.add_argument(f"--{name.replace('_', '-')}", type=type(usual), default=usual)
    trains.add_argument("--from", type=Path, dest="start", metavar="FOLDER", help="to begin with")
    for each in (trains, prompts):
        each.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    prompts.add_argument("--count", type=int, default=320, help="to learn from")
    prompts.add_argument("--held-out", type=int, default=48)
    drafts.add_argument("drafters", nargs="+", metavar="LABEL=NAME:OPTIONS")
    drafts.add_argument("--held", type=Path, required=True, metavar="FILE", help="JSONL")
    drafts.add_argument("--count", type=int, default=40, help="prompts of each kind, at most 40")
    drafts.add_argument("--tokens", type=int, default=64)
    for each in (asks, drafts):
        each.add_argument("--mmproj", required=True)
        add_output(each)
    for each in (trains, asks, drafts):
        each.add_argument("--model", default=DEFAULT_MODEL)
        each.add_argument("--threads", type=int, default=1)
    return run_script(parser, lambda given: given.work(given), argv)


if __name__ == "__main__":
    sys.exit(main())
