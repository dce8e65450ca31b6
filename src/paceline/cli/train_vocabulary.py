"""`paceline train vocabulary`: a smaller draft vocabulary for weights that are trained already."""

from __future__ import annotations

import json
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from paceline.cli import options as o
from paceline.cli.output import report
from paceline.core.cache import write_atomically
from paceline.errors import InvalidOption


def vocabulary(
    weights: Annotated[
        str,
        typer.Argument(
            help="Weights of a drafter, the name of one that ships, or a model (GGUF file, Hugging "
            "Face directory) that drafts for MODEL."
        ),
    ],
    *,
    data: o.Folders = o.DATA,
    size: Annotated[int, "Tokens to keep; 0 is the size of greatest utility."] = 0,
    weight: Annotated[float, "Of coverage in the utility; the rest is that of time saved."] = 0.7,
    least: Annotated[float, "Least coverage of the size that is found."] = 0.9,
    out: Annotated[
        Path | None, "Where they go. Default: NAME-K.safetensors; of a model NAME-K.json."
    ] = None,
    model: o.Model = "smollm2-135m",
    as_json: o.AsJson = False,
) -> None:
    """Cut a drafter's vocabulary to the tokens that the model writes most, without training.

    Tokens left out come from corrections, so texts stay the same. Of a model its tokens alone are
    written: --drafter draft-model:vocabulary=NAME-K.json takes them. Utility is WEIGHT times the
    coverage of the tokens in --data, plus the rest times the share of multiplications saved.
    """
    from paceline.lab.training.card import Teacher
    from paceline.lab.training.vocabulary import (
        best_size,
        count_tokens,
        keep_frequent,
        sizes,
        trimmed,
    )
    from paceline.models.source import resolve
    from paceline.networks.weights import load_network, save_network, shipped_file

    source = resolve(model)
    config = source.config
    path = Path(weights)
    whole = path.suffix == ".gguf" or path.is_dir()
    if not path.exists():
        shipped = shipped_file(weights, source.fingerprint)
        if shipped is None:
            raise InvalidOption(
                f"there is no file {weights}, and no weights of that name ship for {source.name}"
            )
        path = shipped
    texts = Teacher.of(data, source).texts
    counts = count_tokens((text.tokens[text.prompt_length :] for text in texts), config.vocab_size)
    if whole:
        drafts = resolve(weights)
        if drafts.config.vocab_size != config.vocab_size:
            raise InvalidOption(
                f"{drafts.name} has {drafts.config.vocab_size} tokens and {source.name} "
                f"{config.vocab_size}: draft models of another vocabulary draft texts, leave them"
            )
        ids = np.arange(config.vocab_size)
        shape = drafts.config
        width, heads = shape.hidden_size, shape.head_dim * (shape.heads + shape.kv_heads)
        body = shape.layers * width * (2 * heads + 3 * shape.ffn_size)
    else:
        trained = load_network(path)
        ids = trained.draft_ids
        body = sum(prod(shape) for shape in trained.network.shapes().values() if len(shape) > 1)
        width = trained.network.config.hidden_size
    mine = counts[ids]
    found = sizes(mine, body, width, weight)
    if not 0 <= size <= len(mine):
        raise InvalidOption(f"--size must be 0 to {len(mine)}, the weights' own, not {size}")
    picked = found[size - 1] if size else best_size(found, least)
    ends = np.flatnonzero(np.isin(ids, list(config.eos_token_ids))).tolist()
    kept = ids[keep_frequent(mine, picked.tokens, ends).ids]
    command = f"paceline train vocabulary {weights} --size {picked.tokens} --model {source.name}"
    out = out or Path(f"{path.stem}-{picked.tokens}.{'json' if whole else 'safetensors'}")
    if out.exists() and out.samefile(path):
        raise InvalidOption(f"the trimmed weights would take the place of {path}: give an --out")
    if whole:
        write_atomically(out, json.dumps({"command": command, "tokens": kept.tolist()}))
    else:
        told = {**trained.metadata, "trimmed": json.dumps({"command": command})}
        save_network(out, replace(trimmed(trained, kept), metadata=told))
    figures = {
        "out": str(out),
        "tokens": picked.tokens,
        "of": len(mine),
        "coverage": picked.coverage,
        "saved": picked.saved,
        "utility": picked.utility,
        "counted": int(counts.sum()),
    }
    line = (
        f"{out}: {picked.tokens} of {len(mine)} tokens, {picked.coverage:.1%} of those counted; a "
        f"drafted token takes {picked.saved:.0%} fewer multiplications"
    )
    report(figures, line, as_json=as_json)
