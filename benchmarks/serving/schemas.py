"""Answers by JSON schemas over HTTP: does every one that ended validate, and what does it cost?

    paceline serve --port 8000
    python -m benchmarks.serving.schemas --url http://127.0.0.1:8000 --count 240

Schemas are drawn from a seed, of the kinds that public collections have: nested objects, arrays,
enumerations, patterns, formats, ranges, references (recursive too), anyOf, maps, tuples. Each is
asked for at temperature 1. `jsonschema` checks the answers, with its formats
(pip install 'jsonschema[format-nongpl]'). The same chats are then asked without schemas for as many
tokens. With --tools FOLDER the schemas are those of tools in BFCL's files (bfcl-eval, `data`),
asked for by `tool_choice` "required". The exit code is 1 if an answer does not validate.

    python -m benchmarks.serving.schemas --walk 10000 --zod FOLDER

asks no server: schemas as pydantic, zod, Java's generators and OpenAPI's write them
(`generated_schemas.py`) are compiled, and random walks through their grammars judged
(`schema_walks.py`). Each is held exactly, or what is not held is named; all else is wrong.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import httpx
from benchmarks.script import Findings, add_output, run_script
from benchmarks.serving import generated_schemas
from benchmarks.serving.schema_walks import Walks

from paceline.lab.measure import results

Json = dict[str, Any]
CHAT = "/v1/chat/completions"
WORDS = "name city colour price size owner status code kind note place weight"
FORMATS = ("date", "time", "date-time", "uuid", "ipv4", "ipv6", "email", "hostname", "uri")
PATTERNS = (r"^[A-Z]{3}-[0-9]{4}$", r"^\d{1,3}(\.\d{1,2})?$", r"^(red|green|blue)( light)?$")
PATTERNS += (r"^#[0-9a-f]{6}$", r"^[a-z]+@[a-z]+\.(org|com)$", r"^v\d+\.\d+\.\d+$")


class Schemas:
    """Draws schemas; `kinds` are the names of methods that make one."""

    kinds = ("flat", "nested", "enum", "pattern", "format", "range", "array")
    kinds += ("reference", "recursive", "any_of", "map", "tuple_")

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)

    def flat(self) -> Json:
        return self._object([self._leaf() for _ in range(self._draw.randint(1, 5))])

    def nested(self) -> Json:
        inner = self.flat()
        for _ in range(self._draw.randint(1, 3)):
            inner = self._object([inner, self._leaf()])
        return inner

    def enum(self) -> Json:
        values: list[Any] = [*self._draw.sample(WORDS.split(), 4), 7, None, True, 'a "quote"', "ü"]
        lists = [{"enum": self._draw.sample(values, 3)}, {"const": self._draw.choice(values)}]
        return self._object(lists)

    def pattern(self) -> Json:
        chosen = self._draw.sample(PATTERNS, 2)
        return self._object([{"type": "string", "pattern": each} for each in chosen])

    def format(self) -> Json:
        chosen = self._draw.sample(FORMATS, 2)
        return self._object([{"type": "string", "format": each} for each in chosen])

    def range(self) -> Json:
        low = self._draw.randint(-1000, 1000)
        whole = {"type": "integer", "minimum": low, "maximum": low + self._draw.randint(0, 3000)}
        part = {"type": "number", "exclusiveMinimum": 0, "maximum": self._draw.choice([0.5, 1, 90])}
        steps = {"type": "integer", "minimum": 0, "maximum": 100, "multipleOf": 5}
        return self._object([whole, part, steps])

    def array(self) -> Json:
        low = self._draw.randint(0, 2)
        kind = {"type": "array", "minItems": low, "maxItems": low + self._draw.randint(0, 3)}
        return self._object([kind | {"items": self._leaf()}, kind | {"items": self.flat()}])

    def reference(self) -> Json:
        item = {"$ref": "#/$defs/item"}
        defs = {"item": self.flat(), "other": self._object([item, self._leaf()])}
        return self._object([{"$ref": "#/$defs/other"}, item]) | {"$defs": defs}

    def recursive(self) -> Json:
        below = {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 2}
        node = {
            "type": "object",
            "properties": {"value": self._leaf(), "below": below},
            "required": ["value"],
            "additionalProperties": False,
        }
        return {"$ref": "#/$defs/node", "$defs": {"node": node}}

    def any_of(self) -> Json:
        either = {"anyOf": [self.flat(), self._leaf(), {"type": "null"}]}
        types = {"type": self._draw.sample(["boolean", "integer", "null"], 2)}
        return self._object([either, types])

    def map(self) -> Json:
        map_ = {"type": "object", "additionalProperties": self._leaf()}
        named = {"type": "object", "patternProperties": {"^x_[a-z]{1,6}$": self._leaf()}}
        return self._object([map_, named | {"additionalProperties": False}])

    def tuple_(self) -> Json:
        parts = [self._leaf(), self._leaf()]
        return self._object(
            [{"type": "array", "prefixItems": parts, "items": False, "minItems": 2, "maxItems": 2}]
        )

    def _leaf(self) -> Json:
        most = self._draw.randint(3, 40)
        return self._draw.choice(
            [
                {"type": "boolean"},
                {"type": "null"},
                {"type": "integer", "minimum": 0, "maximum": 10 ** self._draw.randint(1, 6)},
                {"type": "string", "maxLength": most},
                {"type": "string", "minLength": 2, "maxLength": most},
                {"type": "string", "pattern": self._draw.choice(PATTERNS)},
                {"enum": self._draw.sample(WORDS.split(), 3)},
                {"type": "string", "format": self._draw.choice(FORMATS[:5])},
            ]
        )

    def _object(self, members: Sequence[Json]) -> Json:
        names = self._draw.sample(WORDS.split(), len(members))
        return {
            "type": "object",
            "properties": dict(zip(names, members, strict=True)),
            "required": names[: self._draw.randint(1, len(names))],
            "additionalProperties": False,
        }


class Case(NamedTuple):
    """A body, the kind of its schema, and schemas of what the answer holds, by tool."""

    kind: str
    body: Json
    schemas: dict[str, Json]


class Said(NamedTuple):
    """What came of a case: "valid", "unfinished", "refused: ...", or "INVALID: ...".

    `text` is the answer, or its calls.
    """

    case: Case
    state: str
    tokens: int
    text: str


def drawn(count: int, seed: int, tokens: int) -> Iterator[Case]:
    """Yield requests for answers by drawn schemas, kind by kind."""
    draw = Schemas(seed)
    for number in range(count):
        kind = Schemas.kinds[number % len(Schemas.kinds)]
        schema = getattr(draw, kind)()
        form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
        said = f"Make up an example record. JSON schema: {json.dumps(schema)}"
        body = {"messages": [{"role": "user", "content": said}], "response_format": form}
        body |= {"temperature": 1, "seed": number, "max_tokens": tokens}
        yield Case(kind, body, {"": schema})


def tools(folder: Path, count: int, tokens: int) -> Iterator[Case]:
    """Yield requests of BFCL for calls of its tools, in turn from its files of single turns."""
    names = ("simple_python", "multiple", "parallel", "live_multiple")
    files = [sorted(folder.glob(f"BFCL_v?_{name}.json")) for name in names]
    lines = [found[0].read_text("utf-8").splitlines() for found in files if found]
    for number in range(count):
        row = json.loads(lines[number % len(lines)][number // len(lines)])
        given = [_tool(each) for each in row["function"]]
        body = {"messages": row["question"][0], "tools": given, "tool_choice": "required"}
        body |= {"temperature": 1, "seed": number, "max_tokens": tokens}
        schemas = {each["function"]["name"]: each["function"]["parameters"] for each in given}
        yield Case(names[number % len(lines)], body, schemas)


def _tool(given: Json) -> Json:
    # BFCL writes types as Python does, and names with dots, which OpenAI's API has not.
    types = {"dict": "object", "float": "number", "tuple": "array", "any": None}

    def mended(value: Any) -> Any:
        if isinstance(value, list):
            return [mended(each) for each in value]
        if not isinstance(value, dict):
            return value
        out = {key: mended(each) for key, each in value.items()}
        kind = value.get("type")
        if isinstance(kind, str) and kind in types:
            out["type"] = types[kind]
            if types[kind] is None:
                del out["type"]
        return out

    function = dict(given, name=given["name"].replace(".", "_"))
    return {"type": "function", "function": function | {"parameters": mended(given["parameters"])}}


def ask(http: httpx.Client, case: Case, checked: bool = True) -> Said:
    """Ask, and validate what was answered."""
    response = http.post(CHAT, json=case.body)
    if response.status_code != 200:
        message = response.json()["error"]["message"]
        state = "refused" if response.status_code == 400 else "FAILED"
        return Said(case, f"{state}: {message}", 0, "")
    answer = response.json()
    [choice] = answer["choices"]
    tokens, message = answer["usage"]["completion_tokens"], choice["message"]
    calls = [each["function"] for each in message.get("tool_calls", [])]
    text = json.dumps(calls) if calls else message["content"] or ""
    if choice["finish_reason"] == "length" or not checked:
        return Said(case, "unfinished", tokens, text)
    parts = [(each["name"], each["arguments"]) for each in calls] or [("", text)]
    return Said(case, _state(case, parts), tokens, text)


def _state(case: Case, parts: Sequence[tuple[str, str]]) -> str:
    from jsonschema import Draft202012Validator as Validator

    for name, value in parts:
        if name not in case.schemas:
            return f"INVALID: no call of a tool ({name!r})"
        validator = Validator(case.schemas[name], format_checker=Validator.FORMAT_CHECKER)
        try:
            errors = [error.message for error in validator.iter_errors(json.loads(value))]
        except ValueError as error:
            errors = [str(error)]
        if errors:
            return f"INVALID: {errors[0]}"
    return "valid"


def turn(url: str, cases: Sequence[Case], clients: int, checked: bool) -> tuple[list[Said], float]:
    """Ask all cases by so many clients; return answers and seconds."""
    begin = time.perf_counter()
    with httpx.Client(base_url=url, timeout=600) as http, ThreadPoolExecutor(clients) as pool:
        said = list(pool.map(lambda case: ask(http, case, checked), cases))
    return said, time.perf_counter() - begin


def free(said: Sequence[Said]) -> list[Case]:
    """Return the same chats without schemas, for as many tokens."""
    out = []
    for each in said:
        if each.tokens:
            held = ("response_format", "tools", "tool_choice")
            body = {key: value for key, value in each.case.body.items() if key not in held}
            body |= {"max_tokens": each.tokens, "ignore_eos": True}
            out.append(Case(each.case.kind, body, {}))
    return out


def walked(given: argparse.Namespace) -> Findings:
    """Judge grammars of so many generated schemas; prints what is found as it comes."""
    count, seed, zod = given.walk, given.seed, given.zod
    kinds = dict.fromkeys(generated_schemas.KINDS, "") | ({"zod": ""} if zod else {})
    say = partial(print, file=sys.stderr if given.json else sys.stdout, flush=True)
    walks, rows, named = Walks(), list[list[results.Cell]](), Counter[str]()
    for kind in kinds:
        share, counts, judged = count // len(kinds), Counter[str](), [0, 0]
        if kind == "zod":
            drawn = generated_schemas.zod(share, seed, zod)
        else:
            drawn = generated_schemas.drawn(kind, share, seed)
        for number, schema in enumerate(drawn):
            found = walks.verdict(schema, random.Random(f"{seed} {number}"))
            counts[found.state] += 1
            judged = [judged[0] + found.texts, judged[1] + found.values]
            if found.state == "named":
                named[found.why.split(":")[0][:60] if ": " in found.why else "keywords"] += 1
            if found.state == "wrong":
                say(f"{kind} {number}: {found.why}\n  {json.dumps(schema)}")
        states = [counts[each] for each in ("held", "named", "empty", "wrong")]
        rows.append([kind, share, *states, *judged])
        say(*rows[-1])
    rows.append(["all", *(sum(int(row[i] or 0) for row in rows) for i in range(1, 8))])
    say(*rows[-1], dict(named.most_common(20)))
    return Findings(
        title="Schemas of generators",
        topic="batching",
        command=f"python -m benchmarks.serving.schemas --walk {count} --seed {seed}"
        + (" --zod FOLDER" if zod else ""),
        columns=("generator", "schemas", "held", "named", "empty", "wrong", "texts", "values"),
        rows=rows,
        note="Texts are random walks through a grammar, all valid by jsonschema; values are "
        "random ones that it takes, all allowed. Of named ones the keyword or what is wrong is "
        "told; of empty ones nothing is valid, and they are refused.",
        figures={"wrong": rows[-1][5]},
        shown="",
        code=int(bool(rows[-1][5])),
    )


def findings(given: argparse.Namespace) -> Findings:
    """Ask a server, and put it as a table."""
    if given.walk:
        return walked(given)
    made = tools(given.tools, given.count, given.tokens) if given.tools else None
    cases = list(made or drawn(given.count, given.seed, given.tokens))
    said, seconds = turn(given.url, cases, given.clients, checked=True)
    others = [] if given.no_plain else free(said)
    plain, plain_seconds = turn(given.url, others, given.clients, checked=False)
    rows: list[list[results.Cell]] = []
    for kind in [*dict.fromkeys(case.kind for case in cases), "all"]:
        mine = [each for each in said if kind in (each.case.kind, "all")]
        counts = Counter(each.state.split(":")[0] for each in mine)
        ended = counts["valid"] + counts["INVALID"]
        rows.append([kind, len(mine), ended, counts["valid"], counts["unfinished"]])
        rows[-1].append(counts["refused"])
    wrong = [each for each in said if each.state.startswith(("INVALID", "FAILED"))]
    speeds = [sum(each.tokens for each in said) / seconds]
    speeds.append(sum(each.tokens for each in plain) / plain_seconds)
    compared = f" {speeds[0]:.0f} tokens/s held to the schemas, {speeds[1]:.0f} for the same chats "
    compared += "and lengths without."
    shown = [
        f"{kind:<14} {asked:>4} asked {ended:>4} ended {valid:>4} valid {cut} {refused}"
        for kind, asked, ended, valid, cut, refused in rows
    ]
    shown.append(f"{speeds[0]:.0f} tokens/s with schemas, {speeds[1]:.0f} without")
    for state, count in Counter(each.state for each in said).items():
        if state.startswith("refused"):
            print(f"{count} {state}", file=sys.stderr)
    for each in wrong:
        print(each.case.kind, each.state, json.dumps(each.case.schemas), each.text, file=sys.stderr)
    each_one = [[each.case.kind, each.state, each.tokens, each.text] for each in said]
    return Findings(
        title="Calls of tools by BFCL's schemas" if given.tools else "Answers by JSON schemas",
        topic="batching",
        command=f"python -m benchmarks.serving.schemas --count {given.count} --seed {given.seed} "
        f"--tokens {given.tokens} --clients {given.clients}"
        + (" --tools FOLDER" if given.tools else "")
        + (" --no-plain" if given.no_plain else ""),
        columns=("kind", "asked", "ended", "valid", "cut at the limit", "refused"),
        rows=rows,
        note="Temperature 1, SmolLM2-135M." + (compared if plain else ""),
        figures={"ended and valid": f"{rows[-1][3]} of {rows[-1][2]}"},
        data={"rows": rows, "tokens_per_second": speeds, "answers": each_one},
        shown="\n".join(shown),
        code=int(bool(wrong)),
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Ask, print, and write --record."""
    parser = argparse.ArgumentParser(prog="schemas", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--count", type=int, default=240)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--tools", type=Path, metavar="FOLDER", help="BFCL's data")
    parser.add_argument("--walk", type=int, metavar="COUNT", help="judge grammars, of no server")
    parser.add_argument("--zod", type=Path, metavar="FOLDER", help="where zod is installed")
    parser.add_argument("--no-plain", action="store_true", help="do not ask without schemas")
    add_output(parser)
    return run_script(parser, findings, argv, faults=(httpx.TransportError,))


if __name__ == "__main__":
    sys.exit(main())
