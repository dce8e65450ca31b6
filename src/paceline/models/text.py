"""Text: tokenizer, chat template, incremental detokenisation, stop strings."""

from __future__ import annotations

import codecs
import contextlib
import copy
import hashlib
import json
import re
from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from paceline.errors import PromptError

if TYPE_CHECKING:
    import jinja2
    import tokenizers

_INCOMPLETE = "\N{REPLACEMENT CHARACTER}"
# Stands, while a template is rendered, inside special tokens that a message spells; and where a
# message to be continued ends: so many deletes stand in no text.
_SPELLED = "\x7f" * 3
_CONTINUED = "\x7f" * 7
_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"  # stands for a space in sentencepiece vocabularies
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

    def plain(self, text: str) -> list[int]:
        """Encode `text`; where it spells a special token it is text all the same."""
        return list(self._without_special.encode(text, add_special_tokens=False).ids)

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

    def bytes_of(self, token: int) -> bytes:
        """Return what a token adds to a text; empty for ids that the vocabulary leaves out.

        Special tokens are as they are written; a space that the decoder strips stays.
        """
        added = self._added.get(token)
        if added is not None:
            return added
        spelled = self.core.id_to_token(token) or ""
        if self.context_free:
            return bytes(_BYTES[char] for char in spelled if char in _BYTES)
        if len(spelled) == 6 and spelled.startswith("<0x"):
            return bytes([int(spelled[3:5], 16)])
        return spelled.replace(_SPACE, " ").encode()

    @cached_property
    def _added(self) -> dict[int, bytes]:
        added = self.core.get_added_tokens_decoder()
        return {index: token.content.encode() for index, token in added.items()}

    @cached_property
    def special_ids(self) -> dict[str, int]:
        """Ids of the special tokens by text: those that texts leave out."""
        added = self.core.get_added_tokens_decoder()
        return {token.content: index for index, token in added.items() if token.special}

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **arguments: Any,
    ) -> list[int]:
        """Encode a conversation by the chat template.

        Special tokens come from the template alone: where messages, tools or arguments spell one,
        it is encoded as plain text.

        Args:
            messages: each with "role" and "content" (text, or parts of type "text"), and whatever
                else the template reads, such as "tool_calls".
            tools: JSON schemas of functions that the model may call.
            add_generation_prompt: end with the head of the answer.
            continue_final_message: end within the last message, an assistant's: the answer goes on
                with it. There is no generation prompt then.
            arguments: of the template, such as `documents` or `enable_thinking`.

        Raises:
            PromptError: there is no template, it refuses the messages, it reads no tools or
                documents but some are given, or the message to continue is not an assistant's text.
                Other arguments that it does not read change nothing.
        """
        import jinja2

        if self.chat_template is None:
            raise PromptError("the model has no chat template: give plain text (--raw)")
        given = {"tools": list(tools) if tools else None, **arguments}
        try:
            template, _ = self._template
            for name in ("tools", "documents"):
                if given.get(name) and not self.reads(name):
                    raise PromptError(f"the chat template reads no {name}: leave them out")
            told = [self._spell(_message(message, self._joins_parts)) for message in messages]
            if continue_final_message:
                told = [*told[:-1], _continued(told)]
            text = template.render(
                **{**self._spell(given), **self.special_tokens},
                messages=told,
                add_generation_prompt=add_generation_prompt and not continue_final_message,
            )
        except (*_REFUSALS, jinja2.TemplateError) as error:
            reason = " ".join(str(error).split())
            raise PromptError(
                f"the chat template refuses these messages ({reason}): change them or give plain "
                "text (--raw)"
            ) from error
        if continue_final_message:
            text, found, _ = text.rpartition(_CONTINUED)
            if not found:
                raise PromptError("the chat template leaves out the last message: it cannot go on")
        ids = self._encode_rendered(text)
        begin = list(self.around[0]) if self._begins_chats else []
        return ids if ids[: len(begin)] == begin else begin + ids

    def reads(self, name: str) -> bool:
        """Return whether the chat template reads `name`, such as "tools"."""
        return self.chat_template is not None and name in self._template[1]

    def stream(self, shown: Collection[int] = ()) -> StreamDecoder:
        """Return a decoder of what follows a prompt, without special tokens but for `shown`."""
        return StreamDecoder(self, frozenset(self.special_ids.values()).difference(shown))

    def offsets(self, prompt: str | Sequence[int]) -> list[int]:
        """Return where each token of a prompt begins, in characters.

        A token that begins within a character has that character's place. The tokens of a text are
        those of `encode(text, special=True)`, places of given ids are those in `decode(ids)`.
        """
        if not isinstance(prompt, str):
            reader = Offsets(self)
            found = [reader.feed(token) for token in prompt]
            stripped = reader.at - len(self.decode(prompt))
            return [max(0, place - stripped) for place in found]
        read = self.core.encode(prompt, add_special_tokens=False)
        places = [begin for begin, _ in read.offsets]
        before, behind = map(list, self.around)
        before = [] if read.ids[: len(before)] == before else before
        behind = [] if read.ids[len(read.ids) - len(behind) :] == behind else behind
        return [0 for _ in before] + places + [len(prompt) for _ in behind]

    @cached_property
    def context_free(self) -> bool:
        # True if a token's bytes do not depend on the tokens before it.
        from tokenizers.decoders import ByteLevel

        return isinstance(self.core.decoder, ByteLevel)

    @cached_property
    def inside(self) -> tuple[int, ...]:
        # What stands for the text before; empty where tokens do not depend on it.
        return () if self.context_free else tuple(self.encode("a"))

    @cached_property
    def pieces(self) -> dict[int, str]:
        # Texts of single tokens, of special ones too.
        return {}

    # Special tokens that clients spell:

    def _spell(self, value: Any) -> Any:
        # A copy in which no string holds a special token, or ends as one begins: a template may
        # join strings.
        if isinstance(value, Mapping):
            return {self._spell(key): self._spell(each) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return [self._spell(each) for each in value]
        if not isinstance(value, str):
            return value
        out, done = "", 0
        for begin, end in self._special_spans(value):
            out += value[done : begin + 1] + _SPELLED + value[begin + 1 : end]
            done = end
        out += value[done:]
        sizes = range(1, min(len(value), self._special_sizes[0]))
        ends = any(value[-size:] in self._special_heads for size in sizes)
        return out + _SPELLED if ends else out

    def _encode_rendered(self, text: str) -> list[int]:
        # Texts between special tokens are encoded each by itself, as the tokenizer does.
        if _SPELLED not in text:
            return self.encode(text)
        ids: list[int] = []
        done = 0
        for begin, end in [*self._special_spans(text), (len(text), len(text))]:
            part = text[done:begin].replace(_SPELLED, "")
            ids += self._without_special.encode(part, add_special_tokens=False).ids
            ids += self.encode(text[begin:end])
            done = end
        return ids

    def _special_spans(self, text: str) -> list[tuple[int, int]]:
        # Special tokens in `text`, leftmost first, the longest at a place, with the spaces that
        # some swallow.
        spans: list[tuple[int, int]] = []
        for hit in self._special_firsts.finditer(text):
            begin = hit.start()
            if spans and begin < spans[-1][1]:
                continue
            for size in self._special_sizes:
                token = self.special_ids.get(text[begin : begin + size])
                if token is not None:
                    end = begin + size
                    while token in self._swallowing and text[end : end + 1].isspace():
                        end += 1
                    spans.append((begin, end))
                    break
        return spans

    @cached_property
    def _special_firsts(self) -> re.Pattern[str]:
        firsts = {token[0] for token in self.special_ids}
        return re.compile("|".join(map(re.escape, sorted(firsts))) or r"(?!)")

    @cached_property
    def _special_sizes(self) -> list[int]:
        return sorted({len(token) for token in self.special_ids}, reverse=True) or [0]

    @cached_property
    def _special_heads(self) -> set[str]:
        return {token[:size] for token in self.special_ids for size in range(1, len(token))}

    @cached_property
    def _swallowing(self) -> set[int]:
        added = self.core.get_added_tokens_decoder()
        return {index for index, token in added.items() if token.rstrip}

    @cached_property
    def _without_special(self) -> tokenizers.Tokenizer:
        # The tokenizer that takes special tokens for text. Seconds for a large vocabulary, once.
        core = copy.deepcopy(self.core)
        core.encode_special_tokens = True
        return core

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


class Offsets:
    """Where tokens begin in the text of what follows a prompt, as it is streamed."""

    def __init__(self, tokenizer: Tokenizer, at: int = 0, shown: Collection[int] = ()) -> None:
        """Start at the character `at`; of special tokens the text has those `shown` alone."""
        self._bytes_of = tokenizer.bytes_of
        self._hidden = frozenset(tokenizer.special_ids.values()).difference(shown)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.at = at
        """Characters that are whole so far."""

    def feed(self, token: int) -> int:
        """Return where the next token begins: within a character at that character's place."""
        raw = b"" if token in self._hidden else self._bytes_of(token)
        open_bytes = self._decoder.getstate()[0]
        text = self._decoder.decode(raw)
        # What was open and does not go on has become a character of its own.
        broken = open_bytes and raw and (open_bytes + raw[:1]).decode("utf-8", "replace")[1:]
        begin = self.at + bool(broken)
        self.at += len(text)
        return begin


class StreamDecoder:
    """Incremental detokeniser that holds back incomplete UTF-8 characters."""

    def __init__(self, tokenizer: Tokenizer, hidden: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._hidden = hidden
        self._pieces = tokenizer.pieces
        # Ids of the last piece and those after it. The last piece is decoded again each time
        # because some tokenizers treat the start of a text differently: what is read here begins
        # in the middle of one.
        self._window = list(tokenizer.inside)
        self._shown = len(self._window)

    def feed(self, ids: Sequence[int]) -> str:
        """Return the text that `ids` complete."""
        ids = [token for token in ids if token not in self._hidden]
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
        self._window = list(self._tokenizer.inside)
        self._shown = len(self._window)
        return rest

    def _text(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(ids, skip_special=False)


class StopStrings:
    def __init__(self, stops: Sequence[str]) -> None:
        # Looked up, not tried in turn: there may be thousands.
        self._stops = frozenset(stops)
        self._sizes = sorted({len(stop) for stop in stops}, reverse=True)
        self._sorted = sorted(self._stops)

    def find(self, text: str, searched: int = 0) -> tuple[int, int] | None:
        """Return begin and end of the first match, or None. Skips a searched prefix of `text`.

        The match that ends first counts, then the longest: independent of how the text was split.
        """
        for end in range(searched + 1, len(text) + 1) if self._stops else ():
            for size in self._sizes:
                if size <= end and text[end - size : end] in self._stops:
                    return end - size, end
        return None

    def held(self, text: str) -> int:
        """Return the length of the longest suffix of `text` that may begin a stop string."""
        most = self._sizes[0] - 1 if self._sizes else 0
        for size in range(min(most, len(text)), 0, -1):
            tail = text[len(text) - size :]
            after = bisect_right(self._sorted, tail)  # what begins with it follows it
            if after < len(self._sorted) and self._sorted[after].startswith(tail):
                return size
        return 0


def _alphabet() -> dict[str, int]:
    # Byte-level vocabularies show printable bytes as themselves, and the others from U+0100 on.
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {chr(byte): byte for byte in shown} | {chr(256 + i): b for i, b in enumerate(hidden)}


_BYTES = _alphabet()


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


def _continued(messages: list[Any]) -> dict[str, Any]:
    # The last message, with a mark where it goes on.
    message = messages[-1] if messages else {}
    content = message.get("content")
    if message.get("role") != "assistant" or message.get("tool_calls") or content is None:
        raise PromptError("only an assistant's text can be continued: end with such a message")
    if isinstance(content, str):
        return {**message, "content": content + _CONTINUED}
    *before, last = content
    return {**message, "content": [*before, {**last, "text": last["text"] + _CONTINUED}]}


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
    text = json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
    return text.replace(json.dumps(_SPELLED)[1:-1], _SPELLED)


def _raise_exception(message: str) -> None:
    import jinja2

    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)
