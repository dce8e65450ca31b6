"""What `paceline methods --weights` prints for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paceline.networks.weights import ShippedCard


def lines(cards: Sequence[ShippedCard]) -> list[str]:
    """A card after another, a line for each thing that its file says."""
    out: list[str] = []
    for card in cards:
        found = [(label, text) for label, text in _entries(card) if text]
        width = max(len(label) for label, _ in found)
        large = card.bytes >= 2**20
        size = f"{card.bytes / 2**20:.1f} MiB" if large else f"{card.bytes / 2**10:.1f} KiB"
        out += ["", f"{card.file}  ({size})"]
        out += [f"  {label:<{width}}  {text}" for label, text in found]
    return out[1:]


def _entries(card: ShippedCard) -> list[tuple[str, str]]:
    """Labels and texts; a text is empty where the file does not say it."""
    given = card.metadata
    settings = ", ".join(f"{key} {value}" for key, value in card.settings.items())
    drafts = "" if card.draft_vocabulary is None else f", {card.draft_vocabulary} draft tokens"
    return [
        ("what", f"{card.kind}: {settings}" if settings else card.kind),
        ("size", f"{card.parameters} parameters{drafts}"),
        ("target", f"{given.get('model_name', 'unknown')} ({given.get('model', 'unknown')})"),
        ("trained on", _seen(card)),
        ("held out", _held_out(card)),
        ("command", str(given.get("command", ""))),
        ("text from", str(given.get("data_command", ""))),
        ("before that", str(given.get("from_command", ""))),
        ("data", _data(given.get("data"))),
    ]


def _seen(card: ShippedCard) -> str:
    given = card.metadata
    if "tokens" in given:
        return f"{given['tokens']} tokens, repeats counted"
    if "prompts_labelled" in given:
        return f"{given['prompts_labelled']} prompts (digest {given.get('prompts', 'unknown')})"
    return ""


def _held_out(card: ShippedCard) -> str:
    given = card.metadata
    if "block_efficiency" in given:
        return f"block efficiency {float(given['block_efficiency']):.3f}"
    figures = given.get("held_out")
    if not isinstance(figures, dict):
        return ""
    shares = {name.replace("_", " "): _share(each) for name, each in figures.items()}
    said = ", ".join(f"{name} {share}" for name, share in shares.items() if share)
    return f"{figures.get('examples', 'some')} examples: {said}"


def _share(figure: Any) -> str:
    """A share, with its interval if it has one; nothing for counts."""
    if isinstance(figure, dict):
        return f"{figure['value']:.3f} ({figure['low']:.3f} to {figure['high']:.3f})"
    return f"{figure:.3f}" if isinstance(figure, float) else ""


def _data(settings: Any) -> str:
    if not isinstance(settings, dict):
        return ""
    return ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in settings.items())
