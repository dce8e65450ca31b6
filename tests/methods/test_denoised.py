"""Drafts of a denoiser: the target's distribution and text, and the searches that make them."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from tests.helpers.decoding_loop import decode
from tests.proof.joints import joint_of_steps
from tests.runtimes import tiny_cpu

from paceline.core.target import Target
from paceline.core.types import Budget, CanvasTraits, SamplingParams
from paceline.drafters.base import Drafter, NoDrafter
from paceline.engine.loop import AutoregressiveDecoder
from paceline.engine.stopping import StopRules
from paceline.errors import InvalidOption
from paceline.lab.training.data import Shards, Text
from paceline.methods.denoised import Deer, DiffuSpec, Grams, candidates
from paceline.policy.controller import Fixed
from paceline.proof.compare import max_error, target_joint
from paceline.proof.table_denoiser import TableDenoiser, random_joint
from paceline.proof.tabular import TabularModel, TabularTarget
from paceline.sampling.generation import Generation
from paceline.verifiers.base import Verifier
from paceline.verifiers.block import Block
from paceline.verifiers.matching import Coupled, SampleMatch
from paceline.verifiers.rejection import Rejection

EXACT = 1e-12
KINDS: tuple[dict[str, Any], ...] = (
    {},
    {"shifted": True},
    {"attention": "block", "block": 2},
    {"attention": "order"},
    {"attention": "causal", "shifted": True},
)


def denoiser(symbols: int = 2, places: int = 5, seed: int = 0, **facts: Any) -> Target:
    return cast(Target, TableDenoiser(random_joint(symbols, places, seed), **facts))


@pytest.mark.parametrize("rule", [Rejection(), Block()], ids=lambda rule: rule.name)
@pytest.mark.parametrize("facts", KINDS)
def test_drawn_drafts_have_the_targets_law(rule: Verifier, facts: dict[str, Any]) -> None:
    model, params = TabularModel(4, 4, 5, 1.5), SamplingParams(temperature=1, max_new_tokens=3)

    def drafter() -> Drafter:
        return Deer(denoiser(**facts), 4, needs_q=True)

    joint = joint_of_steps(model.logits, 4, rule, drafter, (0,), params, Budget(2, 2))
    assert max_error(joint, target_joint(model.distribution, (0,), 3)) < EXACT


def test_searched_drafts_have_the_targets_law() -> None:
    model, params = TabularModel(4, 4, 5, 1.5), SamplingParams(temperature=1, max_new_tokens=3)

    def drafter() -> Drafter:
        return DiffuSpec(denoiser(), 4)

    joint = joint_of_steps(model.logits, 4, SampleMatch(), drafter, (0,), params, Budget(2, 2))
    assert max_error(joint, target_joint(model.distribution, (0,), 3)) < EXACT


def test_a_draft_whose_law_is_not_its_own_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    model, params = TabularModel(4, 4, 5, 1.5), SamplingParams(temperature=1, max_new_tokens=3)
    # Searched drafts, verified as if they had been drawn.
    original = Deer.chain

    def wrong(self: Deer, sequence: Generation, logits: Any) -> Any:
        drawn = original(self, sequence, logits)
        rows = drawn.sampling.rows
        drawn.tokens[:] = [rows[node - 1].argmax() for node in range(len(drawn))]
        return drawn

    monkeypatch.setattr(Deer, "chain", wrong)

    def drafter() -> Drafter:
        return Deer(denoiser(), 4, needs_q=True)

    joint = joint_of_steps(model.logits, 4, Rejection(), drafter, (0,), params, Budget(2, 2))
    assert max_error(joint, target_joint(model.distribution, (0,), 3)) > 1e-3


@pytest.mark.parametrize("kind", [Deer, DiffuSpec])
@pytest.mark.parametrize("facts", KINDS)
def test_texts_are_those_without_drafts(kind: type[Deer], facts: dict[str, Any]) -> None:
    model = TabularModel(5, 3, 2, 2.0)

    def texts(drafter: Drafter, params: SamplingParams) -> list[list[int]]:
        target = TabularTarget(model.logits, 5)
        decoder = AutoregressiveDecoder(target, drafter, Coupled(), Fixed(3, 3), StopRules((), 500))
        return [each.generated for each in decode(decoder, [[0], [1, 2, 0, 1]], params)]

    for params in (
        SamplingParams(max_new_tokens=12),
        SamplingParams(max_new_tokens=12, temperature=1.0, seed=4, frequency_penalty=0.5),
    ):
        drafted = texts(kind(denoiser(3, 5, **facts), 5, recent=9), params)
        assert drafted == texts(NoDrafter(), params)


def proposed(drafter: Drafter, tokens: list[int], length: int, **params: Any) -> list[int]:
    sequence = Generation.start(0, tokens, SamplingParams(**params))
    [draft] = drafter.propose([sequence], [Budget(length, length)])
    return draft.tokens.tolist()


def test_a_beam_of_one_by_the_denoiser_alone_is_the_argmax_of_every_place() -> None:
    for seed in range(10):
        model = denoiser(3, 5, seed)
        one = DiffuSpec(model, 5, beam=1, share=1.0)
        assert proposed(one, [0], 5) == proposed(Deer(model, 5), [0], 5)


def test_the_widest_beam_is_the_best_of_all_chains() -> None:
    worse = 0
    for seed in range(10):
        model, text = denoiser(3, 5, seed), [0, 1, 2, 1]
        table = cast(TableDenoiser, model)
        grams = Grams([text], 5)
        probs = [table.conditional(place, [(1, 1), (2, 2), (3, 1)]) for place in (4, 5)]

        def score(chain: tuple[int, ...], probs: Any = probs, grams: Grams = grams) -> float:
            past = (2, 1)
            total = 0.0
            for distribution, token in zip(probs, chain, strict=True):
                total += 0.5 * np.log(distribution[token]) + 0.5 * grams.log(past, token)
                past = (*past, token)
            return total

        best = max(product(range(3), repeat=2), key=score)
        wide = proposed(DiffuSpec(model, 5, mass=1.0, beam=100), text, 2)
        assert tuple(wide) == best
        narrow = proposed(DiffuSpec(model, 5, mass=1.0, beam=1), text, 2)
        assert score(tuple(narrow)) <= score(best)
        worse += narrow != wide
    assert worse < 10


def test_candidates_are_the_least_set_with_the_mass() -> None:
    distribution = np.array([0.1, 0.5, 0.0, 0.3, 0.1])
    assert candidates(distribution, 0.5, 15).tolist() == [1]
    assert candidates(distribution, 0.8, 15).tolist() == [1, 3]
    assert candidates(distribution, 0.85, 15).tolist() == [1, 3, 0]
    assert candidates(distribution, 1.0, 15).tolist() == [1, 3, 0, 4]
    assert candidates(distribution, 1.0, 2).tolist() == [1, 3]


def test_n_grams_are_distributions() -> None:
    grams = Grams([[0, 1, 2, 0, 1, 2, 0]], 4)
    for past in ((), (1,), (0, 1), (3, 3)):
        assert abs(sum(np.exp(grams.log(past, token)) for token in range(4)) - 1) < EXACT
    assert grams.log((0, 1), 2) > grams.log((0, 1), 0)


def test_n_grams_of_a_folder_take_the_place_of_those_of_the_text(tmp_path: Path) -> None:
    texts = [Text(i, np.array([0, 1, 2, 2]), 1) for i in range(3)]
    Shards(tmp_path, {}).write(0, texts)
    by_folder = DiffuSpec(denoiser(3, 5), 5, share=0.0, mass=1.0, grams=str(tmp_path))
    assert proposed(by_folder, [0, 0, 0], 3) == [1, 2, 2]
    assert proposed(DiffuSpec(denoiser(3, 5), 5, share=0.0, mass=1.0), [0, 0, 0], 3) == [0, 0, 0]


class Seen(Deer):
    """Notes the distributions that it drafts from."""

    def chain(self, sequence: Generation, logits: Any) -> Any:
        self.logits = logits
        return super().chain(sequence, logits)


def test_keys_of_causal_rows_stay_and_are_those_of_reading_the_text() -> None:
    facts = CanvasTraits(3, "causal", shifted=True, autoregressive=True)
    shape = replace(tiny_cpu.config(), denoises=facts)
    target = tiny_cpu.target(shape=shape)
    text = np.random.default_rng(0).integers(4, 300, 40).tolist()

    def differences(recent: int = 256) -> list[float]:
        kept, out = Seen(target, shape.vocab_size, recent=recent), []
        for length, step in ((5, 3), (8, 2), (11, 4), (13, 1), (25, 3)):
            proposed(kept, text[:length], step)
            fresh = Seen(target, shape.vocab_size)
            proposed(fresh, text[:length], step)
            assert len(kept.logits) == step
            out.append(float(abs(kept.logits[:, 4:] - fresh.logits[:, 4:]).max()))
            fresh.close(Generation.start(0, text[:length], SamplingParams()))
        kept.close(Generation.start(0, text, SamplingParams()))
        return out

    free = target.memory.free
    assert max(differences()) == 0
    assert min(differences(recent=4)) > 0  # it reads less from the begin on
    assert target.memory.free == free
    keep = target.keep
    with pytest.MonkeyPatch.context() as patched:  # masks that stay behind the text are found
        patched.setattr(
            target, "keep", lambda cache, n, _: keep(cache, n, range(cache.places != []))
        )
        assert max(differences()) > 0


def test_drafts_end_where_the_text_ends() -> None:
    drafter = DiffuSpec(denoiser(2, 2), 4)
    assert proposed(drafter, [0], 5)[2:] == [3]


@pytest.mark.parametrize("kind", [Deer, DiffuSpec])
def test_what_it_cannot_draft_with_is_an_error(kind: type[Deer]) -> None:
    plain = cast(Target, TabularTarget(TabularModel(4, 2, 0).logits, 4))
    with pytest.raises(InvalidOption, match="fills masked places"):
        kind(plain, 4)
    with pytest.raises(InvalidOption, match="has 4 tokens and the target 9"):
        kind(denoiser(), 9)
    with pytest.raises(InvalidOption, match="recent"):
        kind(denoiser(), 4, recent=0)


def test_a_search_is_not_for_verifiers_of_draws() -> None:
    with pytest.raises(InvalidOption, match="use verifier 'coupled'"):
        DiffuSpec(denoiser(), 4, needs_q=True)
