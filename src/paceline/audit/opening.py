"""Adapters of engines under audit, by name."""

from __future__ import annotations

import importlib
import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from paceline.audit import peers
from paceline.audit.engine import Ask, AuditedEngine, CallableEngine, Prompt, Token
from paceline.audit.lines import ProcessEngine
from paceline.audit.own import SETTINGS, OwnEngine, encode
from paceline.audit.url import UrlEngine
from paceline.errors import InvalidOption
from paceline.loading import load_model
from paceline.models.pull import DEFAULT_MODEL
from paceline.models.source import resolve
from paceline.target import RuntimeOptions


def open_engine(name: str, options: Mapping[str, str] | None = None) -> AuditedEngine:
    """Open an engine by name; InvalidOption if unknown, EngineFailed if it does not start.

    Args:
        name: "paceline"; an engine of `peers.PEERS`; a URL; "python:MODULE:FUNCTION", a function
            from `Ask` to token sequences; or "command:PROGRAM ARGUMENTS", which speaks JSON lines
            (`lines`).
        options: for paceline, arguments of `load`; for peers, options of their scripts; for URLs
            "off", "model", and "on_fields" and "off_fields" as JSON.
    """
    given = dict(options or {})
    if name == "paceline":
        return _own(given)
    if name in peers.PEERS:
        given.setdefault("model", str(resolve(DEFAULT_MODEL).path))
        given.setdefault("files", str(peers.folder()))
        arguments = [part for k, v in given.items() for part in (f"--{k.replace('_', '-')}", v)]
        return ProcessEngine(peers.command(name, *arguments), _encoder(), name=name)
    if name.startswith(("http://", "https://")):
        return _url(name, given)
    kind, _, rest = name.partition(":")
    if given:
        raise InvalidOption(
            f"engine '{name}' takes no option {sorted(given)[0]!r}: put it into the engine itself"
        )
    if kind == "python" and rest:
        return CallableEngine(_function(rest), rest)
    if kind == "command" and rest:
        return ProcessEngine(shlex.split(rest))
    raise InvalidOption(
        f"engine '{name}' is unknown: use paceline, {', '.join(peers.PEERS)}, a URL, "
        "python:MODULE:FUNCTION, or command:PROGRAM"
    )


def _own(options: dict[str, str]) -> AuditedEngine:
    known = ("model", "runtime", "precision", *SETTINGS)
    for name in options:
        if name not in known:
            raise InvalidOption(f"engine 'paceline' has no option '{name}': use {', '.join(known)}")
    loaded = load_model(
        options.pop("model", DEFAULT_MODEL),
        runtime=options.pop("runtime", "auto"),
        options=RuntimeOptions(precision=options.pop("precision", None)),
    )
    settings: dict[str, Any] = dict(options)
    for name in ("nodes", "depth", "max_batch"):
        if name in settings:
            settings[name] = _number(name, settings[name])
    return OwnEngine(loaded, **settings)


def _number(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InvalidOption(f"option '{name}' must be a number, not '{text}'") from None


def _encoder() -> Callable[[str, bool], Prompt]:
    # Token ids of the default model, so that all engines continue the same tokens.
    tokenizer = resolve(DEFAULT_MODEL).tokenizer()
    return lambda text, chat: encode(tokenizer, text, chat)


def _url(name: str, options: dict[str, str]) -> AuditedEngine:
    on_fields, off_fields = (_fields(key, options) for key in ("on_fields", "off_fields"))
    off, model = options.pop("off", None), options.pop("model", "default")
    if options:
        raise InvalidOption(
            f"a URL has no option '{sorted(options)[0]}': use off, model, on_fields, off_fields"
        )
    return UrlEngine(name, off, model=model, on_fields=on_fields, off_fields=off_fields)


def _fields(key: str, options: dict[str, str]) -> dict[str, Any]:
    try:
        fields = json.loads(options.pop(key, "{}"))
    except ValueError:
        fields = None
    if not isinstance(fields, dict):
        raise InvalidOption(f"option '{key}' must be a JSON object")
    return fields


def _function(name: str) -> Callable[[Ask], Sequence[Sequence[Token]]]:
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise InvalidOption(
            f"cannot import '{attribute}' from '{module}' ({error}): give python:MODULE:FUNCTION"
        ) from error
    function: Callable[[Ask], Sequence[Sequence[Token]]] = found
    return function


class Referee:
    """Judge of near-ties: the default model at full precision, loaded at first use."""

    def __init__(self) -> None:
        self._engine: AuditedEngine | None = None

    def law(self, prompt: Prompt, temperature: float) -> Mapping[Token, float] | None:
        if self._engine is None:
            self._engine = _own({"precision": "fp32", "drafter": "none"})
        return self._engine.law(prompt, temperature)


def referee(name: str) -> Referee | None:
    """Return a referee for engines that run the default model; None for others."""
    return Referee() if name in peers.PEERS else None
