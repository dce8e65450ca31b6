"""Chat templates give what transformers and jinja2 make of plain messages, and special tokens come
from the template alone.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from tests.helpers.tiny_model import SPECIAL, tiny_tokenizer
from tests.net.files import cases
from tests.net.random_templates import OWN, Writer, judged

from paceline.errors import PromptError
from paceline.models.text import Tokenizer

CORE = tiny_tokenizer()


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


@pytest.mark.parametrize("block", range(8))
def test_random_templates(block: int) -> None:
    """2,000 were tried by hand, seeds 0 to 1999: equal texts, and no token of a message."""
    seen: Counter[str] = Counter()
    for seed in range(5000 + 25 * block, 5025 + 25 * block):
        writer = Writer(seed)
        template, messages = writer.template(), writer.messages()
        expected = judged(template, messages)
        tokenizer = tokenizer_of(template)
        tokenizer.special_tokens["bos_token"] = OWN[0]
        if expected is None:
            with pytest.raises(PromptError):
                tokenizer.chat(messages)
            continue
        text, own = expected
        try:
            ids = tokenizer.chat(messages)
        except PromptError as error:
            # The template drops a system message without a word: another one changes nothing.
            at = int(str(error).partition("messages[")[2].partition("]")[0])
            assert messages[at]["role"] == "system"
            other = {**messages[at], "content": f"{messages[at]['content']}, and more"}
            changed = [*messages[:at], other, *messages[at + 1 :]]
            assert judged(template, changed) == expected, seed
            seen["dropped"] += 1
            continue
        assert tokenizer.decode(ids, skip_special=False) == text, seed
        found = [CORE.id_to_token(each) for each in ids if each < len(SPECIAL)]
        if own is None:
            continue
        # Where a message spells the token too, what is mixed in JSON or a format may be text.
        lost = Counter(own) - Counter(found)
        assert not Counter(found) - Counter(own), seed
        assert not lost or any(each in template for each in ("tojson", "format", "%s")), seed
        seen["spelled"] += text.count(OWN[0]) + text.count(OWN[1]) > len(own)
        seen["own"] += bool(own)
    assert seen["own"] > 15 - seen["dropped"]
    assert seen["spelled"] > 0
