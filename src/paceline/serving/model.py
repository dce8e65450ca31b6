"""The model as the server sees it: its engine, its names, and the texts of its tokens."""

from __future__ import annotations

import copy
import hashlib
import json
import uuid
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from time import time

from paceline.audio.silence import SpeechFinder
from paceline.core.types import SamplingParams
from paceline.engine.engine import Engine
from paceline.engine.memory import capacity
from paceline.errors import PacelineError, PromptError
from paceline.listening.live import LiveMethod
from paceline.listening.windows import Listener
from paceline.models.config import Pooling
from paceline.models.generation import completed
from paceline.models.text import Tokenizer
from paceline.serving.answers.style import find_style
from paceline.serving.kept import KeptAnswers
from paceline.serving.protocol import BadRequest
from paceline.version import __version__


class ServedModel:
    """An engine with the names under which it is asked for."""

    def __init__(
        self,
        engine: Engine,
        names: Sequence[str],
        weights: str,
        path: str,
        pooling: Pooling = "last",
    ) -> None:
        """`weights` is the fingerprint of the model's files; `names` begins with the main one."""
        completed(SamplingParams(temperature=1.0), engine.defaults, ())  # or told at the start
        self.engine = engine
        self.pooling = pooling
        self.kept = KeptAnswers()
        self.tokenizer = engine.tokenizer
        self.names = tuple(names)
        self.path = path
        self.created = int(time())
        memory = engine.decoder.memory
        self.context = engine.decoder.target.capabilities.max_context
        if memory is not None:
            self.context = min(self.context, capacity(memory))
        self.fingerprint = fingerprint(engine, weights)
        facts = engine.decoder.target.capabilities.denoises
        self.mask = None if facts is None else facts.mask
        self.style = find_style(self.tokenizer.template_for(tools=True))
        self.compact_json = False
        self.allow_chat_template = False
        self.listener = Listener(engine, Path(path)) if engine.hears else None
        self.longest_sound: float | None = None
        self.finder: SpeechFinder | None = None  # of speech in sounds; without, it may be anywhere
        self.live_by: LiveMethod | None = None  # of live captions; None for those of windows

    @property
    def reads(self) -> list[str]:
        if self.listener is not None:
            return ["audio"]
        return ["text", "image"] if self.sees else ["text"]

    @property
    def sees(self) -> bool:
        return self.engine.looking is not None

    @property
    def name(self) -> str:
        return self.names[0]

    def under(self, template: str | None) -> ServedModel:
        """Return the model with a request's chat template, if that gives one; BadRequest names it.

        Calls and reasoning are then read as that template writes them.
        """
        if not template:
            return self
        if not self.allow_chat_template:
            raise BadRequest(
                "chat_template: the server uses the model's own: leave it out, or start the server "
                "with --allow-chat-template",
                "chat_template",
            )
        other, tokenizer = copy.copy(self), copy.copy(self.tokenizer)
        tokenizer.chat_template, tokenizer.named_templates = template, {}
        try:
            tokenizer.reads("messages")
        except PromptError as error:
            raise BadRequest(f"chat_template: {error}", "chat_template") from error
        other.tokenizer, other.style = tokenizer, find_style(template)
        return other

    def warm_up(self) -> None:
        """Make what the first grammar needs: for most of a second it holds Python's lock."""
        with suppress(PacelineError):
            self.engine.grammar  # noqa: B018

    @cached_property
    def tokens(self) -> TokenTexts:
        return TokenTexts(self.tokenizer)


def find_name(name: object, models: Sequence[Sequence[str]]) -> int:
    """Return which model is asked for, by the names of each; without a name it is the only one.

    Case, a tag "latest", and a provider in front of the name, which some clients add, are read
    past. BadRequest (404) if there is none.
    """
    known = " or ".join(repr(names[0]) for names in models)
    if not isinstance(name, str) or not name:
        if len(models) == 1:
            return 0
        raise BadRequest(f"model: it is missing: ask for {known}", "model")
    plain = name.casefold().removesuffix(":latest")
    for i, names in enumerate(models):
        if {plain, plain.removeprefix("openai/")} & {each.casefold() for each in names}:
            return i
    said = f"model: there is no {plain[:100]!r} here: ask for {known}"
    raise BadRequest(said, "model", 404, "model_not_found")


def fingerprint(engine: Engine, weights: str) -> str:
    """Return a name for all that the text depends on; equal names mean equal texts.

    Where logits depend on the company in a batch texts are not fixed, so that the name is
    this process's own.
    """
    able = engine.decoder.target.capabilities
    parts: list[object] = [weights, able.precision, able.kv_precision, able.max_context]
    if engine.looking is not None:
        parts.append(engine.looking.reader.settings.hex())
    parts += [engine.decoder.rule, engine.tokenizer.fingerprint, __version__]
    parts += ["exact"] if able.bit_exact else [able.runtime, able.device, uuid.uuid4().hex]
    return "fp_" + hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


class TokenTexts:
    """Texts and bytes of single tokens, as log-probabilities show them."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._known: dict[int, tuple[str, list[int]]] = {}

    def __getitem__(self, token: int) -> tuple[str, list[int]]:
        """Return text, with U+FFFD where bytes are no whole characters, and bytes."""
        known = self._known.get(token)
        if known is None:
            raw = self._tokenizer.bytes_of(token)
            known = self._known[token] = raw.decode("utf-8", "replace"), list(raw)
        return known

    def name(self, token: int) -> str:
        r"""Return text that is the token's alone.

        That is "bytes:\x.." where bytes are no characters, and "token_id:.." where there are none,
        as of ids between the tokenizer's vocabulary and the model's.
        """
        text, raw = self[token]
        if not raw:
            return f"token_id:{token}"
        if "\N{REPLACEMENT CHARACTER}" not in text:
            return text
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)
