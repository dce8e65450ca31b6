"""Fill in the middle: prompts token by token, and what the routes say."""

from __future__ import annotations

from typing import Any

import pytest
from tests.helpers import table_engines as engines
from tests.helpers.serving import Client, Json, run
from tests.helpers.tiny_model import CHAT_TEMPLATE, tiny_tokenizer
from tokenizers import AddedToken

from paceline.models.text import Tokenizer
from paceline.serving.fill import Extra, fill_prompt
from paceline.serving.protocol import BadRequest

SPECIAL = ["<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|repo_name|>", "<|file_sep|>"]


def tokenizer(names: list[str]) -> Tokenizer:
    core = tiny_tokenizer(300)
    core.add_special_tokens([AddedToken(name, special=True) for name in names])
    return Tokenizer(core, eos_token_ids=(engines.EOS,), chat_template=CHAT_TEMPLATE)


def engine(text: str, names: list[str] = SPECIAL) -> Any:
    """One that says `text`, then an end token, after the token of the middle."""
    made = tokenizer(names)
    script = [*made.encode(text), engines.EOS]

    def logits(context: tuple[int, ...]) -> Any:
        row = engines.MODEL.logits(context) * 0
        middle = max((i for i, t in enumerate(context) if t == 302), default=len(context) - 1)
        row[script[min(len(context) - middle, len(script)) - 1]] = 9.0
        return row

    return engines.make(engines.Target(logits, 2000), tokenizer=made)


def test_a_prompt_is_its_parts_between_the_models_tokens() -> None:
    made = tokenizer(SPECIAL)
    pre, suf, mid, repo, file = (made.core.token_to_id(name) for name in SPECIAL)
    say = made.encode
    assert fill_prompt(made, "def f(", "): return", begun="x") == [
        *(pre, *say("def f("), suf, *say("): return"), mid, *say("x"))
    ]
    files = [Extra("12 34", "a.py"), Extra("dog", "b.py")]
    assert fill_prompt(made, "a", "b", files) == [
        *(repo, *say("repository\n"), file, *say("a.py\n12 34"), file, *say("b.py\ndog")),
        *(file, pre, *say("a"), suf, *say("b"), mid),
    ]
    spelled = fill_prompt(made, "<|fim_middle|>", "<|im_end|>")
    assert [spelled.count(each) for each in (pre, suf, mid, 2)] == [1, 1, 1, 0]
    assert made.decode(spelled[1:-1], skip_special=False).count("<|fim_middle|>") == 1
    bare = tokenizer(SPECIAL[:3])
    assert fill_prompt(bare, "a", "b", files[:1])[0] not in (pre, repo)


@pytest.mark.parametrize(
    "names",
    [
        ["<fim_prefix>", "<fim_suffix>", "<fim_middle>"],
        [
            "<\uff5cfim\u2581begin\uff5c>",
            "<\uff5cfim\u2581hole\uff5c>",
            "<\uff5cfim\u2581end\uff5c>",
        ],
        ["\u2581<PRE>", "\u2581<SUF>", "\u2581<MID>"],
    ],
)
def test_other_families_have_other_names(names: list[str]) -> None:
    made = tokenizer(names)
    assert fill_prompt(made, "", "") == [made.core.token_to_id(name) for name in names]


def test_files_say_which_their_tokens_are() -> None:
    made = tokenizer(["<A>", "<B>", "<C>"])
    with pytest.raises(BadRequest, match="no tokens to fill in"):
        fill_prompt(made, "a", "b")
    kinds = zip(("prefix", "suffix", "middle"), ("<A>", "<B>", "<C>"), strict=True)
    made.special_tokens |= {f"fim_{kind}_token": name for kind, name in kinds}
    assert fill_prompt(made, "", "") == [300, 301, 302]


def test_the_routes_fill_in() -> None:
    body: Json = {"prompt": "def f(", "suffix": "): return", "temperature": 0}
    sides = {"input_prefix": "def f(", "input_suffix": "): return", "temperature": 0}
    extra = [asdict_of(Extra("dog", "a.py"))]

    async def asks(client: Client) -> None:
        whole = await client.ask("/v1/completions", body)
        assert whole["choices"][0]["text"] == "x, y"
        assert whole["choices"][0]["finish_reason"] == "stop"
        two = await client.ask("/v1/completions", body | {"prompt": ["a", "b"]})
        assert [each["text"] for each in two["choices"]] == ["x, y"] * 2
        filled = await client.ask("/infill", sides | {"input_extra": extra, "cache_prompt": True})
        assert (filled["content"], filled["stop"], filled["stop_type"]) == ("x, y", True, "eos")
        assert filled["timings"]["predicted_n"] == filled["tokens_predicted"] == 5
        *parts, last = await client.stream("/infill", sides | {"n_predict": 2})
        assert "".join(each["content"] for each in parts) == "x,"
        assert not any(each["stop"] for each in parts)
        assert (last["stop"], last["stop_type"], last["content"]) == (True, "limit", "")
        word = await client.ask("/infill", sides | {"stop": [","]})
        assert (word["content"], word["stop_type"], word["stopping_word"]) == ("x", "word", ",")
        assert await client.refused("/infill", sides | {"n_predict": 0})
        endless = await client.ask("/infill", sides | {"n_predict": -1, "max_tokens": 1})
        assert endless["content"] == "x, y"
        assert (await client.refused("/infill", sides | {"n": 2}))["param"] == "n"
        long = await client.refused("/infill", sides | {"input_suffix": "dog " * 9000})
        assert long["code"] == "context_length_exceeded"
        for wrong, param in (({"echo": True}, "echo"), ({"prompt": [1, 2]}, "prompt")):
            error = await client.refused("/v1/completions", body | wrong)
            assert error["param"] == param

    run(asks, engine("x, y"))


def test_models_without_such_tokens_are_named() -> None:
    async def asks(client: Client) -> None:
        body = {"prompt": "a", "suffix": "b"}
        assert (await client.refused("/v1/completions", body))["param"] == "suffix"
        refused = await client.refused("/infill", {})
        assert "no tokens to fill in" in refused["message"]
        assert refused["param"] == "input_suffix"
        assert await client.ask("/v1/completions", body | {"suffix": "", "max_tokens": 1})

    run(asks)


def asdict_of(extra: Extra) -> Json:
    return {name: getattr(extra, name) for name in extra.__struct_fields__}
