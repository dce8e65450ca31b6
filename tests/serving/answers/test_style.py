"""Styles are found from what a template says, not from a model's name."""

from __future__ import annotations

import pytest
from tests.helpers.tiny_model import tiny_tokenizer
from tokenizers import AddedToken

from paceline.models.text import Tokenizer
from paceline.serving.answers.style import BARE, HERMES, LLAMA, Style, call_grammar, find_style


@pytest.mark.parametrize(
    ("template", "begin", "arguments"),
    [
        (None, "<tool_call>", "arguments"),
        ("{{ messages }}", "<tool_call>", "arguments"),
        ("{{ tools }}<tool_call>", "<tool_call>", "arguments"),
        ("{{ tools }}[TOOL_CALLS]", "[TOOL_CALLS]", "arguments"),
        ("{{ tools }}[TOOL_CALLS][ARGS]", "", "arguments"),
        ("{{ tools }}<|tool_call|>", "<|tool_call|>", "arguments"),
        ("{{ tools }}```tool_call", "```tool_call", "arguments"),
        ("{{ tools }}<|python_tag|>", "<|python_tag|>", "parameters"),
        ("{{ tools }}", "", "arguments"),
    ],
)
def test_each_family_by_its_markers(template: str | None, begin: str, arguments: str) -> None:
    style = find_style(template)
    assert (style.begin, style.arguments, style.think) == (begin, arguments, None)


def test_tags_of_reasoning() -> None:
    assert find_style("x.split('</think>')").think == ("<think>", "</think>")
    assert find_style("[THINK][/THINK]").think == ("[THINK]", "[/THINK]")
    style = find_style("<think></think>")
    assert style.inside("<|im_start|>assistant\n<think>\n")
    assert not style.inside("<think>\n\n</think>\n\n")
    assert not HERMES.inside("<think>")


def test_what_grammars_of_calls_are_made_of() -> None:
    assert call_grammar(HERMES) == ("<tool_call>\n", "\n</tool_call>", "name", "arguments")
    assert call_grammar(LLAMA) == ("", "", "name", "parameters")
    assert call_grammar(BARE) == ("", "", "name", "arguments")
    spaced, tight = find_style("tools [TOOL_CALLS] ["), find_style("tools [TOOL_CALLS]")
    assert call_grammar(spaced)[:2] == ("[TOOL_CALLS] [", "]")
    assert call_grammar(tight)[:2] == ("[TOOL_CALLS][", "]")


def test_markers_that_are_special_tokens_are_shown() -> None:
    core = tiny_tokenizer()
    core.add_special_tokens(["[TOOL_CALLS]"])
    core.add_tokens([AddedToken("<tool_call>", special=False)])
    tokenizer = Tokenizer(core)
    style: Style = find_style("tools [TOOL_CALLS]")
    [shown] = style.shown_tokens(tokenizer)
    assert tokenizer.decode([shown], skip_special=False) == "[TOOL_CALLS]"
    assert find_style("<think></think>").shown_tokens(tokenizer) == ()
