"""`paceline transcribe`: speech to text."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from paceline.cli import options as o
from paceline.cli.output import write
from paceline.errors import InvalidOption
from paceline.listening.captions import FORMATS, HEADS
from paceline.registry.options import Options


def transcribe(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="WAV files of 16 kHz.")],
    *,
    asked: Annotated[Options, o.Takes("model", *o.COMPUTE)],
    language: Annotated[str, "Code of the language."] = "en",
    translate: Annotated[bool, "To English."] = False,
    form: Annotated[str, typer.Option("--format", help=f"{', '.join(FORMATS)}.")] = "text",
) -> None:
    """Write down speech, as it becomes final."""
    from paceline.audio.read import read_sound
    from paceline.listening.windows import Listener, Listening

    if form not in FORMATS:
        raise InvalidOption(f"--format {form} is unknown: use {', '.join(FORMATS)}")
    sounds = [read_sound(each) for each in files]  # before the model, which takes longer
    engine, source = o.load(replace(asked, drafter="none"))
    if source.config.encoder is None:
        raise InvalidOption(f"{source.name} hears nothing: give a Whisper with --model")
    listener = Listener(engine)
    write(HEADS.get(form, ""))
    for sound in sounds:
        for number, each in enumerate(listener.segments(sound, Listening(language, translate)), 1):
            text = engine.tokenizer.decode(each.tokens).strip()
            write(FORMATS[form](number, each.begin, each.end, text))
