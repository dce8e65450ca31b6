"""Text: tokenizer, chat template, incremental detokenisation, stop strings."""

from __future__ import annotations

import codecs
import hashlib
import json
import re
import secrets
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.core.cache import write_atomically
from paceline.errors import PromptError

if TYPE_CHECKING:
    import tokenizers

    from paceline.models.shown import PictureWords
    from paceline.models.template import ChatTemplate

_INCOMPLETE = "\N{REPLACEMENT CHARACTER}"
# Stands where an empty message goes on, while a template is rendered.
_CONTINUED = "\x7f" * 7
_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"  # stands for a space in sentencepiece vocabularies
_SOME = 64  # messages of which the one that is refused is looked for
_FLAGS = ("lstrip", "rstrip", "single_word")  # of added tokens
_PIECE = 50_000  # characters that are searched at once
_LARGE = 10_000  # characters or tokens that take milliseconds

_SYSTEM = ("system", "developer")  # roles of messages that no template may drop
# Roles that templates write tokens with, as in "<|" + role + "|>".
_ROLES = (*_SYSTEM, "user", "assistant", "tool", "function", "model", "ipython", "observation")
_THOUGHTS = ("reasoning_content", "thinking", "reasoning")  # fields of the same


class Tokenizer:
    """Tokenizer with chat template (jinja2).

    Args:
        core: what encodes; its post-processor adds the tokens around a whole text.
        eos_token_ids: ids that end a text or a turn.
        special_tokens: strings that templates use, such as "bos_token".
        chat_template: in Jinja; None for models that do not chat.
        named_templates: others by name; "tool_use" is for chats with tools.
        begins_chats: the begin token is added to chats whose template leaves it out, as files are
            made for llama.cpp; templates of directories say all themselves.
        kept: file of this vocabulary's fingerprint, which takes half a second to compute.
    """

    def __init__(
        self,
        core: tokenizers.Tokenizer,
        *,
        eos_token_ids: tuple[int, ...] = (),
        special_tokens: Mapping[str, str] | None = None,
        chat_template: str | None = None,
        named_templates: Mapping[str, str] | None = None,
        begins_chats: bool = False,
        kept: Path | None = None,
    ) -> None:
        self.core = core
        self._kept = kept
        self.eos_token_ids = eos_token_ids
        self.special_tokens = dict(special_tokens or {})
        self.chat_template = chat_template
        self.named_templates = dict(named_templates or {})
        self.fold_system = False
        """Whether a system message that the template does not take goes to the user turn behind."""
        self.pictures: PictureWords | None = None
        """What stands for pictures in chats, if the model reads them."""
        self._begins_chats = begins_chats

    @property
    def vocab_size(self) -> int:
        return self.core.get_vocab_size(with_added_tokens=True)

    @cached_property
    def fingerprint(self) -> str:
        """Short hash of the vocabulary; equal fingerprints mean compatible token ids."""
        with suppress(OSError):
            if self._kept and re.fullmatch("[0-9a-f]{16}", known := self._kept.read_text("utf-8")):
                return known
        vocabulary = self.core.get_vocab(with_added_tokens=True)
        ordered = sorted((index, token) for token, index in vocabulary.items())
        found = hashlib.sha256(json.dumps(ordered).encode()).hexdigest()[:16]
        with suppress(OSError):  # only a slower start is lost
            if self._kept is not None:
                write_atomically(self._kept, found)
        return found

    def agrees(self, other: Tokenizer) -> bool:
        """Return whether all tokens of one are tokens of the other, with the same ids."""
        if self.fingerprint == other.fingerprint:
            return True
        both = [each.core.get_vocab(with_added_tokens=True) for each in (self, other)]
        few, many = sorted(both, key=len)
        return all(many.get(token) == index for token, index in few.items())

    def encode(self, text: str, special: bool = False) -> list[int]:
        """Encode `text`. `special` adds the tokens around a whole text, those it lacks."""
        ids = _ids(self.core, text)
        if special:
            begin, end = map(list, self.around)
            ids = ids if ids[: len(begin)] == begin else begin + ids
            ids = ids if ids[len(ids) - len(end) :] == end else ids + end
        return ids

    def plain(self, text: str) -> list[int]:
        """Encode `text`; where it spells a special token it is text all the same."""
        return _ids(self._without_special[0], text)

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
            if system:
                why = "plain text has" if raw else "the model has no chat template, and so"
                raise PromptError(f"{why} no system message: say it in the text")
            return self.encode(text, special=True)
        before = [{"role": "system", "content": system}] if system else []
        return self.chat([*before, {"role": "user", "content": text}])

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        """Decode `ids`; bytes that are not UTF-8 become U+FFFD."""
        if len(ids) < _LARGE:
            return self.core.decode(list(ids), skip_special_tokens=skip_special)
        return self.core.decode_batch([list(ids)], skip_special_tokens=skip_special)[0]

    def bytes_of(self, token: int) -> bytes:
        """Return what a token adds to a text; empty for ids that the vocabulary leaves out.

        Special tokens are as they are written; a space that the decoder strips stays.
        """
        added = self._added.get(token)
        if added is not None:
            return added
        spelled = self.core.id_to_token(token) or ""
        if self.context_free:
            return bytes(BYTES[char] for char in spelled if char in BYTES)
        if len(spelled) == 6 and spelled.startswith("<0x"):
            return bytes([int(spelled[3:5], 16)])
        return spelled.replace(_SPACE, " ").encode()

    @cached_property
    def _added(self) -> dict[int, bytes]:
        added = self.core.get_added_tokens_decoder()
        return {index: token.content.encode() for index, token in added.items()}

    @cached_property
    def special(self) -> frozenset[int]:
        return frozenset(self.special_ids.values())

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
        template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **arguments: Any,
    ) -> list[int]:
        """Encode a conversation by the chat template.

        Special tokens come from the template alone: where messages, tools or arguments spell one,
        it is encoded as plain text. Tags around the reasoning that an assistant's message begins
        with are the model's own.

        Args:
            messages: each with "role" and "content" (text, or parts of type "text" and "image"),
                and whatever else the template reads, such as "tool_calls". A picture becomes a
                special token for each of its rows.
            tools: JSON schemas of functions that the model may call.
            template: another than the model's: the name of one of `named_templates`, or Jinja.
            add_generation_prompt: end with the head of the answer.
            continue_final_message: end within the last message, an assistant's: the answer goes on
                with it. There is no generation prompt then.
            arguments: of the template, such as `documents` or `enable_thinking`.

        Raises:
            PromptError: there is no template, it refuses the messages or leaves out a picture or a
                system message, the model reads no pictures, the template reads no tools or
                documents but some are given, arguments of a call are no JSON object, or the message
                to continue is not an assistant's text. Other arguments that the template does not
                read change nothing.
        """
        from paceline.models import template as written
        from paceline.models.shown import pictures_in

        source = self.template_for(bool(tools), template)
        if source is None:
            raise PromptError("the model has no chat template: give plain text instead of a chat")
        given = {"tools": list(tools) if tools else None, **arguments}
        for name in ("tools", "documents"):
            if given.get(name) and not self.reads(name, bool(tools), template):
                raise PromptError(f"the chat template reads no {name}: leave them out")
        takes, pictures = self._compiled(source).takes, len(pictures_in(messages))
        if self.pictures is not None:
            messages = self.pictures.placed(messages, source)
        told = [_message(message, i, takes) for i, message in enumerate(messages)]
        if continue_final_message:
            told = [*told[:-1], _continued(told)]
        values = {
            **written.traced(given, written.TOLD),
            **written.traced(self.special_tokens, written.OWN),
            "add_generation_prompt": add_generation_prompt and not continue_final_message,
        }
        told, text, marks = self._rendered(source, told, values, continue_final_message)
        if continue_final_message:
            end = max(marks.rfind(written.LAST), marks.rfind(written.TAG)) + 1
            if _text(told[-1]["content"]).endswith(_CONTINUED):
                end -= len(_CONTINUED)
            if end <= 0:
                raise PromptError("the chat template leaves out the last message: it cannot go on")
            text, marks = text[:end], marks[:end]
        ids = self._encoded_around(text, marks, pictures)
        begin = list(self.around[0]) if self._begins_chats else []
        return ids if ids[: len(begin)] == begin else begin + ids

    def template_for(self, tools: bool, template: str | None = None) -> str | None:
        """Return the template of a chat with or without `tools`, or the one of a name or a text."""
        if template is not None:
            return self.named_templates.get(template, template)
        return (self.named_templates.get("tool_use") if tools else None) or self.chat_template

    def reads(self, name: str, tools: bool = False, template: str | None = None) -> bool:
        """Return whether the `template_for` a chat reads `name`, such as "tools"."""
        source = self.template_for(tools, template)
        return source is not None and name in self._compiled(source).reads

    def stream(self, shown: Collection[int] = ()) -> StreamDecoder:
        """Return a decoder of what follows a prompt, without special tokens but for `shown`."""
        return StreamDecoder(self, self.special.difference(shown))

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

    # Templates, and special tokens that clients spell:

    def _compiled(self, source: str) -> ChatTemplate:
        import jinja2

        from paceline.models.template import REFUSALS, compiled

        try:
            return compiled(source)
        except (*REFUSALS, jinja2.TemplateError) as error:
            line = getattr(error, "lineno", None)
            where = "" if line is None else f"line {line}: "
            raise PromptError(
                f"the chat template cannot be read ({where}{_one_line(error)}): give another"
            ) from error

    def _render(
        self, source: str, messages: list[Any], given: Mapping[str, Any]
    ) -> tuple[str, bytes]:
        import jinja2

        from paceline.models.template import REFUSALS

        template, refusals = self._compiled(source), (*REFUSALS, jinja2.TemplateError)

        def refused(count: int) -> str:
            try:
                template.render({**given, "messages": messages[:count]})
            except refusals as error:
                return _one_line(error)
            return ""

        try:
            return template.render({**given, "messages": messages})
        except refusals as error:
            reason = _one_line(error)
            # The message behind which it is refused, if it is one of the first.
            first = (count for count in range(1, len(messages)) if refused(count) == reason)
            at = next(first, len(messages)) - 1 if len(messages) < _SOME else None
            name = next((n for n, s in self.named_templates.items() if s == source), "")
            raise PromptError(
                f"the chat template{name and f' {name!r}'} refuses "
                f"{'these messages' if at is None else f'messages[{at}]'} ({reason}): change "
                "them, or give plain text instead of a chat"
            ) from error

    def _rendered(
        self, source: str, told: list[dict[str, Any]], values: Mapping[str, Any], goes_on: bool
    ) -> tuple[list[dict[str, Any]], str, bytes]:
        # The messages as the template takes them, its text, and the marks of that.
        from paceline.models import template as written

        tags = written.reasoning_tags(source)

        def render(messages: list[dict[str, Any]]) -> tuple[str, bytes]:
            given = written.one_call_each(_traced(messages, tags, goes_on), source)
            try:
                return self._render(source, given, values)
            except PromptError:
                other = written.with_preambles(given, source)
                if other is None:
                    raise
                return self._render(source, other, values)

        def same(*changed: int) -> bool:
            # What is rendered differs if a text that is not shown is a switch.
            with suppress(PromptError):
                return render(_changed(told, changed))[0] == text
            return False

        systems = [at for at, each in enumerate(told) if each.get("role") in _SYSTEM]
        systems = [at for at in systems if _text(told[at].get("content")).strip()]
        try:
            text, marks = render(told)
        except PromptError:
            if not systems or not self.fold_system:
                raise
            dropped = systems
        else:
            unseen = [at for n, at in enumerate(systems) if written.system_mark(n) not in marks]
            dropped = unseen
            if unseen and not same(*unseen):
                dropped = [at for at in unseen if len(unseen) > 1 and same(at)]
        if not dropped:
            return told, text, marks
        if not self.fold_system:
            raise PromptError(
                f"the chat template leaves out system messages (messages[{dropped[0]}]): give "
                "none, or ask for them to be put into the user turns behind (--fold-system)"
            )
        told = _folded(told, dropped)
        return told, *render(told)

    def _encode_rendered(self, text: str, marks: bytes) -> list[int]:
        # What others than the template spell goes through a tokenizer that takes it for text.
        spans = self._special_spans(text, marks)
        ids = self.encode(text)
        if not Counter(filter(self.special.__contains__, ids)) - Counter(s[2] for s in spans):
            return ids
        core, stand_ins = self._without_special
        out, done = "", 0
        for begin, end, token in spans:
            out += text[done:begin] + stand_ins[token][0]
            done = end
        replaced = {index for _, index in stand_ins.values()}
        ids = _ids(core, out + text[done:])
        own = iter(spans)
        return [next(own)[2] if index in replaced else index for index in ids]

    def _encoded_around(self, text: str, marks: bytes, pictures: int) -> list[int]:
        # With words around pictures, and rows of each.
        from paceline.models.template import OWN

        words = self.pictures
        if words is None or not pictures:
            return self._encode_rendered(text, marks)
        at, out, made = 0, "", b""
        place, row = self.special_ids[words.place], self.special_ids[words.row]
        for begin, end, token in self._special_spans(text, marks):
            if token == place:
                out += text[at:begin] + words.around
                made += marks[at:begin] + OWN * len(words.around)
                at = end
        ids = self._encode_rendered(out + text[at:], made + marks[at:])
        if ids.count(row) != pictures:
            raise PromptError(
                f"the chat template shows {ids.count(row)} pictures of {pictures}: put them into "
                "messages of the user, or give another template"
            )
        return [each for token in ids for each in [token] * (words.rows if token == row else 1)]

    def _special_spans(self, text: str, marks: bytes) -> list[tuple[int, int, int]]:
        # The template's special tokens, leftmost first, the longest at a place.
        from paceline.models.template import OWN, TAG

        spans: list[tuple[int, int, int]] = []
        # In pieces, so that other threads run meanwhile; what begins at the end of one goes on.
        pieces = ((text, at, at + _PIECE + 3) for at in range(0, len(text), _PIECE))
        hits = (hit for piece in pieces for hit in self._special_firsts.finditer(*piece))
        for begin in (hit.start() for hit in hits):
            if spans and begin < spans[-1][1]:
                continue
            for size in self._special_sizes:
                token = self.special_ids.get(text[begin : begin + size])
                if token is not None and not marks[begin : begin + size].strip(OWN + TAG):
                    spans.append((begin, begin + size, token))
                    break
        return spans

    @cached_property
    def _special_firsts(self) -> re.Pattern[str]:
        # By some characters, so that a text of nothing but "<" has no place that is looked at.
        firsts = sorted({token[:4] for token in self.special_ids})
        hits = (f"{re.escape(each[0])}(?={re.escape(each[1:])})" for each in firsts)
        return re.compile("|".join(hits) or r"(?!)")

    @cached_property
    def _special_sizes(self) -> list[int]:
        return sorted({len(token) for token in self.special_ids}, reverse=True) or [0]

    @cached_property
    def _without_special(self) -> tuple[tokenizers.Tokenizer, dict[int, tuple[str, int]]]:
        # The tokenizer that takes special tokens for text, and what stands for each in it: a token
        # that swallows what it does.
        from tokenizers import AddedToken, Tokenizer

        core = Tokenizer(self.core.model)  # which both share: a copy takes a second
        core.normalizer, core.pre_tokenizer = self.core.normalizer, self.core.pre_tokenizer
        own = self.core.get_added_tokens_decoder()
        core.add_tokens([own[index] for index in sorted(own)])
        core.encode_special_tokens = True
        secret = secrets.token_hex(8)  # which no text has
        stand_ins: dict[int, tuple[str, int]] = {}
        kinds: dict[str, tuple[str, int]] = {}
        for index, token in own.items():
            flags = {name: getattr(token, name) for name in _FLAGS}
            kind = "".join("01"[flag] for flag in flags.values())
            if kind not in kinds:
                name = f"\ufdd0{secret}{kind}\ufdd1"
                core.add_tokens([AddedToken(name, normalized=False, **flags)])
                kinds[kind] = name, int(core.token_to_id(name) or 0)
            stand_ins[index] = kinds[kind]
        return core, stand_ins


def _ids(core: tokenizers.Tokenizer, text: str) -> list[int]:
    # Of a large text as a batch of one, which lets other threads of Python run meanwhile.
    if len(text) < _LARGE:
        return list(core.encode(text, add_special_tokens=False).ids)
    return list(core.encode_batch([text], add_special_tokens=False)[0].ids)


class Offsets:
    """Where tokens begin in the text of what follows a prompt, as it is streamed."""

    def __init__(self, tokenizer: Tokenizer, at: int = 0, shown: Collection[int] = ()) -> None:
        """Start at the character `at`; of special tokens the text has those `shown` alone."""
        self._bytes_of = tokenizer.bytes_of
        self._hidden = tokenizer.special.difference(shown)
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


def _alphabet() -> dict[str, int]:
    # Byte-level vocabularies show printable bytes as themselves, and the others from U+0100 on.
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {chr(byte): byte for byte in shown} | {chr(256 + i): b for i, b in enumerate(hidden)}


BYTES = _alphabet()
"""Bytes by the character that shows them in byte-level vocabularies."""


def _message(message: Mapping[str, Any], at: int, takes: str) -> dict[str, Any]:
    from paceline.models.shown import BLIND
    from paceline.models.template import call_arguments

    out, field = dict(message), f"messages[{at}]"
    thought = next((out[name] for name in _THOUGHTS if out.get(name) is not None), None)
    if thought is not None:
        out |= {"thinking": out.get("thinking", thought), "reasoning_content": thought}
    content = out.get("content")
    if isinstance(content, list | tuple):
        content, parted = list(content), False
        out["content"] = content
        for part in content:
            kind = part.get("type") if isinstance(part, Mapping) else part
            if kind == "image" and "image" not in part:
                parted = True
            elif kind == "image":
                raise PromptError(f"{field}: a content part {BLIND}")
            elif not isinstance(part, Mapping) or not isinstance(part.get("text"), str):
                raise PromptError(
                    f"{field}: content parts of type {kind!r} are not read: give text"
                )
        if takes == "text" and not parted:
            out["content"] = _text(content)
    elif isinstance(content, str) and takes == "parts":
        out["content"] = _part(content)
    if isinstance(out.get("tool_calls"), list | tuple):
        out["tool_calls"] = list(out["tool_calls"])
        for i, call in enumerate(out["tool_calls"]):
            place, inner = f"{field}.tool_calls[{i}]", call
            if isinstance(call, Mapping) and isinstance(call.get("function"), Mapping):
                place, inner = f"{place}.function", call["function"]
            if isinstance(inner, Mapping) and "arguments" in inner:
                # Clients send a JSON string; templates write the object as JSON themselves.
                arguments = call_arguments(inner["arguments"], f"{place}.arguments")
                read = {**inner, "arguments": arguments}
                out["tool_calls"][i] = read if inner is call else {**call, "function": read}
    return out


def _traced(
    messages: Sequence[Mapping[str, Any]], tags: tuple[str, str] | None, goes_on: bool
) -> list[dict[str, Any]]:
    from paceline.models.template import LAST, OWN, TAG, TOLD, recalled, system_mark, traced

    out: list[dict[str, Any]] = []
    systems = 0
    for at, message in enumerate(messages):
        role, content = message.get("role"), message.get("content")
        last = goes_on and at == len(messages) - 1
        mark = LAST if last else TOLD
        if role in _SYSTEM and _text(content).strip():
            mark, systems = system_mark(systems), systems + 1
        each = {**traced(message, TOLD)}
        if "content" in message:
            each["content"] = traced(content, mark)
            if tags is not None and role == "assistant":
                each["content"] = recalled(each["content"], tags, TAG if last else OWN)
        if role in _ROLES:
            each["role"] = traced(role, OWN)
        out.append(each)
    return out


def _text(content: Any) -> str:
    if isinstance(content, list | tuple):
        from paceline.models.template import TOLD, traced

        texts = [part.get("text", "") for part in content]
        own = any(type(text) is not str for text in texts)  # which it has to stay
        return traced("\n", TOLD).join(traced(texts, TOLD)) if own else "\n".join(texts)
    return content if isinstance(content, str) else ""


def _part(text: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text}]


def _changed(messages: Sequence[dict[str, Any]], places: Sequence[int]) -> list[dict[str, Any]]:
    # With another text at these places.
    out = list(messages)
    for at in places:
        parted = isinstance(out[at]["content"], list)
        out[at] = {**out[at], "content": _part(_CONTINUED) if parted else _CONTINUED}
    return out


def _folded(messages: Sequence[dict[str, Any]], systems: Sequence[int]) -> list[dict[str, Any]]:
    # System messages in the user turns behind them.
    out = list(messages)
    for at in reversed(systems):
        to = next((i for i in range(at, len(out)) if out[i].get("role") == "user"), 0)
        if not to:
            raise PromptError(f"messages[{at}]: there is no user turn behind it to fold it into")
        words, content = _text(out[at]["content"]) + "\n\n", out[to].get("content")
        content = _part(words) + content if isinstance(content, list) else words + _text(content)
        out[to] = {**out[to], "content": content}
        del out[at]
    return out


def _continued(messages: list[Any]) -> dict[str, Any]:
    # The last message, whose content is not blank, so that its end can be seen.
    message = messages[-1] if messages else {}
    content = message.get("content")
    if message.get("role") != "assistant" or message.get("tool_calls") or content is None:
        raise PromptError("only an assistant's text can be continued: end with such a message")
    if not _text(content).strip():
        content = content + (_part(_CONTINUED) if isinstance(content, list) else _CONTINUED)
    return {**message, "content": content}


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
