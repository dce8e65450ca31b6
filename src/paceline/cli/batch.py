"""`paceline batch`: requests from a file, answers to a file."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter
from typing import Annotated

import typer

from paceline.cli import options as o
from paceline.cli.output import interruptible, progress_bar, report, telling
from paceline.errors import InvalidOption
from paceline.registry.options import Options


def batch(
    source: Annotated[Path, typer.Argument(metavar="INPUT", help="Requests, one a line.")],
    out: Annotated[Path, typer.Argument(metavar="OUTPUT", help="Answers; what it has is kept.")],
    *,
    asked: Annotated[Options, o.Takes(*o.MODEL, *o.SPECULATION, *o.LIMITS, *o.CHATS, "max_batch")],
    as_json: o.AsJson = False,
) -> None:
    """Answer requests of a JSONL file, in OpenAI's batch format.

    Ctrl-C ends with the answers that are begun, a kill loses those alone; the same command goes on.
    """
    asked.check()
    try:
        from paceline.serving.batch import BatchRun, open_output, read_lines
        from paceline.serving.model import ServedModel
    except ImportError as error:
        raise InvalidOption(
            f"batches need the package {error.name}: pip install 'paceline[serve]'"
        ) from error

    if str(out) == "-":
        raise InvalidOption("OUTPUT is a file, which says what is answered: name one, not -")
    lines = read_lines(source)
    file, done = open_output(out)
    left = [line for line in lines if line.key not in done]
    figures: dict[str, float] = {"requests": len(lines), "answered_before": len(lines) - len(left)}
    with telling(asked.model):
        engine, made_of = o.load(asked)
    names = [made_of.name, asked.model]
    model = ServedModel(engine, names, made_of.fingerprint, str(made_of.path))
    model.allow_chat_template = True
    begin, written = perf_counter(), 0
    speed = "{task.completed:.0f}/{task.total:.0f}, {task.fields[rate]} tokens/s"
    with file, progress_bar(speed) as bar, interruptible() as interrupt:
        task = bar.add_task("answering", total=len(left), rate="0")
        run = BatchRun(model, file)
        for count in run.run(left, lambda: bool(interrupt)):
            written += count
            rate = f"{run.tokens / (perf_counter() - begin):.0f}"
            bar.update(task, advance=count, rate=rate)
    figures |= {
        "answered_now": written,
        "failed": run.failed,
        "completion_tokens": run.tokens,
        "seconds": round(perf_counter() - begin, 1),
        "complete": written == len(left),
    }
    line = (
        f"{out}: {written} of {len(left)} answered, {run.failed} of them with an error, "
        f"{figures['answered_before']} before; {run.tokens} tokens in {figures['seconds']} s"
    )
    report(figures, line, as_json=as_json, finished=not interrupt)
