"""Samplers of presets against llama.cpp's own numbers, and transformers'.

`llama_cpp.json` holds what the functions `llama_sampler_init_*` and `llama_sampler_apply` of
llama.cpp b11549 (PyPI's xllamacpp 2026.10.11549, called by ctypes) left of random logits, and what
its DRY took off logits after random texts, with breakers given as tokens.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.helpers import table_engines as engines
from transformers import TypicalLogitsWarper

from paceline.core.types import PRESETS, SAMPLERS, SamplingParams
from paceline.engine.requests import BreakerTokens
from paceline.errors import InvalidOption
from paceline.proof.tabular import _Coin
from paceline.sampling.processors import sampler_names
from paceline.sampling.sampler import Sampler

TABLE = json.loads((Path(__file__).parent / "llama_cpp.json").read_text())
SAMPLED = SamplingParams(temperature=1.0, max_new_tokens=60, ignore_eos=True)
ON: dict[str, dict[str, Any]] = {
    "dry": {"dry_multiplier": 20.0, "dry_allowed_length": 0},
    "window": {"repetition_penalty": 1.4, "frequency_penalty": 0.4, "repeat_last_n": 7},
    "typical": {"typical_p": 0.7},
    "sigma": {"top_n_sigma": 1.5},
    "dynamic": {"dynatemp_range": 0.6},
    "xtc": {"xtc_probability": 0.5, "xtc_threshold": 0.05},
    "order": {"top_p": 0.8, "samplers": ("top_p", "temperature")},
    "mirostat 1": {"mirostat": 1, "mirostat_tau": 2.0},
    "mirostat 2": {"mirostat": 2, "mirostat_tau": 2.0, "mirostat_eta": 0.4},
}


def listed(params: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(v) if isinstance(v, list) else v for name, v in params.items()}


@pytest.mark.parametrize("case", TABLE["distributions"], ids=lambda case: "-".join(case["params"]))
def test_distributions_are_llama_cpps(case: dict[str, Any]) -> None:
    sampler = Sampler(SamplingParams(**listed(case["params"])), [0], randomness=_Coin(True))
    for step in case["steps"]:
        found = sampler.distribution(np.array(step["logits"], np.float32))
        kept = {str(found.token(i)): p for i, p in enumerate(found.probs.tolist())}
        assert kept == pytest.approx(step["distribution"], abs=3e-6)
        if "token" in step:
            sampler.mu = sampler.after(sampler.mu, found, step["token"])
            sampler.commit([step["token"]])


@pytest.mark.parametrize("cut", [0, 3, 100])
@pytest.mark.parametrize("case", TABLE["dry"])
def test_dry_is_llama_cpps_wherever_the_text_stands(case: dict[str, Any], cut: int) -> None:
    params = SamplingParams(
        dry_multiplier=case["multiplier"],
        dry_base=case["base"],
        dry_allowed_length=case["allowed"],
        dry_penalty_last_n=case["last"],
    )
    breakers: dict[int, tuple[tuple[int, ...], ...]] = {}
    for head, *tail in case["breakers"]:
        breakers[head] = (*breakers.get(head, ()), (*tail,))
    text = case["text"]
    sampler = Sampler(params, text[:2], breakers=breakers)
    sampler.commit(text[2 : 2 + cut])
    left = sampler._adjusted(np.zeros(8, np.float32), text[2 + cut :])
    taken = {str(i): -x for i, x in enumerate(left.tolist()) if x}
    assert taken == pytest.approx(case["taken"], rel=1e-4)


@pytest.mark.parametrize("mass", [0.1, 0.4, 0.7, 0.95])
def test_typical_is_that_of_transformers(mass: float) -> None:
    rows = np.random.default_rng(3).normal(size=(20, 50)).astype(np.float32) * 2
    left = TypicalLogitsWarper(mass)(torch.zeros(20, 1, dtype=torch.long), torch.tensor(rows))
    sampler = Sampler(SamplingParams(temperature=1, typical_p=mass), [0])
    for row, theirs in zip(rows, left, strict=True):
        found = sampler.distribution(row).dense()
        assert np.flatnonzero(found).tolist() == torch.isfinite(theirs).nonzero()[:, 0].tolist()
        assert found == pytest.approx(torch.softmax(theirs.double(), 0).numpy(), abs=1e-6)


def test_breakers_are_found_whole_and_begun_in_tokens() -> None:
    """As llama.cpp's get_overlapping_token_sequences."""
    tokenizer = engines.TOKENIZER
    size = engines.VOCABULARY
    text = "the quick"
    found = BreakerTokens(tokenizer, size).find(
        SamplingParams(dry_multiplier=1, dry_sequence_breakers=(text, "e"))
    )
    words = [tokenizer.bytes_of(token) for token in range(size)]
    for token, word in enumerate(words):
        tails = {()} if b"e" in word else set()
        for cut in range(1, len(text) + 1):
            if text.encode() in word:
                tails.add(())
            elif word.endswith(text[:cut].encode()):
                tails.add(tuple(tokenizer.encode(text[cut:])))
        assert set(found.get(token, ())) == tails
    assert BreakerTokens(tokenizer, size).find(SamplingParams()) == {}


@pytest.mark.parametrize("name", engines.drafters())
@pytest.mark.parametrize("kind", ON)
def test_drafts_change_no_token(kind: str, name: str) -> None:
    differ = 0
    for seed in range(2):
        params = replace(SAMPLED, seed=seed, **ON[kind])
        for prompt in engines.PROMPTS[:1]:
            plain = engines.make().generate(prompt, params)
            drafted = engines.make(drafter=engines.drafters()[name]).generate(prompt, params)
            assert drafted.token_ids == plain.token_ids
            bare = engines.make().generate(prompt, replace(SAMPLED, seed=seed))
            differ += plain.token_ids != bare.token_ids
    assert differ


def test_xtc_draws_once_per_position() -> None:
    sampler = Sampler(replace(SAMPLED, **ON["xtc"]), [0], randomness=_Draws())
    for path in ((), (1,), (2,), (1, 3)):
        sampler.distribution(np.zeros(4, np.float32), path)
    assert _Draws.asked == [1, 2, 2, 3]


class _Draws(_Coin):
    asked: list[int] = []  # noqa: RUF012  # of the one test above

    def __init__(self) -> None:
        super().__init__(True)

    def bernoulli(self, probability: float, draw: Any) -> bool:
        self.asked.append(draw.position)
        return super().bernoulli(probability, draw)


def test_extremes_leave_a_token() -> None:
    rows = [np.zeros(6), np.array([0, -np.inf, -np.inf, 3, -1e4, 2.0]), np.eye(6)[0] * 1e4]
    extremes = [ON[kind] for kind in ON] + [
        {"mirostat": version, "mirostat_tau": tau, "mirostat_eta": 1e6}
        for version in (1, 2)
        for tau in (0.0, 1e6)
    ]
    extremes += [{"xtc_probability": 1.0, "xtc_threshold": share} for share in (0.0, 1.0)]
    extremes += [{"dynatemp_range": 1e6, "dynatemp_exponent": 1e6}, {"typical_p": 1e-9}]
    extremes += [{"top_n_sigma": 1e-9}, {"dry_multiplier": 1e6, "dry_base": 1e6}]
    for more in extremes:
        for temperature in (1e-300, 1.0, 1e300):
            params = SamplingParams(**{"temperature": temperature} | more)
            sampler = Sampler(params, [0, 1, 0, 1, 0, 1], randomness=_Coin(True))
            for row in rows:
                found = sampler.distribution(row.astype(np.float32))
                assert np.isfinite(found.probs).all()
                assert found.probs.sum() == pytest.approx(1)
                token = found.token(0)
                sampler.mu = sampler.after(sampler.mu, found, token)
                sampler.commit([token])


def test_at_temperature_0_what_means_nothing_is_refused() -> None:
    for name in ("xtc_probability", "mirostat", "dynatemp_range", "typical_p"):
        with pytest.raises(InvalidOption, match=f"{name} has no meaning at temperature 0"):
            SamplingParams(**{name: 0.5 if name == "typical_p" else 1})  # type: ignore[arg-type]
    row = np.array([1.0, 3.0, 2.9], np.float32)
    assert Sampler(SamplingParams(top_n_sigma=0.1), [0]).distribution(row).token(0) == 1
    dry = SamplingParams(dry_multiplier=1, dry_allowed_length=1)
    assert Sampler(dry, [2, 1, 2]).distribution(row).token(0) == 2


def test_the_order_is_read_in_all_its_forms() -> None:
    names = ("dry", "top_k", "typ_p", "temperature")
    for form in ("dkyt", "dry;top_k;typ_p;temperature", ["dry", "top_k", "typical_p", "t"]):
        assert sampler_names(form) == names
    assert sampler_names(SAMPLERS) == SAMPLERS
    off = SamplingParams(temperature=0.5, presence_penalty=1, dry_multiplier=1, samplers=("top_k",))
    row = np.array([1.0, 3.0, 2.9], np.float32)
    sampler, bare = Sampler(off, [1, 1, 1]), Sampler(SamplingParams(temperature=1), [1, 1, 1])
    for each in (sampler, bare):
        each.commit([1, 1])
    assert np.array_equal(sampler.distribution(row).dense(), bare.distribution(row).dense())


def test_a_resumed_answer_has_no_mirostat() -> None:
    with pytest.raises(InvalidOption, match="which a resumed answer"):
        engines.make().add("dog", replace(SAMPLED, **ON["mirostat 2"]), resume=[5])


def test_every_field_stands_at_the_command_line_and_in_requests() -> None:
    from paceline.cli.options import SamplingOptions
    from paceline.serving.protocol import FIELDS

    assert set(PRESETS) <= set(SamplingOptions.__slots__) & FIELDS
    assert SamplingOptions().given() == {}
    asked = SamplingOptions(dry_sequence_breakers=["x"], samplers="dry;xtc").given()
    assert SamplingParams(**asked).samplers == ("dry", "xtc")
