"""`paceline inspect`: what a file is, and what it fits."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer

from paceline.cli import options as o
from paceline.cli.output import report
from paceline.errors import InvalidOption


def inspect(
    path: Annotated[
        str,
        typer.Argument(
            metavar="FILE", help="A model, a published drafter, or weights of paceline's own."
        ),
    ],
    model: Annotated[
        str | None, "Its target, as for generate: a head drafts for it by several wirings."
    ] = None,
    tokens: Annotated[int, "Length of the text that is drafted."] = 128,
    as_json: o.AsJson = False,
) -> None:
    """Say what a file or directory is, what it reads of a target, and what fits."""
    from paceline.networks.published import published_head

    o.check_at_least_one(tokens=tokens)
    head = published_head(path)
    if head is not None:
        figures = _of_head(head)
        if model is not None:
            figures["wirings"] = _tried(head, model, tokens)
    elif model is not None:
        raise InvalidOption(f"{path} is no published drafter: leave out --model {model}")
    else:
        figures = _of_weights(Path(path)) or _of_model(path)
    lines = [f"{key.replace('_', ' ')}: {_text(value)}" for key, value in figures.items()]
    report(figures, "\n".join(lines), as_json=as_json)


def _of_head(head: Any) -> dict[str, Any]:
    config, wiring = head.config, head.wiring
    shape = f"{config.layers} of width {config.hidden_size}, {config.heads} heads over "
    shape += f"{config.kv_heads} of {config.head_dim}"
    return {
        "kind": f"published {wiring.kind} head",
        "layout": head.layout,
        "size": f"{head.bytes / 2**20:.1f} MiB",
        "made_for": head.made_for or "not said",
        **({"layers": shape} if config.layers else {}),
        "vocabulary": f"drafts {head.draft_vocabulary} of {config.vocab_size} tokens",
        "own": [each for each in ("embed", "head") if each in head.names] or "nothing",
        "reads": f"states of width {wiring.width} at boundaries "
        f"{_at(wiring.boundaries) if wiring.boundaries else '2, the middle, and 3 from the end'}",
        **wiring.said(),
        "in_doubt": list(wiring.doubts) or "nothing",
    }


def _tried(head: Any, model: str, tokens: int) -> list[str]:
    from paceline.lab.measure.wirings import foreseen
    from paceline.registry.loading import load_model

    found, name = foreseen(load_model(model=model), head, tokens), head.wiring.drafter
    return [
        f"{name}{':' * bool(each.options)}{each.options}, boundaries {_at(each.boundaries)}: "
        f"foresees {each.tokens:.2f} of {each.most} tokens"
        for each in found
    ]


def _of_weights(path: Path) -> dict[str, Any] | None:
    from paceline.networks.weights import read_card

    try:
        card = read_card(path)
    except InvalidOption:
        return None
    return {
        "kind": f"weights of paceline's '{card.kind}'",
        "size": f"{card.bytes / 2**20:.1f} MiB",
        "made_for": card.metadata.get("model_name", "not said"),
        "settings": ", ".join(f"{key} {value}" for key, value in card.settings.items()),
        "vocabulary": card.draft_vocabulary or "not set",
        "parameters": card.parameters,
    }


def _of_model(path: str) -> dict[str, Any]:
    from paceline.models.source import resolve

    source = resolve(path)
    config, weights = source.config, source.weights()
    names = [
        f"layers.{i}.{part}" for i in range(config.layers) for part in ("q", "o", "up", "down")
    ]
    stored = [weights.stored(each).kind for each in ("embed", *names) if each in weights]
    return {
        "kind": f"model of family {config.family}",
        "name": source.name,
        "layers": f"{config.layers} of width {config.hidden_size}, {config.heads} heads over "
        f"{config.kv_heads} of {config.head_dim}",
        "vocabulary": config.vocab_size,
        "context": config.max_context,
        "drafts": "one token after another"
        if config.token_to_come is None
        else f"several at once, {config.token_to_come} for those to come (PARD)",
        "matrices": ", ".join(f"{n} of {kind}" for kind, n in Counter(stored).most_common()),
        "published_heads": f"read states of width {config.hidden_size}, and know "
        f"{config.vocab_size} tokens",
    }


def _at(boundaries: Any) -> str:
    from paceline.models.config import FINAL

    return ", ".join("the end (normed)" if each == FINAL else str(each) for each in boundaries)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        long = any(" " in str(each) for each in value)
        return (
            ("\n  " if long else "").join(["", *map(str, value)])
            if long
            else ", ".join(map(str, value))
        )
    return str(value)
