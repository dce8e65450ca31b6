"""Chat templates give what transformers and jinja2 make of plain messages, and special tokens come
from the template alone.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from tests.helpers.tiny_model import SPECIAL
from tests.net.files import cases
from tests.net.random_templates import core, tried

from paceline.errors import PromptError
from paceline.models.text import Tokenizer

CORE = core()


def tokenizer_of(template: str) -> Tokenizer:
    return Tokenizer(
        CORE,
        special_tokens={"bos_token": SPECIAL[0], "eos_token": SPECIAL[2]},
        chat_template=template,
    )


@pytest.mark.parametrize(("given", "expected"), cases("templates"))
def test_a_template_s_text_is_that_of_transformers(given: dict[str, Any], expected: Any) -> None:
    tokenizer = tokenizer_of(given["template"])
    messages, tools = given["messages"], given.get("tools")
    arguments = {"continue_final_message": True} if given.get("continue") else {}
    arguments |= given.get("arguments", {})
    refused = given.get("refused", "refuses" if expected is None else None)
    if refused:  # transformers drops without a word what is refused here
        with pytest.raises(PromptError, match=refused):
            tokenizer.chat(messages, tools, **arguments)
        return
    ids = tokenizer.chat(messages, tools, **arguments)
    assert tokenizer.decode(ids, skip_special=False) == expected
    told = json.dumps([messages, tools, arguments], ensure_ascii=False)
    if not any(token in told for token in tokenizer.special_ids):  # the template wrote them all
        assert ids == tokenizer.encode(expected)


@pytest.mark.parametrize("block", range(8))
def test_random_templates(block: int) -> None:
    """2,000 were tried by hand, as `random_templates` says."""
    seen: Counter[str] = Counter()
    for seed in range(5000 + 25 * block, 5025 + 25 * block):
        tried(seed, seen, CORE)
    assert seen["tokens"] > 0
    assert seen["spelled"] > 0
