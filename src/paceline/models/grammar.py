"""Constraints by llguidance: JSON Schema, regular expressions, Lark, GBNF, choices, tool calls."""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from decimal import Decimal
from functools import cached_property, lru_cache, partial
from itertools import groupby, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from paceline.core.cache import read_text
from paceline.core.options import check_text
from paceline.core.types import BoolArray
from paceline.errors import InvalidOption, RuntimeUnavailable
from paceline.models.calls import CALL_ID, OBJECT, CallForm, Notation
from paceline.models.gbnf import lark_lines
from paceline.models.patterns import LONGEST, Untranslated, terminal
from paceline.models.schemas import COMPACT, FREE, LARGEST, SPACED, SchemaRules, Spacing
from paceline.models.text import Tokenizer

if TYPE_CHECKING:
    import llguidance

MOST_CALLS = 16
_FAR = 400  # an exponent beyond any of a float
_KEPT = 64  # grammars
# Counts of work, and not of time. The first is what ambiguous rules meet: time grows with its cube.
_LIMITS: dict[str, Any] = {
    "max_items_in_row": 400,
    "initial_lexer_fuel": 200_000,
    "step_lexer_fuel": 50_000,
    "verbose_errors": False,
}
_NO_ARGUMENTS = {"type": "object", "properties": {}, "additionalProperties": False}
# Keywords by which members that are not listed may be meant. Without them a tool that lists no
# parameters has none.
_OPEN = "properties required patternProperties propertyNames minProperties $ref allOf anyOf oneOf"
_OPEN += " if enum const dependentRequired not"
# Around an answer behind reasoning. What ends reasoning may be a token of its own.
_GAP = r"GAP: /[ \t\r\n]{1,4}/"
_TEXT = r"TEXT: /(.|\n)*/"


class GrammarState:
    """One sequence's place in a grammar (`ConstraintState`).

    `mask` and `commit` raise InvalidOption where a limit of work is met.
    """

    def __init__(
        self,
        begin: Callable[[], llguidance.LLMatcher],
        ends: frozenset[int],
        vocabulary: int,
        named: str,
    ) -> None:
        self._begin = begin
        self._matcher = begin()
        self._ends = ends
        self._named = named
        self._end_mask = np.zeros(vocabulary, np.bool_)
        self._end_mask[[end for end in ends if end < vocabulary]] = True
        self._committed: list[int] = []
        self._ended = False
        self._path: list[int] = []  # what the matcher has read behind the committed tokens
        self._masks: dict[tuple[int, ...], BoolArray] = {}  # since the last commit

    def mask(self, path: Sequence[int] = ()) -> BoolArray:
        key = tuple(path)
        known = self._masks.get(key)
        if known is None:
            known = self._masks[key] = self._mask(key)
        return known

    def valid(self, path: Sequence[int]) -> int:
        text = [] if self._ended else list(takewhile(lambda token: token not in self._ends, path))
        read = self._read(text)
        if read < len(text) or read == len(path):
            return read
        if not (self._ended or self._matcher.is_accepting()):
            return read
        return read + sum(1 for _ in takewhile(self._ends.__contains__, path[read:]))

    def forced(self) -> tuple[int, ...]:
        if self._ended:
            return ()
        self._read(())
        return tuple(self._matcher.compute_ff_tokens())

    def commit(self, tokens: Sequence[int]) -> None:
        count = self.valid(tokens)
        self._check()
        if count < len(tokens):
            raise InvalidOption(
                f"token {tokens[count]} is not what {self._named} allows there: leave out the "
                "constraint or the token"
            )
        self._committed += self._path
        self._ended = self._ended or len(self._path) < len(tokens)
        self._path = []
        self._masks.clear()

    def _mask(self, path: tuple[int, ...]) -> BoolArray:
        size = len(self._end_mask)
        allowed = self.valid(path)
        self._check()
        if allowed < len(path):
            return np.ones(size, np.bool_)
        if self._ended or len(self._path) < len(path):
            return self._end_mask
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        self._check()
        mask = np.zeros(size, np.bool_)
        known = np.unpackbits(bits, bitorder="little")[:size]  # the model's rows may be more
        mask[: len(known)] = known
        return mask

    def _read(self, text: Sequence[int]) -> int:
        # Brings the matcher behind `text`, as far as that is allowed.
        if self._matcher.is_error():
            self._matcher, self._path = self._begin(), []
            self._matcher.consume_tokens(self._committed)
        same = sum(takewhile(bool, map(operator.eq, self._path, text)))
        if same < len(self._path):
            self._matcher.rollback(len(self._path) - same)
        read: int = same + self._matcher.try_consume_tokens(list(text[same:]))
        self._path = list(text[:read])
        return read

    def _check(self) -> None:
        # The matcher never raises; what ends it are its limits of work.
        _check_matcher(self._matcher, self._named)


class Grammar(NamedTuple):
    """A compiled grammar for one tokenizer (`Constraint`).

    `unheld` names keywords of schemas that are not held, by JSON pointers.
    """

    start: Callable[[], GrammarState]
    unheld: tuple[str, ...] = ()


class Grammars:
    """Makes constraints for one model. All methods raise InvalidOption if a grammar is wrong.

    The grammars used last are kept.
    """

    def __init__(self, tokenizer: Tokenizer, vocabulary: int) -> None:
        """Bind a tokenizer and the model's `vocabulary`, which may be wider.

        Raises:
            RuntimeUnavailable: llguidance is not installed.
            InvalidOption: the tokenizer has no end token, or is of a kind that is not read.
        """
        try:
            import llguidance
        except ImportError as error:
            raise RuntimeUnavailable(
                "grammars need llguidance: pip install 'paceline[grammar]'"
            ) from error
        self._library = llguidance
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary
        if not tokenizer.eos_token_ids:
            raise InvalidOption("the tokenizer names no end token, which grammars need")
        self._compile = lru_cache(_KEPT)(self._compiled)
        self._known_empty = lru_cache(_KEPT)(self._is_empty)
        self._reasoning = ""  # the grammar around these, if they stand behind reasoning
        self._tags: tuple[str, str] | None = None  # of reasoning that text may hold
        self._words  # noqa: B018 (raises)

    def behind(self, reasoning: tuple[str, str], opened: bool = False, head: str = "") -> Grammars:
        """Return these for answers that may begin with reasoning, between two tags.

        If the prompt has `opened` it, the answer begins within. `head` is written behind it.
        """
        other = copy(self)
        first, last = map(self._spelled, reasoning)
        other._tags = None if opened or "<[" in first else reasoning
        thought = f"TEXT {last} | " if "<[" in last else ""
        other._reasoning = "\n".join(
            [
                "%llguidance {}",
                f"start: {'thought GAP?' if opened else f'(GAP? {first} thought GAP?)?'} "
                f"{self._spelled(head)} @answer",
                f"thought: {thought}spelled",
                f"spelled[lazy]: TEXT {_quoted(reasoning[1])}",
                _GAP,
                _TEXT,
            ]
        )
        return other

    def json_schema(
        self, schema: Mapping[str, Any] | str | bool, *, compact: bool = False, strict: bool = True
    ) -> Grammar:
        """Return JSON by a schema, also given as text.

        White space is the model's, in runs that end, unless `compact`. If not `strict`, keywords
        that no grammar holds are left out, and told by `Grammar.unheld`.
        """
        named = "the JSON schema"
        rules = self._rules(_schema(schema, named), COMPACT if compact else FREE, named, strict)
        return self._by_lark([f"start: {rules.root}", *rules.lines], named, rules.unheld)

    def json(self, *, compact: bool = False) -> Grammar:
        """Return any JSON object."""
        return self.json_schema({"type": "object"}, compact=compact)

    def regex(self, pattern: str) -> Grammar:
        """Return texts that a pattern (Rust's syntax, or ECMAScript's) matches as a whole."""
        named = "the regular expression"
        _check_grammar(pattern, named)
        if len(pattern) > LONGEST:
            raise InvalidOption(
                f"{named} is too large: {len(pattern)} characters, of {LONGEST}: say less"
            )
        made = self._library.LLMatcher.grammar_from_regex(pattern)
        try:
            return self._compile(made, named, (), self._reasoning)
        except InvalidOption:
            try:
                made = terminal(pattern, quoted=False, whole=True)
            except Untranslated:
                made = ""
            if not made:
                raise
        return self._by_lark(["start: T", f"T: {made}"], named)

    def lark(self, grammar: str) -> Grammar:
        """Return texts by a Lark grammar with a rule `start` (llguidance's dialect)."""
        named = "the Lark grammar"
        _check_grammar(grammar, named)
        made = self._library.LLMatcher.grammar_from_lark(grammar)
        return self._compile(made, named, (), self._reasoning)

    def gbnf(self, grammar: str) -> Grammar:
        """Return texts by a grammar of llama.cpp with a rule `root`."""
        _check_grammar(grammar, "the GBNF grammar")
        return self._by_lark(lark_lines(grammar), "the GBNF grammar")

    def choice(self, texts: Sequence[str]) -> Grammar:
        """Return one of several texts."""
        if isinstance(texts, str) or not texts or not all(isinstance(t, str) for t in texts):
            raise InvalidOption("choices are a list of one text or more")
        check_text("the choice", list(texts))
        return self._by_lark(["start: T", f"T: {' | '.join(map(_quoted, texts))}"], "the choice")

    def tool_calls(
        self,
        tools: Sequence[Mapping[str, Any]],
        mode: str = "auto",
        *,
        begin: str = "<tool_call>\n",
        end: str = "\n</tool_call>",
        between: str | None = None,
        parallel: bool = True,
        form: CallForm = OBJECT,
        said: str = "",
        compact: bool = False,
        strict: bool = True,
    ) -> Grammar:
        """Return answers that call tools, in the form that a model was trained on.

        Args:
            tools: each with a name and a JSON schema "parameters", or that below "function".
            mode: "auto" is text with calls in it, which open with `begin`; "required" is calls
                alone; a tool's name is one call of that tool.
            begin: text or special tokens before the calls.
            end: after them.
            between: between calls in a row; None closes and opens again: `end`, a line break,
                `begin`.
            parallel: up to `MOST_CALLS` calls in a row are allowed.
            form: of a call.
            said: before an answer without a call, where that and a call are messages.
            compact: arguments are spaced as the template shows calls, else as the model likes.
            strict: as of `json_schema`, and so is a tool that says "strict"; else also a schema
                that is wrong is left out, and told.
        """
        called = [_function(tool) for tool in tools]
        if mode not in ("auto", "required"):
            called = [tool for tool in called if tool[0] == mode]
            parallel = False
        if not called:
            known = ", ".join(each[0] for each in map(_function, tools)) or "there is none"
            raise InvalidOption(f"mode {mode!r} calls a tool that is not given ({known})")
        notation = form.notation
        style = SPACED if compact or notation else FREE
        style = COMPACT if notation and notation.quote != '"' else style
        calls, rows, unheld, size = [], [f"ID: /{CALL_ID}/"] if form.mark else [], [], 0
        spell = self._spelled
        for number, (name, schema, firm) in enumerate(called):
            named = f"the schema of tool {name!r}"
            try:
                rules = self._rules(schema, style, named, strict or firm, f"t{number}", notation)
            except InvalidOption as error:
                if strict or firm:
                    raise
                unheld.append(f"{name}: {error}")
                anything = {"type": "object"}
                rules = self._rules(anything, style, named, True, f"t{number}", notation)
            unheld += [f"{name}{each}" for each in rules.unheld]
            shown = _json_text(name)[1:-1] if form == OBJECT else name
            head = spell(f"{form.head}{shown}{form.mark or form.neck}")
            head += f" ID {spell(form.neck)}" if form.mark else ""
            calls.append(f"{head} {rules.root} {spell(form.tail)}")
            rows += rules.lines
            size += sum(map(len, rules.lines))
            if size > LARGEST:
                raise InvalidOption(f"the grammar of {len(called)} tools is too large: give fewer")
        more = spell(f"{end}\n{begin}" if between is None else between)
        # Some models go on calling as long as they may.
        row = f"call ({more} call){{0,{MOST_CALLS - 1}}}" if parallel else "call"
        if mode == "auto" and said:
            lines = [f"start: {spell(said)} TEXT | {spell(begin)} call {spell(end)}", _TEXT]
        elif mode == "auto":
            opening = begin.rstrip()
            if not opening:
                raise InvalidOption("mode 'auto' needs a begin that text does not hold")
            # The opening may be a token of its own, and text may spell it.
            token = spell(opening)
            rest = spell(begin[len(opening) :])
            lines = [
                f"start: {'(head rest)* tail' if parallel else 'tail | head rest'}",
                f"head: {f'TEXT {token} | ' if '<[' in token else ''}spelled",
                f"spelled[lazy]: {'CLOSED' if self._tags else 'TEXT'} {_quoted(opening)}",
                f"rest: {rest} {row} {spell(end)}",
                "tail: TEXT",
                _TEXT,
                *_closed(self._tags),
            ]
        else:
            lines = [f"start: {spell(begin)} {row} {spell(end)}"]
        lines += [f"call: {' | '.join(calls)}", *rows]
        # Reasoning that begins as text does is part of the text.
        around = "" if mode == "auto" and self._tags else self._reasoning
        return self._by_lark(lines, "the tools' grammar", unheld, around)

    @cached_property
    def _words(self) -> llguidance.LLTokenizer:
        # Takes a third of a second.
        ends = list(self._tokenizer.eos_token_ids)
        try:
            return self._library.LLTokenizer(self._tokenizer.core.to_str(), eos_token=ends)
        except ValueError as error:
            raise InvalidOption(
                f"grammars do not read this tokenizer ({_one_line(str(error))}): decode without"
            ) from error

    def _by_lark(
        self,
        lines: Sequence[str],
        named: str,
        unheld: Iterable[str] = (),
        around: str | None = None,
    ) -> Grammar:
        made = self._library.LLMatcher.grammar_from_lark("\n".join(["%llguidance {}", *lines]))
        around = self._reasoning if around is None else around
        return self._compile(made, named, tuple(unheld), around)

    def _compiled(self, made: str, named: str, unheld: tuple[str, ...], reasoning: str) -> Grammar:
        if len(made) > LARGEST:  # of which compilation takes seconds, then ends the process
            raise InvalidOption(
                f"{named} is too large: {len(made)} characters as a grammar, of {LARGEST}: "
                "leave out properties or values"
            )
        # Copies of one matcher would share what they have worked out, and the limits of that: one
        # text could end another.
        if reasoning:
            is_regex = made.startswith('{"grammars"')
            inner = json.loads(made)["grammars"][0] if is_regex else {"lark_grammar": made}
            inner["name"] = "answer"
            made = json.dumps({"grammars": [{"lark_grammar": reasoning}, inner]})
        limits = self._library.LLParserLimits(**_LIMITS)
        matcher = partial(self._library.LLMatcher, self._words, made, log_level=0, limits=limits)
        made_once = matcher()
        if made_once.is_error():
            reason = _one_line(made_once.get_error())
            raise InvalidOption(f"{named} cannot be used: {reason}; change it")
        made_once.compute_bitmask()
        _check_matcher(made_once, named)
        ends = frozenset(self._tokenizer.eos_token_ids)
        return Grammar(partial(GrammarState, matcher, ends, self._vocabulary, named), unheld)

    def _rules(
        self,
        schema: Any,
        style: Spacing,
        named: str,
        strict: bool,
        prefix: str = "",
        notation: Notation | None = None,
    ) -> SchemaRules:
        quote = self._spelled(notation.quote) if notation else ""
        quote = quote if quote.startswith("<[") else ""
        rules = SchemaRules(schema, style, named, prefix, self._known_empty, notation, quote)
        if strict and rules.unheld:
            raise InvalidOption(
                f"{named} has what no grammar holds ({', '.join(rules.unheld)}): leave it out"
            )
        return rules

    def _is_empty(self, expression: str) -> bool:
        made = self._library.LLMatcher.grammar_from_lark(f"start: T\nT: {expression}")
        matcher = self._library.LLMatcher(self._words, made, log_level=0)
        wrong = matcher.is_error()  # which is told when the whole is compiled
        matcher.compute_bitmask()
        return not wrong and matcher.is_error()

    def _spelled(self, text: str) -> str:
        # Special tokens by id, all else quoted.
        if not text:
            return ""
        words = self._words
        ids = words.tokenize_str(text, parse_special=True)
        parts: list[str] = []
        for special, run in groupby(ids, words.is_special_token):
            if special:
                parts += [f"<[{token}]>" for token in run]
            else:
                parts.append(_quoted(words.decode_str(list(run))))
        return " ".join(parts)


def _check_grammar(text: str, named: str) -> None:
    if not isinstance(text, str):
        raise InvalidOption(f"{named} must be text, not {type(text).__name__}")
    check_text(named, text)


def _check_matcher(matcher: llguidance.LLMatcher, named: str) -> None:
    if matcher.is_error():
        reason = _one_line(matcher.get_error())
        if reason.startswith("NoExtension"):
            raise InvalidOption(f"{named} is matched by no text: change it")
        raise InvalidOption(f"{named} needs too much work: {reason}; make it simpler")


def _function(tool: Mapping[str, Any]) -> tuple[str, Any, bool]:
    # Name and schema of a tool, and whether it asks to be held strictly.
    held = tool.get("function", tool) if isinstance(tool, Mapping) else None
    name = held.get("name") if isinstance(held, Mapping) else None
    if not isinstance(held, Mapping) or not isinstance(name, str) or not name:
        raise InvalidOption("a tool is an object with a name: give it as OpenAI's API does")
    schema = held.get("parameters") or {}
    if not isinstance(schema, Mapping):
        raise InvalidOption(f"the parameters of tool {name!r} must be a JSON schema")
    free = schema.get("additionalProperties", False) is not False or any(
        map(schema.get, _OPEN.split())
    )
    if not free and schema.get("type", "object") == "object":
        return name, _NO_ARGUMENTS, True
    return name, schema, held.get("strict") is True


def _closed(tags: tuple[str, str] | None) -> list[str]:
    # A terminal of text in which reasoning that was opened is closed.
    if tags is None:
        return []
    first, last = map(_quoted, tags)
    free = f"(TEXT & ~(TEXT {first} TEXT))"
    return [f"CLOSED: {free} ({first} (TEXT & ~(TEXT {last} TEXT)) {last} {free})*"]


def _schema(given: Any, named: str) -> Any:
    text = given if isinstance(given, str) else _json(given, named)
    try:
        schema = json.loads(text, parse_float=_number, parse_constant=_number)
    except (ValueError, RecursionError) as error:
        raise InvalidOption(f"{named} is not JSON: {error}; change it") from error
    if not isinstance(schema, dict | bool):
        raise InvalidOption(f"{named} must be an object, not {text[:40]}")
    return schema


def _number(text: str) -> float | Decimal:
    # A float unless it says less than was written.
    if not Decimal(text).is_finite() or abs(Decimal(text).adjusted()) > _FAR:
        raise ValueError(f"{text[:40]} is no number that programs read")
    return float(text) if Decimal(text) == Decimal(repr(float(text))) else Decimal(text)


def _json(value: object, named: str) -> str:
    try:
        return _json_text(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidOption(f"{named} cannot be written as JSON: {error}; change it") from error


_json_text: Callable[[object], str] = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode
# Lark's strings have the escapes of JSON.
_quoted = _json_text


def _one_line(message: str, most: int = 300) -> str:
    return " ".join(message.split("<state>")[0].split())[:most]


def constraint_of(
    json_schema: str | None, regex: str | None, grammar: Path | None
) -> Callable[[Grammars], Grammar] | None:
    """Return what makes the constraint of `--json-schema`, `--regex` or `--grammar`, or None.

    Files are read at once; InvalidOption if one cannot be, or if there are several options.
    """
    if sum(each is not None for each in (json_schema, regex, grammar)) > 1:
        raise InvalidOption("give one of --json-schema, --regex and --grammar")
    check_text("--regex", regex)
    if regex is not None:
        return lambda grammars: grammars.regex(regex)
    if json_schema is not None:
        inline = json_schema.lstrip()[:1] in ("{", "[") or json_schema in ("true", "false")
        schema = json_schema if inline else _file(Path(json_schema))
        check_text("--json-schema", schema)
        return lambda grammars: grammars.json_schema(schema)
    if grammar is None:
        return None
    if grammar.suffix not in (".lark", ".gbnf"):
        raise InvalidOption(f"--grammar takes FILE.lark or FILE.gbnf, not {grammar}")
    rules = _file(grammar)
    return lambda grammars: (
        grammars.lark(rules) if grammar.suffix == ".lark" else grammars.gbnf(rules)
    )


def _file(path: Path) -> str:
    return read_text(path, f"{path} cannot be read as a text file", "name another")
