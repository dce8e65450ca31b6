"""What drafters bring a forward behind pictures, and behind texts: those that see and those not."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.pictures.scenes import KINDS, ask, draw

from paceline.core.cache import make_dir, write_atomically
from paceline.engine.engine import Engine
from paceline.lab.measure.machine import dumps
from paceline.models.pictures import Picture
from paceline.registry.loading import load_model, make_engine
from paceline.registry.options import Options

COLUMNS = ["drafter", "behind", "tokens per forward", "at least", "at most", "same texts", "texts"]
_RESAMPLES = 2000
_STORIES = [
    f"Write a short story about a {word} {thing}."
    for word in ("red", "small", "lost", "quick", "old")
    for thing in ("fox", "boat", "tree", "key", "king", "clock", "river", "star")
]


def make_prompts(out: Path, count: int, held: int) -> None:
    """Write `train.jsonl` and `held.jsonl` with so many drawn pictures and what is asked of them.

    Half of the prompts ask for a description, others for one thing; a line is for
    `paceline train data`.
    """
    from PIL import Image

    make_dir(out)
    for name, seed, most in (("train", 7, count), ("held", 8, held)):
        lines = []
        for number in range(most):
            rng = np.random.default_rng((seed, number))
            scene = draw(rng, 224)
            kind = "describe" if number % 2 == 0 else list(KINDS)[int(rng.integers(len(KINDS)))]
            question = ask(rng, scene, kind) or ask(rng, scene, "describe")
            assert question is not None
            Image.fromarray(scene.pixels).save(out / f"{name}-{number}.png")
            lines.append(dumps({"prompt": question.asked, "image": f"{name}-{number}.png"}))
        write_atomically(out / f"{name}.jsonl", "\n".join(lines) + "\n")


def _prompts(held: Path, count: int) -> dict[str, list[list[dict[str, Any]]]]:
    chats = []
    for line in held.read_text(encoding="utf-8").splitlines()[:count]:
        own = json.loads(line)
        picture = {"type": "image", "image": Picture.open(held.parent / own["image"])}
        text = {"type": "text", "text": own["prompt"]}
        chats.append([{"role": "user", "content": [picture, text]}])
    stories: list[list[dict[str, Any]]]
    stories = [[{"role": "user", "content": each}] for each in _STORIES[:count]]
    return {"pictures": chats, "texts": stories}


def _answers(engine: Engine, prompts: Sequence[Any], tokens: int) -> list[Any]:
    return engine.generate(prompts, max_new_tokens=tokens, temperature=0.0)


def drafted(
    drafters: Sequence[str], held: Path, count: int, tokens: int, options: Options
) -> list[list[Any]]:
    """Return rows of `COLUMNS`: each drafter, `LABEL=NAME:OPTIONS`, behind pictures and texts.

    Chains of five, greedy. The interval holds 95 of 100 means of prompts drawn anew. Texts are the
    same as without drafts, or the row says how many are.
    """
    loaded, prompts = load_model(options), _prompts(held, count)
    plain = make_engine(loaded, drafter="none", max_batch=8)
    alone = {kind: _answers(plain, some, tokens) for kind, some in prompts.items()}
    rows: list[list[Any]] = []
    for each in drafters:
        label, _, name = each.partition("=")
        engine = make_engine(loaded, drafter=name or label, nodes=5, depth=5, max_batch=8)
        for kind, some in prompts.items():
            found = _answers(engine, some, tokens)
            counts = np.array(
                [(one.stats.committed_tokens, one.stats.target_forwards) for one in found]
            )
            picks = np.random.default_rng(0).integers(0, len(some), (_RESAMPLES, len(some)))
            means = np.divide(*counts[picks].sum(1).T)
            same = sum(a.token_ids == b.token_ids for a, b in zip(found, alone[kind], strict=True))
            figures = (np.divide(*counts.sum(0)), *np.quantile(means, [0.025, 0.975]))
            rows.append([label, kind, *(round(float(x), 2) for x in figures), same, len(some)])
    return rows
