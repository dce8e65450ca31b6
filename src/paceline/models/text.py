"""Text: tokenizer, chat template, incremental detokenisation, stop strings."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from paceline.errors import PromptError

if TYPE_CHECKING:
    import jinja2
    import tokenizers

_INCOMPLETE = "\N{REPLACEMENT CHARACTER}"
# What a template may raise while it is read or rendered, beside Jinja's own errors.
_REFUSALS = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)


class Tokenizer:
    """Tokenizer with chat template (jinja2).

    Args:
        core: what encodes; its post-processor adds the tokens around a whole text.
        eos_token_ids: ids that end a text or a turn.
        special_tokens: strings that templates use, such as "bos_token".
        chat_template: in Jinja; None for models that do not chat.
        begins_chats: the begin token is added to chats whose template leaves it out, as files are
            made for llama.cpp; templates of directories say all themselves.
    """

    def __init__(
        self,
        core: tokenizers.Tokenizer,
        *,
        eos_token_ids: tuple[int, ...] = (),
        special_tokens: Mapping[str, str] | None = None,
        chat_template: str | None = None,
        begins_chats: bool = False,
    ) -> None:
        self.core = core
        self.eos_token_ids = eos_token_ids
        self.special_tokens = dict(special_tokens or {})
        self.chat_template = chat_template
        self._begins_chats = begins_chats

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
        """Encode `text`. `special` adds the tokens around a whole text, those it lacks."""
        ids = list(self.core.encode(text, add_special_tokens=False).ids)
        if special:
            begin, end = map(list, self.around)
            ids = ids if ids[: len(begin)] == begin else begin + ids
            ids = ids if ids[len(ids) - len(end) :] == end else ids + end
        return ids

    @cached_property
    def around(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Ids that the model wants before and after a whole text."""
        plain = self.core.encode("a", add_special_tokens=False).ids
        whole = self.core.encode("a", add_special_tokens=True).ids
        for begin in range(len(whole)):
            if whole[begin : begin + len(plain)] == plain:
                return tuple(whole[:begin]), tuple(whole[begin + len(plain) :])
        return (), ()

    def prompt(self, text: str, *, raw: bool = False, system: str | None = None) -> list[int]:
        """Encode what a user says: a turn, or the start of a text if `raw` or without a template.

        Raises PromptError as `chat`.
        """
        if raw or self.chat_template is None:
            return self.encode(text, special=True)
        before = [{"role": "system", "content": system}] if system else []
        return self.chat([*before, {"role": "user", "content": text}])

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        """Decode `ids`; bytes that are not UTF-8 become U+FFFD."""
        return self.core.decode(list(ids), skip_special_tokens=skip_special)

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        add_generation_prompt: bool = True,
        **arguments: Any,
    ) -> list[int]:
        """Encode a conversation by the chat template.

        Args:
            messages: each with "role" and "content" (text, or parts of type "text"), and whatever
                else the template reads, such as "tool_calls".
            tools: JSON schemas of functions that the model may call.
            add_generation_prompt: end with the head of the answer.
            arguments: of the template, such as `documents` or `enable_thinking`.

        Raises:
            PromptError: there is no template, it refuses the messages, or it reads no tools or
                documents but some are given. Other arguments that it does not read change nothing.
        """
        import jinja2

        if self.chat_template is None:
            raise PromptError("the model has no chat template: give plain text (--raw)")
        given = {"tools": list(tools) if tools else None, **arguments}
        try:
            template, reads = self._template
            for name in ("tools", "documents"):
                if given.get(name) and name not in reads:
                    raise PromptError(f"the chat template reads no {name}: leave them out")
            text = template.render(
                **self.special_tokens,
                **given,
                messages=[_message(message, self._joins_parts) for message in messages],
                add_generation_prompt=add_generation_prompt,
            )
        except (*_REFUSALS, jinja2.TemplateError) as error:
            reason = " ".join(str(error).split())
            raise PromptError(
                f"the chat template refuses these messages ({reason}): change them or give plain "
                "text (--raw)"
            ) from error
        ids = self.encode(text)
        begin = list(self.around[0]) if self._begins_chats else []
        return ids if ids[: len(begin)] == begin else begin + ids

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
    def _template(self) -> tuple[jinja2.Template, set[str]]:
        # The template, and the names that it reads.
        from jinja2 import meta
        from jinja2.ext import loopcontrols
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        # Marks of what the model wrote, for training; they print nothing.
        source = re.sub(r"({%-?\s*)generation(\s*-?%})", r"\1if true\2", self.chat_template or "")
        source = re.sub(r"({%-?\s*)endgeneration(\s*-?%})", r"\1endif\2", source)
        reads = meta.find_undeclared_variables(environment.parse(source))
        return environment.from_string(source), reads

    @cached_property
    def _joins_parts(self) -> bool:
        # Templates that do not go through the parts of a content take it as text.
        return not re.search(r"\bfor\s+\w+\s+in\s+[^%]*content", self.chat_template or "")


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


def _message(message: Mapping[str, Any], join: bool) -> dict[str, Any]:
    out = dict(message)
    content = out.get("content")
    if isinstance(content, list | tuple):
        for part in content:
            if not isinstance(part, Mapping) or not isinstance(part.get("text"), str):
                kind = part.get("type") if isinstance(part, Mapping) else part
                raise PromptError(f"content parts of type {kind!r} are not read: give text")
        if join:
            out["content"] = "\n".join(part["text"] for part in content)
    if isinstance(out.get("tool_calls"), list | tuple):
        out["tool_calls"] = [_tool_call(call) for call in out["tool_calls"]]
    return out


def _tool_call(call: Any) -> Any:
    # Clients send arguments as a JSON string; templates write them as JSON themselves.
    if not isinstance(call, Mapping):
        return call
    if isinstance(call.get("function"), Mapping):
        return {**call, "function": _tool_call(call["function"])}
    with contextlib.suppress(TypeError, ValueError):
        parsed = json.loads(call.get("arguments"))  # type: ignore[arg-type]
        return {**call, "arguments": parsed} if isinstance(parsed, dict) else call
    return call


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Unlike jinja2's own filter this one does not escape HTML.
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> None:
    import jinja2

    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)
