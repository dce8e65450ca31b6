"""JSON schemas as rules of Lark that allow just the JSON that validates.

Members come in the order of the schema, then those that it does not name. What no grammar says is
left out and told (`SchemaRules.unheld`). Unknown keywords and formats are annotations, as JSON
Schema has them. Of the drafts, 4 to 2020-12 are read, and OpenAPI's.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from itertools import combinations
from math import lcm
from typing import Any, NamedTuple
from urllib.parse import unquote

from paceline.errors import InvalidOption
from paceline.models import numbers, patterns
from paceline.models.numbers import Bound
from paceline.models.patterns import CHAR, Untranslated, terminal

Schema = Any
_TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
# A run of white space, with an end: a model that may write it without one does.
_BLANK = r"(?:[ \t]{1,4}|[ \t]?(?:\r?\n){1,2}(?: {0,40}|\t{0,9}))?"
_NUMBER, _COUNT, _LIST, _OBJECT = (int, float, Decimal), (int, float), (list,), (dict,)
_SCHEMA = (dict, bool)
_KINDS: dict[str, tuple[type, ...]] = {
    "type": (str, list), "enum": _LIST, "multipleOf": _NUMBER, "minimum": _NUMBER,
    "maximum": _NUMBER, "exclusiveMinimum": _NUMBER, "exclusiveMaximum": _NUMBER,
    "minLength": _COUNT, "maxLength": _COUNT, "minItems": _COUNT, "maxItems": _COUNT,
    "minProperties": _COUNT, "maxProperties": _COUNT, "minContains": _COUNT,
    "maxContains": _COUNT, "pattern": (str,), "required": _LIST, "properties": _OBJECT,
    "patternProperties": _OBJECT, "additionalProperties": _SCHEMA, "propertyNames": _SCHEMA,
    "prefixItems": _LIST, "items": _SCHEMA, "contains": _SCHEMA, "uniqueItems": (bool,),
    "dependentRequired": _OBJECT, "dependentSchemas": _OBJECT, "allOf": _LIST, "anyOf": _LIST,
    "oneOf": _LIST, "not": _SCHEMA, "if": _SCHEMA, "then": _SCHEMA, "else": _SCHEMA,
    "unevaluatedProperties": _SCHEMA, "unevaluatedItems": _SCHEMA, "$ref": (str,),
}  # fmt: skip
# What `_plain` leaves for rules. Names with a blank are our own.
_HELD = frozenset(_KINDS) - {"$ref", "allOf", "anyOf", "oneOf", "not", "if", "then", "else"}
_HELD |= {"format", "const", "not in", "not pattern", "not here", "not whole"}
_APPLIED = {"$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "if", "dependentSchemas"}
_NEVER: dict[str, Any] = {"uniqueItems": False, "minContains": 0}
_NOTHING = '"a" & "b"'
_MOST_RULES = 30_000
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
    """Schemas of which one must hold."""


class SchemaRules:
    """Rules of one schema.

    Attributes:
        root: an expression of what the schema allows.
        lines: the rules that it needs.
        unheld: keywords that are not held, by JSON pointers.
    """

    def __init__(
        self,
        schema: Schema,
        style: Spacing,
        named: str,
        prefix: str = "",
        is_empty: Callable[[str], bool] = lambda expression: False,
    ) -> None:
        """Make the rules; names of rules begin with `prefix`.

        `is_empty` says whether no text is of an expression.

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
        self._rules: dict[tuple[int, ...], str | None] = {}
        self._terms: dict[str, str] = {}
        self._plains: dict[int, Any] = {}
        self._kept: list[Any] = []  # so that no other object gets an id of theirs
        self._places: dict[int, str] = {id(schema): "#"}
        self._why = ""
        self._count = 0
        try:
            root = self._rule((schema,))
        except RecursionError as error:
            raise self._wrong("is nested too deeply", "flatten it") from error
        if root is None:
            raise self._wrong(f"allows no value{self._why}")
        self.root = root

    # Names of what is made.

    def _wrong(self, what: str, fix: str = "change it") -> InvalidOption:
        return InvalidOption(f"{self._named} {what}: {fix}")

    def _tell(self, schema: Schema, keyword: str) -> None:
        self.unheld[f"{self._places.get(id(schema), '#')}/{keyword}"] = None

    def _never(self, why: str) -> None:
        self._why = self._why or f" ({why})"

    def _term(self, expression: str) -> str:
        name = self._terms.get(expression)
        if name is None:
            name = self._terms[expression] = f"{self._prefix.upper()}T{len(self._terms)}"
            self.lines.append(f"{name}: {expression}")
        return name

    def _some(self, expression: str) -> str | None:
        # A term of what may be empty.
        if expression not in self._terms and self._is_empty(expression):
            self._never("patterns and lengths exclude each other")
            return None
        return self._term(expression)

    def _new(self, body: str | None = None) -> str:
        if len(self.lines) > _MOST_RULES:
            raise self._wrong("is too large", "make it smaller")
        self._count += 1
        name = f"{self._prefix}r{self._count}"
        if body is not None:
            self.lines.append(f"{name}: {body}")
        return name

    def _rule(self, schemas: Iterable[Schema]) -> str | None:
        # A rule of what holds under all of some schemas; None if nothing does.
        found = self._flat(schemas)
        if found is None:
            return None
        bases, choices = found
        key = (*map(id, bases), 0, *map(id, choices))
        if key not in self._rules:
            name = self._rules[key] = self._new()
            body = self._body(bases, choices)
            self.lines.append(f"{name}: {body or self._term(_NOTHING)}")
            if body is None:
                self._rules[key] = None
        return self._rules[key]

    # Schemas into plain ones.

    def _at(self, schema: Schema, parent: Schema, *keys: object) -> Schema:
        if isinstance(schema, dict):
            place = self._places.get(id(parent), "#")
            self._places.setdefault(id(schema), "/".join([place, *map(str, keys)]))
        return schema

    def _keep(self, made: Any, place: str) -> Any:
        self._kept.append(made)
        self._places[id(made)] = place
        return made

    def _flat(self, schemas: Iterable[Schema]) -> tuple[list[Any], list[_Choice]] | None:
        bases: dict[int, Any] = {}
        choices: dict[int, _Choice] = {}
        seen: set[int] = set()
        todo = list(schemas)[::-1]
        while todo:
            schema = todo.pop()
            if schema is True or id(schema) in seen:
                continue
            if schema is False:
                self._never("false")
                return None
            seen.add(id(schema))
            if isinstance(schema, _Choice):
                choices[id(schema)] = schema
                continue
            base, more = self._plain(schema)
            if base:
                bases[id(base)] = base
            todo += more[::-1]
        return [*bases.values()], [*choices.values()]

    def _plain(self, schema: Schema) -> tuple[dict[str, Any], list[Schema]]:
        """Return a schema's own keywords, and what must hold besides."""
        known = self._plains.get(id(schema))
        if known is not None:
            return known  # type: ignore[no-any-return]
        place = self._places.get(id(schema), "#")
        if not isinstance(schema, dict):
            raise self._wrong(f"holds {str(schema)[:40]!r} at {place}, which is no schema")
        read = self._modern(schema)
        for key, kinds in _KINDS.items():
            value = read.get(key)
            if key in read and (
                not isinstance(value, kinds) or (value is True and bool not in kinds)
            ):
                raise self._wrong(f"has a wrong {key!r} at {place}: {str(value)[:40]}")
        base = {k: v for k, v in read.items() if k in _HELD and _NEVER.get(k) is not v}
        more: list[Schema] = []
        if "$ref" in read:
            more.append(self._target(read["$ref"], place))
        for key in ("$dynamicRef", "$recursiveRef"):
            if key in read:
                more.append(self._target(str(read[key]), place))
        more += [self._at(each, schema, "allOf", i) for i, each in enumerate(read.get("allOf", ()))]
        for key in ("anyOf", "oneOf"):
            if key in read:
                for i, each in enumerate(read[key]):
                    self._at(each, schema, key, i)
                made = read[key] if key == "anyOf" else self._one_of(schema, read[key])
                more.append(self._keep(_Choice(made), place))
        if "not" in read:
            more.append(self._denied(schema, "not", read["not"], True))
        if "if" in read and ("then" in read or "else" in read):
            first = {"allOf": [read["if"], read.get("then", True)]}
            other = self._denied(schema, "if", read["if"], None)
            if other is not None:
                second = {"allOf": [other, read.get("else", True)]}
                both = [self._keep(first, f"{place}/if"), self._keep(second, f"{place}/else")]
                more.append(self._keep(_Choice(both), place))
        for name, needed in read.get("dependentRequired", {}).items():
            both = [{"not here": [name]}, {"required": [name, *needed]}]
            more.append(self._keep(_Choice(both), place))
        for name, needed in read.get("dependentSchemas", {}).items():
            both = [{"not here": [name]}, {"required": [name], "allOf": [needed]}]
            more.append(self._keep(_Choice(both), place))
        self._kept += [schema, base]
        self._places[id(base)] = place
        self._plains[id(schema)] = base, more
        self._plains[id(base)] = base, []
        return base, more

    def _modern(self, schema: dict[str, Any]) -> dict[str, Any]:
        # As draft 2020-12 writes it.
        read = dict(schema)
        for key, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
            if isinstance(read.get(key), bool) and read.pop(key) and bound in read:
                read[key] = read.pop(bound)
        if isinstance(read.get("items"), list):
            read["prefixItems"] = read.pop("items")
            if "additionalItems" in read:
                read["items"] = read["additionalItems"]
        if isinstance(read.get("dependencies"), dict):
            for name, needed in read["dependencies"].items():
                key = "dependentRequired" if isinstance(needed, list) else "dependentSchemas"
                read[key] = {**read.get(key, {}), name: needed}
        if read.get("required") in (True, False):  # draft 3, and OpenAPI's parameters
            del read["required"]
        if not _APPLIED & read.keys():  # nothing else looks at members and items
            for old, new in (("Properties", "additionalProperties"), ("Items", "items")):
                if f"unevaluated{old}" in read:
                    read.setdefault(new, read.pop(f"unevaluated{old}"))
        for key in [key for key, value in read.items() if value is None and key in _KINDS]:
            del read[key]  # as serializers write what is not set
        if isinstance(read.get("type"), list | str):
            types = [read["type"]] if isinstance(read["type"], str) else read["type"]
            for name in types:
                if name not in _TYPES:
                    place = self._places.get(id(schema), "#")
                    raise self._wrong(f"has a type {name!r} at {place}", "use JSON's types")
        return read

    def _target(self, ref: str, place: str) -> Schema:
        if not ref.startswith("#"):
            found = self._named_by("$id", ref)
            if found is None:
                raise self._wrong(
                    f"refers to {ref!r} at {place}, and the server does not fetch schemas",
                    "put it in $defs",
                )
            return found
        at: Any = self._root
        if ref[1:2] not in ("", "/"):
            at = self._named_by("$anchor", ref[1:])
            at = self._named_by("$dynamicAnchor", ref[1:]) if at is None else at
        else:
            for step in ref[2:].split("/") if ref[2:] else ():
                step = unquote(step).replace("~1", "/").replace("~0", "~")
                if isinstance(at, list) and step.isdigit() and int(step) < len(at):
                    at = at[int(step)]
                else:
                    at = at.get(step) if isinstance(at, dict) else None
        if not isinstance(at, _SCHEMA):
            raise self._wrong(f"has a $ref at {place} to {ref!r}, which is not there")
        if isinstance(at, dict):
            self._places.setdefault(id(at), ref)
        return at

    def _named_by(self, key: str, name: str) -> Schema | None:
        todo: list[Any] = [self._root]
        while todo:
            at = todo.pop()
            if isinstance(at, dict):
                if at.get(key) == name:
                    return at
                todo += at.values()
            elif isinstance(at, list):
                todo += at
        return None

    # What may not be.

    def _denied(self, schema: Schema, keyword: str, inner: Schema, otherwise: Any) -> Schema:
        self._at(inner, schema, keyword)
        made = self._not(inner, 0)
        if made is None:
            self._tell(schema, keyword)
            return otherwise
        return made

    def _not(self, schema: Schema, depth: int) -> Schema | None:
        """Return a schema of all that does not validate; None if none is known."""
        if isinstance(schema, bool):
            return not schema
        if depth > 8:
            return None
        base, more = self._plain(schema)
        place = self._places.get(id(schema), "#")
        out: list[Schema] = []
        for each in more:
            if isinstance(each, _Choice):
                inner = [self._not(one, depth + 1) for one in each]
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
        return self._keep({"anyOf": out}, place) if out else False

    def _not_keyword(self, key: str, value: Any, depth: int) -> list[Schema] | None:
        if key in ("enum", "const"):
            return [{"not in": value if key == "enum" else [value]}]
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
            return [{"type": "string", other: value}]
        if key == "not in":
            return [{"enum": value}]
        sides = {"minimum": "exclusiveMaximum", "maximum": "exclusiveMinimum"}
        sides |= {other: side for side, other in sides.items()}
        if key in sides:
            return [{"type": "number", sides[key]: value}]
        for short, kind in (("Length", "string"), ("Items", "array"), ("Properties", "object")):
            if key == f"max{short}":
                return [{"type": kind, f"min{short}": value + 1}]
            if key == f"min{short}":
                return [{"type": kind, f"max{short}": value - 1}] if value else []
        if key == "properties":
            out: list[Schema] = []
            for name, inner in value.items():
                denied = self._not(inner, depth + 1)
                if denied is None:
                    return None
                if denied is not False:
                    one = {"type": "object", "required": [name], "properties": {name: denied}}
                    out.append(one)
            return out
        return [] if key in ("dependentRequired", "dependentSchemas") else None

    def _one_of(self, schema: Schema, branches: list[Schema]) -> list[Schema]:
        # Those that exclude each other, or each without the others.
        out = []
        for i, each in enumerate(branches):
            parts = [each]
            for k, other in enumerate(branches):
                if k != i and not self._disjoint(each, other, 0):
                    denied = self._not(other, 0)
                    if denied is None:
                        self._tell(schema, "oneOf")
                        return branches
                    parts.append(denied)
            out.append(each if len(parts) == 1 else {"allOf": parts})
        return out

    def _disjoint(self, first: Schema, second: Schema, depth: int) -> bool:
        if first is False or second is False:
            return True
        if first is True or second is True or depth > 4:
            return False
        sides = []
        for schema in (first, second):
            found = self._flat([schema])
            if found is None:
                return True
            if not found[0] and found[1]:
                other = second if schema is first else first
                return all(self._disjoint(each, other, depth + 1) for each in found[1][0])
            sides.append(found[0])
        one, two = sides
        values = [self._values(side) for side in sides]
        for own, other in ((values[0], two), (values[1], one)):
            if own is not None and not any(self._fits(each, other) for each in own):
                return True
        types = self._types(one) & self._types(two)
        if types - {"object"}:
            return False
        if not types:
            return True
        for name in {n for b in one for n in b.get("required", ())}:
            if any(name in b.get("required", ()) for b in two) and any(
                self._disjoint(a, b, depth + 1)
                for a in self._members(one, name)
                for b in self._members(two, name)
            ):
                return True
            if any(each is False for each in self._members(two, name)):
                return True
        return any(
            each is False
            for name in {n for b in two for n in b.get("required", ())}
            for each in self._members(one, name)
        )

    # Rules.

    def _body(self, bases: list[Any], choices: list[_Choice]) -> str | None:
        if choices:
            first, *others = choices
            made = [self._rule([*bases, *others, each]) for each in first]
            found = [each for each in dict.fromkeys(made) if each is not None]
            return " | ".join(found) or None
        values = self._values(bases)
        if values is not None:
            values = [each for each in values if self._fits(each, bases)]
            if not values:
                self._never("its values do not fit")
            return self._literals(values) if values else None
        types = self._types(bases)
        if "number" in types or any(base.get("not whole") for base in bases):
            types.discard("integer")
        made = [
            self._number(bases, kind) if kind in ("integer", "number") else
            getattr(self, f"_{kind}")(bases)
            for kind in _TYPES
            if kind in types
        ]  # fmt: skip
        return " | ".join(each for each in made if each is not None) or None

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
        for base in bases:
            if "const" in base:
                return [base["const"]]
        for base in bases:
            if "enum" in base:
                return list(base["enum"])
        return None

    def _fits(self, value: Any, bases: Sequence[Any]) -> bool:
        # Whether a value that a schema names is what others ask for.
        kind = _kind(value)
        if kind not in self._types(bases):
            return False
        for base in bases:
            for key, rule in base.items():
                if key == "enum":
                    good = any(_same(value, each) for each in rule)
                elif key == "const":
                    good = _same(value, rule)
                elif key == "not in":
                    good = not any(_same(value, each) for each in rule)
                elif key in ("pattern", "not pattern") and kind == "string":
                    try:
                        good = patterns.is_found(rule, value) == (key == "pattern")
                    except Untranslated:
                        good = True
                elif key in _COMPARED and kind in ("integer", "number"):
                    good = _COMPARED[key](_exact(value), _exact(rule))
                elif key in ("minLength", "minItems", "minProperties"):
                    good = _SIZED[key[3:]] != kind or len(value) >= rule
                elif key in ("maxLength", "maxItems", "maxProperties"):
                    good = _SIZED[key[3:]] != kind or len(value) <= rule
                elif key == "not whole":
                    good = kind != "integer"
                elif key == "required" and kind == "object":
                    good = set(rule) <= set(value)
                elif key == "not here" and kind == "object":
                    good = not set(rule) & set(value)
                elif key == "properties" and kind == "object":
                    good = all(self._valid(value[n], s) for n, s in rule.items() if n in value)
                elif key == "items" and kind == "array":
                    behind = value[len(base.get("prefixItems", ())) :]
                    good = all(self._valid(each, rule) for each in behind)
                else:
                    good = True
                if not good:
                    return False
        return True

    def _valid(self, value: Any, schema: Schema) -> bool:
        found = self._flat([schema])
        return (
            found is not None
            and self._fits(value, found[0])
            and all(any(self._valid(value, each) for each in choice) for choice in found[1])
        )

    def _literals(self, values: Sequence[Any]) -> str:
        texts = [f"(?:{patterns.literal(v)})" for v in values if isinstance(v, str)]
        others = [self._literal(v) for v in values if not isinstance(v, str)]
        return " | ".join([*([self._term(f'/"(?:{"|".join(texts)})"/')] if texts else []), *others])

    def _literal(self, value: Any) -> str:
        if isinstance(value, str):
            return self._term(f'/"{patterns.literal(value)}"/')
        if isinstance(value, list | Mapping):
            begin, end, comma = self._brackets("array" if isinstance(value, list) else "object")
            if isinstance(value, Mapping):
                parts = [f"{self._key(k)} {self._literal(v)}" for k, v in value.items()]
            else:
                parts = [*map(self._literal, value)]
            return f"{begin} {f' {comma} '.join(parts)} {end}"
        if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
            return self._term(rf"/{int(value)}(?:\.0)?/")
        text = str(value) if isinstance(value, Decimal) else json.dumps(value)
        return self._term(f"/{re.escape(text)}/")

    def _brackets(self, kind: str) -> tuple[str, str, str]:
        # The beginning, the end, and what stands between two parts.
        begin, end = (r"\[", r"\]") if kind == "array" else (r"\{", r"\}")
        comma, _, inside = self._style
        ways = f"/{begin}{inside}/", f"/{inside}{end}/", f"/{comma}/"
        return self._term(ways[0]), self._term(ways[1]), self._term(ways[2])

    def _key(self, name: str) -> str:
        return self._term(f'/"{patterns.literal(name)}"{self._style.colon}/')

    def _null(self, bases: Sequence[Any]) -> str | None:
        return self._term('"null"') if self._fits(None, bases) else None

    def _boolean(self, bases: Sequence[Any]) -> str | None:
        found = [f'"{json.dumps(each)}"' for each in (True, False) if self._fits(each, bases)]
        return self._term(" | ".join(found)) if found else None

    def _number(self, bases: Sequence[Any], kind: str) -> str | None:
        low = high = None
        steps: list[Decimal] = []
        for base in bases:
            for key in ("minimum", "exclusiveMinimum"):
                if key in base:
                    low = _inner(low, Bound(_exact(base[key]), key != "minimum"), 1)
            for key in ("maximum", "exclusiveMaximum"):
                if key in base:
                    high = _inner(high, Bound(_exact(base[key]), key != "maximum"), -1)
            if "multipleOf" in base:
                if base["multipleOf"] <= 0:
                    raise self._wrong("has a multipleOf that is not above 0")
                steps.append(_exact(base["multipleOf"]))
            form = base.get("format")
            if kind == "integer" and form in _WHOLE_FORMATS:
                ends = [Bound(Decimal(end)) for end in _WHOLE_FORMATS[form]]
                low, high = _inner(low, ends[0], 1), _inner(high, ends[1], -1)
        made: str | None
        places = None
        if kind == "number" and steps:
            one = len(steps) == 1 and steps[0].normalize()
            _, digits, exponent = one.as_tuple() if one else (0, (), 0)
            assert isinstance(exponent, int)
            if digits == (1,) and exponent <= 0:
                places = -exponent
            elif all(step == int(step) for step in steps):
                kind = "integer"
            else:
                for base in bases:
                    if "multipleOf" in base:
                        self._tell(base, "multipleOf")
        if kind == "integer":
            step = lcm(*(each.as_integer_ratio()[0] for each in steps))
            try:
                made = numbers.integer(low, high, step)
            except NotImplementedError:
                for base in bases:
                    if "multipleOf" in base:
                        self._tell(base, "multipleOf")
                made = numbers.integer(low, high)
        else:
            made = numbers.decimal(low, high, places)
        if made is None:
            least, most = (None if bound is None else bound.value for bound in (low, high))
            self._never(f"no number lies between minimum {least} and maximum {most}")
            return None
        if any(base.get("not whole") for base in bases):
            made = rf"({made} & ~/-?[0-9]+(?:\.0+)?/ & ~/(?s:.)*[eE](?s:.)*/)"
        for base in bases:
            for value in base.get("not in", ()):
                if _kind(value) in ("integer", "number"):
                    same = numbers.decimal(Bound(_exact(value)), Bound(_exact(value)))
                    made = f"({made} & ~{same})"
        return (self._some if places is not None or "~" in made else self._term)(made)

    def _string(self, bases: Sequence[Any]) -> str | None:
        content = self._content(bases)
        if content is None:
            return None
        return (self._some if " & " in content else self._term)(f'/"/ {content} /"/')

    def _content(self, bases: Sequence[Any]) -> str | None:
        # What stands between quotes.
        least = max((int(b.get("minLength", 0)) for b in bases), default=0)
        most = min((int(b["maxLength"]) for b in bases if "maxLength" in b), default=_LONG)
        if least > most:
            self._never(f"minLength {least} is above maxLength {most}")
            return None
        parts = [f"/{CHAR}{{{least},{'' if most >= _LONG else most}}}/"]
        for base in bases:
            for key, sign in (("pattern", ""), ("not pattern", "~")):
                if key in base:
                    try:
                        parts.append(f"{sign}{terminal(base[key])}")
                    except Untranslated:
                        self._tell(base, key)
            if base.get("format") in _FORMATS and base["format"]:
                parts.append(terminal(_FORMATS[base["format"]], whole=True))
            denied = [each for each in base.get("not in", ()) if isinstance(each, str)]
            if denied:
                parts.append(f"~/{'|'.join(map(patterns.literal, denied))}/")
        return f"({' & '.join(parts)})"

    def _array(self, bases: Sequence[Any]) -> str | None:
        begin, end, comma = self._brackets("array")
        least = max((int(b.get("minItems", 0)) for b in bases), default=0)
        most = min((int(b["maxItems"]) for b in bases if "maxItems" in b), default=_FAR)
        first = max((len(b.get("prefixItems", ())) for b in bases), default=0)
        if least > most:
            self._never(f"minItems {least} is above maxItems {most}")
            return None
        placed = [self._item(bases, i) for i in range(min(first, most))]
        item = self._item(bases, first) if most > first else None
        for i, each in enumerate([*placed, item]):
            if each is None:
                most = min(most, i)
                break
        if least > most:
            self._never("there are too few items")
            return None
        hits = [b for b in bases if "contains" in b and b.get("minContains") != 0]
        unique = [b for b in bases if b.get("uniqueItems")]
        if unique and most > 1:
            self._tell(unique[0], "uniqueItems")
        for base in bases:
            if "maxContains" in base and "contains" in base:
                self._tell(base, "maxContains")
        if hits:
            hit = self._rule(
                [*self._items(bases, 0), self._at(hits[0]["contains"], hits[0], "contains")]
            )
            free = not placed and most >= _FAR and least <= 1 and len(hits) == 1
            if hit is None:
                self._never("no item is what contains asks for")
                return None
            if free and hits[0].get("minContains", 1) == 1:
                some = f"({item} {comma})* {hit} ({comma} {item})*" if item else hit
                return f"{begin} {some} {end}"
            self._tell(hits[0], "contains")
        tail = ""
        if most > first and item is not None:
            behind: int | str = "" if most >= _FAR else most - first
            low = max(least - first, 0)
            if not placed:
                rest = behind if isinstance(behind, str) else behind - 1
                many = f"{item} ({comma} {item}){{{max(low - 1, 0)},{rest}}}"
                return (
                    f"{begin} {end} | {begin} {many} {end}"
                    if not least
                    else f"{begin} {many} {end}"
                )
            tail = f"({comma} {item}){{{low},{behind}}}"
        for i in range(min(len(placed), most) - 1, -1, -1):
            here = f"{comma if i else ''} {placed[i]} {tail}".strip()
            tail = here if i < least else f"({here})?"
        return f"{begin} {tail} {end}"

    def _item(self, bases: Sequence[Any], place: int) -> str | None:
        return self._rule(self._items(bases, place))

    def _items(self, bases: Sequence[Any], place: int) -> list[Schema]:
        out = []
        held = False
        for base in bases:
            before = base.get("prefixItems", ())
            if place < len(before):
                out.append(self._at(before[place], base, "prefixItems", place))
                held = True
            elif "items" in base:
                out.append(self._at(base["items"], base, "items"))
                held = True
        if not held:
            out += [b["unevaluatedItems"] for b in bases if "unevaluatedItems" in b]
        return out

    def _members(self, bases: Sequence[Any], name: str) -> list[Schema]:
        # The schemas of a member of this name.
        out: list[Schema] = []
        for base in bases:
            own: list[Schema] = []
            if name in base.get("properties", {}):
                own.append(self._at(base["properties"][name], base, "properties", name))
            for pattern, inner in base.get("patternProperties", {}).items():
                try:
                    if patterns.is_found(pattern, name):
                        own.append(self._at(inner, base, "patternProperties", pattern))
                except Untranslated:
                    self._tell(base, "patternProperties")
            if not own and "additionalProperties" in base:
                own.append(self._at(base["additionalProperties"], base, "additionalProperties"))
            if name in base.get("not here", ()):
                own.append(False)
            if "propertyNames" in base and not self._valid(name, base["propertyNames"]):
                own.append(False)
            out += own
        if not out:
            out += [b["unevaluatedProperties"] for b in bases if "unevaluatedProperties" in b]
        return out

    def _object(self, bases: Sequence[Any]) -> str | None:
        begin, end, comma = self._brackets("object")
        needed = {name: None for base in bases for name in base.get("required", ())}
        names = {name: None for base in bases for name in base.get("properties", {})} | needed
        closed = False
        for base in bases:
            if "propertyNames" in base:
                found = self._flat([self._at(base["propertyNames"], base, "propertyNames")])
                listed = None if found is None or found[1] else self._values(found[0])
                if listed is not None:
                    closed = True
                    names |= {each: None for each in listed if isinstance(each, str)}
        members: list[tuple[str, bool]] = []
        for name in names:
            if not isinstance(name, str):
                raise self._wrong("has names in required that are no texts")
            rule = self._rule(self._members(bases, name))
            if rule is None and name in needed:
                self._never(f"the member {name!r} is required and cannot be")
                return None
            if rule is not None:
                members.append((f"{self._key(name)} {rule}", name in needed))
        extra = None if closed else self._extra(bases, list(names))
        least = max((int(b.get("minProperties", 0)) for b in bases), default=0)
        most = min((int(b["maxProperties"]) for b in bases if "maxProperties" in b), default=_FAR)
        if len(needed) > most or (extra is None and len(members) < least):
            self._never(f"minProperties {least}, maxProperties {most}")
            return None
        if extra is None:
            most = most if most < len(members) else _FAR
        if max(least, most % _FAR) * max(len(members), 10) > 4000:
            for base in bases:
                for key in ("minProperties", "maxProperties"):
                    if key in base:
                        self._tell(base, key)
            least, most = 0, _FAR
        if least > 1 and extra is not None:  # a name that is said twice counts twice
            self._tell(next(b for b in bases if b.get("minProperties") == least), "minProperties")
        return f"{begin} {self._row(members, extra, (least, most), comma, end)}"

    def _row(
        self,
        members: Sequence[tuple[str, bool]],
        extra: str | None,
        bounds: tuple[int, int],
        comma: str,
        end: str,
    ) -> str:
        # A rule for each place among the members, and for how many were said, as far as that
        # counts. Only what leads to an end is said.
        least, most = bounds
        counted = max(least, most if most < _FAR else 1)
        names: dict[tuple[int, int], str] = {}
        todo: list[tuple[int, int]] = []

        def way(place: int, said: int, before: str = "") -> list[str]:
            left = members[place:]
            if said + sum(must for _, must in left) > most or (
                extra is None and said + len(left) < least
            ):
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
            self.lines.append(f"{names[place, said]}: {' | '.join(ways)}")
        return first[0]

    def _extra(self, bases: Sequence[Any], names: Sequence[str]) -> str | None:
        # A rule of members that no schema names.
        known = list({p: None for base in bases for p in base.get("patternProperties", {})})
        usable = {}
        for pattern in known[:4]:
            with suppress(Untranslated):
                usable[pattern] = terminal(pattern)
        if len(usable) < len(known):
            for base in bases:
                if "patternProperties" in base:
                    self._tell(base, "patternProperties")
        names = [*names, *(n for base in bases for n in base.get("not here", ()))]
        asked = [
            self._at(b["propertyNames"], b, "propertyNames") for b in bases if "propertyNames" in b
        ]
        found = self._flat([*asked])
        content = None if found is None else self._content(found[0])
        if found is None or content is None:
            return None
        if found[1] or any("string" not in self._types([b]) for b in found[0]):
            self._tell(next(b for b in bases if "propertyNames" in b), "propertyNames")
        ways = []
        for size in range(len(usable) + 1):
            for chosen in combinations(usable, size):
                subs: list[Schema] = []
                for base in bases:
                    own = [
                        self._at(inner, base, "patternProperties", pattern)
                        for pattern, inner in base.get("patternProperties", {}).items()
                        if pattern in chosen
                    ]
                    if not own and "additionalProperties" in base:
                        inner = base["additionalProperties"]
                        own.append(self._at(inner, base, "additionalProperties"))
                    subs += own
                if not subs and not chosen:
                    subs = [
                        b["unevaluatedProperties"] for b in bases if "unevaluatedProperties" in b
                    ]
                rule = self._rule(subs)
                if rule is None:
                    continue
                parts = [content, *(usable[p] for p in chosen)]
                parts += [f"~{usable[p]}" for p in usable if p not in chosen]
                if names:
                    parts.append(f"~/{'|'.join(map(patterns.literal, names))}/")
                key = self._some(f'/"/ ({" & ".join(parts)}) /"{self._style.colon}/')
                ways += [] if key is None else [f"{key} {rule}"]
        return self._new(" | ".join(ways)) if ways else None


_SIZED = {"Length": "string", "Items": "array", "Properties": "object"}
_COMPARED: dict[str, Callable[[Decimal, Decimal], bool]] = {
    "minimum": operator.ge,
    "maximum": operator.le,
    "exclusiveMinimum": operator.gt,
    "exclusiveMaximum": operator.lt,
    "multipleOf": lambda value, step: not value % step,
}


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


def _same(first: Any, second: Any) -> bool:
    if isinstance(first, bool) or isinstance(second, bool):
        return first is second
    if isinstance(first, list) and isinstance(second, list):
        return len(first) == len(second) and all(map(_same, first, second))
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        return first.keys() == second.keys() and all(_same(v, second[k]) for k, v in first.items())
    return bool(first == second)


def _inner(old: Bound | None, new: Bound, sign: int) -> Bound:
    # The narrower of two bounds of one side.
    if old is None:
        return new
    return max(old, new, key=lambda bound: (sign * bound.value, bound.strict))
