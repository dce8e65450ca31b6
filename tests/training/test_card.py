"""A card holds everything it was given, in words and as JSON."""

from __future__ import annotations

import json
from dataclasses import replace

from paceline.training.card import Card, Cost, Data, HeldOut, as_dict, markdown
from paceline.training.plots import loss_plot
from paceline.training.run import LossPoint

CARD = Card(
    drafter="hydra",
    target="smollm2-135m",
    target_digest="ab12",
    licence="Apache-2.0, as the base model",
    command="paceline train hydra --tokens 1000000",
    parameters=3_400_000,
    file_bytes=7 * 2**20,
    settings={"learning rate": 1e-3, "pattern": "a|b\nc", "tied": True},
    data=Data(("self-written user turns",), 2048, 1_000_000, "cd34", {"seed": 7}),
    losses=(LossPoint(1, 5.5), LossPoint(1000, 2.25, 2.5), LossPoint(2000, 2.0, 2.125)),
    held_out=HeldOut(36, 4608, "cpu int8, greedy, 12 nodes", 2.345, (0.71, 0.5, 0.333)),
    cost=Cost("2 cores", 7200.0, 3_600_000, 3 * 2**30),
)


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
    bare = replace(CARD, losses=(), settings={}, data=replace(CARD.data, settings={}, sources=()))
    text = markdown(bare)
    assert "Loss" not in text
    assert "setting" not in text
    assert "\n\n\n" not in text
    assert markdown(replace(CARD, cost=replace(CARD.cost, seconds=0.0))).count(" 0 tokens/s") == 1


def test_the_dictionary_survives_json() -> None:
    found = json.loads(json.dumps(as_dict(CARD), allow_nan=False))
    assert found["cost"] == {
        "machine": "2 cores",
        "seconds": 7200.0,
        "tokens": 3_600_000,
        "peak_bytes": 3 * 2**30,
        "tokens_per_second": 500.0,
    }
    assert found["losses"][1] == {"step": 1000, "training": 2.25, "held_out": 2.5}
    assert found["held_out"]["acceptance"] == [0.71, 0.5, 0.333]
    assert found["data"]["settings"] == {"seed": 7}


def test_the_curve_is_a_png_and_the_same_each_time() -> None:
    first = loss_plot(CARD.losses)
    assert first.startswith(b"\x89PNG")
    assert first == loss_plot(CARD.losses)
    assert first != loss_plot(CARD.losses[:2])
