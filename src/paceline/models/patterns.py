"""Patterns of JSON Schema (ECMAScript's) as terminals of Lark, over plain or JSON-encoded text."""

from __future__ import annotations

import re
import unicodedata
import warnings
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from re import _constants as op  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

from paceline.errors import InvalidOption

Ranges = list[tuple[int, int]]
HEX = "[0-9a-fA-F]"
_SURROGATES = rf"[dD][89abAB]{HEX}{{2}}\\u[dD][c-fC-F]{HEX}{{2}}"
_SHORT = {8: "b", 9: "t", 10: "n", 12: "f", 13: "r", 34: '"', 92: "\\"}
_ESCAPED = rf'\\["\\bfnrt]|\\u00(?:[01]{HEX}|7[fF])'
RAW = rf'(?:[^"\\\x00-\x1f]|{_ESCAPED})'
"""One character within a JSON string: ASCII in one spelling, so that patterns see all of them."""
CHAR = (
    rf'(?:[^"\\\x00-\x1f]|{_ESCAPED}'
    rf"|\\u(?:00[89a-fA-F]{HEX}|0[1-9a-fA-F]{HEX}{{2}}|[1-9a-cefA-CEF]{HEX}{{3}}"
    rf"|[dD][0-7]{HEX}{{2}}|{_SURROGATES}))"
)
"""RAW, or any other character by its number."""
_LAST = 0x10FFFF
# Code points that stand for `\p{..}` while Python's parser reads a pattern.
_NAMED = 0x10F000
_DIGITS: Ranges = [(48, 57)]
_WORDS: Ranges = [(48, 57), (65, 90), (95, 95), (97, 122)]
_SPACES: Ranges = [(9, 13), (32, 32), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A)]
_SPACES += [(0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000)]
_BREAKS: Ranges = [(10, 10), (13, 13), (0x2028, 0x2029)]
# In Python's spelling.
_OTHERS = {"(?<": "(?P<", "[^]": r"[\s\S]", r"\Z": "$", r"\z": "$", r"\A": "^"}
LONGEST = 30_000  # characters of a pattern: the time of its compilation grows with their square
_MANY = 60  # ranges of a class beyond which its characters are not also written by number


class Untranslated(InvalidOption):
    """A pattern that no regular language says: look-behind, back references, and such."""


@lru_cache(256)
def terminal(pattern: str, quoted: bool = True, whole: bool = False) -> str:
    """Return a Lark expression for texts in which `pattern` is found, or which it matches `whole`.

    Raises:
        Untranslated: the pattern is wrong, or needs more than a regular language.
    """
    return _Translator(pattern, quoted).terminal(whole)


def blocks(low: Sequence[int], high: Sequence[int], base: int) -> Iterator[str]:
    """Yield patterns of the numbers from `low` to `high`, digits of equal count, `low <= high`."""

    def digit(first: int, last: int) -> str:
        if base == 10:
            return f"[{first}-{last}]" if first < last else str(first)
        return (
            "[" + "".join(f"{d:x}{d:X}" if d > 9 else str(d) for d in range(first, last + 1)) + "]"
        )

    same = 0
    while same < len(low) and low[same] == high[same]:
        same += 1
    head = "".join(digit(d, d) for d in low[:same])
    low, high = low[same:], high[same:]
    if not low:
        yield head
        return

    def free(count: int) -> str:
        return f"{digit(0, base - 1)}{{{count}}}" if count else ""

    size = len(low)
    first, last = low[0], high[0]
    if any(low[1:]):
        for tail in blocks(low[1:], [base - 1] * (size - 1), base):
            yield head + digit(first, first) + tail
        first += 1
    whole = all(d == base - 1 for d in high[1:])
    if first <= last - (not whole):
        yield head + digit(first, last - (not whole)) + free(size - 1)
    if not whole:
        for tail in blocks([0] * (size - 1), high[1:], base):
            yield head + digit(last, last) + tail


def literal(text: str, quoted: bool = True) -> str:
    """Return a pattern of one text, in every spelling that JSON strings have."""
    return "".join(_char(ord(char), quoted) for char in text)


def _char(code: int, quoted: bool) -> str:
    if not quoted:
        return rf"\x{{{code:x}}}"
    if code in _SHORT and code > 31:
        return rf"\\\x{code:02x}"
    number = rf"\\u{_hex(code)}" if code < 0x10000 else ""
    if code < 32 or code == 127:
        short = rf"\\{_SHORT[code]}|" if code in _SHORT else ""
        short = "\\x7f|" if code == 127 else short
        return f"(?:{short}{number})"
    if code < 127:
        return rf"\x{code:02x}"
    if not number:
        high, low = divmod(code - 0x10000, 0x400)
        number = rf"\\u{_hex(0xD800 + high)}\\u{_hex(0xDC00 + low)}"
    return rf"(?:\x{{{code:x}}}|{number})"


def _hex(code: int) -> str:
    return "".join(f"[{d.lower()}{d}]" if d.isalpha() else d for d in f"{code:04X}")


def _without_names(pattern: str) -> tuple[str, list[str]]:
    # Puts characters for what Python's parser does not read, and its spelling for what it does.
    names: list[str] = []

    def named(match: re.Match[str]) -> str:
        if match["set"] is not None:
            name = f"\\{match['set']}{{{match['name']}}}"
            if name not in names:
                names.append(name)
            return chr(_NAMED + names.index(name))
        if match["code"] is not None:
            return re.escape(chr(int(match["code"], 16)))
        if match["control"] is not None:
            return re.escape(chr(ord(match["control"]) % 32))
        if match["high"] is not None:
            high, low = int(match["high"], 16), int(match["low"], 16)
            return re.escape(chr(0x10000 + (high - 0xD800) * 0x400 + low - 0xDC00))
        return _OTHERS.get(match[0], match[0])

    known = r"\\(?P<set>[pP])\{(?P<name>[\w=]+)\}|\\u\{(?P<code>[0-9a-fA-F]{1,6})\}"
    known += rf"|\\u(?P<high>[dD][89abAB]{HEX}{{2}})\\u(?P<low>[dD][c-fC-F]{HEX}{{2}})"
    known += r"|\\c(?P<control>[a-zA-Z])|\(\?<(?![=!])|\[\^\]|\\."
    try:
        source = re.sub(known, named, pattern, flags=re.DOTALL)
    except ValueError as error:
        raise Untranslated(f"{pattern!r}: {error}") from error
    return source, names


class _Translator:
    def __init__(self, pattern: str, quoted: bool) -> None:
        if len(pattern) > LONGEST:
            raise Untranslated(f"a pattern has {len(pattern)} characters, of {LONGEST} at most")
        self._pattern = pattern
        self._quoted = quoted
        source, self._names = _without_names(pattern)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self._tree = parser.parse(source, re.ASCII)
        except (re.error, RecursionError, OverflowError) as error:
            raise Untranslated(f"{pattern!r} is no pattern ({error}): mend it") from error
        if self._tree.state.flags & ~re.ASCII:
            raise self._refuse("flags")
        # Sets by name are not known here, so that their characters are written as they are.
        one = (RAW if self._names else CHAR) if quoted else r"(?s:.)"
        self._any = f"/{one}*/"
        self._some = f"/{one}+/"

    def terminal(self, whole: bool) -> str:
        nodes = list(self._tree)
        if whole:
            made = self._next(nodes, '""', start=True)
        elif self._has_begin(nodes):
            first = self._next(nodes, self._any, start=True)
            later = self._next(nodes, self._any, start=False)
            made = _either([first, None if later is None else f"({self._some} {later})"])
        else:
            made = f"({self._any} {self._next(nodes, self._any, start=False)})"
        if made is None:
            raise Untranslated(f"{self._pattern!r} matches nothing: mend it")
        return f"({self._any} & {made})"

    def _refuse(self, what: str) -> Untranslated:
        return Untranslated(f"{self._pattern!r} has {what}, which no grammar holds")

    def _next(self, nodes: Sequence[Any], then: str, *, start: bool) -> str | None:
        # An expression of nodes and what follows them; None if there is no such text.
        count = 0
        while count < len(nodes) and self._is_plain([nodes[count]]):
            count += 1
        if count:
            run = self._regex(nodes[:count])
            then_on = self._next(nodes[count:], then, start=False)
            return None if then_on is None else f"(/{run}/ {then_on})" if run else then_on
        if not nodes:
            return then
        (kind, value), rest = nodes[0], nodes[1:]
        if kind is op.AT:
            if value in (op.AT_BEGINNING, op.AT_BEGINNING_STRING):
                return self._next(rest, then, start=True) if start else None
            if value in (op.AT_END, op.AT_END_STRING):
                after = self._next(rest, then, start=start)
                return None if after is None else '""' if after == self._any else f'({after} & "")'
            raise self._refuse("a word boundary")
        if kind in (op.ASSERT, op.ASSERT_NOT):
            direction, inner = value
            if direction < 0:
                raise self._refuse("a look-behind")
            after = self._next(rest, then, start=start)
            ahead = self._next(list(inner), self._any, start=start)
            if after is None or (ahead is None and kind is op.ASSERT):
                return None
            if ahead is None:
                return after
            return f"({after} & {'~' if kind is op.ASSERT_NOT else ''}({ahead}))"
        if kind is op.SUBPATTERN and not value[1] and not value[2]:
            return self._next([*value[3], *rest], then, start=start)
        if kind is op.BRANCH:
            return _either(self._next([*each, *rest], then, start=start) for each in value[1])
        if kind in (op.MAX_REPEAT, op.MIN_REPEAT) and value[1] == 1:
            inner = self._next([*value[2], *rest], then, start=start)
            return _either([inner, None if value[0] else self._next(rest, then, start=start)])
        raise self._refuse("an assertion that is repeated, flags or a back reference")

    def _has_begin(self, nodes: Iterable[Any]) -> bool:
        return any(
            value in (op.AT_BEGINNING, op.AT_BEGINNING_STRING)
            if kind is op.AT
            else any(self._has_begin(part) for part in _parts(kind, value))
            for kind, value in nodes
        )

    def _is_plain(self, nodes: Iterable[Any]) -> bool:
        plain = (op.LITERAL, op.NOT_LITERAL, op.ANY, op.IN)
        nested = (op.BRANCH, op.MAX_REPEAT, op.MIN_REPEAT, op.SUBPATTERN)
        return all(
            kind in plain
            or (
                kind in nested
                and not (kind is op.SUBPATTERN and (value[1] or value[2]))
                and all(self._is_plain(part) for part in _parts(kind, value))
            )
            for kind, value in nodes
        )

    def _regex(self, nodes: Iterable[Any]) -> str:
        out = []
        for kind, value in nodes:
            if kind is op.LITERAL and not self._name(value):
                out.append(_char(value, self._quoted))
            elif kind in (op.LITERAL, op.IN):
                out.append(self._class([(kind, value)] if kind is op.LITERAL else value))
            elif kind is op.NOT_LITERAL:
                out.append(self._class([(op.NEGATE, None), (op.LITERAL, value)]))
            elif kind is op.ANY:
                breaks = [(op.RANGE, each) for each in _BREAKS]
                out.append(self._class([(op.NEGATE, None), *breaks]))
            elif kind is op.BRANCH:
                out.append(f"(?:{'|'.join(self._regex(each) for each in value[1])})")
            elif kind is op.SUBPATTERN:
                out.append(f"(?:{self._regex(value[3])})")
            else:
                low, high, inner = value
                most = "" if high is op.MAXREPEAT else high
                out.append(f"(?:{self._regex(inner)}){{{low},{most}}}")
        return "".join(out)

    def _name(self, code: int) -> str:
        at = code - _NAMED
        return self._names[at] if 0 <= at < len(self._names) else ""

    def _class(self, items: Sequence[Any]) -> str:
        negate = bool(items) and items[0][0] is op.NEGATE
        ranges: Ranges = []
        names = []
        for kind, value in items[negate:]:
            if kind is op.LITERAL and self._name(value):
                names.append(self._name(value))
            elif kind is op.LITERAL:
                ranges.append((value, value))
            elif kind is op.RANGE:
                ranges.append(value)
            else:
                ranges += _category(value)
        if not names:
            ranges = _complement(ranges) if negate else ranges
            ranges = _complement([*_complement(ranges), (0xD800, 0xDFFF)])
            negate = False
        if not ranges and not names:
            return r"[^\x00-\x{10ffff}]"
        raw = "".join(rf"\x{{{a:x}}}-\x{{{b:x}}}" for a, b in ranges) + "".join(names)
        raw = f"[{'^' if negate else ''}{raw}]"
        if not self._quoted:
            return raw
        out = []
        if names or any(b > 31 and (a, b) not in ((34, 34), (92, 92)) for a, b in ranges):
            out.append(rf'[{raw}&&[^"\\\x00-\x1f]]')
        for code in [*range(32), 34, 92]:
            inside = any(a <= code <= b for a, b in ranges)
            if (inside or any(_is_named(name, chr(code)) for name in names)) != negate:
                out.append(_char(code, True))
        far = [(max(a, 127), b) for a, b in ranges if b > 126]
        if not names and len(far) <= _MANY:
            for a, b in far:
                if a < 0x10000:
                    low, high = ([int(d, 16) for d in f"{n:04x}"] for n in (a, min(b, 0xFFFF)))
                    out += [rf"\\u{each}" for each in blocks(low, high, 16)]
                if a <= 0x10000 and b == _LAST:
                    out.append(rf"\\u{_SURROGATES}")
        return f"(?:{'|'.join(out)})"


def _either(parts: Iterable[str | None]) -> str | None:
    found = [part for part in parts if part is not None]
    return f"({' | '.join(found)})" if found else None


def _parts(kind: Any, value: Any) -> list[Any]:
    if kind is op.BRANCH:
        return list(value[1])
    if kind in (op.MAX_REPEAT, op.MIN_REPEAT):
        return [value[2]]
    if kind is op.SUBPATTERN:
        return [value[3]]
    return [value[1]] if kind in (op.ASSERT, op.ASSERT_NOT) else []


def _category(name: Any) -> Ranges:
    kind = str(name).lower()
    ranges = _DIGITS if "digit" in kind else _WORDS if "word" in kind else _SPACES
    return _complement(ranges) if "not" in kind else ranges


def _merged(ranges: Ranges) -> Ranges:
    out: Ranges = []
    for a, b in sorted(ranges):
        if out and a <= out[-1][1] + 1:
            out[-1] = out[-1][0], max(b, out[-1][1])
        else:
            out.append((a, b))
    return out


def _complement(ranges: Ranges) -> Ranges:
    out, begin = [], 0
    for a, b in [*_merged(ranges), (_LAST + 1, 0)]:
        if begin < a:
            out.append((begin, a - 1))
        begin = b + 1
    return out


def _is_named(name: str, char: str) -> bool:
    held = unicodedata.category(char).startswith(name[3:-1])
    return held != name.startswith(r"\P")
