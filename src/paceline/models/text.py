"""Text: tokenizer, chat template, incremental detokenisation, stop strings."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from paceline.errors import PromptError

if TYPE_CHECKING:
    import jinja2
    import tokenizers

_INCOMPLETE = "\N{REPLACEMENT CHARACTER}"


class Tokenizer:
    """Tokenizer with chat template (jinja2) and its special token strings, such as "bos_token"."""

    def __init__(
        self,
        core: tokenizers.Tokenizer,
        *,
        eos_token_ids: tuple[int, ...] = (),
        special_tokens: Mapping[str, str] | None = None,
        chat_template: str | None = None,
    ) -> None:
        self.core = core
        self.eos_token_ids = eos_token_ids
        self.special_tokens = dict(special_tokens or {})
        self.chat_template = chat_template

    @property
    def vocab_size(self) -> int:
        return self.core.get_vocab_size(with_added_tokens=True)

    @cached_property
    def fingerprint(self) -> str:
        """Short hash of the vocabulary; equal fingerprints mean compatible token ids."""
        vocabulary = self.core.get_vocab(with_added_tokens=True)
        ordered = sorted((index, token) for token, index in vocabulary.items())
        return hashlib.sha256(json.dumps(ordered).encode()).hexdigest()[:16]

    def encode(self, text: str, special: bool = False) -> list[int]:
        """Encode `text`. `special` adds the tokens around a whole text, such as begin-of-text."""
        return list(self.core.encode(text, add_special_tokens=special).ids)

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        """Decode `ids`; bytes that are not UTF-8 become U+FFFD."""
        return self.core.decode(list(ids), skip_special_tokens=skip_special)

    def chat(
        self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool = True
    ) -> list[int]:
        """Encode a conversation (each message with "role" and "content") by the chat template.

        Raises PromptError if there is no template, or it refuses the messages.
        """
        import jinja2

        if self.chat_template is None:
            raise PromptError("the model has no chat template: give plain text (--raw)")
        try:
            text = self._template.render(
                messages=[dict(message) for message in messages],
                add_generation_prompt=add_generation_prompt,
                **self.special_tokens,
            )
        except (jinja2.TemplateError, TypeError) as error:
            reason = " ".join(str(error).split())
            raise PromptError(
                f"the chat template refuses these messages ({reason}): change them or give plain "
                "text (--raw)"
            ) from error
        return self.encode(text)

    def stream(self, skip_special: bool = True) -> StreamDecoder:
        return StreamDecoder(self, skip_special)

    @cached_property
    def context_free(self) -> bool:
        # True if a token's bytes do not depend on the tokens before it.
        from tokenizers.decoders import ByteLevel

        return isinstance(self.core.decoder, ByteLevel)

    @cached_property
    def pieces(self) -> tuple[dict[int, str], dict[int, str]]:
        # Caches of single-token texts: special tokens shown, special tokens skipped.
        return {}, {}

    @cached_property
    def _template(self) -> jinja2.Template:
        from jinja2.ext import loopcontrols
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        assert self.chat_template is not None
        return environment.from_string(self.chat_template)


class StreamDecoder:
    """Incremental detokeniser that holds back incomplete UTF-8 characters."""

    def __init__(self, tokenizer: Tokenizer, skip_special: bool = True) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._pieces = tokenizer.pieces[skip_special]
        # Ids of the last piece and those after it. The last piece is decoded again each time
        # because some tokenizers treat the start of a text differently.
        self._window: list[int] = []
        self._shown = 0

    def feed(self, ids: Sequence[int]) -> str:
        """Return the text that `ids` complete."""
        if len(ids) == 1 and not self._window and self._tokenizer.context_free:
            piece = self._pieces.get(ids[0])
            if piece is None:  # decoding takes much longer than looking up
                piece = self._pieces[ids[0]] = self._text(ids)
            if _INCOMPLETE not in piece:
                return piece
        before = self._text(self._window[: self._shown])
        self._window.extend(ids)
        text = self._text(self._window)
        if text.endswith(_INCOMPLETE) or len(text) <= len(before):
            return ""
        self._window = [] if self._tokenizer.context_free else self._window[self._shown :]
        self._shown = len(self._window)
        return text[len(before) :]

    def finish(self) -> str:
        """Return the text held back, and reset."""
        before = self._text(self._window[: self._shown])
        rest = self._text(self._window)[len(before) :]
        self._window, self._shown = [], 0
        return rest

    def _text(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(ids, self._skip_special)


class StopStrings:
    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._longest = max(map(len, self._stops), default=0)

    def find(self, text: str, searched: int = 0) -> int | None:
        """Return the index at which to cut the text, or None. Skips a searched prefix of `text`.

        The match that ends first counts, then the longest: independent of how the text was split.
        """
        if not self._stops:
            return None
        begin = max(0, searched - self._longest + 1)
        matches = [
            (at + len(stop), at) for stop in self._stops if (at := text.find(stop, begin)) >= 0
        ]
        return min(matches)[1] if matches else None

    def held(self, text: str) -> int:
        """Return the length of the longest suffix of `text` that may begin a stop string."""
        for size in range(min(self._longest - 1, len(text)), 0, -1):
            tail = text[len(text) - size :]
            if any(len(stop) > size and stop.startswith(tail) for stop in self._stops):
                return size
        return 0


def _to_json(value: Any, **options: Any) -> str:
    # Unlike jinja2's own filter this one does not escape HTML.
    return json.dumps(value, ensure_ascii=False, **options)


def _raise_exception(message: str) -> None:
    import jinja2

    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)
