"""Schemas allow what independent validators take, and GBNF what llama.cpp takes."""

from __future__ import annotations

from typing import Any

import pytest
from tests.models.test_grammar import GRAMMARS, says
from tests.net.files import cases

from paceline.errors import InvalidOption


@pytest.mark.parametrize(("given", "expected"), cases("schemas"))
def test_texts_of_a_schema_are_those_that_validate(given: dict[str, Any], expected: Any) -> None:
    grammar = GRAMMARS.json_schema(given["schema"], strict=False)
    assert [says(grammar, text) for text in given["texts"]] == expected
    assert list(grammar.unheld) == given.get("unheld", [])


@pytest.mark.parametrize(("given", "expected"), cases("grammars"))
def test_texts_of_a_grammar_are_those_of_llama_cpp(given: dict[str, Any], expected: Any) -> None:
    if expected is None:
        with pytest.raises(InvalidOption, match="GBNF"):
            GRAMMARS.gbnf(given["grammar"])
    else:
        grammar = GRAMMARS.gbnf(given["grammar"])
        assert [says(grammar, text) for text in given["texts"]] == expected
