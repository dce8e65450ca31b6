"""Random JSON schemas as generators write them: pydantic, zod, Java's, OpenAPI's.

pydantic's come from models that are made at random, zod's from types made at random in Node
(`zod.mjs`, in a folder with `npm install zod`). Java's (jsonschema-generator, springdoc, Jackson's
of draft 3) and OpenAPI's are written here, in the shapes of these tools.
"""

from __future__ import annotations

import datetime
import decimal
import enum
import ipaddress
import json
import random
import subprocess
import uuid
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Optional, Union

Json = dict[str, Any]
NAMES = "name city colour price size owner status code kind note place weight id email url tags"
NAMES += " items meta createdAt type pattern é x-y a.b $ref"
PATTERNS = (r"^[A-Z]{3}-\d{4}$", r"^\w+$", "abc", "^a|b$", r"\d", r"^\S+$", r"^[\w.-]+$", "^x?$")
PATTERNS += (r"^(?:\+\d{1,2}\s)?\(?\d{3}\)?[\s.-]\d{3}$", r"^[^@\s]+@[^@\s]+\.[a-z]{2,}$")
PATTERNS += (r"^#(?:[0-9a-fA-F]{3}){1,2}$", r"^(?=.*[A-Z])(?=.*\d)[A-Za-z\d]{8,}$", "[^a]", "a$")
FORMATS = ("date-time", "date", "time", "duration", "uuid", "uri", "email", "hostname", "ipv4")
FORMATS += ("ipv6", "byte", "password", "url", "uri-reference", "regex", "int", "color", "phone")
ENDS = (2147483647, 9007199254740993, 2**63 - 1, 2**64 - 1)


class Drawn:
    """Draws parts of schemas; `schema` makes a whole one."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.pick: Callable[..., Any] = draw.choice
        self.number = draw.randint

    def chance(self, share: float) -> bool:
        return self.draw.random() < share

    def names(self, least: int, most: int) -> list[str]:
        return self.draw.sample(NAMES.split(), self.number(least, most))

    def schema(self) -> Json:
        raise NotImplementedError


class Java(Drawn):
    """As victools' jsonschema-generator and springdoc write classes of Java."""

    def schema(self) -> Json:
        drafts = ("http://json-schema.org/draft-07/schema#", "")
        drafts += ("https://json-schema.org/draft/2020-12/schema",)
        made = self.object(0) | {"$schema": self.pick(drafts)}
        if not made["$schema"]:
            del made["$schema"]
        loop = {"next": {"$ref": "#/$defs/Other(1)-nullable"}, "v": self.part(3)}
        other = self.object(2)
        others = [
            other,
            {"anyOf": [{"type": "null"}, other]},
            {"type": "object", "properties": loop},
        ]
        return made | {"$defs": {"Other(1)-nullable": self.pick(others)}}

    def part(self, depth: int) -> Json:
        number, pick = self.number, self.pick
        string: Json = {"type": "string"}
        limits = {"minLength": number(0, 5), "maxLength": pick([10, 255, 2147483647])}
        patterns = (*PATTERNS, r"[\p{L} ]*", r"^\p{Lu}\p{Ll}+$")
        plain: list[Json] = [
            string,
            {"type": "integer", "format": pick(["int32", "int64"])},
            {"type": "number", "format": pick(["double", "float"])} | self.range(),
            {"type": "boolean"},
            string | {"format": pick(FORMATS)},
            string | {"enum": ["ACTIVE", "INACTIVE", "DELETED"]},
            {"type": "integer", "minimum": -2147483648, "maximum": pick(ENDS)},
            string | limits,
            string | {"pattern": pick(patterns)},
            {"type": ["string", "null"]},
            {"const": pick(NAMES.split())},
        ]
        kind = number(0, 17 if depth < 3 else 10)
        made = plain[kind] if kind < len(plain) else self.nested(kind - len(plain), depth + 1)
        if self.chance(0.2):
            made |= {"nullable": True, "example": "x", "readOnly": True, "xml": {"name": "a"}}
        return made

    def nested(self, kind: int, depth: int) -> Json:
        part = self.part
        if kind < 2:
            sizes: Json = {"minItems": self.number(0, 2)} if self.chance(0.4) else {}
            return {"type": "array", "items": part(depth), "uniqueItems": self.chance(0.2)} | sizes
        if kind == 2:
            return {"type": "object", "additionalProperties": part(depth)}
        if kind == 3:
            return {"allOf": [part(depth), {"description": "x"}]}
        if kind == 4:
            return {"anyOf": [{"type": "null"}, part(depth)]}
        if kind == 5:  # a subtype, as its name says
            said = {"type": "object", "properties": {"@type": {"const": "Sub"}}}
            return {"allOf": [self.object(depth), said | {"required": ["@type"]}]}
        return self.object(depth)

    def range(self) -> Json:
        far = 3.4028234663852886e38
        return self.pick(
            [
                {},
                {"minimum": -far, "maximum": far},
                {"minimum": 0.1, "maximum": 99.99},
                {"minimum": 0, "exclusiveMinimum": True},
                {"exclusiveMaximum": 1e10},
            ]
        )

    def object(self, depth: int) -> Json:
        members = {name: self.part(depth) for name in self.names(1, 6)}
        if self.chance(0.3):
            members["ref"] = {"$ref": "#/$defs/Other(1)-nullable"}
        made: Json = {"type": "object", "properties": members}
        if self.chance(0.6):
            made["required"] = self.draw.sample([*members], self.number(0, len(members)))
        if self.chance(0.5):
            made["additionalProperties"] = False
        if self.chance(0.15):
            made["minProperties"] = self.number(0, 2)
        if self.chance(0.15):
            made["maxProperties"] = self.number(len(members), 9)
        return made


class Jackson(Java):
    """As Jackson's own module writes them: draft 3, where a member says that it is required."""

    def schema(self) -> Json:
        made = self.object(0) | {"id": "urn:jsonschema:com:example:Item"}
        made["properties"]["next"] = {"type": "object", "$ref": "urn:jsonschema:com:example:Item"}
        return made

    def part(self, depth: int) -> Json:
        kinds = ["string", "integer", "number", "boolean"]
        made: Json = {"type": self.pick(kinds)}
        if depth < 3 and self.chance(0.4):
            inner = self.part(depth + 1)
            made = self.pick([{"type": "array", "items": inner}, self.object(depth + 1)])
        elif made["type"] == "string" and self.chance(0.4):
            made["enum"] = ["A", "B"]
        return made | ({"required": True} if self.chance(0.4) else {})

    def object(self, depth: int) -> Json:
        return {"type": "object", "properties": {n: self.part(depth) for n in self.names(1, 5)}}


class OpenApi(Drawn):
    """Components of OpenAPI 3.0 and 3.1, and schemas of tools that people write."""

    def schema(self) -> Json:
        made = self.object(0)
        if self.chance(0.3):
            base = self.object(2)
            made = {"allOf": [{"$ref": "#/components/schemas/Base"}, made]}
            made |= {"components": {"schemas": {"Base": base}}}
            if self.chance(0.5):
                made["unevaluatedProperties"] = False
        return made

    def part(self, depth: int) -> Any:
        number, pick, part = self.number, self.pick, self.part
        kind = number(0, 23 if depth < 3 else 8)
        values: list[Any] = [1, 2.5, "a", 'ü\n"', None, True, 9007199254740993, [1, "x"], {"a": 1}]
        if kind == 0:
            return {"type": "string", "format": pick(FORMATS)}
        if kind == 1:
            return {"type": "integer", "minimum": number(-9, 9) * 10 ** number(0, 18)}
        if kind == 2:
            return {"type": "integer", "exclusiveMinimum": 2**53 + number(0, 9), "maximum": ENDS[2]}
        if kind == 3:
            more: Json = pick([{}, {"type": "string"}, {"type": ["integer", "null"]}])
            return {"enum": self.draw.sample(values, 4)} | more
        if kind == 4:
            return {"const": pick([*values, 1.0, -0.5, 1e30])}
        if kind == 5:
            step = pick([0.01, 0.5, 1, 2, 0.1, 7])
            return {
                "type": pick(["number", "integer"]),
                "multipleOf": step,
                "minimum": number(0, 5),
            }
        if kind == 6:
            return {"type": pick([["integer", "string", "null"], ["number", "integer"]])}
        if kind == 7:
            return pick([True, {}, {"description": "anything"}, {"type": "string", "maxLength": 5}])
        if kind == 8:
            return {
                "type": "number",
                "minimum": number(-5, 5),
                "exclusiveMinimum": self.chance(0.5),
            }
        inner = depth + 1
        if kind == 9:
            return {"oneOf": [{"type": "string", "maxLength": 5}, {"type": "integer"}, part(inner)]}
        if kind == 10:
            ways = [
                {"type": "object", "required": [name], "properties": {name: part(inner)}}
                for name in ("a", "b")
            ]
            return {"oneOf": ways}
        if kind == 11:
            return {"anyOf": [part(inner), part(inner)]}
        if kind == 12:
            return {"allOf": [self.object(inner), self.object(inner)]}
        if kind == 13:
            return {"type": "array", "items": part(inner), "minItems": number(0, 2)}
        if kind == 14:
            placed = pick(["prefixItems", "items"])
            rest = {"prefixItems": "items", "items": "additionalItems"}[placed]
            made: Json = {"type": "array", placed: [part(inner), part(inner)]}
            return made | {rest: pick([False, {"type": "integer"}]), "minItems": number(0, 3)}
        if kind == 15:
            closed = pick([False, {"type": "boolean"}])
            members = {pick(["^x-", "[0-9]", "^[a-z]+$"]): part(inner)}
            return {"type": "object", "patternProperties": members, "additionalProperties": closed}
        if kind == 16:
            names = [
                {"pattern": "^[a-z]+$"},
                {"maxLength": 4},
                {"enum": ["p", "q"]},
                {"minLength": 2},
            ]
            return {"propertyNames": pick(names), "additionalProperties": part(inner)}
        if kind == 17:
            tagged = {"k": {"enum": ["a", "b"]}, "v": part(inner), "w": {"type": "integer"}}
            made = {"type": "object", "properties": tagged, "required": ["k"]}
            made["if"] = {"properties": {"k": {"const": "a"}}}
            return made | {"then": {"required": ["v"]}, "else": {"required": ["w"]}}
        if kind == 18:
            nots: list[Json] = [
                {"type": "string"},
                {"enum": ["a", 2]},
                {"type": ["object", "array"]},
            ]
            nots += [{"required": ["a"]}, {"minimum": 3}, {"maxLength": 2}]
            return {"not": pick(nots)}
        if kind == 19:
            mixed = {"type": ["integer", "string"]}
            return {"type": "array", "contains": {"type": "integer"}, "items": mixed}
        if kind == 20:
            return self.object(inner) | {"type": "object", "nullable": True}
        if kind == 21:
            return {"required": ["a"], "properties": {"b": part(inner)}}
        if kind == 22:
            members = {name: part(inner) for name in ("a", "b", "c")}
            low = number(0, 2)
            made = {"type": "object", "properties": members, "minProperties": low}
            return made | {"maxProperties": low + 1, "additionalProperties": self.chance(0.5)}
        return self.object(inner)

    def object(self, depth: int) -> Json:
        members = {name: self.part(depth) for name in self.names(1, 5)}
        made: Json = {"type": "object", "properties": members}
        if self.chance(0.7):
            made["required"] = self.draw.sample([*members], self.number(0, len(members)))
        made |= self.pick(
            [
                {},
                {"additionalProperties": False},
                {"additionalProperties": False},
                {"unevaluatedProperties": False},
                {"additionalProperties": {"type": "integer"}},
                {"dependentRequired": {self.pick([*members]): [self.pick([*members])]}},
                {},
            ]
        )
        return made


class Pydantic(Drawn):
    """As pydantic writes models."""

    def schema(self) -> Json:
        from pydantic import BaseModel, create_model
        from pydantic.errors import PydanticUserError

        while True:
            model: Any = self.model(0)
            if self.chance(0.1):

                class Node(BaseModel):
                    value: int
                    below: list[Node] = []
                    other: Optional[Node] = None  # noqa: UP045

                Node.model_rebuild(_types_namespace={"Node": Node, "Optional": Optional})
                model = create_model("Root", node=(Node, ...), rest=(model, ...))
            warnings.simplefilter("ignore")  # of defaults that are no JSON
            try:
                made = model.model_json_schema(mode=self.pick(["validation", "serialization"]))
            except PydanticUserError:  # a type that has no schema in this mode
                continue
            return json.loads(json.dumps(made))

    def model(self, depth: int) -> Any:
        from pydantic import ConfigDict, Field, create_model

        fields: Json = {}
        for name in self.draw.sample(NAMES.split()[:-4], self.number(1, 5)):
            default = ... if self.chance(0.6) else None
            alias = self.pick([None, None, f"{name}-Alias"])
            more: Json = {"description": self.pick([None, "a thing"]), "alias": alias}
            fields[f"{name}_"] = (self.type(depth), Field(default, **more))
        config = ConfigDict(extra=self.pick(["ignore", "forbid", "allow"]))
        name = f"M{self.number(0, 10**9)}"
        return create_model(name, __config__=config, **fields)

    def type(self, depth: int) -> Any:
        if depth > 1 or self.chance(0.6):
            return self.leaf()
        inner, kind = self.type(depth + 1), self.number(0, 12)
        from pydantic import Field, create_model

        if kind < 3:
            sized = Field(min_length=self.number(0, 2), max_length=self.number(2, 4))
            pairs = tuple[inner, self.type(depth + 1)]  # type: ignore[misc]
            return [list[inner], Annotated[list[inner], sized], pairs][kind]
        if kind == 3:
            return self.pick([Optional[inner], tuple[inner, ...]])  # noqa: UP045
        if kind == 4:
            return Union[inner, self.type(depth + 1)]  # noqa: UP007
        if kind == 5:
            return dict[str, inner]
        if kind == 6:
            named = Annotated[str, Field(pattern="^x")]
            keys = [Literal["a", "b"], int, uuid.UUID, named]
            return dict[self.pick(keys), inner]  # type: ignore[misc]
        if kind == 7:
            return self.pick([set[int], set[Literal["a", "b", "c"]], frozenset[bool]])
        if kind == 8:
            ways = [
                create_model(
                    f"W{self.number(0, 10**9)}", kind=(Literal[name], ...), value=(each, ...)
                )
                for name, each in (("a", inner), ("b", self.type(depth + 1)))
            ]
            return Annotated[Union[tuple(ways)], Field(discriminator="kind")]  # noqa: UP007
        return self.model(depth + 1)

    def leaf(self) -> Any:
        import pydantic
        from pydantic import Field

        pick, number = self.pick, self.number
        values = self.draw.sample([*NAMES.split(), 1, 2, True], 3)
        listed = enum.Enum(f"E{number(0, 10**9)}", {f"v{i}": each for i, each in enumerate(values)})
        places, digits = number(0, 3), number(3, 10)
        return pick(
            [
                int,
                float,
                str,
                bool,
                Any,
                bytes,
                decimal.Decimal,
                uuid.UUID,
                listed,
                datetime.date,
                datetime.datetime,
                datetime.time,
                datetime.timedelta,
                ipaddress.IPv4Address,
                ipaddress.IPv6Address,
                pydantic.AnyUrl,
                pydantic.HttpUrl,
                pydantic.PositiveInt,
                pydantic.NegativeFloat,
                pydantic.NonNegativeInt,
                pydantic.SecretStr,
                pydantic.FiniteFloat,
                pydantic.Json,
                pydantic.Base64Str,
                Literal[tuple(values)],
                Annotated[int, Field(ge=number(-100, 0), lt=number(1, 2 ** number(1, 66)))],
                Annotated[float, Field(gt=number(-10, 0), le=pick([0.5, 1, 3.25, 1e6, 1e22]))],
                Annotated[str, Field(min_length=number(0, 3), max_length=number(3, 40))],
                Annotated[str, Field(json_schema_extra={"pattern": pick(PATTERNS)})],
                Annotated[str, Field(json_schema_extra={"format": pick(["email", "hostname"])})],
                Annotated[decimal.Decimal, Field(max_digits=digits, decimal_places=places)],
                Annotated[int, Field(multiple_of=pick([1, 2, 5, 10, 100, 7]))],
                Annotated[int, Field(ge=-(2**63), le=2**63 - 1)],
            ]
        )


KINDS: dict[str, type[Drawn]] = {
    "pydantic": Pydantic,
    "Java": Java,
    "Jackson": Jackson,
    "OpenAPI": OpenApi,
}


def drawn(kind: str, count: int, seed: int) -> Iterator[Json]:
    """Yield random schemas of one kind of `KINDS`, each from a seed of its own."""
    for number in range(count):
        yield KINDS[kind](random.Random(f"{kind} {seed} {number}")).schema()


def zod(count: int, seed: int, folder: Path) -> Iterator[Json]:
    """Yield schemas of types of zod, by Node in a folder where zod is installed."""
    code = Path(__file__).with_name("zod.mjs").read_text(encoding="utf-8")
    command = ["node", "--input-type=module", "-e", code, str(count), str(seed)]
    made = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    for line in made.stdout.splitlines():
        yield json.loads(line)
