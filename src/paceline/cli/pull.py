"""`paceline pull`: fetch a model before it is needed."""

from __future__ import annotations

from typing import Annotated

import typer

from paceline.errors import InvalidOption


def pull(
    model: Annotated[
        str,
        typer.Argument(help="smollm2-135m, dinov2-small (a tower), or a hub id such as org/name."),
    ] = "smollm2-135m",
    force: Annotated[bool, "Fetch again."] = False,
) -> None:
    """Fetch a model into the cache and print its path."""
    from paceline.models.dinov2 import TOWER
    from paceline.models.pull import DEFAULT
    from paceline.models.pull import pull as fetch
    from paceline.models.source import resolve

    packed = {each.alias: each for each in (DEFAULT, TOWER)}
    if model in packed:
        path = fetch(force, packed=packed[model])
    elif force:
        raise InvalidOption(f"--force works for {' and '.join(packed)} alone: leave it out")
    else:
        path = resolve(model).path
    typer.echo(str(path))
