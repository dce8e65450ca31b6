"""Grammars of llama.cpp (GBNF) as rules of Lark."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from string import ascii_lowercase as _LOWER

from paceline.errors import InvalidOption

_NAME = re.compile(r"[a-zA-Z0-9-]+")
_SPACE = re.compile(r"(?:[ \t]|#[^\r\n]*)*")
_LINES = re.compile(r"(?:[ \t\r\n]|#[^\r\n]*)*")
_TOKEN = re.compile(r"(!?)<\[(\d+)\]>")
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}
_WIDTHS = {"x": 2, "u": 4, "U": 8}
_NAMES = re.compile(r"/[^/]*/|[a-zA-Z_][\w-]*")
_PLAIN = '\\"[]/'


def lark_lines(grammar: str) -> list[str]:
    """Return Lark lines of a GBNF grammar with a rule `root`; InvalidOption if it is wrong.

    Every character is a terminal of its own, since a grammar of llama.cpp has no words: what
    follows a character is free of what was read before.
    """
    return _GbnfReader(grammar).lines


class _GbnfReader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self.lines: list[str] = []
        rules: dict[str, str] = {}
        self._used: list[str] = []
        self._skip(_LINES)
        try:
            while self._at < len(text):
                name = self._name()
                self._skip(_SPACE)
                if not text.startswith("::=", self._at):
                    raise self._wrong("'::=' is missing")
                self._at += 3
                self._skip(_LINES)
                rules[name] = self._ways(nested=False)
                if self._at < len(text) and text[self._at] not in "\r\n":
                    raise self._wrong("the rule does not end here")
                self._skip(_LINES)
        except RecursionError as error:
            raise self._wrong("it is nested too deeply") from error
        for name in ("root", *self._used):
            if name not in rules:
                raise InvalidOption(f"the GBNF grammar has no rule {name!r}: add it")
        self.lines = ['NOTHING: "a" & "b"', "start: g_root"]
        self.lines += [f"{_rule(name)}: {way}" for name, way in rules.items()]
        dead = unending(self.lines)
        for name in rules:
            if _rule(name) in dead:
                raise InvalidOption(f"rule {name!r} of the GBNF grammar never ends: give it an end")

    def _wrong(self, what: str) -> InvalidOption:
        line = self._text.count("\n", 0, self._at) + 1
        return InvalidOption(
            f"the GBNF grammar cannot be read: {what} in line {line}, at "
            f"{self._text[self._at : self._at + 20]!r}; change it"
        )

    def _skip(self, what: re.Pattern[str]) -> None:
        found = what.match(self._text, self._at)
        self._at = found.end() if found else self._at

    def _name(self) -> str:
        found = _NAME.match(self._text, self._at)
        if found is None:
            raise self._wrong("a name is missing")
        self._at = found.end()
        return found[0]

    def _ways(self, nested: bool) -> str:
        ways = [self._row(nested)]
        while self._text.startswith("|", self._at):
            self._at += 1
            self._skip(_LINES)
            ways.append(self._row(nested))
        return " | ".join(way or '""' for way in ways)

    def _row(self, nested: bool) -> str:
        parts: list[str] = []
        space = _LINES if nested else _SPACE
        while self._at < len(self._text):
            char = self._text[self._at]
            if char == '"':
                parts.append(self._string())
            elif char == "[":
                parts.append(self._class())
            elif char == ".":
                self._at += 1
                parts.append(r"/(?s:.)/")
            elif token := _TOKEN.match(self._text, self._at):
                self._at = token.end()
                parts.append(f"<[{'^' if token[1] else ''}{token[2]}]>")
            elif char == "(":
                self._at += 1
                self._skip(_LINES)
                inner = self._ways(nested=True)
                if not self._text.startswith(")", self._at):
                    raise self._wrong("')' is missing")
                self._at += 1
                parts.append(f"({inner})")
            elif char in "*+?{":
                if not parts:
                    raise self._wrong("nothing stands before the repetition")
                many = self._repetition()
                parts[-1] = '("")' if many == "{0}" else f"({parts[-1]}){many}"
            elif _NAME.match(self._text, self._at):
                name = self._name()
                self._used.append(name)
                parts.append(_rule(name))
            else:
                break
            self._skip(space)
        return " ".join(parts)

    def _repetition(self) -> str:
        found = re.compile(r"[*+?]|\{[ \t]*(\d+)[ \t]*(,?)[ \t]*(\d*)[ \t]*\}").match(
            self._text, self._at
        )
        if found is None:
            raise self._wrong("the repetition is no {m}, {m,} or {m,n}")
        self._at = found.end()
        if found[1] is None:
            return found[0]
        low, high = int(found[1]), found[3] if found[2] else found[1]
        if high and int(high) < max(low, 1):
            return "{0}"
        return f"{{{low},{high}}}"

    def _char(self) -> int:
        # One character of a text or of a class, with its escapes.
        if self._at >= len(self._text):
            raise self._wrong("the grammar ends too early")
        char = self._text[self._at]
        self._at += 1
        if char != "\\":
            return ord(char)
        kind = self._text[self._at : self._at + 1]
        self._at += 1
        if kind in _WIDTHS:
            digits = self._text[self._at : self._at + _WIDTHS[kind]]
            if not re.fullmatch(rf"[0-9a-fA-F]{{{_WIDTHS[kind]}}}", digits):
                raise self._wrong(f"'\\{kind}' wants {_WIDTHS[kind]} hex digits")
            self._at += _WIDTHS[kind]
            return int(digits, 16)
        if not kind or kind not in (*_ESCAPES, *_PLAIN):
            self._at -= 1
            raise self._wrong("the escape is unknown")
        return ord(_ESCAPES.get(kind, kind))

    def _string(self) -> str:
        self._at += 1
        parts = []
        while not self._text.startswith('"', self._at):
            parts.append(rf"/\x{{{self._char():x}}}/")
        self._at += 1
        return f"({' '.join(parts)})" if parts else '("")'

    def _class(self) -> str:
        self._at += 1
        negate = self._text.startswith("^", self._at)
        self._at += negate
        parts = []
        while not self._text.startswith("]", self._at):
            first = last = self._char()
            if (
                self._text.startswith("-", self._at)
                and self._text[self._at + 1 : self._at + 2] != "]"
            ):
                self._at += 1
                last = self._char()
            parts += [rf"\x{{{first:x}}}-\x{{{last:x}}}"] if first <= last else []
        self._at += 1
        if not parts:
            return r"/(?s:.)/" if negate else "NOTHING"
        return f"/[{'^' if negate else ''}{''.join(parts)}]/"


def _rule(name: str) -> str:
    # Lark's rules are lower case.
    return "g_" + re.sub(r"[A-Z]", lambda match: f"_{match[0].lower()}_", name)


def unending(lines: Iterable[str]) -> set[str]:
    """Return names of rules of Lark, of names, groups and repetitions, of which no text is."""
    bodies = dict(line.split(": ", 1) for line in lines if line[0].islower())
    users: dict[str, list[str]] = {}
    for name, body in bodies.items():
        for used in set(_NAMES.findall(body)) & bodies.keys():
            users.setdefault(used, []).append(name)
    live: set[str] = set()
    todo = [*bodies]
    while todo:
        name = todo.pop()
        if name not in live and _ends(bodies[name], live):
            live.add(name)
            todo += users.get(name, ())
    return bodies.keys() - live


def _ends(body: str, live: Collection[str]) -> bool:
    # Signs for names: + of what some text is, - of what none is yet known.
    def sign(found: re.Match[str]) -> str:
        name = found[0]
        return "+" if name in live or (name[0] not in _LOWER and name != "NOTHING") else "-"

    def group(found: re.Match[str]) -> str:
        return "+" if found[2] or any("-" not in way for way in found[1].split("|")) else "-"

    text, count = _NAMES.sub(sign, f"({body})"), 1
    while count:
        text, count = re.subn(r"\(([^()]*)\)([*?]|\{0)?", group, text)
    return text[0] == "+"
