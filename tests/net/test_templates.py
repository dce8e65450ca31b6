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
    expected = given.get("ours", expected)
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


def test_words_between_reasoning_and_a_call_have_a_channel_of_their_own() -> None:
    """Their text makes no tokens; a template that takes both by itself decides alone."""
    marks = ["<|end|>", "<|start|>", "<|channel|>", "<|message|>"]
    vocabulary = core()
    vocabulary.add_special_tokens(marks)
    one = (
        "{% for m in messages %}{% if m.tool_calls and m.content and m.thinking %}{{ "
        "raise_exception('both') }}{% endif %}<|start|>{{ m.role }}<|channel|>"
        "{{ 'analysis' if m.thinking else 'final' }}<|message|>{{ m.thinking or m.content }}<|end|>"
        "{% endfor %}"
    )
    calls = [{"type": "function", "function": {"name": "f", "arguments": "{}"}}]
    both = {"role": "assistant", "reasoning_content": "a<|end|>", "content": "b<|start|>"}

    def told(template: str, **more: Any) -> list[int]:
        tokenizer = Tokenizer(vocabulary, chat_template=template)
        return tokenizer.chat([{**both, **more}], add_generation_prompt=False)

    tokenizer = Tokenizer(vocabulary, chat_template=one)
    ids = told(one, tool_calls=calls)
    glue = "<|end|><|start|>assistant<|channel|>commentary<|message|>"
    text = f"<|start|>assistant<|channel|>analysis<|message|>a<|end|>{glue}b<|start|><|end|>"
    assert tokenizer.decode(ids, skip_special=False) == text
    assert [ids.count(tokenizer.special_ids[each]) for each in marks] == [2, 2, 2, 2]
    assert glue not in tokenizer.decode(told(one), skip_special=False)
    taken = one.replace("raise_exception('both')", "''")
    assert glue not in tokenizer.decode(told(taken, tool_calls=calls), skip_special=False)
    with pytest.raises(PromptError, match="both"):
        told(one.replace("<|channel|>", ""), tool_calls=calls)


@pytest.mark.parametrize(
    ("ids", "results", "expected"),
    [
        ("ab", "ab", "f: 0; g: 1; "),
        ("ab", "ba", "f: 1; g: 0; "),
        ("aa", "aa", "f: 0; g: 1; "),
        ("ab", "b", "f: g: 0; "),
        ("ab", "xyz", "f: 0; g: 1; 2; "),
        ("abc", "cab", "f: 1; g: 2; h: 0; "),
    ],
)
def test_every_call_of_a_message_in_channels_is_shown(
    ids: str, results: str, expected: str
) -> None:
    """Also where the template shows the first alone, as the control does."""
    shown = (
        "{% for m in messages %}{% if m.tool_calls %}{{ m.content }}{{ m.tool_calls[0].function"
        ".name }}: {% elif m.role == 'tool' %}{{ m.content }}; {% endif %}{% endfor %}"
    )
    calls = [
        {"id": each, "type": "function", "function": {"name": "fgh"[n], "arguments": "{}"}}
        for n, each in enumerate(ids)
    ]
    told = [{"role": "assistant", "content": "I say: ", "tool_calls": calls}] + [
        {"role": "tool", "content": str(n), "tool_call_id": each} for n, each in enumerate(results)
    ]
    for template, text in (
        ("{# <|channel|> #}" + shown, "I say: " + expected),
        (shown, "I say: f: " + "".join(f"{n}; " for n in range(len(results)))),
    ):
        tokenizer = tokenizer_of(template)
        assert tokenizer.decode(tokenizer.chat(told)) == text
