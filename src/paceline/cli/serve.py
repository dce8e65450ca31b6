"""`paceline serve`: the HTTP server."""

from __future__ import annotations

import logging
import os
import threading
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.cli import options as o
from paceline.core.cache import read_text
from paceline.errors import InvalidOption, PacelineError
from paceline.models.generation import told
from paceline.models.pull import DEFAULT_MODEL
from paceline.models.source import file_bytes
from paceline.models.vision import find_mmproj
from paceline.registry.options import Options
from paceline.serving.settings import GIB, Settings

if TYPE_CHECKING:
    from paceline.models.source import ModelSource
    from paceline.serving.hosting import Hosted
    from paceline.serving.model import ServedModel


_TOML = "give a TOML file"
_TABLES = "paceline.models"  # the file's tables of models, in the command's context
_ENGINE = (
    *o.MODEL[1:],
    *o.SPECULATION,
    *o.CANVAS,
    *o.LIMITS,
    *o.CHATS,
    "kv_tokens",
    "prefix_tokens",
    "prompt_policy",
)


def _configured(context: typer.Context, path: Path | None) -> Path | None:
    # What the file says takes the place of defaults, so flags are stronger.
    if path is None:
        return None
    try:
        values = tomllib.loads(read_text(path, f"--config {path} cannot be read", _TOML))
    except ValueError as error:
        raise InvalidOption(f"--config {path} cannot be read ({error}): {_TOML}") from error
    tables = values.pop("models", {})
    if not isinstance(tables, dict) or not all(isinstance(t, dict) for t in tables.values()):
        raise InvalidOption(f"{path} sets models, which are tables: write [models.NAME]")
    known = {each.name: each for each in context.command.params if each.name}
    given = _by_option(values, set(known), f"{path} sets {{}}")
    if isinstance(given.get("model"), str):
        given["model"] = [given["model"]]
    context.default_map = {**(context.default_map or {}), **given}
    context.meta[_TABLES] = found = {}
    for name, table in tables.items():
        own = _by_option(table, {"model", *_ENGINE}, f"{path} sets {{}} of model {name}")
        found[name] = {
            key: str(value) if key == "model" else known[key].process_value(context, value)
            for key, value in own.items()
        }
    return path


def _by_option(values: dict[str, Any], known: set[str], said: str) -> dict[str, Any]:
    given = {name.replace("-", "_"): value for name, value in values.items()}
    for unknown in sorted(set(given) - known):
        raise InvalidOption(f"{said.format(unknown)}, which is no option: see serve --help")
    return given


def _models(asked: Options, given: list[str], tables: dict[str, Any]) -> list[tuple[str, Options]]:
    # Names, empty where none is given, and options of models. Tables name others, or say more.
    named: list[tuple[str, str]] = []
    for text in given:
        name, sign, model = text.partition("=")
        named.append((name, model) if sign and not Path(text).expanduser().exists() else ("", text))
    for name, table in tables.items():
        if name not in (each for each, _ in named):
            if "model" not in table:
                raise InvalidOption(f"[models.{name}] names no model: set model = PATH in it")
            named.append((name, table["model"]))
    return [
        (name, replace(asked, **(tables.get(name, {}) | {"model": model})))
        for name, model in named or [("", DEFAULT_MODEL)]
    ]


def serve(
    *,
    context: typer.Context,
    asked: Annotated[Options, o.Takes(*_ENGINE)],
    settings: Settings,
    model: Annotated[
        list[str] | None, "MODEL or NAME=MODEL; several load when they are asked for; repeatable."
    ] = None,
    live_by: o.LiveBy = None,
    config: Annotated[
        Path | None,
        typer.Option(
            help="TOML file that sets any of these options by name; flags are stronger. Tables "
            "[models.NAME] hold a model's own.",
            is_eager=True,
            callback=_configured,
        ),
    ] = None,
) -> None:
    """Serve models over HTTP, as OpenAI's API has it."""
    asked = replace(asked, max_batch=settings.max_batch)
    models = _models(asked, model or [], context.meta.get(_TABLES, {}))
    for _, each in models:
        each.check()
    if live_by is not None:
        from paceline.cli.live_captions import live_method

        live_method(live_by, next((each for _, each in models if each.adapter), asked))
    keys = _keys(settings.api_key_file)
    try:
        from paceline.serving import logs, server
    except ImportError as error:
        raise InvalidOption(
            f"the server needs the package {error.name}: pip install 'paceline[serve]'"
        ) from error
    logs.set_up(settings.log_text)
    if len(models) > 1:
        server.serve(settings, keys, None, _hosted(settings, asked, models, live_by))
        return
    if settings.memory is not None:
        raise InvalidOption("--memory is for several models, and there is one: leave it out")
    [(name, only)] = models
    names = settings.served_name or ([name] if name else None)
    server.serve(settings, keys, partial(_load, settings, only, names, live_by))


def _load(
    settings: Settings, asked: Options, names: Sequence[str] | None, live_by: str | None
) -> ServedModel:
    from paceline.serving.model import ServedModel

    engine, source = o.load(asked)
    if engine.defaults:
        log = logging.getLogger("paceline.serving")
        sampling = told(engine.defaults)
        log.info("where clients say nothing, as the model's files ask: %s", sampling)
    engine.tokenizer.prompt("warm")  # the template is compiled before the first request
    path, pooling = str(source.path), source.config.pooling
    model = ServedModel(engine, names or [source.name], source.fingerprint, path, pooling)
    model.compact_json = settings.compact_json
    model.allow_chat_template = settings.allow_chat_template
    if live_by is not None:
        from paceline.cli.live_captions import live_method
        from paceline.listening.windows import Listening

        if model.listener is None:
            raise InvalidOption(f"{model.name} hears nothing: leave out --live-by")
        model.live_by = made = live_method(live_by, asked)
        made(model.listener, Listening("en")).let_go()  # can it?
    if engine.hears and settings.silence != "none":
        from paceline.audio.silence import SpeechFinder, silero_file

        weights = Path(settings.silence) if settings.silence else silero_file()
        model.finder = None if weights is None else SpeechFinder(weights)
    threading.Thread(target=model.warm_up, daemon=True).start()
    return model


def _hosted(
    settings: Settings,
    asked: Options,
    models: Sequence[tuple[str, Options]],
    live_by: str | None,
) -> list[Hosted]:
    # Several models, which are found now and loaded later.
    from paceline.registry.loading import find_source
    from paceline.serving.hosting import Hosted

    for flag, value in (("served-name", settings.served_name), ("adapter", asked.adapter)):
        if value:
            raise InvalidOption(
                f"--{flag} is for one model, and there are several: name them with --model "
                "NAME=MODEL, and give adapters in tables [models.NAME] of --config"
            )
    out: list[Hosted] = []
    for name, options in models:
        source = find_source(options)
        name, size = name or source.name, _bytes(options, source)
        if settings.memory is not None and size > settings.memory * GIB:
            raise InvalidOption(
                f"--memory {settings.memory:g} is too little for {name}, which has "
                f"{size / GIB:.2f} GiB with a full cache: give more, or fewer --kv-tokens"
            )
        if any(name.casefold() == each.names[0].casefold() for each in out):
            raise InvalidOption(f"two models are named {name}: give --model NAME=MODEL")
        hears = source.config.encoder is not None
        load = partial(_load, settings, options, [name], live_by if hears else None)
        out.append(Hosted([name], str(source.path), load, size))
    return out


def _bytes(asked: Options, source: ModelSource) -> int:
    # Of a model's files and, where its size is known before, its full cache; also of a draft model
    # that is named.
    from paceline.registry.loading import choose_runtime, find_source
    from paceline.runtimes.cpu.target import full_cache_bytes

    runtime = choose_runtime(asked.device, source) if asked.runtime == "auto" else asked.runtime
    size = file_bytes(source.path)
    if asked.mmproj is not None and (beside := find_mmproj(asked.mmproj)).exists():
        size += file_bytes(beside)
    size += full_cache_bytes(source, asked.of_runtime) if runtime == "cpu" else 0
    if asked.draft_model is None:
        return size
    drafting = replace(asked, model=asked.draft_model, draft_model=None, adapter=None)
    try:
        return size + _bytes(drafting, find_source(drafting))
    except PacelineError:  # a published drafter, or none at all
        path = Path(asked.draft_model)
        return size + (file_bytes(path) if path.exists() else 0)


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
