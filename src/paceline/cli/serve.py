"""`paceline serve`: the HTTP server."""

from __future__ import annotations

import logging
import os
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paceline.cli import options as o
from paceline.core.cache import read_text
from paceline.errors import InvalidOption
from paceline.models.generation import told
from paceline.registry.options import Options
from paceline.serving.settings import Settings

if TYPE_CHECKING:
    from paceline.serving.model import ServedModel


_TOML = "give a TOML file"


def _configured(context: typer.Context, path: Path | None) -> Path | None:
    # What the file says takes the place of defaults, so flags are stronger.
    if path is None:
        return None
    try:
        values = tomllib.loads(read_text(path, f"--config {path} cannot be read", _TOML))
    except ValueError as error:
        raise InvalidOption(f"--config {path} cannot be read ({error}): {_TOML}") from error
    given = {name.replace("-", "_"): value for name, value in values.items()}
    known = {each.name for each in context.command.params if each.name}
    unknown = sorted(set(given) - known)
    if unknown:
        raise InvalidOption(f"{path} sets {unknown[0]}, which is no option: see serve --help")
    context.default_map = {**(context.default_map or {}), **given}
    return path


@o.spread_options
def serve(
    *,
    asked: Annotated[
        Options,
        o.Takes(
            *o.MODEL, *o.SPECULATION, *o.CANVAS, *o.LIMITS, *o.CHATS, "kv_tokens", "prefix_tokens"
        ),
    ],
    settings: Settings,
    config: Annotated[
        Path | None,
        typer.Option(
            help="TOML file that sets any of these options by name; flags are stronger.",
            is_eager=True,
            callback=_configured,
        ),
    ] = None,
) -> None:
    """Serve a model over HTTP, as OpenAI's API has it."""
    asked.check()
    keys = _keys(settings.api_key_file)
    try:
        from paceline.serving import logs, server
    except ImportError as error:
        raise InvalidOption(
            f"the server needs the package {error.name}: pip install 'paceline[serve]'"
        ) from error

    def load() -> ServedModel:
        from paceline.serving.model import ServedModel

        engine, source = o.load(replace(asked, max_batch=settings.max_batch))
        if engine.defaults:
            log = logging.getLogger("paceline.serving")
            sampling = told(engine.defaults)
            log.info("where clients say nothing, as the model's files ask: %s", sampling)
        engine.tokenizer.prompt("warm")  # the template is compiled before the first request
        names = settings.served_name or [source.name]
        model = ServedModel(
            engine, names, source.fingerprint, str(source.path), source.config.pooling
        )
        model.compact_json = settings.compact_json
        model.allow_chat_template = settings.allow_chat_template
        return model

    logs.set_up(settings.log_text)
    server.serve(settings, keys, load)


def _keys(path: str | None) -> tuple[str, ...]:
    given = os.environ.get("PACELINE_API_KEY", "").split()
    if path is not None:
        said = f"--api-key-file {path} cannot be read"
        given += read_text(Path(path), said, "give a file of one key per line").split()
        if not given:
            raise InvalidOption(f"--api-key-file {path} holds no key: give one per line")
    for key in given:
        if not key.isascii():
            raise InvalidOption("API keys must be of ASCII characters: choose another")
    return tuple(given)
