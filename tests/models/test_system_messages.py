"""System messages are shown by the template, folded into a user turn, or refused."""

from __future__ import annotations

import json
import time
from typing import Any

import jinja2
import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tests.helpers.tiny_model import tiny_tokenizer

from paceline.errors import PromptError
from paceline.models.text import Tokenizer

CORE = tiny_tokenizer()
S, D = ({"role": role, "content": f"be {role}"} for role in ("system", "developer"))
U, V = ({"role": "user", "content": text} for text in ("fox", "dog"))
NO = {"role": "system", "content": "/no_think"}
A = {"role": "assistant", "content": "yes"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}

SHOWS = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
DROPS = SHOWS.replace(" %}", " if m.role in ('user', 'assistant') %}", 1)
FIRST = "{% if messages[0].role == 'system' %}<<{{ messages[0].content }}>>{% endif %}" + DROPS
REFUSES = "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}" + SHOWS
PARTS = (
    "{% for m in messages if m.role != 'system' %}<{{ m.role }}>{% for p in m.content %}"
    "{% if p.type == 'text' %}{{ p.text }}{% endif %}{% endfor %}{% endfor %}"
)
WITH_TOOLS = (
    "{% if tools %}{{ tools | tojson }}{{ messages[0].content }}{% endif %}" + DROPS
)  # it shows the system message beside tools alone
COUNTS = "{{ messages | length }} {{ '%s' | format(tools) }}" + DROPS  # whose text cannot be traced
UPPER = SHOWS.replace("m.content", "m.content | trim | upper")
FORMATS = "{% for m in messages %}{{ '<%s>%s' % (m.role, m.content) }}{% endfor %}"
MIXES = "{% for m in messages %}{{ '%s' | format(m.items()) }}{% endfor %}"
IN_JSON = "{{ messages | tojson }}"
SWITCH = "{% if '/no_think' in messages[0].content %}<think></think>{% endif %}" + DROPS


def rendered(template: str, messages: list[dict[str, Any]], **given: Any) -> str:
    """What jinja2 makes of plain messages."""
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = json.dumps  # as transformers has it
    return environment.from_string(template).render(
        **{"tools": None, "messages": messages, **given}
    )


def tokenizer_of(template: str, fold: bool) -> Tokenizer:
    made = Tokenizer(CORE, chat_template=template)
    made.fold_system = fold
    return made


def parts(text: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text}]


def folded(*words: str) -> dict[str, str]:
    return {"role": "user", "content": "\n\n".join(words)}


@pytest.mark.parametrize(
    ("template", "messages", "expected"),
    [
        (SHOWS, [S, U], [S, U]),
        (SHOWS, [U, A, S, V], [U, A, S, V]),
        (DROPS, [S, U, A, V], [folded("be system", "fox"), A, V]),
        (DROPS, [D, U], [folded("be developer", "fox")]),
        (DROPS, [S, D, U], [folded("be system", "be developer", "fox")]),
        (DROPS, [U, A, S, V], [U, A, folded("be system", "dog")]),
        (FIRST, [S, U], [S, U]),
        (FIRST, [S, U, A, D, V], [S, U, A, folded("be developer", "dog")]),
        (REFUSES, [S, U, A], [folded("be system", "fox"), A]),
        (DROPS, [S, A, U], [A, folded("be system", "fox")]),
        (DROPS, [S, A, D, U], [A, folded("be system", "be developer", "fox")]),
        (UPPER, [S, U], [S, U]),
        (UPPER, [{**S, "content": " \n"}, U], [{**S, "content": " \n"}, U]),
        (FORMATS, [S, U, D, V], [S, U, D, V]),
        (MIXES, [S, U, D, V], [S, U, D, V]),
        (IN_JSON, [S, U, A, D], [S, U, A, D]),
        (
            SWITCH,
            [{**S, "content": "/no_think"}, D, U],
            [{**S, "content": "/no_think"}, folded("be developer", "fox")],
        ),
        (COUNTS, [S, U], [folded("be system", "fox")]),
        (WITH_TOOLS, [S, U], [folded("be system", "fox")]),
        (SWITCH, [{**S, "content": "/no_think"}, U], [{**S, "content": "/no_think"}, U]),
        (DROPS, [{**S, "content": parts("be system")}, U], [folded("be system", "fox")]),
        (DROPS, [{**S, "content": " "}, U], [U]),
        (
            PARTS,
            [S, {**U, "content": parts("fox")}],
            [{**U, "content": parts("be system\n\n") + parts("fox")}],
        ),
        (PARTS, [U], [{**U, "content": parts("fox")}]),
    ],
)
def test_a_system_message_is_shown_or_folded(
    template: str, messages: list[dict[str, Any]], expected: list[dict[str, Any]]
) -> None:
    found = tokenizer_of(template, True)
    assert found.decode(found.chat(messages)) == rendered(template, expected)
    plain = tokenizer_of(template, False)
    if "\n\n" in rendered(template, expected):
        with pytest.raises(PromptError, match=r"--fold-system|\(no\)"):
            plain.chat(messages)
    else:
        assert plain.chat(messages) == found.chat(messages)


def test_beside_tools_and_an_answer_that_goes_on() -> None:
    found = tokenizer_of(WITH_TOOLS, False)
    text = rendered(WITH_TOOLS, [S, U], tools=[TOOL])
    assert found.decode(found.chat([S, U], [TOOL])) == text
    found = tokenizer_of(DROPS, True)
    ids = found.chat([S, U, A], continue_final_message=True)
    assert found.decode(ids) == "<user>be system\n\nfox<assistant>yes"
    ids = found.chat([S, U, {**A, "content": ""}], continue_final_message=True)
    assert found.decode(ids) == "<user>be system\n\nfox<assistant>"


@pytest.mark.parametrize("messages", [[S], [S, A], [U, A, S]])
def test_there_must_be_a_user_turn_to_fold_it_into(messages: list[dict[str, Any]]) -> None:
    with pytest.raises(PromptError, match="no user turn behind it"):
        tokenizer_of(DROPS, True).chat(messages)


def test_very_many_system_messages_take_no_longer() -> None:
    """Those of which nothing is seen are tried together."""
    found = tokenizer_of(DROPS, True)
    begin = time.perf_counter()
    ids = found.chat([S] * 600 + [U])
    assert found.decode(ids) == "<user>" + "be system\n\n" * 600 + "fox"
    assert time.perf_counter() - begin < 2.0


def test_another_system_text_that_is_refused_is_none_that_is_dropped() -> None:
    template = "{% if messages[0].content | length < 9 %}{{ raise_exception('x') }}{% endif %}"
    found = tokenizer_of(template + DROPS, False)
    assert found.decode(found.chat([S, U])) == "<user>fox"


@pytest.mark.parametrize("template", [SHOWS, FIRST, PARTS])
def test_long_prompts_cost_little_beside_encoding(template: str) -> None:
    """Nothing is more than linear, whatever the text is of: here of beginnings of tokens."""
    found = tokenizer_of(template, True)
    found.chat([U])
    for text in ("<" * 100_000, "<|im" * 25_000, "the quick " * 10_000):
        for messages in ([S, {**U, "content": text}], [{**S, "content": text}, U]):
            begin = time.perf_counter()
            ids = found.chat(messages)
            whole = time.perf_counter() - begin
            begin = time.perf_counter()
            again = CORE.encode_batch([found.decode(ids)])
            assert again
            assert whole < 3 * (time.perf_counter() - begin) + 1.0


def test_jinja2_itself_reads_these_templates() -> None:
    for template in (SHOWS, DROPS, FIRST, PARTS, WITH_TOOLS, COUNTS, SWITCH):
        assert rendered(template, [S, U])
    with pytest.raises(jinja2.UndefinedError):
        rendered(REFUSES, [S, U])
