"""Parameters are checked where they are made, and errors name them."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import fields

import pytest

from paceline.core.types import SamplingParams
from paceline.errors import InvalidOption, PacelineError

BAD: list[tuple[str, list[object]]] = [
    ("temperature", [-0.1, math.nan, math.inf, "1", None]),
    ("top_k", [-1, 2**63, 40.0, "40"]),
    ("top_p", [0.0, -0.5, 1.01, math.nan]),
    ("min_p", [-0.01, 1.5, math.nan]),
    ("repetition_penalty", [0.0, -1.0, 1e-7, 1e7, math.inf, math.nan]),
    ("presence_penalty", [math.inf, math.nan, -1e7]),
    ("frequency_penalty", [-math.inf, math.nan, -1e308]),
    ("logit_bias", [{3: math.inf}, {3: math.nan}, {3: 1, 4: -1e7}]),
    ("max_new_tokens", [0, -5]),
    ("stop", [("",), ("ok", "")]),
    ("seed", [-1]),
    ("logprobs", [-1]),
    ("prompt_logprobs", [-1]),
    ("min_tokens", [-1, 257]),
    ("repeat_last_n", [-2, math.nan]),
    ("dry_multiplier", [-0.1, math.nan, math.inf]),
    ("dry_base", [0.9, math.nan, math.inf]),
    ("dry_allowed_length", [-1, math.nan]),
    ("dry_penalty_last_n", [-2, math.nan]),
    ("dry_sequence_breakers", ["\\n", ("",), ("x" * 41,), ("x",) * 65]),
    ("typical_p", [0.0, 1.1, math.nan]),
    ("top_n_sigma", [-2.0, math.nan, math.inf]),
    ("dynatemp_range", [-0.1, math.nan, math.inf]),
    ("dynatemp_exponent", [-0.1, math.nan, math.inf]),
    ("xtc_probability", [-0.1, 1.1, math.nan]),
    ("xtc_threshold", [-0.1, 1.1, math.nan]),
    ("mirostat", [3, -1, math.nan]),
    ("mirostat_tau", [-0.1, math.nan, math.inf]),
    ("mirostat_eta", [-0.1, math.nan, math.inf]),
    ("samplers", ["top_k", ("tfs",), ("top_k", "top_k"), ("top_k", "dry")]),
    ("max_new_tokens", [16.0, "16", None]),
    ("seed", [1.5, None]),
    ("logprobs", [2.0, "2"]),
    ("stop", [b"end", 5, None, (5,)]),
]

GOOD: list[tuple[str, list[object]]] = [
    ("temperature", [0.0, 2.5]),
    ("top_k", [0, 10**6]),
    ("top_p", [1e-9, 1.0]),
    ("min_p", [0.0, 1.0]),
    ("repetition_penalty", [0.5, 2.0]),
    ("presence_penalty", [-2.0, 2.0, 1e6]),
    ("frequency_penalty", [-2.0, 2.0]),
    ("logit_bias", [{}, {0: -100.0}]),
    ("max_new_tokens", [1]),
    ("stop", [(), ("end",)]),
    ("seed", [0, 2**70]),
    ("logprobs", [None, 0, 20]),
    ("prompt_logprobs", [None, 0, 20]),
    ("min_tokens", [0, 256]),
]


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, values in BAD for v in values])
def test_bad_values_are_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(InvalidOption) as caught:
        SamplingParams(**{name: value})  # type: ignore[arg-type]
    message = str(caught.value)
    assert message.startswith(f"{name} must be ")
    assert "\n" not in message
    assert isinstance(caught.value, PacelineError)


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, values in GOOD for v in values])
def test_good_values_are_taken(name: str, value: object) -> None:
    assert getattr(SamplingParams(**{name: value}), name) == value  # type: ignore[arg-type]


def test_greedy_is_temperature_zero() -> None:
    assert SamplingParams().greedy
    assert not SamplingParams(temperature=0.1).greedy


@pytest.mark.parametrize("name", [each.name for each in fields(SamplingParams)])
def test_values_of_any_kind_are_taken_or_refused_by_name(name: str) -> None:
    odd = ("1", None, b"x", [1], [None], [[1]], {}, {"a": 1}, {1: "a"}, math.nan, True, object())
    for value in odd:
        with suppress(InvalidOption):
            SamplingParams(**{name: value})
