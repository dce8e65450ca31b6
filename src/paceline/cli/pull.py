"""`paceline pull`: fetch a model before it is needed."""

from __future__ import annotations

from typing import Annotated

import typer

from paceline.errors import InvalidOption


def pull(
    model: Annotated[
        str, typer.Argument(help="smollm2-135m, or a hub id such as org/name.")
    ] = "smollm2-135m",
    force: Annotated[bool, "Fetch again."] = False,
) -> None:
    """Fetch a model into the cache and print its path."""
    from paceline.models import pull as default
    from paceline.models.source import resolve

    if model == default.DEFAULT_MODEL:
        path = default.pull(force=force)
    elif force:
        raise InvalidOption(f"--force works for {default.DEFAULT_MODEL} alone: leave it out")
    else:
        path = resolve(model).path
    typer.echo(str(path))
