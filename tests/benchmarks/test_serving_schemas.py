"""Schemas that answers are asked for by: all are read, and a wrong answer is seen."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.serving import schemas
from tests.helpers import table_engines as engines

from paceline.models.grammar import Grammars


def test_schemas_are_of_all_kinds_and_grammars_read_them() -> None:
    grammars = Grammars(engines.TOKENIZER, engines.VOCABULARY)
    cases = list(schemas.drawn(36, 5, 40))
    assert [case.kind for case in cases[:12]] == list(schemas.Schemas.kinds)
    assert len({json.dumps(case.schemas) for case in cases}) == 36
    for case in cases:
        grammars.json_schema(case.schemas[""])
    assert cases == list(schemas.drawn(36, 5, 40))


def test_tools_of_bfcl_get_openais_shape(tmp_path: Path) -> None:
    parameters = {"type": "dict", "properties": {"a": {"type": "float"}, "b": {"type": "any"}}}
    row = {"question": [[{"role": "user", "content": "x"}]]}
    row |= {"function": [{"name": "math.add", "parameters": parameters}]}  # type: ignore[dict-item]
    (tmp_path / "BFCL_v4_simple_python.json").write_text(json.dumps(row))
    [case] = schemas.tools(tmp_path, 1, 10)
    assert case.schemas == {
        "math_add": {"type": "object", "properties": {"a": {"type": "number"}, "b": {}}}
    }
    assert case.body["tools"][0]["function"]["name"] == "math_add"


def test_answers_that_do_not_validate_are_seen() -> None:
    schema = {"type": "object", "properties": {"a": {"format": "date"}}, "required": ["a"]}
    case = schemas.Case("flat", {}, {"": schema})
    for text, good in {
        '{"a":"2026-01-31"}': True,
        '{"a":"2026-02-31"}': False,
        "{}": False,
        '{"a":': False,
    }.items():
        assert (schemas._state(case, [("", text)]) == "valid") is good
    assert "no call" in schemas._state(case, [("other", "{}")])
