"""An error ends the request that it belongs to; nobody else can tell from the output."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import pytest
from tests.helpers.paged_table import PagedTable
from tests.helpers.table_engines import EOS, MODEL, TOKENIZER, VOCABULARY, key
from tests.helpers.words import Words, WordState

from paceline.core.types import LogitArray, Needs, SamplingParams
from paceline.drafters.base import Drafter
from paceline.drafters.draft_model import DraftModel
from paceline.drafters.recycling import Recycling
from paceline.engine.engine import Completion, Engine
from paceline.engine.loop import AutoregressiveDecoder
from paceline.engine.stopping import StopRules
from paceline.errors import BadLogits, OutOfMemory, PacelineError, RequestFailed
from paceline.policy.controller import Fixed
from paceline.proof.tabular import TabularModel, TabularTarget
from paceline.sampling.generation import Generation
from paceline.trees.deterministic import SharedNoise
from paceline.verifiers.matching import Coupled

PROMPTS = [[7] * 40 + [50 + i] * (9 * i + 1) for i in range(4)]
PARAMS = SamplingParams(temperature=1.0, seed=3, max_new_tokens=12, ignore_eos=True, logprobs=1)


class Featured(Recycling):
    """Reads features, and checks that they are those of the prompt."""

    name: ClassVar[str] = "featured"
    needs = Needs(features=True)

    def read(self, sequence: Generation, features: LogitArray) -> None:
        assert features[:, 0].astype(int).tolist() == sequence.tokens[:-1]


class Small(DraftModel):
    """A draft model that knows which of its caches are open."""

    def __init__(self) -> None:
        table = TabularModel(VOCABULARY, 1, seed=7, sharpness=2.0)
        super().__init__(TabularTarget(table.logits, VOCABULARY), VOCABULARY, SharedNoise([1]))


def make(drafter: Drafter | None = None, blocks: int = 60, **limits: Any) -> Engine:
    target = PagedTable(MODEL.logits, VOCABULARY, blocks, context=160)
    stops = StopRules((EOS,), 160)
    parts = target, drafter or Recycling(VOCABULARY), Coupled(), Fixed(6, 4), stops
    return Engine(AutoregressiveDecoder(*parts), TOKENIZER, **limits)


def alone(prompt: Sequence[int], params: SamplingParams = PARAMS) -> tuple[object, ...]:
    return key(make().generate(list(prompt), params))


EXPECTED = [alone(prompt) for prompt in PROMPTS]


def run(engine: Engine) -> dict[int, Completion | PacelineError]:
    """Run all prompts together, and check that nothing is left of them."""
    ids = [engine.add(prompt, PARAMS) for prompt in PROMPTS]
    assert ids == [0, 1, 2, 3]
    done = finish(engine)
    clean(engine)
    return done


def finish(engine: Engine, most: int = 400) -> dict[int, Completion | PacelineError]:
    done: dict[int, Completion | PacelineError] = {}
    for _ in range(most):
        for event in engine.step():
            result = event.completion or event.error
            if result is not None:
                assert event.request not in done
                done[event.request] = result
        if not engine.pending:
            return done
    raise AssertionError("the engine goes round without an end")


def clean(engine: Engine) -> None:
    decoder = engine.decoder
    memory = decoder.memory
    assert memory is not None
    assert memory.free == memory.blocks
    assert engine._mail == {}
    assert decoder._watches == {}
    assert decoder._prefiller._features == {}
    assert decoder.speculator._off == set()
    if isinstance(decoder.drafter, Small):
        assert decoder.drafter._caches == {}
        assert decoder.drafter._trunks == {}


def judged(done: dict[int, Completion | PacelineError]) -> list[PacelineError]:
    """Return the errors; every other request has the text that it has alone."""
    assert sorted(done) == [0, 1, 2, 3]
    for request, result in done.items():
        if isinstance(result, Completion):
            assert key(result) == EXPECTED[request]
    return [each for each in done.values() if not isinstance(each, Completion)]


class Fault:
    """Make one call of a method raise, the `at`-th; count the calls."""

    def __init__(self, owner: Any, method: str, at: int, error: Exception | None = None) -> None:
        self.calls = 0
        inner: Callable[..., Any] = getattr(owner, method)

        def counted(*args: Any, **options: Any) -> Any:
            self.calls += 1
            if self.calls == at:
                raise error or RuntimeError("injected")
            return inner(*args, **options)

        setattr(owner, method, counted)


# What a fault is put into: the part of an engine, its method, and how many requests it ends.
PARTS: dict[str, tuple[Callable[[Engine], Any], str, range]] = {
    "forward": (lambda e: e.decoder.target, "forward", range(1)),
    "keep": (lambda e: e.decoder.target, "keep", range(1, 2)),
    "open": (lambda e: e.decoder.target, "open", range(1, 2)),
    "verify": (lambda e: e.decoder.verifier, "verify", range(1, 2)),
    "extend": (lambda e: e.decoder.verifier, "extend", range(1)),
    "stop rule": (lambda e: e.decoder.stops, "cut", range(1, 2)),
    "allocation": (lambda e: e.decoder.memory, "take", range(2)),
    "budgets": (lambda e: e.decoder.controller, "budgets", range(1)),
    "select": (lambda e: e.decoder.controller, "select", range(1)),
    "learning": (lambda e: e.decoder.controller, "observe", range(1)),
    "propose": (lambda e: e.decoder.drafter, "propose", range(1)),
    "observe": (lambda e: e.decoder.drafter, "observe", range(1)),
    "needs": (lambda e: e.decoder.drafter, "needs_of", range(1)),
    "begin": (lambda e: e.decoder, "begin", range(1, 2)),
    "drafter's open": (lambda e: e.decoder.drafter, "open", range(1)),
    "close": (lambda e: e.decoder.drafter, "close", range(1)),
    "read": (lambda e: e.decoder.drafter, "read", range(1)),
}
DRAFTERS: dict[str, Callable[[], Drafter]] = {
    "recycling": lambda: Recycling(VOCABULARY),
    "draft model": Small,
    "featured": lambda: Featured(VOCABULARY),
}


CASES = [(part, "featured" if part == "read" else "draft model") for part in PARTS]
CASES += [("propose", "recycling"), ("observe", "featured"), ("forward", "featured")]


@pytest.mark.parametrize(("part", "drafter"), CASES)
def test_a_fault_in_any_call_ends_at_most_the_request_concerned(
    part: str, drafter: str, survived: list[str]
) -> None:
    owner, method, ended = PARTS[part]
    engine = make(DRAFTERS[drafter]())
    counted = Fault(owner(engine), method, 0)
    assert judged(run(engine)) == []
    assert counted.calls > 0
    for at in range(1, counted.calls + 1):
        engine = make(DRAFTERS[drafter]())
        fault = Fault(owner(engine), method, at)
        ids = [engine.add(prompt, PARAMS) for prompt in PROMPTS]
        done = finish(engine)
        assert fault.calls >= at
        errors = judged(done)
        assert len(errors) in ended, (at, errors)
        for error in errors:
            assert isinstance(error, RequestFailed)
            assert str(error) == "the request failed: RuntimeError: injected"
            assert isinstance(error.__cause__, RuntimeError)
        assert ids == sorted(done)
        if part != "close":  # which it could not do
            clean(engine)
    survived.clear()


# Every word ends with one of several letters, so that some tokens are forced and some are not.
WORDS = Words([(*range(40, 46), end) for end in range(50, 60)], VOCABULARY)
WORD = replace(PARAMS, stop_token_ids=(WORDS.end,), seed=5)


@pytest.mark.parametrize(
    ("method", "ended"),
    [("mask", range(2)), ("valid", range(2)), ("forced", range(1)), ("commit", range(1, 2))],
)
@pytest.mark.parametrize("drafter", ["draft model", "recycling"])
def test_a_fault_of_a_constraint_ends_at_most_its_request(
    method: str,
    ended: range,
    drafter: str,
    survived: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def attempt(at: int) -> tuple[int, list[Completion | PacelineError]]:
        engine = make(DRAFTERS[drafter]())
        with monkeypatch.context() as patch:
            patch.setattr(WordState, method, getattr(WordState, method))  # to be restored
            fault = Fault(WordState, method, at)
            for prompt in PROMPTS:
                engine.add(prompt, WORD, constraint=WORDS)
            done = finish(engine)
        clean(engine)
        return fault.calls, [done[id] for id in range(len(PROMPTS))]

    calls, expected = attempt(0)
    assert calls > len(PROMPTS)
    texts = [key(each) for each in expected if isinstance(each, Completion)]
    assert len(texts) == len(PROMPTS)
    errors = 0
    for at in range(1, calls + 1):
        _, found = attempt(at)
        failed = [each for each in found if not isinstance(each, Completion)]
        assert len(failed) in ended
        errors += len(failed)
        for each, text in zip(found, texts, strict=True):
            assert not isinstance(each, Completion) or key(each) == text
    assert (errors > 0) == (method != "forced")
    survived.clear()


POISON = 200


def poisoned(engine: Engine, params: SamplingParams = PARAMS) -> int:
    """Add a request with the token that parts of an engine stumble over, before the others."""
    return engine.add([POISON, 7, 8], params)


def stumbles(sequences: Any) -> None:
    if any(POISON in each.tokens for each in sequences):
        raise ValueError("poison")


class Squeamish(Small):
    """Fails on one sequence, in one of its calls."""

    def __init__(self, call: str) -> None:
        super().__init__()
        inner = getattr(self, call)

        def checked(sequences: Any, *rest: Any) -> Any:
            stumbles(sequences if isinstance(sequences, list | tuple) else [sequences])
            return inner(sequences, *rest)

        setattr(self, call, checked)


@pytest.mark.parametrize("call", ["open", "propose", "observe", "needs_of"])
def test_a_drafter_that_fails_on_one_sequence_costs_no_request(
    call: str, survived: list[str]
) -> None:
    engine = make(Squeamish(call))
    bad = poisoned(engine)
    ids = [engine.add(prompt, PARAMS) for prompt in PROMPTS]
    done = finish(engine)
    assert [key(done[id]) for id in ids] == EXPECTED  # type: ignore[arg-type]  # no errors
    good = done[bad]
    assert isinstance(good, Completion)
    assert key(good) == alone([POISON, 7, 8])
    clean(engine)
    if call in ("open", "propose"):  # told apart from the others, which are drafted for
        assert good.stats.drafter_errors == 1
        assert good.stats.drafted_tokens == 0
        others = [done[id] for id in ids]
        assert all(isinstance(c, Completion) and c.stats.drafted_tokens > 0 for c in others)
    assert survived
    survived.clear()


@pytest.mark.parametrize("comes", ["in the prompt", "in the text"])
def test_a_forward_that_fails_with_one_request_ends_that_one(
    comes: str, survived: list[str]
) -> None:
    for step_tokens in (None, 16):
        engine = make(step_tokens=step_tokens)
        forward = engine.decoder.target.forward

        def checked(passes: Any, forward: Any = forward) -> Any:
            if any(POISON in each.tokens[: each.num_new] for each in passes):
                raise ValueError("poison")
            return forward(passes)

        engine.decoder.target.forward = checked  # type: ignore[method-assign]
        ids = [engine.add(PROMPTS[0], PARAMS)]
        if comes == "in the prompt":
            ids.append(poisoned(engine))
        else:
            ids.append(engine.add([7, 8], PARAMS, forced_tokens={4: POISON}))
        ids += [engine.add(prompt, PARAMS) for prompt in PROMPTS[1:]]
        done = finish(engine)
        assert isinstance(done[ids[1]], RequestFailed)
        good = [done[id] for id in ids if id != ids[1]]
        assert [key(c) for c in good] == EXPECTED  # type: ignore[arg-type]
        clean(engine)
        assert survived == [f"request {ids[1]} failed"]  # with a traceback
        survived.clear()


def test_a_request_without_room_ends_by_name_and_others_go_on() -> None:
    engine = make(blocks=3)
    take, calls = engine.decoder.memory.take, 0  # type: ignore[union-attr]  # it is a pool

    def full(count: int) -> list[int]:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise OutOfMemory("full")
        blocks: list[int] = take(count)
        return blocks

    engine.decoder.memory.take = full  # type: ignore[union-attr]
    first, second = engine.add([3, 4], PARAMS), engine.add(PROMPTS[0], PARAMS)
    third = engine.add(PROMPTS[1], PARAMS)
    done = finish(engine)
    assert isinstance(done[first], OutOfMemory)
    assert [key(done[id]) for id in (second, third)] == EXPECTED[:2]  # type: ignore[arg-type]
    clean(engine)


def test_the_error_of_a_request_is_raised_where_it_is_read(survived: list[str]) -> None:
    engine = make()
    other = engine.add(PROMPTS[0], PARAMS)
    Fault(engine.decoder.verifier, "verify", 4)
    with pytest.raises(RequestFailed, match="RuntimeError: injected") as caught:
        for _ in engine.stream(PROMPTS[1], PARAMS):
            pass
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert engine.pending == 1
    [completion] = finish(engine).values()
    assert other == 0
    assert isinstance(completion, Completion)
    assert key(completion) == EXPECTED[0]
    clean(engine)
    assert survived == ["request 1 failed"]
    survived.clear()


def test_an_error_while_a_completion_is_made_is_one_of_that_request(survived: list[str]) -> None:
    engine = make()
    ids = [engine.add(prompt, PARAMS) for prompt in PROMPTS]
    bad = next(each for each in engine.scheduler if each.sequence.id == ids[2])
    Fault(bad.transcript, "finish", 1)
    done = finish(engine)
    assert isinstance(done[ids[2]], RequestFailed)
    assert len(judged(done)) == 1
    clean(engine)
    assert survived == ["request 2 failed"]
    survived.clear()


def test_the_decoder_itself_raises() -> None:
    """Proofs and tests that drive it must see every error."""
    for owner, method, _ in PARTS.values():
        engine = make(Featured(VOCABULARY))
        engine.decoder.strict = engine.decoder.speculator.strict = True
        Fault(owner(engine), method, 1)
        sequence = Generation.start(0, PROMPTS[1], PARAMS)
        with pytest.raises(RuntimeError, match="injected"):
            _open_and_step(engine.decoder, sequence)


def _open_and_step(decoder: AutoregressiveDecoder, sequence: Generation) -> None:
    decoder.open(sequence)
    decoder.step([sequence])
    decoder.close(sequence)


BAD: dict[str, dict[str, Any]] = {
    "penalty up": {"frequency_penalty": 1e6, "presence_penalty": 1e6, "repetition_penalty": 1e6},
    "penalty down": {
        "frequency_penalty": -1e6,
        "presence_penalty": -1e6,
        "repetition_penalty": 1e-6,
    },
    "hot": {"temperature": 1e308},
    "cold": {"temperature": 5e-324},
    "narrow": {"top_p": 5e-324, "top_k": 2**63 - 1, "min_p": 1.0},
    "seed": {"seed": 2**200, "max_new_tokens": 2**63},
    "biased": {"logit_bias": dict.fromkeys(range(VOCABULARY), 1000000.0)},
    "pushed down": {"logit_bias": dict.fromkeys(range(VOCABULARY), -1000000.0)},
    "stops": {"stop": tuple(f"stop {number} " * 4 for number in range(5000))},
    "loud": {"logprobs": 10**9, "prompt_logprobs": 10**9},
    "nothing left": {"banned_tokens": (9,), "allowed_tokens": (9, EOS), "min_tokens": 20},
    "no end": {"allowed_tokens": (EOS,), "min_tokens": 3},
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("drafter", ["recycling", "draft model"])
def test_poison_requests_change_no_neighbours(name: str, drafter: str, survived: list[str]) -> None:
    engine = make(DRAFTERS[drafter](), max_batch=9)
    ends = name in ("nothing left", "no end")
    options = {"temperature": 1.0, "max_new_tokens": 20, "ignore_eos": not ends, **BAD[name]}
    bad = engine.add([7, 8, 9], SamplingParams(**options))
    ids = [engine.add(prompt, PARAMS) for prompt in PROMPTS * 2]
    done = finish(engine)
    assert [key(done[id]) for id in ids] == EXPECTED * 2  # type: ignore[arg-type]
    assert isinstance(done[bad], BadLogits if ends else Completion)
    clean(engine)
    assert bool(survived) == (ends and drafter == "draft model")  # it has the same processors
    survived.clear()


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.filterwarnings("ignore:invalid value")
def test_isolation_does_not_rely_on_the_ranges_of_parameters() -> None:
    """A penalty that overflows at the second occurrence: it once stopped everybody for ever."""
    params = SamplingParams(temperature=1.0, max_new_tokens=24, ignore_eos=True)
    object.__setattr__(params, "frequency_penalty", -1e308)
    engine = make()
    ids = [engine.add(PROMPTS[0], PARAMS), engine.add(PROMPTS[0], PARAMS)]
    prepared = engine.prepare(PROMPTS[0], PARAMS)
    bad = engine.add(replace(prepared, params=params))
    done = finish(engine)
    assert isinstance(done[bad], BadLogits)
    assert [key(done[id]) for id in ids] == EXPECTED[:1] * 2  # type: ignore[arg-type]
    clean(engine)


def test_negative_control_requests_that_are_not_closed_show(
    monkeypatch: pytest.MonkeyPatch, survived: list[str]
) -> None:
    """A failed request that is not closed: the checks above notice."""
    monkeypatch.setattr(Engine, "_finish", lambda self, request: self.scheduler.remove(request))
    engine = make()
    Fault(engine.decoder.verifier, "verify", 4)
    for prompt in PROMPTS:
        engine.add(prompt, PARAMS)
    finish(engine)
    with pytest.raises(AssertionError):
        clean(engine)
    survived.clear()
