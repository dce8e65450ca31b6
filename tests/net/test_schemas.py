"""Schemas beside jsonschema: odd ones, and random ones as generators write them."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from benchmarks.serving import generated_schemas
from benchmarks.serving.schema_walks import Walks, judge_of
from tests.models.test_grammar import GRAMMARS, says

from paceline.errors import InvalidOption

WALKS = Walks()
INT, TEXT, NONE = {"type": "integer"}, {"type": "string"}, {"type": "null"}
DRAFT = "http://json-schema.org/draft-0{}/schema#"
SUM = {
    "oneOf": [
        {
            "type": "object",
            "properties": {"left": {"$ref": "#"}, "op": {"const": op}, "right": {"$ref": "#"}},
            "required": ["left", "op", "right"],
            "additionalProperties": False,
        }
        for op in ("add", "mul")
    ]
    + [INT],
}
BASE = {"b": {"properties": {"a": INT}, "required": ["a"]}}
LOOP = {"n": {"type": "object", "properties": {"n": {"$ref": "#/$defs/n"}}, "required": ["n"]}}
TAGGED = {
    "type": "object",
    "properties": {"k": {"enum": ["x", "y"]}},
    "required": ["k"],
    "if": {"properties": {"k": {"const": "x"}}},
    "then": {"properties": {"v": INT}, "required": ["v"]},
    "else": {"properties": {"w": INT}},
    "unevaluatedProperties": False,
}
HELD: list[tuple[Any, list[str]]] = [
    (
        {"$defs": BASE, "allOf": [{"$ref": "#/$defs/b"}], "unevaluatedProperties": False}
        | {"type": "object", "properties": {"c": NONE}},
        ['{"c":null,"a":1}', '{"a":1}', '{"a":1,"d":1}', '{"c":null}', '{"a":"x"}'],
    ),
    (
        {"type": "object", "anyOf": [{"properties": {n: INT}} for n in "ab"]}
        | {"unevaluatedProperties": False},
        ['{"a":1}', '{"b":1}', '{"a":1,"b":2}', '{"c":1}', "{}", '{"a":"x"}'],
    ),
    (TAGGED, ['{"k":"x","v":1}', '{"k":"x"}', '{"k":"y","w":1}', '{"k":"y","v":1}', '{"k":"y"}']),
    (
        {"allOf": [{"prefixItems": [INT]}], "unevaluatedItems": TEXT, "type": "array"},
        ["[1]", '[1,"a"]', "[1,2]", '["a"]', "[]"],
    ),
    (
        {"type": "object", "additionalProperties": INT, "unevaluatedProperties": False},
        ['{"a":1}', '{"a":"x"}', "{}"],
    ),
    ({"$schema": DRAFT.format(4), "minimum": 3, "exclusiveMinimum": True} | INT, ["3", "4"]),
    ({"$schema": DRAFT.format(4), "maximum": 3, "exclusiveMaximum": False} | INT, ["3", "4"]),
    (
        {"$schema": DRAFT.format(7), "items": [INT, TEXT], "additionalItems": False}
        | {"type": "array"},
        ['[1,"a"]', '[1,"a",2]', "[1]", '["a"]'],
    ),
    (
        {"$schema": DRAFT.format(3), "type": "object"}
        | {"properties": {"a": INT | {"required": True}, "b": {"type": "any"}}},
        ['{"a":1}', "{}", '{"a":1,"b":[]}', '{"b":1}'],
    ),
    ({"$schema": DRAFT.format(7), "dependencies": {"a": ["b"]}}, ['{"a":1}', '{"b":1}', "1"]),
    ({"required": ["a"]}, ['{"a":1}', "{}", "1", "[]", '{"a":1,"b":2}']),
    (
        {"enum": [1, "a", None, [1], {"a": 1}], "type": ["integer", "array", "object"]},
        ["1", '"a"', "null", "[1]", '{"a":1}', "[2]"],
    ),
    ({"const": 2, "enum": [1, 2]}, ["1", "2"]),
    ({"enum": ["2024-02-30", "2024-02-29"], "format": "date"}, ['"2024-02-30"', '"2024-02-29"']),
    ({"enum": ["abc", "b", 5], "pattern": "^a", "minimum": 6}, ['"abc"', '"b"', "5"]),
    ({"oneOf": [True, INT, False]}, ["1", '"a"']),
    ({"oneOf": [INT, {"type": "number", "minimum": 5}]}, ["3", "7", "7.5", "2.5"]),
    ({"oneOf": [TEXT | {"maxLength": 3}, TEXT | {"minLength": 2}]}, ['"a"', '"ab"', '"abcd"']),
    (SUM, ["1", '{"left":1,"op":"add","right":{"left":1,"op":"mul","right":2}}', '{"left":1}']),
    ({"$defs": LOOP, "anyOf": [{"$ref": "#/$defs/n"}, INT]}, ["1", '{"n":1}', '"a"']),
    (
        {"$defs": LOOP, "type": "object", "properties": {"a": {"$ref": "#/$defs/n"}}},
        ["{}", '{"a":{}}', '{"b":1}'],
    ),
    (
        {"type": "object", "properties": {"ab": {"minimum": 3}}, "additionalProperties": False}
        | {"patternProperties": {"^a": INT}},
        ['{"ab":3}', '{"ab":2}', '{"ac":1}', '{"ac":"x"}', '{"b":1}'],
    ),
    (
        {"type": "object", "propertyNames": {"pattern": "^x"}, "properties": {"a": INT}},
        ['{"xa":1}', '{"a":1}', "{}", '{"b":1}'],
    ),
    (
        {"type": "object", "dependentSchemas": {"a": {"required": ["b"]}}},
        ['{"a":1}', '{"b":1}', '{"a":1,"b":2}', "{}"],
    ),
    (TEXT | {"pattern": "^a|b$"}, ['"ax"', '"xb"', '"x"']),
    (TEXT | {"pattern": r"^\\Z$"}, [r'"\\Z"', '"Z"', '"$"']),
    (TEXT | {"pattern": r"^\\\/$"}, [r'"\\/"', '"/"']),
    (TEXT | {"pattern": r"a\.$"}, ['"a."', '"a"', '"xa."']),
    (TEXT | {"maxLength": 2147483647, "minLength": 1.0}, ['"a"', '""']),
    ({"not": {"properties": {"a": INT}, "required": ["a"]}}, ['{"a":1}', '{"a":"x"}', "{}", "1"]),
    (TEXT | {"not": {"const": ""}}, ['""', '"a"']),
    ({"type": "object", "properties": {"": INT}}, ['{"":1}', '{"":"a"}', '{"a":"a"}']),
    ({"type": "number", "exclusiveMinimum": 0}, ["9e-390", "5e-324", "0.0", "1e-7", "0.001"]),
    ({"type": "number", "exclusiveMaximum": 0}, ["-9e-390", "-5e-324", "-0.0", "-2.5", "1e5"]),
    ({"type": "number", "maximum": 5e-324}, ["9e-324", "5e-324", "0", "-1e-7", "1e-7"]),
    ({"type": "number", "multipleOf": 5}, ["5", "10.0", "7", "5.5", "-20"]),
    (
        {"type": "number", "not": INT},
        ["1.5", "1", "1.0", "1e2", "-0.25", "6049776021261395285.5", "1.00000000000000000001"],
    ),
    ({"not": {"enum": [1, "a"]}}, ["1", "1.0", "2", '"a"', '"b"', "null"]),
    ({"type": "array", "contains": INT, "minContains": 0}, ["[]", '["a"]']),
    ({"$defs": {"a/b~": INT}, "$ref": "#/$defs/a~1b~0"}, ["1", '"a"']),
    ({"$defs": {"a": {"$anchor": "x"} | INT}, "$ref": "#x"}, ["1", '"a"']),
    ({"$id": "http://x/s", "$defs": {"a": INT}, "$ref": "http://x/s#/$defs/a"}, ["1", '"a"']),
    (TEXT | {"nullable": True}, ["null", '"a"', "1"]),
]
NAMED: list[tuple[Any, str]] = [
    (TEXT | {"pattern": "(?i)^a"}, "#/pattern"),
    (TEXT | {"pattern": "(?<=a)b"}, "#/pattern"),
    ({"enum": ["b"], "pattern": "(?<=a)b"}, "#/pattern"),
    ({"oneOf": [INT | {"multipleOf": 7, "minimum": 0, "maximum": 50}, {"minimum": 3}]}, "#/oneOf"),
    ({"extends": {"type": "object"}}, "#/extends"),
    (
        {"type": "array", "contains": INT, "unevaluatedItems": TEXT},
        "#/unevaluatedItems",
    ),
    (
        {"if": {"minItems": 1}, "then": {"items": {"uniqueItems": True}}},
        "#/then/items/uniqueItems",
    ),
]
REFUSED: list[tuple[Any, str]] = [
    ({"$ref": "#"}, "refers at # to itself"),
    ({"type": "object", "allOf": [{"$ref": "#"}]}, "to itself"),
    (
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
        "self",
    ),
    ({"$ref": "#/$defs/n", "$defs": LOOP}, "never ends"),
    ({"$ref": 5}, r"\$ref"),
    ({"$ref": "other.json#/a"}, "does not fetch"),
    ({"required": [1]}, "required"),
    ({"required": [[1]]}, "required"),
    ({"required": "a", "properties": {"a": {"required": True}}}, "required"),
    ({"dependentRequired": {"a": 5}}, "dependentRequired"),
    ({"format": {}}, "format"),
    ({"minLength": -1}, "minLength"),
    ({"maxItems": 1.5}, "maxItems"),
    ({"maxLength": True}, "maxLength"),
    ({"multipleOf": 0}, "multipleOf"),
    ({"type": [["a"]]}, "type"),
    ({"properties": []}, "properties"),
    ({"allOf": [5]}, "no schema"),
    ({"enum": []}, "allows no value"),
    ({"anyOf": []}, "allows no value"),
    ({"oneOf": [True, INT, True]}, "allows no value"),
    ({"type": "object", "minProperties": 3, "maxProperties": 2}, "minProperties 3"),
    ({"type": "object", "required": ["a"], "properties": {"a": False}}, "'a' is required"),
    ('{"const": 1e999}', "1e999"),
    ('{"const": NaN}', "NaN"),
]


@pytest.mark.parametrize(("schema", "texts"), HELD, ids=lambda each: json.dumps(each)[:60])
def test_odd_schemas_are_held(schema: Any, texts: list[str]) -> None:
    judge = judge_of(schema)
    expected = [judge.is_valid(json.loads(text)) for text in texts]
    assert [says(GRAMMARS.json_schema(schema), text) for text in texts] == expected
    assert True in expected


@pytest.mark.parametrize(("schema", "place"), NAMED, ids=lambda each: json.dumps(each)[:60])
def test_what_is_not_held_is_named(schema: Any, place: str) -> None:
    assert GRAMMARS.json_schema(schema, strict=False).unheld == (place,)
    with pytest.raises(InvalidOption, match="no grammar holds"):
        GRAMMARS.json_schema(schema)


@pytest.mark.parametrize(("schema", "named"), REFUSED, ids=lambda each: json.dumps(each)[:60])
def test_what_is_wrong_is_refused_by_name(schema: Any, named: str) -> None:
    with pytest.raises(InvalidOption, match=named):
        GRAMMARS.json_schema(schema)


@pytest.mark.parametrize("kind", generated_schemas.KINDS)
def test_schemas_of_generators_are_held_or_named(kind: str) -> None:
    for number, schema in enumerate(generated_schemas.drawn(kind, 50, 7)):
        found = WALKS.verdict(schema, random.Random(number), 1, 2)
        assert found.state != "wrong", (found.why, json.dumps(schema))
