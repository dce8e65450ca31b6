"""Random walks through grammars of schemas: is all that they allow valid, and all valid allowed?

Of each schema texts are drawn, token by token, from what its grammar allows; `jsonschema` judges
them, formats included. The other way round values are drawn from the schema itself; those that
validate must be allowed, in the order of members that the schema has. Keywords that the compiler
names as not held are taken out of the schema before it judges.
"""

from __future__ import annotations

import copy
import json
import random
import re
import unicodedata
import warnings
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from functools import partial
from itertools import islice, permutations, product
from re import _constants as op  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any, NamedTuple

import numpy as np
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as CoreTokenizer

from paceline.errors import InvalidOption
from paceline.models.grammar import Grammars, GrammarState
from paceline.models.text import Tokenizer

Json = dict[str, Any]
_END = "<end>"
_LETTER = {"Lu": "A", "Ll": "a"}
_LETTERS = 'abcXYZ019 _-."\\\n/éü\U0001f600\u2028'
_LONG = 400  # tokens of a walk
_SPACES = r"\t-\r \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"
_SETS = {"d": "0-9", "w": "A-Za-z0-9_", "s": _SPACES}
_EXAMPLES = {
    "date": "2024-02-29",
    "time": "12:30:00Z",
    "date-time": "2024-02-29T12:30:00.5+02:00",
    "duration": "P1DT2H",
    "uuid": "123e4567-e89b-42d3-a456-426614174000",
    "ipv4": "192.168.0.1",
    "ipv6": "2001:db8::1",
    "email": "a.b@example.org",
    "hostname": "www.example.org",
    "uri": "https://example.org/a?b=1#c",
}


class Verdict(NamedTuple):
    """What came of a schema: "held", "named", "empty" (nothing is valid) or "wrong", and why."""

    state: str
    why: str
    texts: int
    values: int


class Walks:
    """Walks through grammars whose tokens are bytes."""

    def __init__(self) -> None:
        letters = sorted(pre_tokenizers.ByteLevel.alphabet())
        core = CoreTokenizer(models.BPE({each: i for i, each in enumerate([*letters, _END])}, []))
        core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        core.decoder = decoders.ByteLevel()
        core.add_special_tokens([AddedToken(_END, special=True, normalized=False)])
        self._end = len(letters)
        self._tokenizer = Tokenizer(core, eos_token_ids=(self._end,))
        self._grammars = Grammars(self._tokenizer, self._end + 1)
        self._closing = np.zeros(self._end + 1, np.bool_)
        self._closing[[self._tokenizer.encode(sign)[0] for sign in '"]},']] = True

    def verdict(self, schema: Any, draw: random.Random, texts: int = 1, values: int = 3) -> Verdict:
        """Judge the grammar of a schema by so many texts and values."""
        from jsonschema.exceptions import ValidationError

        text = ""
        try:
            grammar = self._grammars.json_schema(schema, strict=False)
        except InvalidOption as error:
            if "allows no value" in str(error):
                judge, found = judge_of(schema), Writer(schema, draw)
                for value in (found.value(schema) for _ in range(20)):
                    if judge.is_valid(value):
                        return Verdict("wrong", f"{error}, but {json.dumps(value)}", 0, 0)
                return Verdict("empty", str(error), 0, 0)
            return Verdict("named", str(error), 0, 0)
        judge, state = judge_of(without(schema, grammar.unheld)), grammar.start()
        known = (0, 0)
        try:
            for _ in range(texts):
                text = self._written(state, draw)
                if text:
                    known = (known[0] + 1, 0)
                    judge.validate(json.loads(text))
            writer, whole = Writer(schema, draw), judge_of(schema)
            for _ in range(values):
                value = writer.value(schema)
                if whole.is_valid(value):
                    known = (known[0], known[1] + 1)
                    if not self._allows(state, value) and not _loose(grammar.unheld):
                        return Verdict("wrong", f"does not allow {json.dumps(value)}", *known)
        except InvalidOption as error:  # a limit of work, which is told
            return Verdict("named", str(error), *known)
        except (ValidationError, ValueError) as error:
            said = getattr(error, "message", str(error))[:200]
            return Verdict("wrong", f"{said}: {text} beside {list(grammar.unheld)}", *known)
        return Verdict("named" if grammar.unheld else "held", ", ".join(grammar.unheld), *known)

    def _written(self, state: GrammarState, draw: random.Random) -> str:
        # A text that the grammar allows; "" if it does not end in time.
        out: list[int] = []
        for count in range(_LONG):
            allowed = state.mask(out)
            if not allowed.any():
                raise ValueError("a dead end")
            if allowed[self._end]:
                if allowed.sum() == 1 or draw.random() < 0.7:
                    return self._tokenizer.decode(out)
                allowed = allowed.copy()
                allowed[self._end] = False
            if count > 60 and draw.random() < 0.7 and (allowed & self._closing).any():
                allowed = allowed & self._closing
            out.append(int(draw.choice(np.flatnonzero(allowed).tolist())))
        return ""

    def _allows(self, state: GrammarState, value: Any) -> bool:
        # In one of the orders of its members.
        for each in islice(_orders(value), 120):
            ids = [*self._tokenizer.encode(json.dumps(each, ensure_ascii=False)), self._end]
            if state.valid(ids) == len(ids):
                return True
        return False


def _loose(unheld: Sequence[str]) -> bool:
    # Names that cannot be told apart belong to no pattern.
    return any(each.endswith(("patternProperties", "propertyNames")) for each in unheld)


def _orders(value: Any) -> Iterator[Any]:
    if isinstance(value, list):
        for parts in product(*(list(islice(_orders(each), 24)) for each in value)):
            yield list(parts)
    elif isinstance(value, dict):
        inner = {key: list(islice(_orders(each), 24)) for key, each in value.items()}
        for keys in permutations(value):
            for parts in product(*(inner[key] for key in keys)):
                yield dict(zip(keys, parts, strict=True))
    else:
        yield value
        if isinstance(value, float) and value.is_integer():
            yield int(value)  # as whole numbers are written


# The judge.


def judge_of(schema: Any) -> Any:
    """Return jsonschema's validator, with formats, exact decimals and ECMAScript's patterns."""
    from jsonschema import Draft202012Validator, exceptions, validators

    def multiple_of(_: Any, step: Any, value: Any, __: Any) -> Iterator[Any]:
        if isinstance(value, int | float) and not isinstance(value, bool):
            with np.errstate(all="ignore"):
                left = Decimal(str(value)) % Decimal(str(step)) if abs(value) < 1e20 else 0
            if left:
                yield exceptions.ValidationError(f"{value} is not a multiple of {step}")

    def pattern(_: Any, rule: str, value: Any, __: Any) -> Iterator[Any]:
        import regex

        known = value
        # Emoji and letters differ with Unicode's version.
        if "\\p{Ext" in rule and isinstance(value, str) and not value.isascii():
            return
        if isinstance(value, str) and "\\p{L" in rule:
            known = "".join(_LETTER.get(unicodedata.category(c), c) for c in value)
        if isinstance(value, str) and not regex.search(_ecma(rule), known):
            yield exceptions.ValidationError(f"{value!r} does not match {rule!r}")

    schema = _modern(schema)
    base = validators.validator_for(schema, default=Draft202012Validator)
    made = validators.extend(base, {"multipleOf": multiple_of, "pattern": pattern})
    return made(schema, format_checker=_formats())


def _formats() -> Any:
    # Those that the compiler holds; the others are annotations.
    from jsonschema import Draft202012Validator, FormatChecker

    checker = FormatChecker(())
    known = Draft202012Validator.FORMAT_CHECKER.checkers
    checker.checkers = {name: known[name] for name in _EXAMPLES}
    for bits in (8, 16, 32, 64):
        for name, low, high in ((f"int{bits}", -(2 ** (bits - 1)), 2 ** (bits - 1)),
                                (f"uint{bits}", 0, 2**bits)):  # fmt: skip
            whole = partial(_is_within, low=low, high=high)
            checker.checkers[name] = whole, ()
    return checker


def _is_within(value: Any, low: int, high: int) -> bool:
    whole = isinstance(value, int) and not isinstance(value, bool)
    return not whole or low <= value < high


def _ecma(pattern: str) -> str:
    """Return a pattern of ECMAScript for `regex`: sets of ASCII, an end that is the end."""
    out, inside = [], False
    for part in re.findall(r"\\.|.", pattern, re.DOTALL):
        if part[0] == "\\" and part[1].lower() in _SETS:
            sign = "^" if part[1].isupper() else ""
            made = _SETS[part[1].lower()]
            part = made if inside and not sign else part if inside else f"[{sign}{made}]"
        elif part in "[]":
            inside = part == "["
        elif part == "$" and not inside:
            part = r"\Z"
        out.append(part)
    return "".join(out)


def _modern(schema: Any, lists: bool = True) -> Any:
    # What OpenAPI 3.0 and draft 3 say, in the words of later drafts.
    if isinstance(schema, list):
        return [_modern(each, lists) for each in schema]
    if not isinstance(schema, dict) or "draft-03" in str(schema.get("$schema", "")):
        return schema
    draft = str(schema.get("$schema", ""))
    lists = lists and not any(each in draft for each in ("draft-06", "draft-07"))
    said = ("enum", "const", "dependentRequired")
    out = {k: each if k in said else _modern(each, lists) for k, each in schema.items()}
    if out.get("nullable") is True and isinstance(out.get("type"), str):
        out["type"] = [out["type"], "null"]
    if "draft-04" in draft:
        del out["$schema"]
    for key, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if isinstance(out.get(key), bool) and out.pop(key) and bound in out:
            out[key] = out.pop(bound)
    members = out.get("properties")
    if isinstance(members, dict):
        asked = [name for name, each in members.items() if _is_required(each)]
        if asked:
            out["required"] = [*out.get("required", []), *asked]
    if _is_required(out):
        del out["required"]
    if str(out.get("id", "")).startswith("urn:"):
        out["$id"] = out.pop("id")
    if isinstance(out.get("items"), list) and lists:
        out["prefixItems"] = out.pop("items")
        if "additionalItems" in out:
            out["items"] = out.pop("additionalItems")
    return out


def _is_required(schema: Any) -> bool:
    return isinstance(schema, dict) and schema.get("required") is True


def without(schema: Any, pointers: Sequence[str]) -> Any:
    """Return a schema without keywords, by JSON pointers."""
    out = copy.deepcopy(schema)
    for pointer in sorted(pointers, key=len, reverse=True):  # what is inside goes first
        *steps, keyword = pointer.removeprefix("#/").split("/")
        at: Any = out
        for step in steps:
            step = step.replace("~1", "/").replace("~0", "~")
            at = at[int(step)] if isinstance(at, list) else at[step]
        if keyword == "oneOf":  # one of them is held, and not that others are not
            at["anyOf"] = at.pop("oneOf")
            continue
        for key in _beside(keyword):
            at.pop(key, None)
    return out


def _beside(keyword: str) -> tuple[str, ...]:
    if keyword in ("contains", "maxContains"):
        return ("contains", "minContains", "maxContains")
    return ("if", "then", "else") if keyword == "if" else (keyword,)


# Values.


# Larger numbers that need not be integers have an exponent, as programs write them.
_PLAIN = 10**40


def _whole(bound: float) -> int:
    # As the digits say: the largest double is a little more than they do.
    return int(Decimal(str(bound)) if isinstance(bound, float) else bound)


class Writer:
    """Draws values that a schema may allow, by some of its keywords; a judge says which it does."""

    def __init__(self, root: Any, draw: random.Random) -> None:
        self._root = root
        self._draw = draw

    def value(self, schema: Any, depth: int = 0) -> Any:
        """Return a value."""
        draw = self._draw
        at = self._merged(schema, 0)
        if "const" in at:
            return at["const"]
        if at.get("enum"):
            return draw.choice(at["enum"])
        types = at.get("type") or self._types(at)
        types = [types] if isinstance(types, str) else types
        kind = draw.choice([*types, *(["null"] if at.get("nullable") is True else [])])
        if depth > 9 or (depth > 6 and "null" in types):
            return None
        return getattr(self, f"_{kind}")(at, depth)

    def _types(self, at: Mapping[str, Any]) -> list[str]:
        if {"properties", "required", "additionalProperties", "propertyNames"} & at.keys():
            return ["object"]
        if {"items", "prefixItems", "contains"} & at.keys():
            return ["array"]
        return ["string"] if "pattern" in at else ["integer", "string", "null", "boolean", "number"]

    def _merged(self, schema: Any, depth: int) -> Json:
        # One schema of those that hold at one place, with a choice of each anyOf and oneOf.
        if not isinstance(schema, dict) or depth > 20:
            return {}
        parts = [schema]
        if "$ref" in schema:
            parts.append(self._merged(self._target(schema["$ref"]), depth + 1))
        inner = list(schema.get("allOf", ()))
        inner += [self._draw.choice(schema[key]) for key in ("anyOf", "oneOf") if schema.get(key)]
        if "if" in schema:
            inner.append(schema.get(self._draw.choice(["then", "else"]), {}))
        parts += [self._merged(each, depth + 1) for each in inner]
        out: Json = {}
        for part in parts:
            for key, value in part.items():
                if key == "properties" and key in out:
                    for name, each in value.items():
                        old = out[key].get(name)
                        new = each if old is None else {"allOf": [old, each]}
                        out[key] = {**out[key], name: new}
                elif key == "required" and isinstance(value, list):
                    out[key] = [*out.get(key, ()), *value]
                else:
                    out.setdefault(key, value)
        return out

    def _target(self, ref: str) -> Any:
        at: Any = self._root
        if ref.startswith("#/"):
            for step in ref[2:].split("/"):
                at = at[step.replace("~1", "/").replace("~0", "~")]
        return at

    def _null(self, at: Json, depth: int) -> Any:
        return None

    def _boolean(self, at: Json, depth: int) -> bool:
        return self._draw.random() < 0.5

    def _integer(self, at: Json, depth: int) -> int:
        low = max(_whole(at.get(key, -(10**6))) for key in ("minimum", "exclusiveMinimum"))
        high = min(_whole(at.get(key, 10**30)) for key in ("maximum", "exclusiveMaximum"))
        low, high = (low, high) if low <= high else (high, low)
        near = [low, low + 1, high, high - 1, 0, self._draw.randint(low, min(high, low + 1000))]
        step = at.get("multipleOf", 1)
        found = self._draw.choice(near)
        return int(found // step * step) + int(step) if step >= 1 and step != 1 else found

    def _number(self, at: Json, depth: int) -> Any:
        if self._draw.random() < 0.3:
            whole = self._integer(at, depth)
            return whole if abs(whole) < _PLAIN else float(whole)
        low = float(at.get("minimum", at.get("exclusiveMinimum", -1000)))
        high = float(at.get("maximum", at.get("exclusiveMaximum", low + 2000)))
        share = self._draw.choice([0, 1, 0.5, self._draw.random()])
        found = low * (1 - share) + high * share
        step = at.get("multipleOf")
        found = float(Decimal(str(step)) * int(found / step)) if step else found
        return _whole(found) if found.is_integer() and abs(found) < _PLAIN else found

    def _string(self, at: Json, depth: int) -> str:
        if at.get("format") in _EXAMPLES:
            return _EXAMPLES[at["format"]]
        if "pattern" in at:
            return sampled(at["pattern"], self._draw)
        low = at.get("minLength", 0)
        size = self._draw.randint(low, max(low, min(at.get("maxLength", 12), low + 12)))
        return "".join(self._draw.choice(_LETTERS) for _ in range(size))

    def _array(self, at: Json, depth: int) -> list[Any]:
        low = int(at.get("minItems", 0))
        size = self._draw.randint(low, max(low, min(at.get("maxItems", low + 2), low + 2)))
        size = low if depth > 4 else size
        placed, rest = at.get("prefixItems", ()), at.get("items", {})
        if isinstance(rest, list):
            placed, rest = rest, at.get("additionalItems", {})
        size = min(size, len(placed)) if rest is False else size
        return [self.value(placed[i] if i < len(placed) else rest, depth + 1) for i in range(size)]

    def _object(self, at: Json, depth: int) -> Json:
        members, needed = at.get("properties", {}), at.get("required", ())
        needed = needed if isinstance(needed, list) else ()
        share = 0.6 if depth < 3 else 0.1
        out = {
            name: self.value(inner, depth + 1)
            for name, inner in members.items()
            if name in needed or _is_required(inner) or self._draw.random() < share
        }
        rest = at.get("additionalProperties", at.get("unevaluatedProperties", {}))
        out |= {name: self.value(rest, depth + 1) for name in needed if name not in out}
        for pattern, inner in at.get("patternProperties", {}).items():
            if self._draw.random() < share:
                out.setdefault(sampled(pattern, self._draw), self.value(inner, depth + 1))
        asked = at.get("propertyNames", {})
        for name in asked.get("enum", ()):  # in the order of the schema
            if rest is not False and self._draw.random() < 0.5:
                out.setdefault(name, self.value(rest, depth + 1))
        while rest is not False and "enum" not in asked and self._draw.random() < 0.3:
            out.setdefault(self._string(asked, depth), self.value(rest, depth + 1))
        return {name: out[name] for name in [*members, *needed] if name in out} | out


def sampled(pattern: str, draw: random.Random) -> str:
    """Return a text in which a pattern is often found; "" if Python does not read it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return "".join(_sampled(parser.parse(pattern, re.ASCII), draw))
    except re.error:
        return ""


def _sampled(nodes: Any, draw: random.Random) -> Iterator[str]:
    for kind, value in nodes:
        if kind is op.LITERAL:
            yield chr(value)
        elif kind in (op.ANY, op.NOT_LITERAL):
            yield draw.choice("bcxyz")
        elif kind is op.IN:
            yield _member(value, draw)
        elif kind is op.BRANCH:
            yield from _sampled(draw.choice(value[1]), draw)
        elif kind is op.SUBPATTERN:
            yield from _sampled(value[3], draw)
        elif kind in (op.MAX_REPEAT, op.MIN_REPEAT):
            low, high, inner = value
            for _ in range(draw.randint(low, min(high, low + 3))):
                yield from _sampled(inner, draw)


def _member(items: Any, draw: random.Random) -> str:
    known = re.compile(f"[{''.join(map(_source, items))}]", re.ASCII)
    return draw.choice([c for c in map(chr, range(32, 127)) if known.match(c)] or [""])


def _source(item: Any) -> str:
    kind, value = item
    if kind is op.NEGATE:
        return "^"
    if kind is op.LITERAL:
        return re.escape(chr(value))
    if kind is op.RANGE:
        return f"{re.escape(chr(value[0]))}-{re.escape(chr(value[1]))}"
    name = str(value).lower()
    letter = "d" if "digit" in name else "w" if "word" in name else "s"
    return "\\" + (letter.upper() if "not" in name else letter)
