"""JSON schemas as rules of Lark that allow just the JSON that validates.

Members come in the order of the schema, then those that it does not name. What no grammar says is
left out and told (`SchemaRules.unheld`). Unknown keywords and formats are annotations, as JSON
Schema has them. Of the drafts, 4 to 2020-12 are read, and OpenAPI's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from fractions import Fraction
from itertools import accumulate, combinations, count
from math import lcm
from typing import Any, NamedTuple
from urllib.parse import unquote

from paceline.core.options import check_text
from paceline.errors import InvalidOption
from paceline.models import numbers, patterns
from paceline.models.calls import Notation
from paceline.models.gbnf import unending
from paceline.models.numbers import Bound
from paceline.models.patterns import CHAR, Untranslated, terminal

Schema = Any
_TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
# A run of white space, with an end: a model that may write it without one does.
_BLANK = r"(?:[ \t]{1,4}|[ \t]?(?:\r?\n){1,2}(?: {0,40}|\t{0,9}))?"
_SCHEMA = (dict, bool)
_KINDS: dict[str, tuple[type, ...]] = {
    key: kinds
    for keys, kinds in (
        ("multipleOf minimum maximum exclusiveMinimum exclusiveMaximum", (int, float, Decimal)),
        ("minLength maxLength minItems maxItems minContains maxContains", (int, float, Decimal)),
        ("minProperties maxProperties", (int, float, Decimal)),
        ("enum required prefixItems allOf anyOf oneOf", (list,)),
        ("properties patternProperties dependentRequired dependentSchemas dependencies", (dict,)),
        ("additionalProperties propertyNames items contains not if then else", _SCHEMA),
        ("unevaluatedProperties unevaluatedItems", _SCHEMA),
        ("pattern format $ref $dynamicRef $recursiveRef", (str,)),
        ("uniqueItems", (bool,)),
        ("type", (str, list)),
    )
    for key in keys.split()
}
_REFS = ("$ref", "$dynamicRef", "$recursiveRef")
_NEEDS = ("dependentRequired", "dependentSchemas", "dependencies")
# What `_plain` leaves for rules. Names with a blank are our own.
_HELD = frozenset(_KINDS) - {*_REFS, *_NEEDS}
_HELD -= {"allOf", "anyOf", "oneOf", "not", "if", "then", "else"}
_HELD |= {"const", "not in", "not pattern", "not here", "not whole", "aside"}
_OLD = ("extends", "disallow", "divisibleBy")  # of draft 3
_REST = ("unevaluatedProperties", "unevaluatedItems")
LARGEST = 300_000  # characters of a grammar
_ARGUMENTS, _ARGUMENT, _NESTED = range(3)  # levels of what is written
_NAME = "/[a-zA-Z_][a-zA-Z0-9_]*/"  # of an argument that no schema names
_LONG, _FAR = 1_000_000, 20_000  # characters and items that no answer reaches
_DAY = r"(?:0[1-9]|1[0-9]|2[0-8])"
_LEAP = r"(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_DATE = (
    rf"(?:(?!0000)[0-9]{{4}}-(?:(?:0[1-9]|1[0-2])-{_DAY}|(?:0[13-9]|1[0-2])-(?:29|30)"
    rf"|(?:0[13578]|1[02])-31)|(?!0000){_LEAP}-02-29)"
)
_TIME = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?"
_TIME += r"(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_BYTE = r"(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_V4 = rf"{_BYTE}(?:\.{_BYTE}){{3}}"
_H = "[0-9a-fA-F]{1,4}"
_V6 = "|".join(
    [rf"(?:{_H}:){{7}}{_H}", rf"(?:{_H}:){{6}}{_V4}", "::"]
    + [rf"(?:{_H}:){{1,{n}}}(?::{_H}){{1,{7 - n}}}" for n in range(1, 7)]
    + [rf"(?:{_H}:){{1,7}}:", rf":(?::{_H}){{1,7}}"]
    + [rf"::(?:{_H}:){{0,5}}{_V4}", *(rf"(?:{_H}:){{{n}}}:{_V4}" for n in range(1, 6))]
)
_LABEL = "[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
_ATOM = "[a-zA-Z0-9_+-]+"
_URI = r"(?:[a-zA-Z0-9._~!$&'()*+,;=:@/?-]|%[0-9a-fA-F]{2})"
_SPAN = r"P(?:[0-9]+W|(?=[0-9T])(?:[0-9]+Y)?(?:[0-9]+M)?(?:[0-9]+D)?"
_SPAN += r"(?:T(?=[0-9])(?:[0-9]+H)?(?:[0-9]+M)?(?:[0-9]+S)?)?)"
_FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "duration": _SPAN,
    "uuid": "[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
    "ipv4": _V4,
    "ipv6": _V6,
    "email": rf"{_ATOM}(?:\.{_ATOM})*@{_LABEL}(?:\.{_LABEL})*\.[a-zA-Z]{{2,63}}",
    "hostname": rf"(?=.{{1,253}}$){_LABEL}(?:\.{_LABEL})*",
    "uri": rf"(?:[hH][tT][tT][pP][sS]?|[fF][tT][pP]|[wW][sS][sS]?)://(?:{_ATOM}@)?{_LABEL}"
    rf"(?:\.{_LABEL})*(?::[1-9][0-9]{{0,3}})?(?:[/?]{_URI}*)?(?:#{_URI}*)?"
    rf"|(?!(?:[hH][tT][tT][pP]|[fF][tT][pP]|[wW][sS])[sS]?:)[a-zA-Z][a-zA-Z0-9+.-]+:{_URI}+",
}
_WHOLE_FORMATS = {f"{'u' * (not s)}int{n}": (-(2 ** (n - 1)) * s, 2 ** (n - s) - 1)
                  for n in (8, 16, 32, 64) for s in (0, 1)}  # fmt: skip


class Spacing(NamedTuple):
    """How JSON is spaced: patterns of a comma, a colon, and what stands inside of brackets."""

    comma: str
    colon: str
    inside: str


FREE = Spacing(f"{_BLANK},{_BLANK}", f"{_BLANK}:{_BLANK}", _BLANK)
COMPACT = Spacing(",", ":", "")
SPACED = Spacing(", ", ": ", "")


class _Choice(list[Schema]):
    """Schemas of which one must hold, or just one: that of `only`, whose oneOf they are."""

    only: Schema = None
    ways: list[Schema] | None = None  # of which, in place of these, any may hold
    open = False  # these are being made


class SchemaRules:
    """Rules of one schema.

    Attributes:
        root: an expression of what the schema allows.
        lines: the rules that it needs.
        unheld: keywords that are not held, by JSON pointers.
    """

    def __init__(
        self,
        schema: Any,
        style: Spacing,
        named: str,
        prefix: str,
        is_empty: Callable[[str], bool],
        notation: Notation | None = None,
        quote: str = "",
    ) -> None:
        """Make the rules; names of rules begin with `prefix`.

        Args:
            is_empty: says whether no text is of an expression of terminals.
            notation: the schema is of a call's arguments, which are written so.
            quote: the expression of a token that is the notation's quote, if one is.

        Raises:
            InvalidOption: the schema is wrong, allows nothing or is too large.
        """
        self.lines: list[str] = []
        self.unheld: dict[str, None] = {}
        self._root = schema
        self._named = named
        self._prefix = prefix
        self._is_empty = is_empty
        self._style = style
        self._notation = notation
        self._quote = quote
        # Of what is made: all arguments, the value of one, or JSON.
        self._level = _NESTED if notation is None else _ARGUMENTS
        self._rules: dict[tuple[int, ...], str | None] = {}
        self._dead: set[tuple[int, ...]] = set()  # keys of rules that no text is of
        self._open: set[str] = set()  # names of rules that are being made
        self._again: set[str] = set()  # and of those that were used meanwhile
        self._terms: dict[str, str] = {}
        self._plains: dict[int, tuple[dict[str, Any], list[Schema]]] = {}
        self._kept: list[Any] = []  # so that no other object gets an id of theirs
        self._why = ""
        self._size = 0
        self._numbers = count(1)
        try:
            check_text(named, schema)
            self._objects = [*_objects(schema)]
            self._places = {id(each): place for each, place in self._objects}
            root = self._rule((schema,), self._level)
            while root is not None and self._bury():
                self.lines, self._rules, self._terms, self._size = [], {}, {}, 0
                root = self._rule((schema,), self._level)
        except RecursionError as error:
            raise self._wrong("is nested too deeply", "flatten it") from error
        if root is None:
            raise self._wrong(f"allows no value{self._why}")
        self.root = root

    def _bury(self) -> bool:
        # Whether rules were used that no text is of, since they need themselves, or one like that.
        dead = unending(self.lines) if self._again else set()
        found = {key for key, name in self._rules.items() if name in dead} - self._dead
        self._dead |= found
        return bool(found)

    # Names of what is made.

    def _wrong(self, what: str, fix: str = "change it") -> InvalidOption:
        return InvalidOption(f"{self._named} {what}: {fix}")

    def _tell(self, schemas: Iterable[Any], *keywords: str) -> None:
        for schema in schemas:
            for keyword in [each for each in keywords if each in schema]:
                self.unheld[f"{self._place(schema)}/{keyword}"] = None

    def _place(self, schema: Schema) -> str:
        return self._places.get(id(schema), "#")

    def _never(self, why: str) -> None:
        self._why = self._why or f" ({why})"

    def _say(self, line: str) -> None:
        self._size += len(line)
        if self._size > LARGEST:
            raise self._wrong("is too large", "leave out properties or values")
        self.lines.append(line)

    def _term(self, expression: str) -> str:
        if expression not in self._terms:
            self._terms[expression] = f"{self._prefix.upper()}T{len(self._terms)}"
            self._say(f"{self._terms[expression]}: {expression}")
        return self._terms[expression]

    def _some(self, expression: str) -> str | None:
        # A term of what may be empty.
        if expression not in self._terms and self._is_empty(expression):
            self._never("patterns and lengths exclude each other")
            return None
        return self._term(expression)

    def _new(self, body: str | None = None) -> str:
        name = f"{self._prefix}r{next(self._numbers)}"
        if body is not None:
            self._say(f"{name}: {body}")
        return name

    def _rule(self, schemas: Iterable[Schema], level: int | None = None) -> str | None:
        # A rule of what holds under all of some schemas; None if nothing does.
        level = min(self._level + 1, _NESTED) if level is None else level
        found = self._flat(schemas)
        if found is None:
            return None
        bases, choices = found
        key = (level, *map(id, bases), 0, *map(id, choices))
        if key in self._dead:
            self._never("what it requires never ends")
            return None
        if key in self._rules:
            name = self._rules[key]
            self._again |= {name} if name in self._open else set()
            return name
        name = self._rules[key] = self._new()
        self._open.add(name)
        outer, self._level = self._level, level
        body = self._body(bases, choices)
        self._level = outer
        self._open.remove(name)
        if body is None and name not in self._again:
            self._rules[key] = None
        else:
            self._say(f"{name}: {body or name}")
        return self._rules[key]

    # Schemas into plain ones.

    def _keep(self, made: Any, place: str) -> Any:
        self._kept.append(made)
        self._places[id(made)] = place
        return made

    def _flat(self, schemas: Iterable[Schema]) -> tuple[list[Any], list[_Choice]] | None:
        bases: dict[int, Any] = {}
        choices: dict[int, _Choice] = {}
        seen: set[int] = set()

        def add(schema: Schema, above: frozenset[int] = frozenset()) -> bool:
            if schema is False:
                return False
            if id(schema) in above:
                raise self._wrong(f"refers at {self._place(schema)} to itself, which says nothing")
            if schema is True or id(schema) in seen:
                return True
            seen.add(id(schema))
            if isinstance(schema, _Choice):
                choices[id(schema)] = schema
                return True
            base, more = self._plain(schema)
            if base:
                bases[id(base)] = base
            return all(add(each, above | {id(schema)}) for each in more)

        return ([*bases.values()], [*choices.values()]) if all(map(add, schemas)) else None

    def _plain(self, schema: Schema) -> tuple[dict[str, Any], list[Schema]]:
        """Return a schema's own keywords, and what must hold besides."""
        if id(schema) in self._plains:
            return self._plains[id(schema)]
        place = self._place(schema)
        if not isinstance(schema, dict):
            raise self._wrong(f"holds {str(schema)[:40]!r} at {place}, which is no schema")
        read = self._modern(schema)
        for key, kinds in _KINDS.items():
            value: Any = read.get(key)
            if key in read and (
                not isinstance(read[key], kinds)
                or (isinstance(value, bool) and bool not in kinds)
                or (key[3:] in (*_SIZED, "Contains") and not (value >= 0 and value % 1 == 0))
                or (key == "multipleOf" and value <= 0)
                or (key == "required" and not _are_names(value))
                or (key == "dependentRequired" and not all(map(_are_names, value.values())))
            ):
                raise self._wrong(f"has a wrong {key!r} at {place}: {str(value)[:40]}")
        if any(key in read for key in _REST):
            self._kept.append(schema)
            self._plains[id(schema)] = {}, self._closed(schema, read, place)
            return self._plains[id(schema)]
        base = {k: v for k, v in read.items() if k in _HELD}
        more: list[Schema] = []
        self._tell([schema], *_OLD)
        more += [self._target(read[key], place) for key in _REFS if key in read]
        more += read.get("allOf", ())
        if read.get("format") in _WHOLE_FORMATS and "number" not in read.get("type", ["number"]):
            low, high = _WHOLE_FORMATS[read["format"]]
            more.append(self._keep({"minimum": low, "maximum": high}, place))
        for key in ("anyOf", "oneOf"):
            if key in read:
                made = _Choice(read[key])
                made.only = schema if key == "oneOf" else None
                more.append(self._keep(made, place))
        branches = {"then", "else"} & read.keys()
        for key in [each for each in ("not", "if") if each in read and (each == "not" or branches)]:
            denied = self._not(read[key], 0)
            if denied is None:
                self._tell([schema], key)
            elif key == "not":
                more.append(denied)
            else:
                both = [{"allOf": [read["if"], read.get("then", True)]}]
                both.append({"allOf": [denied, read.get("else", True)]})
                more.append(self._keep(_Choice(self._keep(each, place) for each in both), place))
        for key in _NEEDS:
            for name, needed in read.get(key, {}).items():
                inner = {"required": needed} if isinstance(needed, list) else needed
                both = [{"not here": [name]}, {"required": [name], "allOf": [inner]}]
                more.append(self._keep(_Choice(both), place))
        self._kept += [schema, base]
        self._places[id(base)] = place
        self._plains[id(schema)] = base, more
        self._plains[id(base)] = base, []
        return base, more

    def _modern(self, schema: dict[str, Any]) -> dict[str, Any]:
        # As draft 2020-12 writes it, without None, by which serializers say what is not set.
        read = {k: v for k, v in schema.items() if v is not None or k not in _KINDS}
        for key, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
            if isinstance(read.get(key), bool) and read.pop(key) and bound in read:
                read[key] = read.pop(bound)
        if isinstance(read.get("items"), list):
            read["prefixItems"] = read.pop("items")
            if "additionalItems" in read:
                read["items"] = read["additionalItems"]
        if isinstance(read.get("required"), bool):  # of draft 3, where a member says it
            del read["required"]
        members = read.get("properties")
        if isinstance(members, dict):
            inner = [(name, each) for name, each in members.items() if isinstance(each, dict)]
            asked = [name for name, each in inner if each.get("required") is True]
            if asked and isinstance(read.get("required", asked), list):
                read["required"] = [*read.get("required", ()), *asked]
        types = read.get("type")
        if isinstance(types, list | str):
            types = [types] if isinstance(types, str) else types
            odd = [name for name in types if name not in (*_TYPES, "any")]
            if odd:
                raise self._wrong(f"has a type {odd[0]!r} at {self._place(schema)}, not JSON's")
            nulls = ["null"] if read.get("nullable") is True else []  # of OpenAPI 3.0
            read["type"] = [*types, *nulls]
            if "any" in types:  # of draft 3
                del read["type"]
        return read

    def _target(self, ref: str, place: str) -> Schema:
        base, _, fragment = ref.partition("#")
        at: Any = self._named_by(("$id", "id"), base) if base else self._root
        if at is None:
            said = f"refers to {ref!r} at {place}, and the server does not fetch schemas"
            raise self._wrong(said, "put it in $defs")
        if fragment and not fragment.startswith("/"):
            at = self._named_by(("$anchor", "$dynamicAnchor"), fragment)
            at = self._named_by(("$id", "id"), f"#{fragment}") if at is None else at
        for step in fragment.split("/")[1:]:
            step = unquote(step).replace("~1", "/").replace("~0", "~")
            if isinstance(at, list) and step.isdigit() and int(step) < len(at):
                at = at[int(step)]
            else:
                at = at.get(step) if isinstance(at, dict) else None
        if not isinstance(at, _SCHEMA):
            raise self._wrong(f"has a $ref at {place} to {ref!r}, which is not there")
        return at

    def _named_by(self, keys: Sequence[str], name: str) -> Schema | None:
        return next((at for at, _ in self._objects if any(at.get(k) == name for k in keys)), None)

    def _closed(self, schema: Schema, read: dict[str, Any], place: str) -> list[Schema]:
        # What holds where it says of members or items what those may be that no other keyword has
        # looked at: that differs with the ways to go, so that each has a schema of its own.
        rest = {key: read.pop(key) for key in _REST if key in read}
        found = self._flat([self._keep(read, place)])
        if found is None:
            return [False]
        bases, choices = found
        if choices:
            both, ways = [*bases, *choices[1:]], self._ways(choices[0])
            sizes = range(1, len(ways) + 1 if len(ways) < 5 else 2)
            chosen = [each for size in sizes for each in combinations(ways, size)]
            pairs = combinations(ways, 2)  # each that holds has looked
            if len(sizes) < len(ways) and not all(self._disjoint(a, b, 0) for a, b in pairs):
                self._tell([schema], *rest)
            made = [self._keep({"allOf": [*both, *each], **rest}, place) for each in chosen]
            return [self._keep(_Choice(made), place)]
        out: dict[str, Any] = {}
        looked = [base for base in bases if "aside" not in base]
        if _REST[0] in rest and not any("additionalProperties" in base for base in looked):
            for key in ("properties", "patternProperties"):
                out[key] = {name: True for base in looked for name in base.get(key, ())}
            out["additionalProperties"] = rest[_REST[0]]
        if _REST[1] in rest and not any("items" in base for base in looked):
            if any("contains" in base for base in looked):
                self._tell([schema], _REST[1])
            else:
                most = max((len(base.get("prefixItems", ())) for base in looked), default=0)
                out |= {"prefixItems": [True] * most, "items": rest[_REST[1]]}
        return [*bases, self._keep(out, place)]

    # What may not be.

    def _not(self, schema: Schema, depth: int) -> Schema | None:
        """Return a schema of all that does not validate; None if none is known."""
        if isinstance(schema, bool):
            return not schema
        if depth > 8:
            return None
        base, more = self._plain(schema)
        out: list[Schema] = []
        for each in more:
            if isinstance(each, _Choice):
                ways = [None] if each.open else self._ways(each)
                inner = [one if one is None else self._not(one, depth + 1) for one in ways]
                denied: Schema = None if None in inner else {"allOf": inner}
            else:
                denied = self._not(each, depth + 1)
            if denied is None:
                return None
            out.append(denied)
        for key, value in base.items():
            made = self._not_keyword(key, value, depth)
            if made is None:
                return None
            out += made
        return self._keep({"anyOf": out}, self._place(schema)) if out else False

    def _not_keyword(self, key: str, value: Any, depth: int) -> list[Schema] | None:
        if key in ("enum", "const"):
            values = value if key == "enum" else [value]
            plain = not any(isinstance(each, list | dict) for each in values)
            return [{"not in": values}] if plain else None
        if key == "type":
            types = {value} if isinstance(value, str) else set(value)
            types |= {"integer"} if "number" in types else set()
            others: dict[str, Any] = {"type": [name for name in _TYPES if name not in types]}
            return [others | ({"not whole": True} if "integer" in types else {})]
        if key == "required":
            return [{"type": "object", "not here": [name]} for name in value]
        if key == "not here":
            return [{"type": "object", "required": [name]} for name in value]
        if key in ("pattern", "not pattern"):
            other = "not pattern" if key == "pattern" else "pattern"
            return [{"type": "string", other: value}] if _is_said(value) else None
        if key == "not in":
            return [{"enum": value}]
        if key in _SIDES:
            return [{"type": "number", _SIDES[key]: value}]
        if key[3:] in _SIZED:
            other, change = (f"min{key[3:]}", 1) if key[:3] == "max" else (f"max{key[3:]}", -1)
            return [{"type": _SIZED[key[3:]], other: value + change}] if value + change >= 0 else []
        if key == "properties":
            out: list[Schema] = []
            for name, inner in value.items():
                denied = self._not(inner, depth + 1)
                if denied is None:
                    return None
                if denied is not False:
                    one = {"type": "object", "required": [name], "properties": {name: denied}}
                    out.append(one | {"aside": True})  # what is denied has looked at nothing
            return out
        return [] if key == "aside" else None

    def _ways(self, choice: _Choice) -> list[Schema]:
        # Those of which any may hold: if just one must, each without the others.
        if choice.only is not None and choice.ways is None:
            choice.open = True
            choice.ways = [self._alone(each, i, choice) for i, each in enumerate(choice)]
            choice.open = False
            if None in choice.ways:
                self._tell([choice.only], "oneOf")
                choice.ways = choice
        return choice.ways or choice

    def _alone(self, schema: Schema, place: int, choice: _Choice) -> Schema | None:
        # One without the others, as far as these do not exclude it; None if that is not known.
        others = [*choice[:place], *choice[place + 1 :]]
        denied = [self._not(each, 0) for each in others if not self._disjoint(schema, each, 0)]
        if None in denied:
            return None
        return self._keep({"allOf": [schema, *denied]}, self._place(schema)) if denied else schema

    def _disjoint(self, first: Schema, second: Schema, depth: int) -> bool:
        found, other = self._flat([first]), self._flat([second])
        if found is None or other is None:
            return True
        (one, ways), (two, others) = found, other
        if depth > 4 or [*map(id, [*one, *ways])] == [*map(id, [*two, *others])]:
            return False
        if ways and not one:
            return all(self._disjoint(each, second, depth + 1) for each in ways[0])
        if others and not two:
            return all(self._disjoint(first, each, depth + 1) for each in others[0])
        for own, side in ((self._values(one), two), (self._values(two), one)):
            if own is not None and not any(self._fits(each, side) for each in own):
                return True
        types = self._types(one) & self._types(two)
        if not types or types - {"object"}:
            return not types
        return any(
            self._disjoint(a, b, depth + 1)
            for name in dict.fromkeys(n for base in [*one, *two] for n in base.get("required", ()))
            for a in [True, *self._members(one, name)]
            for b in [True, *self._members(two, name)]
        )

    # Rules.

    def _body(self, bases: list[Any], choices: list[_Choice]) -> str | None:
        if choices:
            first, *others = choices
            ways = self._ways(first)
            made = [self._rule([*bases, *others, each], self._level) for each in ways]
            found = [each for each in dict.fromkeys(made) if each is not None]
            return " | ".join(found) or None
        values = self._values(bases)
        if values is not None:
            sets = [set(map(_key, base["enum"])) for base in bases if "enum" in base]
            bases = [{k: v for k, v in base.items() if k != "enum"} for base in bases]
            values = [v for v in values if all(_key(v) in s for s in sets) and self._fits(v, bases)]
            if self._level == _ARGUMENTS:
                values = [v for v in values if isinstance(v, Mapping)]
            if not values:
                self._never("its values do not fit")
            return self._literals(values) if values else None
        types = self._types(bases)
        if "number" in types or any(base.get("not whole") for base in bases):
            types.discard("integer")
        if self._level == _ARGUMENTS:
            return self._object(bases) if "object" in types else None
        words = [each for each in (None, True, False) if self._fits(each, bases)]
        made = [self._literals(words) if words else None]
        made += [self._ended(self._number(bases, kind)) for kind in _NUMBERS if kind in types]
        made += [self._string(bases)] if "string" in types else []
        makers = {"array": self._array, "object": self._object}
        made += [self._ended(make(bases)) for kind, make in makers.items() if kind in types]
        return " | ".join(each for each in made if each is not None) or None

    def _ended(self, made: str | None) -> str | None:
        # With what closes the value of an argument; that of text is in its terminal.
        close = self._notation.close if self._notation and self._level == _ARGUMENT else ""
        return made and f"{made} {self._plain_term(close)}" if close else made

    def _plain_term(self, text: str) -> str:
        return self._term(f"/{patterns.literal(text, quoted=False)}/")

    @property
    def _is_json(self) -> bool:
        # Whether strings are as JSON writes them.
        given = self._notation
        raw = given is not None and given.stops and self._level == _ARGUMENT
        return given is None or (given.quote == '"' and not raw)

    def _text(self, content: str) -> str | None:
        # A string, by an expression of what stands in it.
        given = self._notation
        make = self._some if " & " in content else self._term
        if given is None or self._is_json:
            return make(f'/"/ {content} /"/')
        if given.stops:
            return make(f"{content} /{patterns.literal(given.close, quoted=False)}/")
        if not self._quote:
            quote = f"/{patterns.literal(given.quote, quoted=False)}/"
            return make(f"{quote} {content} {quote}")
        # A token of its own: no terminal holds it, and none is empty.
        full = self._some(f"({content} & /(?s:.)+/)")
        ways = [] if full is None else [f"{self._quote} {full} {self._quote}"]
        if not self._is_empty(f"({content} & /(?s:.){{0}}/)"):
            ways.append(f"{self._quote} {self._quote}")
        return " | ".join(ways) or None

    def _types(self, bases: Sequence[Any]) -> set[str]:
        types = set(_TYPES)
        for base in bases:
            if "type" in base:
                given = base["type"]
                given = {given} if isinstance(given, str) else set(given)
                types &= given | ({"integer"} if "number" in given else set())
        if not types:
            self._never("types exclude each other")
        return types

    def _values(self, bases: Sequence[Any]) -> list[Any] | None:
        for key in ("const", "enum"):
            for base in bases:
                if key in base:
                    return [base[key]] if key == "const" else list(base[key])
        return None

    def _fits(self, value: Any, bases: Sequence[Any]) -> bool:
        # Whether a value that a schema names is what others ask for.
        kind = _kind(value)
        if kind not in self._types(bases):
            return False
        parts: Iterable[tuple[Any, list[Schema]]] = ()
        if kind == "object":
            parts = ((each, self._members(bases, name)) for name, each in value.items())
        elif kind == "array":
            parts = ((each, self._items(bases, i)) for i, each in enumerate(value))
        if not all(self._valid(each, schema) for each, schemas in parts for schema in schemas):
            return False
        for base in bases:
            for key, rule in base.items():
                kinds, holds = _TESTS.get(key, ("", None))
                if holds is not None and kind in (kinds or kind) and not holds(value, rule):
                    return False
            if kind == "string" and {"pattern", "not pattern", "format"} & base.keys():
                content = self._content([base])
                if content is None or not self._is_in(value, content):
                    return False
            if kind == "array" and "contains" in base:
                hits = sum(self._valid(each, base["contains"]) for each in value)
                if not base.get("minContains", 1) <= hits <= base.get("maxContains", hits):
                    return False
        return True

    def _is_in(self, text: str, expression: str) -> bool:
        return not self._is_empty(f"(/(?:{patterns.literal(text)})/ & {expression})")

    def _valid(self, value: Any, schema: Schema) -> bool:
        found = self._flat([schema])
        if found is None or not self._fits(value, found[0]):
            return False
        for choice in found[1]:
            hits = sum(self._valid(value, each) for each in choice)
            if not hits or (hits > 1 and choice.only is not None):
                return False
        return True

    def _literals(self, values: Sequence[Any]) -> str:
        strings = [v for v in values if isinstance(v, str)]
        texts = [f"(?:{patterns.literal(v, self._is_json)})" for v in strings]
        words = [self._word(v) for v in values if not isinstance(v, str | list | Mapping)]
        made: list[str | None] = []
        if texts and self._is_json:
            made.append(self._term(f'/"(?:{"|".join(texts)})"/'))
        elif texts:
            made.append(self._text(f"/{'|'.join(texts)}/"))
        made += [self._ended(self._term(f"/{'|'.join(words)}/"))] if words else []
        made += [self._ended(self._literal(v)) for v in values if isinstance(v, list | Mapping)]
        return " | ".join(each for each in made if each is not None)

    def _word(self, value: Any) -> str:
        if self._notation is not None and (value is None or isinstance(value, bool)):
            return self._notation.words[0 if value is None else 2 - value]
        return _word(value)

    def _literal(self, value: Any) -> str:
        if not isinstance(value, list | Mapping):
            return self._literals([value])
        begin, end, comma = self._brackets("array" if isinstance(value, list) else "object")
        keys = [*map(self._key, value)] if isinstance(value, Mapping) else [""] * len(value)
        outer, self._level = self._level, min(self._level + 1, _NESTED)
        inner = value.values() if isinstance(value, Mapping) else value
        parts = [f"{key} ({self._literals([v])})" for key, v in zip(keys, inner, strict=True)]
        self._level = outer
        return f"{begin} {f' {comma} '.join(parts)} {end}"

    def _brackets(self, kind: str) -> tuple[str, str, str]:
        # The beginning, the end, and what stands between two parts.
        if self._notation is not None and self._level == _ARGUMENTS:
            comma = self._notation.comma
            return '""', '""', self._plain_term(comma) if comma else '""'
        begin, end = (r"\[", r"\]") if kind == "array" else (r"\{", r"\}")
        comma, _, inside = self._style
        first, last = self._term(f"/{begin}{inside}/"), self._term(f"/{inside}{end}/")
        return first, last, self._term(f"/{comma}/")

    def _key(self, name: str) -> str:
        before, behind = self._around_key()
        if behind == patterns.literal("=", False) and not name.isidentifier():
            raise self._wrong(f"has an argument {name!r} that Python cannot name", "rename it")
        name = patterns.literal(name, before.startswith('"'))
        return self._term(f"/{before}{name}{behind}/")

    def _around_key(self) -> tuple[str, str]:
        # Patterns of what stands around the name of a member.
        given = self._notation
        if given is not None and self._level == _ARGUMENTS:
            before, behind = (patterns.literal(each, False) for each in (given.key, given.value))
            return before, behind
        if given is not None and given.quote != '"':
            return "", self._style.colon
        return '"', f'"{self._style.colon}'

    def _number(self, bases: Sequence[Any], kind: str) -> str | None:
        ends: list[list[Bound]] = []
        for key in ("minimum", "maximum"):
            other = f"exclusive{key.title()}"
            given = [Bound(_exact(base[key])) for base in bases if key in base]
            given += [Bound(_exact(base[other]), True) for base in bases if other in base]
            ends.append(given)
        low = max(ends[0], default=None, key=lambda bound: (bound.value, bound.strict))
        high = min(ends[1], default=None, key=lambda bound: (bound.value, not bound.strict))
        steps = [_exact(base["multipleOf"]) for base in bases if "multipleOf" in base]
        made: str | None
        places, zeros = None, ""
        if kind == "number" and steps:
            one = steps[0].normalize() if len(steps) == 1 else Decimal(0)
            if one.as_tuple().digits == (1,) and one <= 1:
                places = -one.adjusted()
            elif all(step == int(step) for step in steps):
                kind, zeros = "integer", r" /(?:\.0+)?/"
            else:
                self._tell(bases, "multipleOf")
        if kind == "integer":
            step = lcm(*(each.as_integer_ratio()[0] for each in steps))
            try:
                made = numbers.integer(low, high, step)
            except NotImplementedError:
                self._tell(bases, "multipleOf")
                made = numbers.integer(low, high)
        else:
            made = numbers.decimal(low, high, places)
        if made is None:
            least, most = (None if bound is None else bound.value for bound in (low, high))
            self._never(f"no number lies between minimum {least} and maximum {most}")
            return None
        made = f"({made}{zeros})" if zeros else made
        if any(base.get("not whole") for base in bases):
            # Of digits that a float tells from a whole number.
            made = rf"({made} & /-?(?:[0-9]{{1,8}}\.[0-9]{{0,6}}|[0-9]{{1,14}}\.)[1-9][0-9]*/)"
        for base in bases:
            for value in base.get("not in", ()):
                if _kind(value) in ("integer", "number"):
                    same = numbers.decimal(Bound(_exact(value)), Bound(_exact(value)))
                    made = f"({made} & ~{same})"
        return (self._some if places is not None or "~" in made else self._term)(made)

    def _string(self, bases: Sequence[Any]) -> str | None:
        content = self._content(bases, self._is_json)
        return None if content is None else self._text(content)

    def _sizes(self, bases: Sequence[Any], what: str, far: int) -> tuple[int, int]:
        least = max((int(base.get(f"min{what}", 0)) for base in bases), default=0)
        most = min((int(base.get(f"max{what}", far)) for base in bases), default=far)
        if least > most:
            limit = "the longest that is written," if most == far else f"max{what}"
            self._never(f"min{what} {least} is above {limit} {most}")
        return least, most

    def _content(self, bases: Sequence[Any], quoted: bool = True) -> str | None:
        # What stands between quotes, of JSON or of another notation.
        least, most = self._sizes(bases, "Length", _LONG)
        if least > most:
            return None
        char = CHAR if quoted else "(?s:.)"
        parts = [f"/{char}{{{least},{'' if most >= _LONG else most}}}/"]
        given = self._notation
        ends = given.stops if given is not None else ()
        ends = ends if quoted or given is None or ends else (given.quote,)
        if ends:
            texts = "|".join(patterns.literal(each, quoted) for each in ends)
            parts.append(f"~/(?s:.)*(?:{texts})(?s:.)*/")
        for base in bases:
            for key, sign in (("pattern", ""), ("not pattern", "~")):
                if key in base and _is_said(base[key]):
                    parts.append(f"{sign}{terminal(base[key], quoted)}")
                elif key in base:
                    self._tell([base], key)
            if base.get("format") in _FORMATS:
                parts.append(terminal(_FORMATS[base["format"]], quoted, whole=True))
            denied = [each for each in base.get("not in", ()) if isinstance(each, str)]
            if denied:
                texts = "|".join(patterns.literal(each, quoted) for each in denied)
                parts.append(f"~/(?:{texts})/")
        return f"({' & '.join(parts)})"

    def _array(self, bases: Sequence[Any]) -> str | None:
        begin, end, comma = self._brackets("array")
        least, most = self._sizes(bases, "Items", _FAR)
        first = max((len(b.get("prefixItems", ())) for b in bases), default=0)
        placed: list[str] = []
        item = None
        while len(placed) < min(first + 1, most):  # the last one is like all behind it
            item = self._rule(self._items(bases, len(placed)))
            if item is None:
                most = len(placed)
                break
            placed.append(item)
        if least > most:
            self._never("there are too few items")
            return None
        if most > 1:
            self._tell([base for base in bases if base.get("uniqueItems")], "uniqueItems")
        self._tell([base for base in bases if "contains" in base], "maxContains")
        hits = [b for b in bases if "contains" in b and b.get("minContains") != 0]
        if hits:
            hit = self._rule([*self._items(bases, 0), hits[0]["contains"]])
            if hit is None:
                self._never("no item is what contains asks for")
                return None
            free = not first and most >= _FAR and least <= 1 and len(hits) == 1
            if free and hits[0].get("minContains", 1) == 1:
                return f"{begin} ({item} {comma})* {hit} ({comma} {item})* {end}"
            self._tell(hits, "contains")
        more = "" if most >= _FAR else most - len(placed)
        many = f"({comma} {item}){{{max(least - len(placed), 0)},{more}}}"
        tail = many if most > len(placed) else ""
        for i in range(len(placed) - 1, -1, -1):
            here = f"{comma if i else ''} {placed[i]} {tail}".strip()
            tail = here if i < least else f"({here})?"
        return f"{begin} {tail} {end}"

    def _items(self, bases: Sequence[Any], place: int) -> list[Schema]:
        out = []
        for base in bases:
            before = base.get("prefixItems", ())
            if place < len(before):
                out.append(before[place])
            elif "items" in base:
                out.append(base["items"])
        return out

    def _members(self, bases: Sequence[Any], name: str) -> list[Schema]:
        # The schemas of a member of this name.
        known = {pattern for base in bases for pattern in base.get("patternProperties", ())}
        found = {each for each in known if _is_said(each) and self._is_in(name, terminal(each))}
        out = self._inner(bases, found, name)
        for base in bases:
            if name in base.get("not here", ()) or (
                "propertyNames" in base and not self._valid(name, base["propertyNames"])
            ):
                out.append(False)
        return out

    def _inner(
        self, bases: Sequence[Any], found: Collection[str], name: str | None = None
    ) -> list[Schema]:
        # The schemas of members in whose names these patterns are found.
        out: list[Schema] = []
        for base in bases:
            own = [
                inner
                for pattern, inner in base.get("patternProperties", {}).items()
                if pattern in found
            ]
            if name in base.get("properties", ()):
                own.append(base["properties"][name])
            if not own and "additionalProperties" in base:
                own.append(base["additionalProperties"])
            out += own
        return out

    def _object(self, bases: Sequence[Any]) -> str | None:
        begin = self._brackets("object")[0]
        needed = {name: None for base in bases for name in base.get("required", ())}
        names = {name: None for base in bases for name in base.get("properties", {})} | needed
        closed = False
        for base in bases:
            if "propertyNames" in base:
                found = self._flat([base["propertyNames"]])
                listed = None if found is None or found[1] else self._values(found[0])
                if listed is not None:
                    closed = True
                    names |= {each: None for each in listed if isinstance(each, str)}
        members: list[tuple[str, bool]] = []
        for name in names:
            rule = self._rule(self._members(bases, name))
            if rule is None and name in needed:
                self._never(f"the member {name!r} is required and cannot be")
                return None
            if rule is not None:
                members.append((f"{self._key(name)} {rule}", name in needed))
        extra = None if closed else self._extra(bases, list(names))
        least, most = self._sizes(bases, "Properties", _FAR)
        if max(least, len(needed)) > most or (extra is None and len(members) < least):
            self._never(f"minProperties {least}, maxProperties {most}")
            return None
        if extra is None:
            most = most if most < len(members) else _FAR
        if max(least, most % _FAR) * max(len(members), 10) > 4000:
            self._tell(bases, "minProperties", "maxProperties")
            least, most = 0, _FAR
        if least > len(needed) + 1 and extra is not None:  # a name may be said twice
            self._tell(bases, "minProperties")
        return f"{begin} {self._row(members, extra, least, most)}"

    def _row(
        self, members: Sequence[tuple[str, bool]], extra: str | None, least: int, most: int
    ) -> str:
        # A rule for each place among the members, and for how many were said, as far as that
        # counts. Only what leads to an end is said.
        _, end, comma = self._brackets("object")
        counted = max(least, most if most < _FAR else 1)
        names: dict[tuple[int, int], str] = {}
        todo: list[tuple[int, int]] = []
        owed = [*accumulate((must for _, must in reversed(members)), initial=0)][::-1]

        def way(place: int, said: int, before: str = "") -> list[str]:
            if said + owed[place] > most or (extra is None and said + len(members) - place < least):
                return []
            if (place, said) not in names:
                names[place, said] = self._new()
                todo.append((place, said))
            return [f"{before} {names[place, said]}"]

        first = way(0, 0)
        while todo:
            place, said = todo.pop()
            more, mark = min(said + 1, counted), comma if said else ""
            ways: list[str] = []
            if place < len(members):
                member, must = members[place]
                ways += way(place + 1, more, f"{mark} {member}") if said < most else []
                ways += [] if must else way(place + 1, said)
            else:
                ways += [end] if said >= least else []
                if extra is not None and said < most:
                    ways += way(place, more, f"{mark} {extra}")
            self._say(f"{names[place, said]}: {' | '.join(ways)}")
        return first[0]

    def _extra(self, bases: Sequence[Any], names: Sequence[str]) -> str | None:
        # A rule of members that no schema names.
        known = list({p: None for base in bases for p in base.get("patternProperties", {})})
        usable = {pattern: terminal(pattern) for pattern in known[:4] if _is_said(pattern)}
        if len(usable) < len(known):
            self._tell(bases, "patternProperties")
        names = [*names, *(n for base in bases for n in base.get("not here", ()))]
        asked = [base["propertyNames"] for base in bases if "propertyNames" in base]
        found = self._flat([{"type": "string"}, *asked])
        content = None if found is None else self._content(found[0])
        if found is None or content is None or not self._types(found[0]):
            return None
        if found[1]:
            self._tell(bases, "propertyNames")
        ways = []
        for size in range(len(usable) + 1):
            for chosen in combinations(usable, size):
                rule = self._rule(self._inner(bases, chosen))
                parts = [content, *(usable[p] for p in chosen)]
                parts += [f"~{usable[p]}" for p in usable if p not in chosen]
                if names:
                    parts.append(f"~/(?:{'|'.join(map(patterns.literal, names))})/")
                before, behind = self._around_key()
                parts += [] if before == '"' else [_NAME]
                lead = f"/{before}/ " if before else ""
                key = self._some(f"{lead}({' & '.join(parts)}) /{behind}/")
                ways += [f"{key} {rule}"] if key and rule else []
        return self._new(" | ".join(ways)) if ways else None


_SIZED = {"Length": "string", "Items": "array", "Properties": "object"}
_SIDES = {"minimum": "exclusiveMaximum", "maximum": "exclusiveMinimum"}
_SIDES |= {other: side for side, other in _SIDES.items()}
_NUMBERS = ("integer", "number")
# Keywords that are true or false of a value: kinds of values that they look at, and how.
_TESTS: dict[str, tuple[str | tuple[str, ...], Callable[[Any, Any], bool]]] = {
    "enum": ("", lambda value, rule: _key(value) in map(_key, rule)),
    "const": ("", lambda value, rule: _key(value) == _key(rule)),
    "not in": ("", lambda value, rule: _key(value) not in map(_key, rule)),
    "minimum": (_NUMBERS, lambda value, rule: _exact(value) >= _exact(rule)),
    "maximum": (_NUMBERS, lambda value, rule: _exact(value) <= _exact(rule)),
    "exclusiveMinimum": (_NUMBERS, lambda value, rule: _exact(value) > _exact(rule)),
    "exclusiveMaximum": (_NUMBERS, lambda value, rule: _exact(value) < _exact(rule)),
    "multipleOf": (_NUMBERS, lambda value, rule: not Fraction(str(value)) % Fraction(str(rule))),
    "not whole": (("integer",), lambda value, rule: False),
    "required": (("object",), lambda value, rule: set(rule) <= set(value)),
    "not here": (("object",), lambda value, rule: set(rule).isdisjoint(value)),
    "uniqueItems": (("array",), lambda v, rule: not rule or len(set(map(_key, v))) == len(v)),
}
for _what, _of in _SIZED.items():
    _TESTS[f"min{_what}"] = (_of,), lambda value, rule: len(value) >= rule
    _TESTS[f"max{_what}"] = (_of,), lambda value, rule: len(value) <= rule


def _objects(schema: Schema, place: str = "#") -> Iterator[tuple[dict[str, Any], str]]:
    # All that are in a schema, and their JSON pointers.
    if isinstance(schema, dict):
        yield schema, place
    parts = enumerate(schema) if isinstance(schema, list) else ()
    for key, each in schema.items() if isinstance(schema, dict) else parts:
        yield from _objects(each, f"{place}/{str(key).replace('~', '~0').replace('/', '~1')}")


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _is_said(pattern: str) -> bool:
    # Whether a grammar can say a pattern.
    with suppress(Untranslated):
        return bool(terminal(pattern))
    return False


def _exact(value: Any) -> Decimal:
    # A float is the decimal that it is written as.
    return Decimal(repr(value)) if isinstance(value, float) else Decimal(value)


def _kind(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return "null" if value is None else "boolean"
    if isinstance(value, str):
        return "string"
    if isinstance(value, int | float | Decimal):
        return "integer" if value == int(value) else "number"
    return "object" if isinstance(value, Mapping) else "array"


def _word(value: Any) -> str:
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return rf"{int(value)}(?:\.0)?"
    return re.escape(str(value) if isinstance(value, Decimal) else json.dumps(value))


def _key(value: Any) -> Hashable:
    # Keys that are equal where JSON Schema takes values as the same: 1 is 1.0, and is not true.
    if isinstance(value, list):
        return list, *map(_key, value)
    if isinstance(value, Mapping):
        return dict, frozenset((key, _key(each)) for key, each in value.items())
    return (bool, value) if isinstance(value, bool) else value
