"""Statistical drafters on the real model: greedy texts and seeded samples are unchanged."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.helpers.decoding_loop import decode_all
from tests.real.conftest import load
from tests.real.prompts import PROMPTS

from paceline.core.types import SamplingParams
from paceline.drafters.base import Drafter, NoDrafter
from paceline.drafters.resources import Loaded
from paceline.engine.loop import AutoregressiveDecoder
from paceline.engine.stopping import StopRules
from paceline.methods.cacheback import Cacheback
from paceline.methods.forced import Forced, Template
from paceline.methods.lookahead import Lookahead
from paceline.methods.statistics.aded import Aded
from paceline.methods.statistics.stand import Stand
from paceline.methods.suffix_tree import SuffixTrees
from paceline.methods.trigram_search import TrigramSearch
from paceline.policy.controller import Fixed
from paceline.sampling.generation import Generation
from paceline.verifiers.base import Verifier
from paceline.verifiers.matching import Coupled
from paceline.verifiers.recursive import RecursiveDistinct

pytestmark = pytest.mark.real

MAKE: dict[str, Callable[[int], Drafter]] = {
    "aded": lambda vocabulary: Aded(),
    "aded-mcts": lambda vocabulary: TrigramSearch(),
    "cacheback": lambda vocabulary: Cacheback(),
    "lookahead": lambda vocabulary: Lookahead(),
    "stand": Stand,
    "suffix-tree": lambda vocabulary: SuffixTrees(),
}
PICKED = [PROMPTS[3], PROMPTS[4], PROMPTS[7]]


@pytest.fixture(scope="module")
def int8() -> Loaded:
    return load("int8")


def decode(
    loaded: Loaded,
    drafter: Drafter,
    params: list[SamplingParams],
    verifier: Verifier | None = None,
) -> tuple[list[list[int]], int]:
    """Outputs of a ragged batch, and how many of their tokens were drafted."""
    stops = StopRules(loaded.tokenizer.eos_token_ids, loaded.target.capabilities.max_context)
    rule = verifier or Coupled()
    decoder = AutoregressiveDecoder(loaded.target, drafter, rule, Fixed(7, 5), stops)
    prompts = [loaded.tokenizer.chat([{"role": "user", "content": text}]) for text in PICKED]
    sequences = [
        Generation.start(i, prompt, p)
        for i, (prompt, p) in enumerate(zip(prompts, params, strict=False))
    ]
    decode_all(decoder, sequences)
    return [s.generated for s in sequences], sum(s.stats.accepted_tokens for s in sequences)


GREEDY = [SamplingParams(max_new_tokens=n) for n in (40, 30, 36)]
SAMPLED = [SamplingParams(0.8, top_p=0.95, seed=s, max_new_tokens=24) for s in range(2)]


@pytest.fixture(scope="module")
def plain(int8: Loaded) -> dict[str, list[list[int]]]:
    """Plain decoding, one prompt at a time."""
    return {
        "greedy": decode(int8, NoDrafter(), GREEDY)[0],
        "sampled": decode(int8, NoDrafter(), SAMPLED)[0],
    }


@pytest.mark.parametrize("name", MAKE)
def test_greedy_and_seeded_texts_equal_plain_decoding(
    int8: Loaded, plain: dict[str, list[list[int]]], name: str
) -> None:
    drafter = MAKE[name](int8.target.capabilities.vocab_size)
    texts, drafted = decode(int8, drafter, GREEDY)
    assert texts == plain["greedy"]
    assert drafted > 10
    texts, _ = decode(int8, drafter, SAMPLED)  # with what was learned
    assert texts == plain["sampled"]


def test_forced_and_expected_tokens_change_nothing(
    int8: Loaded, plain: dict[str, list[list[int]]]
) -> None:
    text = plain["greedy"][0]
    template = Template([text[:6], text[9:15]])
    texts, drafted = decode(int8, Forced(template), GREEDY[:1])
    assert texts == plain["greedy"][:1]
    assert drafted >= 6  # of 12, what follows an agreement is drafted
    words = int8.tokenizer.encode("Certainly, here it is:")
    forced = [SamplingParams(max_new_tokens=16, forced_tokens=dict(enumerate(words)))]
    expected, _ = decode(int8, NoDrafter(), forced)
    texts, drafted = decode(int8, Forced(), forced)
    assert texts == expected
    assert texts[0][: len(words)] == words
    assert drafted == len(words) - (len(words) + 4) // 6  # all but one per step


def test_a_second_attempt_accepts_drawn_drafts(int8: Loaded) -> None:
    """Several attempts at one problem, drawn with the probabilities of those before."""
    drafter = Stand(int8.target.capabilities.vocab_size, drawn=True)
    accepted = []
    for seed in range(3):
        params = [SamplingParams(0.6, seed=seed, max_new_tokens=30)]
        texts, drafted = decode(int8, drafter, params, RecursiveDistinct())
        assert len(texts[0]) > 5
        accepted.append(drafted)
    assert accepted[1] + accepted[2] > 5
