"""Notes of a meeting while it goes on, by a model that follows instructions (Think While Watching).

    python -m benchmarks.watching.notes --model MODEL --record streams-notes

A meeting comes in segments. In each something is decided, between words that say nothing; at the
end there is a question about one of the first half. Three ways to answer it: from *notes* of the
segments before and the present one; from *all* that was said; from the *present* segment alone,
which does not know. Segments come `--seconds` apart, on a clock on which a pass takes
`--pass-seconds` and each of its rows but the first `--row-seconds`.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any, Literal, get_args

from benchmarks.script import Findings, add_output, run_script

from paceline.core.types import SamplingParams
from paceline.engine.engine import Engine
from paceline.lab.measure import results
from paceline.lab.measure.streams import Piece, Prompter, Room, Stream, System, VirtualClock, play
from paceline.methods.streams.notes import PromptedNotes
from paceline.registry.loading import load

Way = Literal["notes", "all", "present"]

NOTE = 'Write down the line of the text that begins with "We decide".'
PARAMS = SamplingParams(max_new_tokens=24)

DECIDED = {
    "the launch will be on {}": ("On which day is the launch?", "Monday Tuesday Thursday Friday"),
    "the budget will be {} thousand": ("How many thousand is the budget?", "12 35 48 70"),
    "the logo will be {}": ("What colour is the logo?", "green orange purple yellow"),
    "the next meeting will be in {}": (
        "In which city is the next meeting?",
        "Oslo Rome Lima Kyoto",
    ),
    "{} will lead the team": ("Who leads the team?", "Maria Peter Yuki Samuel"),
    "the code name will be {}": ("What is the code name?", "Falcon Lantern Pebble Comet"),
    "lunch will be at {}": ("At what time is lunch?", "11:30 12:15 12:45 13:30"),
    "the office will move to floor {}": ("To which floor does the office move?", "3 6 8 9"),
}
"""What is decided, the question that asks for it, and what can be the answer."""

TALK = (
    "Good morning, the coffee is ready.",
    "My train was late again.",
    "It may rain in the afternoon.",
    "Could someone open the window?",
    "I liked the film last night.",
    "The printer is out of paper.",
    "Thank you, that was a long week.",
    "The plants need some water.",
    "I will send the slides later.",
    "My son starts school soon.",
)


@dataclass(frozen=True, slots=True)
class Meeting:
    """Segments, what each decides, a question, and the word that its answer must have."""

    segments: list[str]
    values: list[str]
    question: str
    answer: str


def meeting(draw: random.Random) -> Meeting:
    """Draw a meeting; each thing is decided once."""
    segments, known = list[str](), list[tuple[str, str]]()
    for said in draw.sample(list(DECIDED), len(DECIDED)):
        question, values = DECIDED[said]
        value = draw.choice(values.split())
        lines = [*draw.sample(TALK, 4), f"We decide that {said.format(value)}."]
        draw.shuffle(lines)
        segments.append("\n".join(f"{'AB'[at % 2]}: {line}" for at, line in enumerate(lines)))
        known.append((question, value))
    question, value = draw.choice(known[: len(known) // 2])
    values = [each for _, each in known]
    return Meeting(segments, values, f"{question} Answer in a few words.", value)


def _has(text: str, value: str) -> bool:
    return value.casefold() in text.casefold()


def answerer(engine: Engine, way: Way, held: Meeting) -> tuple[System, list[str]]:
    """Return a system and what it hears by segment."""
    if way == "notes":
        return PromptedNotes(engine, NOTE, held.question, PARAMS), held.segments
    heard = held.segments if way == "all" else [*[""] * (len(held.segments) - 1), held.segments[-1]]
    parts: list[Any] = [f"{each}\n\n" if each else "" for each in heard]
    parts[0] = f"Text:\n{parts[0]}"
    parts[-1] += held.question
    return Prompter(Room(engine), PARAMS, "writing"), parts


def attend(engine: Engine, way: Way, held: Meeting, given: argparse.Namespace) -> dict[str, Any]:
    """Hold a meeting with a system on the clock."""
    system, heard = answerer(engine, way, held)
    clock, target = VirtualClock(), engine.decoder.target
    pieces = [Piece(given.seconds * at, part) for at, part in enumerate(heard) if part]
    if way != "notes":  # a prompt is one message, which grows
        pieces[0] = pieces[0]._replace(what=[{"role": "user", "content": pieces[0].what}])
    forward, longest = target.forward, [0]

    def watched(rows: Sequence[Any], *layers: Any) -> Any:
        longest[0] = max(longest[0], *(each.cache.length + len(each) for each in rows))
        return forward(rows, *layers)

    target.forward = watched  # type: ignore[method-assign]
    clock.charge(target, lambda rows: given.pass_seconds + given.row_seconds * (rows - 1))
    try:
        [told] = play([Stream(system, pieces, pieces[-1].at + given.seconds)], clock)
    finally:
        target.forward = forward  # type: ignore[method-assign]
    text = told.answer if isinstance(told.answer, str) else told.answer.text
    notes = system.notes if isinstance(system, PromptedNotes) else []
    written = sum(len(engine.tokenizer.encode(each)) for each in (*notes, text))
    return {
        "right": _has(text, held.answer),
        "longest": longest[0],
        "written": written,
        "seconds": told.ended - told.asked,
        "noted": mean(_has(*each) for each in zip(notes, held.values, strict=True)) if notes else 0,
        "answer": text,
        "notes": notes,
    }


def measure(engine: Engine, given: argparse.Namespace) -> list[dict[str, Any]]:
    """Hold `--meetings` meetings in all ways."""
    rows = []
    draw = random.Random(given.seed)
    held = [meeting(draw) for _ in range(given.meetings)]
    for way in get_args(Way):
        found = [attend(engine, way, each, given) for each in held]
        keys = ("right", "noted", "longest", "written", "seconds")
        rows.append({"way": way} | {key: mean(each[key] for each in found) for key in keys})
        rows[-1]["found"] = found
        print(way, rows[-1]["right"], file=sys.stderr, flush=True)
    return rows


COLUMNS = (
    *("answered from", "right answers, %", "notes with what was decided, %", "longest context"),
    *("tokens written", "answer after, s"),
)


def cells(rows: Sequence[dict[str, Any]]) -> list[list[results.Cell]]:
    """Rows of the table."""
    return [
        [
            {"notes": "notes and the present segment", "all": "all that was said"}.get(
                row["way"], "the present segment alone"
            ),
            round(100 * row["right"]),
            round(100 * row["noted"]) if row["way"] == "notes" else "",
            round(row["longest"]),
            round(row["written"]),
            round(row["seconds"], 2),
        ]
        for row in rows
    ]


def findings(given: argparse.Namespace) -> Findings:
    """Measure, and put it as a table."""
    engine = load(given.model, threads=given.threads, drafter="none", max_batch=1)
    rows = measure(engine, given)
    notes, whole = rows[0], rows[1]
    return Findings(
        title=f"Think While Watching by prompts: {engine.config['model']}",
        topic="methods",
        command=f"python -m benchmarks.watching.notes --model {Path(given.model).name} "
        f"--meetings {given.meetings}",
        columns=COLUMNS,
        rows=cells(rows),
        note=f"{given.meetings} meetings of {len(DECIDED)} segments; something is decided in "
        "each, and the question is about one of the first half. An answer is right if it has the "
        f"value. On the clock a pass takes {given.pass_seconds:g} s and each further row "
        f"{given.row_seconds:g} s. The model was not trained to take notes. The paper: +2.6% and "
        "+3.79% on two benchmarks of video, 56% fewer output tokens.",
        figures={
            "right by notes, %": round(100 * notes["right"]),
            "right by all that was said, %": round(100 * whole["right"]),
            "longest context, share": round(notes["longest"] / whole["longest"], 2),
        },
        data=rows,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, and write --record."""
    parser = argparse.ArgumentParser(prog="notes", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", required=True, help="one that follows instructions")
    parser.add_argument("--meetings", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=10.0, help="between segments")
    parser.add_argument("--pass-seconds", type=float, default=0.022)
    parser.add_argument("--row-seconds", type=float, default=0.0036)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    add_output(parser)
    return run_script(parser, findings, argv)


if __name__ == "__main__":
    sys.exit(main())
