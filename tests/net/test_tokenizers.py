"""Tokenizers of directories give the ids that transformers gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.net.files import cases
from tests.net.make import directory

from paceline.models.tokenizer import tokenizer_from_directory


@pytest.mark.parametrize(("given", "expected"), cases("tokenizers"))
def test_ids_are_those_of_transformers(
    given: dict[str, Any], expected: dict[str, Any], tmp_path: Path
) -> None:
    tokenizer = tokenizer_from_directory(directory(given["files"], tmp_path), ())
    ids = [tokenizer.encode(text) for text in given["texts"]]
    assert ids == expected["ids"]
    assert [tokenizer.decode(each) for each in ids] == expected["plain"]
