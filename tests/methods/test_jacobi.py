"""Jacobi windows: exact for p/q rules, redrawn from the right rows, and never slower to converge
than plain decoding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers.decoding_loop import decode
from tests.helpers.drafter_context import context as drafter_context
from tests.helpers.steps import step_of
from tests.proof.joints import joint_of_steps

from paceline.core import tree as trees
from paceline.core.target import Output
from paceline.core.types import Budget, Distribution, LogitArray, SamplingParams, Verdict
from paceline.drafters.base import Drafter, NoDrafter
from paceline.engine.loop import AutoregressiveDecoder
from paceline.engine.stopping import StopRules
from paceline.errors import BadLogits
from paceline.methods.jacobi import Initial, Jacobi
from paceline.policy.controller import Fixed
from paceline.proof.compare import max_error, target_joint
from paceline.proof.tabular import TabularModel, TabularTarget, processed
from paceline.sampling.distributions import from_dense, one_hot
from paceline.sampling.generation import Generation
from paceline.sampling.randomness import KeyedRandomness
from paceline.sampling.sampler import Sampler
from paceline.verifiers.base import Verifier
from paceline.verifiers.block import Block
from paceline.verifiers.matching import Coupled, Greedy
from paceline.verifiers.rejection import Rejection

EXACT = 1e-12
VOCABULARY = 6
MODEL = TabularModel(VOCABULARY, 2, seed=1, sharpness=1.5)


def uniform(vocabulary: int) -> Initial:
    row = from_dense(np.full(vocabulary, 1 / vocabulary))
    return lambda sequence, position: row


INITIALS = {"repeat": lambda vocabulary: None, "uniform": uniform}
"""The default, a single token; and every token alike."""


@pytest.mark.parametrize("rule", [Rejection(), Block()], ids=lambda rule: rule.name)
@pytest.mark.parametrize("initial", INITIALS)
@pytest.mark.parametrize(("vocabulary", "window", "length"), [(2, 2, 4), (2, 3, 4), (3, 2, 3)])
def test_the_loop_is_exact(
    vocabulary: int, window: int, length: int, initial: str, rule: Verifier
) -> None:
    """Over several rounds, so that windows are redrawn, verified and redrawn again."""
    model = TabularModel(vocabulary, 4, 5, 1.5)
    params = SamplingParams(temperature=1, max_new_tokens=length)

    def drafter() -> Jacobi:
        return Jacobi(vocabulary, needs_q=True, initial=INITIALS[initial](vocabulary))

    budget = Budget(window, window)
    joint = joint_of_steps(model.logits, vocabulary, rule, drafter, (0,), params, budget)
    assert max_error(joint, target_joint(model.distribution, (0,), length)) < EXACT


def test_the_loop_is_exact_for_the_largest_window() -> None:
    model, params = TabularModel(3, 4, 6, 1.0), SamplingParams(temperature=1, max_new_tokens=4)

    def drafter() -> Jacobi:
        return Jacobi(3, needs_q=True)

    joint = joint_of_steps(model.logits, 3, Rejection(), drafter, (0,), params, Budget(3, 3))
    assert max_error(joint, target_joint(model.distribution, (0,), 4)) < EXACT


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0.7),
        SamplingParams(temperature=1.3, top_p=0.75),
        SamplingParams(temperature=0.9, repetition_penalty=1.4, frequency_penalty=0.8),
        SamplingParams(temperature=1, logit_bias={0: 1.5}, banned_tokens=(2,)),
        SamplingParams(temperature=1, forced_tokens={2: 1}),
        SamplingParams(temperature=0),
    ],
    ids=["warm", "top-p", "penalties", "banned", "forced", "greedy"],
)
def test_the_loop_is_exact_with_processed_logits(params: SamplingParams) -> None:
    prompt, params = (0, 1), replace(params, max_new_tokens=4)
    model = TabularModel(3, 3, 21, 1.5)
    truth = target_joint(processed(model.logits, params, prompt), prompt, 4)

    def drafter() -> Jacobi:
        return Jacobi(3, needs_q=True)

    joint = joint_of_steps(model.logits, 3, Rejection(), drafter, prompt, params, Budget(2, 2))
    assert max_error(joint, truth) < EXACT


def decoder_of(drafter: Drafter, verifier: Verifier, window: int = 4) -> AutoregressiveDecoder:
    target = TabularTarget(MODEL.logits, VOCABULARY)
    return AutoregressiveDecoder(
        target, drafter, verifier, Fixed(window, window), StopRules((), 4096)
    )


@settings(max_examples=25)
@given(
    st.lists(
        st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=5), min_size=1, max_size=3
    ),
    st.integers(1, 6),
    st.sampled_from([0.0, 1.0]),
    st.integers(0, 99),
)
def test_with_the_target_s_noise_tokens_are_those_of_plain_decoding(
    prompts: list[list[int]], window: int, temperature: float, seed: int
) -> None:
    params = SamplingParams(temperature, max_new_tokens=17, frequency_penalty=0.3, seed=seed)
    plain = [decode(decoder_of(NoDrafter(), Coupled()), [p], params)[0].generated for p in prompts]
    drafter = Jacobi(VOCABULARY, needs_q=False)
    sequences = decode(decoder_of(drafter, Coupled(), window), prompts, params)
    assert [s.generated for s in sequences] == plain
    assert all(s.stats.target_forwards <= 17 for s in sequences)


def test_iteration_settles_on_the_greedy_text_ahead_of_committing_it() -> None:
    """A model that looks at no token: after one forward over the window all of it is right."""
    blind = TabularModel(VOCABULARY, 0, seed=3)
    target = TabularTarget(blind.logits, VOCABULARY)
    drafter = Jacobi(VOCABULARY, needs_q=False)
    decoder = AutoregressiveDecoder(target, drafter, Greedy(), Fixed(4, 4), StopRules((), 4096))
    worst = int(blind.logits(()).argmin())
    [sequence] = decode(decoder, [[worst]], SamplingParams(max_new_tokens=21))
    assert sequence.generated == [int(blind.logits(()).argmax())] * 21
    assert sequence.stats.target_forwards == 1 + 20 // 5  # nothing guessed right, then all


def after_one_step(
    params: SamplingParams, seed: int = 0, window: int = 4
) -> tuple[Jacobi, Generation, list[int]]:
    """A drafter that has seen one forward, the sequence, and the tokens it had guessed."""
    drafter = Jacobi(VOCABULARY, needs_q=True, initial=uniform(VOCABULARY))
    decoder = decoder_of(drafter, Rejection(), window)
    sequence = Generation.start(0, [3, 1], params)
    sequence.randomness = KeyedRandomness(seed)
    decoder.open(sequence)
    [draft] = drafter.propose([sequence], [Budget(window, window)])
    decoder.step([sequence])
    return drafter, sequence, draft.tokens.tolist()


@pytest.mark.parametrize("seed", range(12))
def test_rows_are_the_target_s_after_the_guesses_of_the_forward_before(seed: int) -> None:
    """Logits after the old guesses, processed with the committed tokens and the guesses left."""
    params = SamplingParams(temperature=0.8, frequency_penalty=0.7, presence_penalty=0.2)
    drafter, sequence, guesses = after_one_step(params, seed)
    committed = sequence.generated
    [draft] = drafter.propose([sequence], [Budget(6, 6)])
    assert draft.sampling is not None
    assert draft.sampling.kind == "factorised"
    assert set(draft.sampling.rows) == set(range(-1, 5))
    for parent, row in draft.sampling.rows.items():
        place = len(committed) + parent + 1  # among generated tokens
        if place > len(guesses):
            np.testing.assert_array_equal(row.probs, np.full(VOCABULARY, 1 / VOCABULARY))
            continue
        sampler = Sampler(params, [3, 1])
        sampler.commit(committed)
        logits = MODEL.logits((3, 1, *guesses[:place]))
        expected = sampler.distribution(logits, guesses[len(committed) : place])
        np.testing.assert_array_equal(row.dense(), expected.dense())


def test_rows_do_not_depend_on_what_is_drawn_from_them() -> None:
    drafter, sequence, _ = after_one_step(SamplingParams(temperature=1.0), seed=3)
    drawn = []
    for seed in range(20):
        sequence.randomness = KeyedRandomness(100 + seed)
        [draft] = drafter.propose([sequence], [Budget(5, 5)])
        assert draft.sampling is not None
        rows = [row.dense().tolist() for row in draft.sampling.rows.values()]
        drawn.append((draft.tokens.tolist(), rows))
    assert len({tuple(tokens) for tokens, _ in drawn}) > 1
    assert all(rows == drawn[0][1] for _, rows in drawn)


def test_first_guesses_come_from_the_declared_law() -> None:
    sequence = Generation.start(0, [3, 1], SamplingParams(temperature=1.0))
    seen = []

    def initial(sequence: Generation, position: int) -> Distribution:
        seen.append(position)
        return one_hot(position, VOCABULARY)

    for initially, tokens in ((None, [1, 1, 1]), (initial, [2, 3, 4])):
        drafter = Jacobi(VOCABULARY, needs_q=True, initial=initially)
        drafter.open(sequence)
        [draft] = drafter.propose([sequence], [Budget(3, 3)])
        assert draft.tokens.tolist() == tokens
        assert draft.sampling is not None
        assert [row.argmax() for row in draft.sampling.rows.values()] == tokens
    assert seen == [2, 3, 4]


def test_a_window_is_no_larger_than_its_budget_and_may_be_empty() -> None:
    drafter, sequence, _ = after_one_step(SamplingParams(temperature=1.0))
    for nodes, depth in ((2, 5), (5, 2)):
        [draft] = drafter.propose([sequence], [Budget(nodes, depth)])
        assert len(draft) == 2
        assert trees.is_chain(draft)
    assert drafter.propose([sequence], [Budget(0, 0)]) == [trees.EMPTY]


def test_rows_beyond_a_smaller_window_are_kept() -> None:
    """A step with a narrow window, or none, forgets nothing of what lies further on."""
    drafter, sequence, guesses = after_one_step(SamplingParams(temperature=1.0), window=6)
    [wide] = drafter.propose([sequence], [Budget(5, 5)])
    begin = len(sequence.tokens)
    logits = np.stack([MODEL.logits(tuple(sequence.tokens))])
    sequence.tokens.append(0)
    sequence.sampler.commit([0])
    verdict = Verdict((), 0)
    drafter.observe(step_of([sequence], [trees.EMPTY], [verdict], [Output(logits)]))
    [after] = drafter.propose([sequence], [Budget(4, 4)])
    assert wide.sampling is not None
    assert after.sampling is not None
    assert begin + 4 <= 2 + len(guesses) + 1  # all four positions were seen
    for node in range(3):
        np.testing.assert_array_equal(
            after.sampling.rows[node - 1].dense(), wide.sampling.rows[node].dense()
        )


def test_a_position_where_nothing_is_possible_starts_anew() -> None:
    """A rejected guess may lead where the sampler leaves no token."""

    class Strict(Sampler):
        def distribution(
            self, logits: LogitArray, path: Sequence[int] = (), *, soft: bool = False
        ) -> Distribution:
            if path:
                raise BadLogits("no token fits the grammar here")
            return super().distribution(logits, path, soft=soft)

    params = SamplingParams(temperature=1.0, max_new_tokens=9)
    drafter = Jacobi(VOCABULARY, needs_q=True)
    drafter.open(sequence := Generation.start(0, [3, 1], params))
    [draft] = drafter.propose([sequence], [Budget(3, 3)])
    sequence.sampler = Strict(params, [3, 1])
    sequence.tokens.append(5)
    logits = np.stack([MODEL.logits((i,)) for i in range(4)])
    drafter.observe(step_of([sequence], [draft], [Verdict((), 5)], [Output(logits)]))
    [draft] = drafter.propose([sequence], [Budget(3, 3)])
    assert draft.sampling is not None
    assert draft.sampling.rows[-1].dense().min() > 0  # the target's own
    assert draft.sampling.rows[0].dense().tolist() == one_hot(5, VOCABULARY).dense().tolist()


def test_create_follows_the_verifier_and_close_forgets() -> None:
    target = TabularTarget(MODEL.logits, VOCABULARY)

    def no_model() -> TabularTarget:
        raise AssertionError("no draft model is needed")

    sequence = Generation.start(0, [3, 1], SamplingParams(temperature=1.0))
    for needs_q in (False, True):
        accepts = frozenset({"factorised" if needs_q else None})
        drafter = Jacobi.create(drafter_context(target, accepts=accepts))
        drafter.open(sequence)
        [draft] = drafter.propose([sequence], [Budget(3, 3)])
        assert (draft.sampling is not None) == needs_q
        assert draft.source == "jacobi"
        drafter.close(sequence)
        drafter.close(sequence)
        with pytest.raises(KeyError):
            drafter.propose([sequence], [Budget(3, 3)])
    assert Jacobi.needs.node_logits
