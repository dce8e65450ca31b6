"""A card holds everything it was given, in words and as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from paceline.lab.training.card import loss_plot, markdown
from paceline.lab.training.run import LossPoint

LOSSES = (LossPoint(1, 5.5), LossPoint(1000, 2.25, 2.5), LossPoint(2000, 2.0, 2.125))
CARD: dict[str, Any] = {
    "drafter": "hydra",
    "target": "smollm2-135m",
    "target_digest": "ab12",
    "licence": "Apache-2.0, as the base model",
    "command": "paceline train hydra --tokens 1000000",
    "parameters": 3_400_000,
    "file_bytes": 7 * 2**20,
    "settings": {"learning rate": 1e-3, "pattern": "a|b\nc", "tied": True},
    "data": {
        "sources": ["self-written user turns"],
        "prompts": 2048,
        "tokens": 1_000_000,
        "digest": "cd34",
        "settings": {"seed": 7},
    },
    "losses": [asdict(point) for point in LOSSES],
    "held_out": {
        "prompts": 36,
        "tokens": 4608,
        "conditions": "cpu int8, greedy, 12 nodes",
        "block_efficiency": 2.345,
        "acceptance": (0.71, 0.5, 0.333),
    },
    "cost": {
        "machine": "2 cores",
        "seconds": 7200.0,
        "tokens": 3_600_000,
        "peak_bytes": 3 * 2**30,
        "tokens_per_second": 500.0,
    },
}


def test_the_words_hold_every_figure() -> None:
    text = markdown(CARD, "loss.png")
    for piece in (
        *("# hydra for smollm2-135m", "3,400,000 parameters, 7.0 MiB", "`ab12`"),
        *("Licence: Apache-2.0, as the base model", "```\npaceline train hydra --tokens 1000000"),
        *(
            "2.35 tokens per forward over 36 prompts and 4,608 tokens (cpu int8, greedy",
            "| seed | 7 |",
        ),
        *("| depth | 1 | 2 | 3 |\n|---|---|---|---|\n| accepted | 71.0% | 50.0% | 33.3% |",),
        *("1,000,000 tokens that the target wrote for 2,048 prompts; digest `cd34`",),
        *("- self-written user turns", "| learning rate | 0.001 |", "| pattern | a\\|b c |"),
        *(
            "Loss 5.5 at step 1, 2 at step 2,000; held out 2.5 to 2.125.",
            "![Loss by step](loss.png)",
        ),
        *("2.00 h on 2 cores: 3,600,000 tokens, 500 tokens/s, at most 3.00 GiB of memory.",),
    ):
        assert piece in text, piece
    assert "![" not in markdown(CARD)


def test_what_is_missing_leaves_no_hole() -> None:
    data = {**CARD["data"], "settings": {}, "sources": []}
    bare = {**CARD, "losses": [], "settings": {}, "data": data}
    text = markdown(bare)
    assert "Loss" not in text
    assert "setting" not in text
    assert "\n\n\n" not in text


def test_the_curve_is_a_png_and_the_same_each_time() -> None:
    first = loss_plot(LOSSES)
    assert first.startswith(b"\x89PNG")
    assert first == loss_plot(LOSSES)
    assert first != loss_plot(LOSSES[:2])
