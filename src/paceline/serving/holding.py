"""What an answer is held to: all the names under which clients ask for a schema or a grammar."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from paceline.core.constraint import Constraint
from paceline.errors import InvalidOption, RuntimeUnavailable
from paceline.models.grammar import Grammars
from paceline.serving.messages import Notes
from paceline.serving.model import ServedModel
from paceline.serving.protocol import BadRequest, Body, ResponseFormat

Json = dict[str, Any]
_TOLD = 40  # keywords that are named, of one request


class Calls(NamedTuple):
    """Calls of tools that an answer may hold: `mode` as of `Grammars.tool_calls`.

    If not `must`, they give way to another constraint.
    """

    tools: Sequence[Json]
    mode: str
    parallel: bool | None
    must: bool

    @classmethod
    def of(
        cls, model: ServedModel, tools: Sequence[Json], mode: str, parallel: bool | None
    ) -> Calls | None:
        """Return calls, or None where nothing says that one begins."""
        opener = model.style.before if not model.style.said else ""
        strict = any(tool["function"].get("strict") for tool in tools)
        must = mode != "auto" or strict or (parallel is False and bool(opener))
        return cls(tools, mode, parallel, must) if tools and (must or opener) else None


class Wish(NamedTuple):
    """A field, the kind of its grammar, and what it says."""

    field: str
    kind: str
    source: Any
    strict: bool = False


def hold(
    model: ServedModel,
    body: Body,
    format: ResponseFormat | None,
    calls: Calls | None,
    notes: Notes,
    reasoning: bool | None = None,
) -> Constraint | None:
    """Return what an answer is held to, if anything; `notes` tells what of schemas is not held.

    Args:
        reasoning: the answer may begin with reasoning (False), or the prompt opened it (True).

    Raises:
        BadRequest: two wishes differ, or one is wrong.
    """
    wish = _wish(body, format)
    # Behind an end token that is ignored a grammar lets nothing follow.
    if calls is not None and (calls.must or not (wish or body.ignore_eos)):
        if wish is not None:
            raise BadRequest(
                f"{wish.field} and tool_choice cannot both hold: give one of them", "tool_choice"
            )
        return _held_calls(model, calls, notes, reasoning)
    if wish is None:
        return None
    grammars = _grammars(model, reasoning)
    compact = model.compact_json
    given = body.structured_outputs
    if given is not None and given.disable_any_whitespace is not None:
        compact = given.disable_any_whitespace
    kind, source = wish.kind, wish.source
    try:
        if kind == "json":
            return grammars.json(compact=compact)
        if kind == "json_schema":
            held = grammars.json_schema(source, compact=compact, strict=wish.strict)
            notes.left += [f"{wish.field}{each}" for each in held.unheld[:_TOLD]]
            return held
        if kind == "grammar":  # GBNF by its root, as other servers read it, else Lark
            kind = "gbnf" if re.search(r"^\s*root\s*::=", source, re.MULTILINE) else "lark"
        made: Constraint = getattr(grammars, kind)(source)
        return made
    except InvalidOption as error:
        raise BadRequest(f"{wish.field}: {error}", wish.field) from error


def _grammars(model: ServedModel, reasoning: bool | None, calls: bool = False) -> Grammars:
    grammars, style = model.engine.grammar, model.style
    if style.think is None or reasoning is None:
        return grammars
    first, last = style.think
    return grammars.behind((first, last + style.turn), reasoning, "" if calls else style.said)


def _held_calls(
    model: ServedModel, calls: Calls, notes: Notes, reasoning: bool | None
) -> Constraint | None:
    style = model.style
    try:
        held = _grammars(model, reasoning, calls=True).tool_calls(
            calls.tools,
            calls.mode,
            begin=style.before,
            end=style.after,
            between=style.between,
            parallel=calls.parallel is not False and bool(style.before) and not style.said,
            form=style.form,
            said=style.said,
            compact=model.compact_json,
            strict=False,
        )
    except (InvalidOption, RuntimeUnavailable):
        if calls.must:
            raise
        notes.left.append("tools:schemas")
        return None
    notes.left += [f"tools.{each}" for each in held.unheld[:_TOLD]]
    return held


def _wish(body: Body, format: ResponseFormat | None) -> Wish | None:
    wanted = [] if format is None else _of_format(format)
    given = body.structured_outputs
    if given is not None:
        wanted += [
            Wish("structured_outputs.json", "json_schema", given.json),
            Wish("structured_outputs.regex", "regex", given.regex),
            Wish("structured_outputs.choice", "choice", given.choice),
            Wish("structured_outputs.grammar", "grammar", given.grammar or None),
            Wish("structured_outputs.json_object", "json", given.json_object or None),
        ]
    wanted += [
        Wish("guided_json", "json_schema", body.guided_json),
        Wish("guided_regex", "regex", body.guided_regex),
        Wish("guided_choice", "choice", body.guided_choice),
        Wish("guided_grammar", "grammar", body.guided_grammar or None),
        Wish("guided_json_object", "json", body.guided_json_object or None),
        Wish("regex", "regex", body.regex),
        Wish("ebnf", "grammar", body.ebnf or None),
        Wish("grammar", "grammar", body.grammar or None),
        Wish("json_schema", "json_schema", body.json_schema),
    ]
    chosen = [each for each in wanted if each.source is not None]
    # A schema says more than that there is an object.
    if any(each.kind == "json_schema" for each in chosen):
        chosen = [each for each in chosen if each.kind != "json"]
    if not chosen:
        return None
    first = chosen[0]
    for other in chosen[1:]:
        if (other.kind, _written(other)) != (first.kind, _written(first)):
            raise BadRequest(
                f"{first.field} and {other.field} cannot both hold: give one of them", other.field
            )
    return first._replace(strict=any(each.strict for each in chosen))


def _written(wish: Wish) -> str:
    # Schemas are compared by what they say, be they given as text or not.
    source = wish.source
    if wish.kind == "json_schema" and isinstance(source, str):
        try:
            source = json.loads(source)
        except ValueError:
            return str(source)
    return source if isinstance(source, str) else json.dumps(source, sort_keys=True)


def _of_format(format: ResponseFormat) -> list[Wish]:
    name = "response_format"
    if format.type in ("regex", "grammar"):
        source = format.pattern if format.type == "regex" else format.grammar
        source = format.value if source is None else source
        if not isinstance(source, str):
            key = "pattern" if format.type == "regex" else "grammar"
            raise BadRequest(f"{name}.{key}: it is missing: give a text", name)
        return [Wish(name, format.type, source)]
    if format.type == "text":
        return []
    # OpenAI's {"schema": ..} within "json_schema", or what others put in its place.
    inner = format.json_schema
    wrapped = isinstance(inner, dict) and ("schema" in inner or "name" in inner)
    schema = inner.get("schema") if isinstance(inner, dict) and wrapped else inner
    strict = isinstance(inner, dict) and wrapped and inner.get("strict") is True
    found = [each for each in (format.schema, schema, format.value) if each is not None]
    if not found and format.type == "json_object":
        return [Wish(name, "json", True)]
    if not found or not isinstance(found[0], dict | str | bool):
        raise BadRequest(f"{name}.json_schema.schema: it is missing: give a JSON schema", name)
    return [Wish(name, "json_schema", each, strict or bool(format.strict)) for each in found]
