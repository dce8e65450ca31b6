"""Constrained requests: the same texts with any draft, in any batch, and through preemption."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.engine.test_engine_memory import make as make_paged
from tests.helpers.schemas import is_valid
from tests.helpers.table_engines import (
    EOS,
    TOKENIZER,
    VOCABULARY,
    drafters,
    finish,
    key,
    make,
)
from tests.helpers.words import Words

from paceline.core import tree as trees
from paceline.core.constraint import Constraint
from paceline.core.types import Budget, SamplingParams, Speculation, TokenTree
from paceline.drafters.base import NoDrafter
from paceline.drafters.recycling import Recycling
from paceline.engine import speculator
from paceline.engine.engine import Engine, Event
from paceline.errors import BadLogits, InvalidOption
from paceline.models.grammar import Grammars
from paceline.policy.controller import Fixed
from paceline.proof.cases import FunctionDrafter, sampled_chain
from paceline.proof.tabular import TabularModel
from paceline.sampling.generation import Generation
from paceline.trees.union import constrained
from paceline.verifiers.matching import Greedy
from paceline.verifiers.rejection import Rejection

GRAMMARS = Grammars(TOKENIZER, VOCABULARY)
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "kind": {"enum": ["first", "second"]},
        "count": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["name", "kind", "count"],
    "additionalProperties": False,
}
CONSTRAINTS: list[Constraint | None] = [
    GRAMMARS.json_schema(SCHEMA, compact=True),
    None,
    GRAMMARS.regex("(the|quick|fox| )+!"),
    GRAMMARS.choice(["lazy dog", "lazy fox", "brown"]),
    GRAMMARS.tool_calls([{"name": "look", "parameters": {"type": "object"}}], "look"),
    GRAMMARS.lark('start: "a" | "(" start ")"'),
    None,
    GRAMMARS.json(),
    GRAMMARS.behind(("fox", "dog")).json_schema(SCHEMA, compact=True),
    GRAMMARS.behind(("fox", "dog"), opened=True).choice(["lazy", "brown"]),
]


def texts(engine: Engine, temperature: float, **options: Any) -> list[tuple[object, ...]]:
    """The answers to a batch of mixed requests, in order."""
    ids = [
        engine.add(
            [7] * 40 + [50 + i] * (5 * i + 1),
            SamplingParams(temperature=temperature, seed=i, max_new_tokens=60, logprobs=1),
            constraint=constraint,
            **options,
        )
        for i, constraint in enumerate(CONSTRAINTS)
    ]
    done = finish(engine)
    return [key(done[each]) for each in ids]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_drafts_and_batches_change_no_constrained_text(temperature: float) -> None:
    plain = texts(make(max_batch=1), temperature)
    for name, drafter in drafters().items():
        engine = make(drafter=drafter)
        assert texts(engine, temperature) == plain, name
    assert texts(make(), temperature, speculation=Speculation(enabled=False)) == plain
    done = [each for each in plain if each[-1] == "stop"]
    assert len(done) >= 2
    assert plain[0] not in done or is_valid(str(plain[0][0]), SCHEMA)


def test_forced_runs_are_drafted_without_a_drafter() -> None:
    engine = make(depth=1)
    answer = engine.generate(
        "dog", constraint=GRAMMARS.json_schema(SCHEMA, compact=True), max_new_tokens=80
    )
    assert "grammar" in answer.sources
    assert set(answer.sources) == {None, "grammar"}
    assert answer.stats.block_efficiency > 1.3
    alone = engine.generate(
        "dog",
        constraint=GRAMMARS.json_schema(SCHEMA, compact=True),
        max_new_tokens=80,
        speculation=Speculation(enabled=False),
    )
    assert key(alone) == key(answer)
    assert set(alone.sources) == {None}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", ["none", "recycling"])
def test_preempted_texts_go_on_as_if_nothing_had_happened(name: str, temperature: float) -> None:
    drafter = {"none": NoDrafter(), **drafters()}[name]
    plain = texts(make(drafter=drafter), temperature)
    engine = make(drafter=drafter)
    step = engine.step

    def disturbed() -> list[Event]:
        events = step()
        if len(engine.scheduler.placed) > 1:
            engine._preempt()
        return events

    engine.step = disturbed  # type: ignore[method-assign]  # the newest gives way at every step
    assert texts(engine, temperature) == plain
    assert engine.scheduler.preemptions > 5


def test_rows_beyond_memory_are_not_drafted(monkeypatch: pytest.MonkeyPatch) -> None:
    grammar = GRAMMARS.choice(["the lazy dog jumps over the quick brown fox"])
    drafted = make().generate("dog", constraint=grammar, max_new_tokens=60)
    assert "grammar" in drafted.sources
    monkeypatch.setattr(speculator, "fitted", lambda memory, sequences, sizes: [Budget(0, 0)])
    plain = make().generate("dog", constraint=grammar, max_new_tokens=60)
    assert set(plain.sources) == {None}
    assert key(plain) == key(drafted)


def test_proposals_are_distributions_of_what_may_be_said() -> None:
    sampler = Generation.start(0, [0], SamplingParams(temperature=1.0), constraint=WORDS).sampler
    logits = np.zeros(9, np.float32)
    assert sampler.proposal(logits, (1, 2)).dense().tolist() == [0, 0, 0, 0.5, 0.5, 0, 0, 0, 0]
    logits[:] = np.nan
    for each in (sampler, Generation.start(0, [0], SamplingParams()).sampler):
        with pytest.raises(BadLogits, match="NaN"):
            each.proposal(logits)


def test_limits_of_a_request_hold_for_runs() -> None:
    grammar = GRAMMARS.json_schema(SCHEMA, compact=True)
    engine = make(drafter=Recycling(VOCABULARY))
    options: dict[str, Any] = {"constraint": grammar, "max_new_tokens": 30}
    answer = engine.generate("dog", speculation=Speculation(nodes=2), **options)
    assert answer.stats.block_efficiency <= 3
    assert answer.stats.drafted_tokens <= 2 * answer.stats.target_forwards
    assert key(answer) == key(make().generate("dog", **options))


def test_drawn_drafts_know_the_constraint_or_are_rejected() -> None:
    model = TabularModel(VOCABULARY, 1, seed=9, sharpness=1.0)
    engine = make(drafter=FunctionDrafter(sampled_chain(model.distribution)), verifier=Rejection())
    grammar = GRAMMARS.regex("[a-f]+;")
    for seed in range(4):
        answer = engine.generate("dog", temperature=1.0, seed=seed, constraint=grammar)
        assert answer.finish_reason == "length" or answer.text[-1] == ";"
        assert set(answer.text) <= set("abcdef;")


def test_greedy_rules_and_chains() -> None:
    plain = texts(make(), 0.0)
    assert texts(make(drafter=drafters()["recycling"], verifier=Greedy()), 0.0) == plain


def test_what_leaves_nothing_is_an_error_of_the_text_and_not_of_a_draft() -> None:
    """Drafts go to where bans leave nothing; a text that does not go there never notices."""
    grammar = GRAMMARS.choice(["fox", "dog"])
    x = TOKENIZER.encode("x")[0]
    for drafter in drafters().values():
        engine = make(drafter=drafter)
        first = {TOKENIZER.encode("d")[0]: 30.0}
        answer = engine.generate("dog", constraint=grammar, logit_bias=first, banned_tokens=(x,))
        assert answer.text == "dog"
        with pytest.raises(BadLogits, match="constraint"):
            engine.generate("dog", constraint=GRAMMARS.choice(["x"]), banned_tokens=(x,))


def test_forced_tokens_that_the_grammar_forbids() -> None:
    letters = TOKENIZER.encode("a"), TOKENIZER.encode("b")
    grammar = GRAMMARS.regex("a+")
    params = SamplingParams(forced_tokens={0: letters[0][0], 1: EOS})
    assert make().generate("dog", params, constraint=grammar).text == "a"
    with pytest.raises(InvalidOption, match=r"forced_tokens.*constraint"):
        make().generate("dog", forced_tokens={0: letters[1][0]}, constraint=grammar)


def test_a_constraint_ends_a_text_that_min_tokens_would_keep_open() -> None:
    for temperature in (0.0, 1.0):
        answers = []
        for drafter in (NoDrafter(), *drafters().values()):
            engine = make(drafter=drafter)
            params = SamplingParams(
                temperature=temperature, seed=3, min_tokens=30, max_new_tokens=60, top_k=5
            )
            said = engine.generate("dog", params, constraint=GRAMMARS.choice(["a", "the dog"]))
            assert said.text in ("a", "the dog")
            assert said.finish_reason == "stop"
            open_ended = engine.generate("dog", params, constraint=GRAMMARS.regex("(the|fox| )+"))
            assert len(open_ended.token_ids) >= 30
            answers.append((key(said), key(open_ended)))
        assert len(set(answers)) == 1
    one, two = (
        make().generate("dog", min_tokens=n, constraint=GRAMMARS.regex("ab?")) for n in (1, 2)
    )
    assert two.text == "ab"
    assert one.text in ("a", "ab")


def test_end_tokens_go_on_where_they_are_ignored() -> None:
    params = SamplingParams(ignore_eos=True, max_new_tokens=12)
    answer = make().generate("dog", params, constraint=GRAMMARS.choice(["a"]))
    assert answer.token_ids[1:] == (EOS,) * 11


WORDS = Words([(1, 2, 3), (1, 2, 4, 5)], 9)


def shaped(
    draft: TokenTree, run: int = 9, branches: bool = True, nodes: int = 9
) -> set[tuple[int, ...]]:
    """Paths of a draft once it was constrained."""
    sequence = Generation.start(0, [0], SamplingParams(), constraint=WORDS)
    out = constrained(sequence, draft, Budget(nodes, run), branches)
    trees.validate(out)
    return {tuple(out.tokens[list(path)].tolist()) for path in trees.leaf_paths(out)}


def test_drafts_are_cut_and_runs_put_before_them() -> None:
    draft = TokenTree(np.array([1, 7, 2, 8, 3, 4]), np.array([-1, -1, 0, 1, 2, 2]))
    assert shaped(draft) == {(1, 2, 3), (1, 2, 4)}
    assert shaped(trees.EMPTY) == {(1, 2)}
    assert shaped(trees.EMPTY, run=1) == {(1,)}
    assert shaped(trees.EMPTY, run=0) == set()
    assert shaped(trees.chain([7, 1])) == {(1, 2)}
    assert shaped(trees.chain([1, 2, 4, 7])) == {(1, 2, 4)}
    assert shaped(draft, nodes=3) == {(1, 2, 3)}
    assert shaped(draft, nodes=1) == {(1,)}
    assert shaped(draft, branches=False) == {(1, 2)}
    assert shaped(trees.chain([1, 2, 4]), branches=False) == {(1, 2, 4)}


def test_fixed_controllers_and_runs() -> None:
    engine, _ = make_paged(controller=Fixed(1, 1))
    answer = engine.generate(
        "dog", constraint=GRAMMARS.json_schema(SCHEMA, compact=True), max_new_tokens=40
    )
    assert answer.stats.block_efficiency > 1.3
