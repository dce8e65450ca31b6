"""Styles are found from what a template says, not from a model's name."""

from __future__ import annotations

import pytest
from tests.helpers.tiny_model import tiny_tokenizer
from tokenizers import AddedToken

from paceline.models.text import Tokenizer
from paceline.serving.answers.style import BARE, HERMES, LLAMA, Style, find_style


@pytest.mark.parametrize(
    ("template", "begin", "neck"),
    [
        (None, "<tool_call>", '", "arguments": '),
        ("{{ messages }}", "<tool_call>", '", "arguments": '),
        ("{{ tools }}<tool_call>", "<tool_call>", '", "arguments": '),
        ("{{ tools }}[TOOL_CALLS]", "[TOOL_CALLS]", '", "arguments": '),
        ("{{ tools }}[TOOL_CALLS][ARGS]", "[TOOL_CALLS]", "[ARGS]"),
        ("{{ tools }}<tool_call><function=", "<tool_call>", ">\n"),
        ("{{ tools }}<x:tool_call><function=", "<x:tool_call>", ">\n"),
        ("{{ tools }}<tool_call>{name}<arg_key>", "<tool_call>", "\n"),
        ("{{ tools }}<arg_key>k</arg_key><arg_value>", "<tool_call>", ""),
        ("{{ tools }}<|tool_list_start|>", "<|tool_call_start|>", "("),
        ("{{ tools }}<|tool_call>call:", "<|tool_call>", "{"),
        ("{{ tools }}<|tool_call|>", "<|tool_call|>", '", "arguments": '),
        ("{{ tools }}```tool_call", "```tool_call", '", "arguments": '),
        ("{{ tools }}<|python_tag|>", "<|python_tag|>", '", "parameters": '),
        ("{{ tools }}", "", '", "arguments": '),
    ],
)
def test_each_family_by_its_markers(template: str | None, begin: str, neck: str) -> None:
    style = find_style(template)
    assert (style.begin, style.form.neck, style.think) == (begin, neck, None)


def test_tags_of_reasoning() -> None:
    assert find_style("x.split('</think>')").think == ("<think>", "</think>")
    assert find_style("[THINK][/THINK]").think == ("[THINK]", "[/THINK]")
    style = find_style("<think></think>")
    assert style.inside("<|im_start|>assistant\n<think>\n")
    assert not style.inside("<think>\n\n</think>\n\n")
    assert not HERMES.inside("<think>")


def test_what_grammars_of_calls_are_made_of() -> None:
    assert (HERMES.before, HERMES.after) == ("<tool_call>\n", "\n</tool_call>")
    assert (LLAMA.before, LLAMA.form.neck) == ("", '", "parameters": ')
    assert (BARE.before, BARE.form.neck) == ("", '", "arguments": ')
    spaced, tight = find_style("tools [TOOL_CALLS] ["), find_style("tools [TOOL_CALLS]")
    assert (spaced.before, spaced.between, spaced.after) == ("[TOOL_CALLS] [", ", ", "]")
    assert (tight.before, tight.between, tight.after) == ("[TOOL_CALLS][", ", ", "]")


def test_markers_that_are_special_tokens_are_shown() -> None:
    core = tiny_tokenizer()
    core.add_special_tokens(["[TOOL_CALLS]"])
    core.add_tokens([AddedToken("<tool_call>", special=False)])
    tokenizer = Tokenizer(core)
    for template in ("tools <arg_key>", "<|channel|>analysis"):  # no token of theirs
        assert find_style(template).shown_tokens(tokenizer) == ()
    core.add_special_tokens(["<|end|>", "<|message|>", "<|x|>"])
    shown = find_style("<|channel|>analysis").shown_tokens(Tokenizer(core))
    assert {core.id_to_token(token) for token in shown} == {"<|end|>", "<|message|>"}
    style: Style = find_style("tools [TOOL_CALLS]")
    [shown] = style.shown_tokens(tokenizer)
    assert tokenizer.decode([shown], skip_special=False) == "[TOOL_CALLS]"
    assert find_style("<think></think>").shown_tokens(tokenizer) == ()
