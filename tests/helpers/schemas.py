"""A validator of the few keywords of JSON Schema that tests use."""

from __future__ import annotations

import json
import re
from typing import Any

_TYPES: dict[str, Any] = {
    "null": lambda v: v is None,
    "boolean": lambda v: isinstance(v, bool),
    "integer": lambda v: isinstance(v, int) and not isinstance(v, bool),
    "number": lambda v: isinstance(v, int | float) and not isinstance(v, bool),
    "string": lambda v: isinstance(v, str),
    "array": lambda v: isinstance(v, list),
    "object": lambda v: isinstance(v, dict),
}
_RULES: dict[str, Any] = {
    "enum": lambda v, rule: v in rule,
    "const": lambda v, rule: v == rule,
    "minimum": lambda v, rule: v >= rule,
    "maximum": lambda v, rule: v <= rule,
    "exclusiveMinimum": lambda v, rule: v > rule,
    "exclusiveMaximum": lambda v, rule: v < rule,
    "minLength": lambda v, rule: len(v) >= rule,
    "maxLength": lambda v, rule: len(v) <= rule,
    "pattern": lambda v, rule: re.search(rule, v) is not None,
    "format": lambda v, rule: re.fullmatch(r"\d{4}-\d\d-\d\d", v) is not None,
    "minItems": lambda v, rule: len(v) >= rule,
    "maxItems": lambda v, rule: len(v) <= rule,
    "required": lambda v, rule: set(rule) <= set(v),
}


def validates(value: Any, schema: dict[str, Any], root: dict[str, Any] | None = None) -> bool:
    """Whether a value is what the schema says; KeyError for a keyword that is not known here."""
    root = schema if root is None else root
    for keyword, rule in schema.items():
        if keyword == "$defs":
            good = True
        elif keyword == "$ref":
            good = validates(value, root["$defs"][rule.rsplit("/", 1)[-1]], root)
        elif keyword == "type":
            good = any(_TYPES[name](value) for name in ([rule] if isinstance(rule, str) else rule))
        elif keyword == "anyOf":
            good = any(validates(value, each, root) for each in rule)
        elif keyword == "items":
            good = all(validates(each, rule, root) for each in value)
        elif keyword == "properties":
            good = all(validates(value[k], s, root) for k, s in rule.items() if k in value)
        elif keyword == "additionalProperties":
            good = rule or set(value) <= set(schema["properties"])
        else:
            good = _RULES[keyword](value, rule)
        if not good:
            return False
    return True


def is_valid(text: str, schema: dict[str, Any]) -> bool:
    """Whether a text is JSON by the schema."""
    return validates(json.loads(text), schema)
