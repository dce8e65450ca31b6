"""Bodies: ranges, names of wrong fields, and nothing but BadRequest for any input."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from contextlib import suppress
from time import perf_counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.serving.protocol import BadRequest, ChatRequest, CompletionRequest, decode

USER = {"messages": [{"role": "user", "content": "x"}]}


def wrong(fields: dict[str, Any], strict: bool = False) -> BadRequest:
    with pytest.raises(BadRequest) as found:
        decode(ChatRequest, json.dumps(USER | fields).encode(), strict)
    return found.value


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"presence_penalty": -2.1}, "presence_penalty"),
        ({"n": 129}, "n"),
        ({"max_tokens": -2}, "max_tokens"),
        ({"logit_bias": dict.fromkeys(map(str, range(2000)), 1)}, "logit_bias"),
        ({"web_search_options": {}, "prompt": {"id": "p"}}, "prompt"),
        ({"seed": 2**63}, "seed"),
        ({"seed": 10**40}, "seed"),
        ({"logit_bias": {"3": 101}}, "logit_bias[...]"),
        ({"stop": ["x"] * 65}, "stop"),
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
        ({"speculation": {"nodes": 0}}, "speculation.nodes"),
        ({"speculation": {"node": 3}}, "speculation"),
        ({"denoising": {"samplr": "counts"}}, "denoising"),
        ({"stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"template": "{{ x }}"}, "template"),
        ({"best_of": 2}, "best_of"),
        ({"conversation": "x"}, "conversation"),
        ({"xtc_probability": 1.1}, "xtc_probability"),
        ({"typical_p": 0}, "typical_p"),
        ({"dry_base": 0.5}, "dry_base"),
        ({"mirostat": 3}, "mirostat"),
        ({"repeat_penalty": 1.1, "repetition_penalty": 1.2}, "repeat_penalty"),
        ({"tfs_z": 0.5}, "tfs_z"),
        ({"sampler_priority": ["top_k"]}, "sampler_priority"),
        ({"dynatemp_low": 0.5}, "dynatemp_low"),
    ],
)
def test_the_wrong_field_is_named(fields: dict[str, Any], param: str) -> None:
    error = wrong(fields)
    assert error.param == param
    assert param in str(error)


def test_a_missing_field_is_named() -> None:
    with pytest.raises(BadRequest, match="missing") as found:
        decode(CompletionRequest, b"{}")
    assert found.value.param == "prompt"


@pytest.mark.parametrize(
    "body",
    [b"", b"[", b"[1]", b"null", b"\xff", b'"\\ud800"', b'{"a": NaN}', b'{"messages": 1e999}'],
)
def test_what_is_no_json_object_is_refused(body: bytes) -> None:
    with pytest.raises(BadRequest):
        decode(ChatRequest, body)


@pytest.mark.parametrize(
    ("text", "half"),
    [(r"\ud83d", r"\ud83d"), (r"\ud83d\ude00\uDE00", r"\uDE00"), (r"a\\\ud83d b", r"\ud83d")],
)
def test_half_of_a_pair_is_named(text: str, half: str) -> None:
    with pytest.raises(BadRequest, match=f"{re.escape(half)} is half of a UTF-16 pair"):
        decode(ChatRequest, f'{{"stop": "{text}"}}'.encode())
    with pytest.raises(BadRequest, match="malformed"):
        decode(ChatRequest, rb'{"stop": "\ud83d\ude00 \\ud83d" x}')


def test_deep_nesting_is_refused() -> None:
    with pytest.raises(BadRequest, match="nested"):
        decode(ChatRequest, b'{"messages": ' + b"[" * 19_000 + b"]" * 19_000 + b"}")


@pytest.mark.parametrize("unit", [b"[],", b"{},", b"1,"])
def test_more_values_than_can_be_read_at_once_are_refused(unit: bytes) -> None:
    data = b'{"messages": [' + unit * 1_000_001 + b"0]}"
    began = perf_counter()
    with pytest.raises(BadRequest, match="more than 20000 lists and objects") as found:
        decode(ChatRequest, data)
    assert found.value.status == 413
    assert perf_counter() - began < 0.5  # reading it takes seconds


def test_fields_that_change_nothing_are_named_unless_they_ask_for_nothing() -> None:
    quiet = {"store": False, "service_tier": "auto", "verbosity": "medium", "user": "u"}
    assert decode(ChatRequest, json.dumps(USER | quiet).encode(), strict=True)[1] == []
    loud = {"store": True, "service_tier": "flex", "verbosity": "low", "prediction": None}
    told = decode(ChatRequest, json.dumps(USER | loud).encode())[1]
    assert told == ["store", "service_tier", "verbosity"]


def test_null_is_a_field_left_out() -> None:
    names = (name for name in ChatRequest.__struct_fields__ if name != "messages")
    body, ignored = decode(ChatRequest, json.dumps(dict.fromkeys(names) | USER).encode())
    assert ignored == []
    assert body == decode(ChatRequest, json.dumps(USER).encode())[0]


def test_an_empty_stop_text_among_others_is_told() -> None:
    data = b'{"messages": [{"role": "user", "content": "a"}], "stop": %s}'
    assert decode(ChatRequest, data % b'["", "b", ""]')[1] == ["stop[0]", "stop[2]"]
    assert decode(ChatRequest, data % b'""')[1] == decode(ChatRequest, data % b"[]")[1] == []


def test_unknown_fields_are_told_or_refused() -> None:
    asked = json.dumps(USER | {"no_such_field": 0.5, "nothing": None}).encode()
    assert decode(ChatRequest, asked)[1] == ["no_such_field"]
    assert wrong({"no_such_field": 0.5}, strict=True).param == "no_such_field"


def test_defaults_of_other_servers_ask_for_nothing() -> None:
    theirs = {"no_stop_trim": False, "separate_reasoning": True, "best_of": 1, "suffix": None}
    assert decode(ChatRequest, json.dumps(USER | theirs).encode(), strict=True)[1] == []
    assert decode(ChatRequest, json.dumps(USER | {"no_stop_trim": True}).encode())[1] == [
        "no_stop_trim"
    ]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
FIELDS = st.dictionaries(
    st.sampled_from([*ChatRequest.__struct_fields__, "chat_template", "x\n"]), VALUES, max_size=4
)


@settings(max_examples=200, derandomize=True)
@given(FIELDS)
def test_any_fields_are_read_or_refused(fields: dict[str, Any]) -> None:
    with suppress(BadRequest):
        decode(ChatRequest, json.dumps(USER | fields).encode())


def test_threads_may_read_first_bodies_at_once() -> None:
    """In processes of their own: a type is read once, and what goes wrong ends the process."""
    code = """
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from paceline.serving.protocol import ChatRequest, CompletionRequest, ResponsesRequest, decode
bodies = [(ChatRequest, b'{"messages": [{}]}'), (CompletionRequest, b'{"prompt": "x"}')] * 4
bodies += [(ResponsesRequest, b'{"input": "x"}')] * 4
sys.setswitchinterval(1e-6)
begin = Barrier(12)
def read(each):
    begin.wait()
    return decode(*each)
with ThreadPoolExecutor(12) as pool:
    assert len(list(pool.map(read, bodies))) == 12
"""
    for _ in range(5):
        subprocess.run([sys.executable, "-c", code], check=True)


def test_other_names_of_a_field_are_read() -> None:
    asked = {"repeat_penalty": 1.1, "dry_range": 0, "mirostat_mode": 2, "typ_p": 0.5, "top_a": 0}
    body, ignored = decode(ChatRequest, json.dumps(USER | asked).encode())
    assert (body.repetition_penalty, body.repeat_last_n, ignored) == (1.1, 64, [])
    assert (body.dry_penalty_last_n, body.mirostat, body.typical_p) == (-1, 2, 0.5)
