"""Schedules: the text of plain decoding, whenever the draft model works; and its process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.helpers.decoding_loop import decode_all
from tests.helpers.drafter_context import context as drafter_context
from tests.proof.joints import joint_of_steps
from tests.runtimes import tiny_cpu

from paceline.core.target import Output, Rows, Target
from paceline.core.types import Budget, SamplingParams
from paceline.drafters.base import Drafter, NoDrafter
from paceline.engine.loop import AutoregressiveDecoder
from paceline.engine.stopping import StopRules
from paceline.errors import EngineFailed, InvalidOption, RuntimeUnavailable
from paceline.methods.layers.tables import LAYERS, LayeredTable
from paceline.methods.schedules.dovetail import Dovetail
from paceline.methods.schedules.drafting import (
    ChainDrafting,
    DraftProcess,
    DraftRequest,
    Here,
    Scheduled,
)
from paceline.methods.schedules.easyspec import EasySpec, FuzzyChains
from paceline.methods.schedules.mirror import Mirror
from paceline.methods.schedules.pearl import Pearl
from paceline.policy.controller import Fixed
from paceline.proof.compare import max_error, target_joint
from paceline.proof.tabular import LogitsOf, TabularModel, TabularTarget, processed
from paceline.runtimes.cpu.target import CpuTarget
from paceline.sampling.generation import Generation
from paceline.verifiers.matching import Coupled, SampleMatch

WHOLE, PART, OTHER = (TabularModel(2, 4, seed, 1.5) for seed in (21, 22, 23))


def half_right(context: tuple[int, ...]) -> Any:
    return (WHOLE if sum(context) % 2 else OTHER).logits(context)


def table_worker(logits: LogitsOf = half_right) -> Here:
    return Here(ChainDrafting(TabularTarget(logits, 2)))


def table_pearl(kind: type[Pearl] = Pearl, window: int = 2) -> Pearl:
    return kind(table_worker(), coupled=False, window=window)


def table_mirror(kind: type[Mirror] = Mirror, branches: int = 1) -> Mirror:
    target = LayeredTable(WHOLE.logits, [WHOLE.logits, PART.logits], 2)
    given = {"coupled": False, "window": 2, "exit": 1, "branches": branches}
    return kind(table_worker(), target=target, layers=LAYERS, **given)  # type: ignore[arg-type]


def table_dovetail() -> Dovetail:
    return Dovetail(table_worker(), coupled=False, window=2)


def error(make: Callable[[], Drafter], params: SamplingParams, depth: int = 3) -> float:
    budget = Budget(depth, depth)
    joint = joint_of_steps(WHOLE.logits, 2, SampleMatch(), make, (0,), params, budget)
    truth = target_joint(processed(WHOLE.logits, params, (0,)), (0,), params.max_new_tokens)
    return max_error(joint, truth)


@pytest.mark.parametrize(
    "make",
    [
        *(lambda window=w: table_pearl(window=window) for w in (1, 2, 3)),
        table_mirror,
        lambda: table_mirror(branches=2),
        table_dovetail,
    ],
    ids=["pearl-1", "pearl-2", "pearl-3", "mirror", "mirror-2", "dovetail"],
)
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1, max_new_tokens=6),
        SamplingParams(temperature=1.3, presence_penalty=0.5, max_new_tokens=5),
    ],
    ids=["plain", "penalties"],
)
def test_the_loop_is_exact(make: Callable[[], Drafter], params: SamplingParams) -> None:
    assert error(make, params) < 1e-12


class Trusting(Pearl):
    """Takes what the draft model says for what the target says."""

    def forward(self, target: Target, passes: list[Rows]) -> list[Output]:
        return TabularTarget(half_right, 2).forward(passes)


class OthersStates(Mirror):
    """Goes on from states in another order."""

    def forward(self, target: Target, passes: list[Rows]) -> list[Output]:
        run = self._target.forward

        def turned(blocks: Any, layers: Any = None) -> Any:
            if blocks[0].inputs is not None:
                blocks = [replace(each, inputs=each.inputs[::-1]) for each in blocks]
            return run(blocks, layers)

        self._target.forward = turned  # type: ignore[method-assign]
        return super().forward(target, passes)


def test_wrong_schedules_are_found() -> None:
    """Negative controls."""
    params = SamplingParams(temperature=1, max_new_tokens=4)
    assert error(lambda: table_pearl(Trusting), params) > 1e-3
    with pytest.raises(ValueError, match="goes on from the state of"):
        error(lambda: table_mirror(OthersStates), params)


# Tiny models: int4 drafts for fp32.

CONFIG = tiny_cpu.config(vocab_size=96, layers=4, max_context=160)
PARAMS = {
    "greedy": SamplingParams(max_new_tokens=40, ignore_eos=True),
    "sampled": SamplingParams(temperature=6.0, max_new_tokens=40, seed=5, ignore_eos=True),
    "penalties": SamplingParams(
        temperature=1.5, presence_penalty=6.0, max_new_tokens=30, seed=6, ignore_eos=True
    ),
}
PROMPTS = [[5, 6, 7, 8], list(range(40)), [9, 9, 3]]


def cpu(precision: str = "fp32") -> CpuTarget:
    made: CpuTarget = tiny_cpu.target(precision, CONFIG, threads=1)
    return made


def texts(
    target: Any, drafter: Drafter, params: SamplingParams, prompts: Any = PROMPTS, nodes: int = 4
) -> tuple[list[list[int]], list[Generation]]:
    controller = Fixed(nodes, nodes)
    decoder = AutoregressiveDecoder(target, drafter, Coupled(), controller, StopRules((), 160))
    done = decode_all(decoder, [Generation.start(i, p, params) for i, p in enumerate(prompts)])
    return [each.generated for each in done], done


MAKERS: dict[str, Callable[[Any, Any], Scheduled]] = {
    "pearl": lambda target, place: Pearl(place(ChainDrafting(cpu("int4"))), window=3),
    "pearl-adaptive": lambda target, place: Pearl(place(ChainDrafting(cpu("int4")))),
    "dovetail": lambda target, place: Dovetail(place(ChainDrafting(cpu("int4")))),
    "mirror": lambda target, place: Mirror(
        place(ChainDrafting(cpu("int4"))), target=target, layers=4
    ),
    "mirror-2": lambda target, place: Mirror(
        place(ChainDrafting(cpu("int4"))), target=target, layers=4, exit=3, branches=2
    ),
    "easyspec": lambda target, place: EasySpec(place(FuzzyChains(cpu("int4")))),
}


@pytest.mark.parametrize("params", PARAMS)
@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("place", [Here, DraftProcess])
def test_the_text_is_that_of_plain_decoding(place: Any, name: str, params: str) -> None:
    target = cpu()
    plain, _ = texts(target, NoDrafter(), PARAMS[params])
    drafter = MAKERS[name](target, place)
    found, done = texts(target, drafter, PARAMS[params])
    assert found == plain
    # As fast as the target, the draft model has no time to get ahead of it.
    assert sum(each.stats.accepted_tokens for each in done) > (0 if "adaptive" in name else 20)
    if isinstance(drafter, Mirror):
        assert drafter.hits > 3
    # Drafted as before: the caches of the draft model went back with the text.
    again, more = texts(target, drafter, PARAMS[params])
    assert again == plain
    if "adaptive" not in name:
        counts = [each.stats.accepted_tokens for each in done]
        assert [each.stats.accepted_tokens for each in more] == counts
    if isinstance(drafter.worker, DraftProcess):
        drafter.worker.stop()


@pytest.mark.parametrize("name", MAKERS)
def test_argmax_drafts_need_none_of_the_samplers_that_greedy_texts_refuse(name: str) -> None:
    params = SamplingParams(
        temperature=0.9, typical_p=0.9, xtc_probability=0.3, mirostat=2, max_new_tokens=12
    )
    target = cpu()
    plain, _ = texts(target, NoDrafter(), params)
    drafter = MAKERS[name](target, Here)
    drafter.gumbel_coupled = False
    found, done = texts(target, drafter, params)
    assert found == plain
    assert sum(each.stats.drafted_tokens for each in done) or "adaptive" in name


class Noted(Here):
    """Notes when it is asked and when it answers."""

    def __init__(self, chains: ChainDrafting, notes: list[str]) -> None:
        super().__init__(chains)
        self._notes = notes

    def send(self, asks: Any) -> None:
        self._notes.append(f"ask {asks[0].wanted}")
        super().send(asks)

    def receive(self) -> Any:
        self._notes.append("answer")
        return super().receive()


def test_pearl_verifies_before_and_after() -> None:
    """A draft model that is always right: one pre-verify step, then windows of three."""
    notes: list[str] = []
    target = cpu()
    drafter = Pearl(Noted(ChainDrafting(cpu("fp32")), notes), window=3)
    _, [done] = texts(target, drafter, PARAMS["greedy"], [PROMPTS[0]])
    assert done.stats.target_forwards == 1 + 39 / 3
    assert done.stats.drafted_tokens == done.stats.accepted_tokens
    assert notes[:4] == ["ask 3", "answer", "ask 3", "answer"]


def test_pearl_begins_again_after_a_rejection() -> None:
    """A draft model that is always wrong: nothing but pre-verify steps, and no row is lost."""
    target, wrong = cpu(), ChainDrafting(cpu())
    right = wrong._extend

    def turned(text: Any, logits: Any) -> bool:
        done = right(text, logits)
        text.tokens[-1] = (text.tokens[-1] + 1) % 96
        return done

    wrong._extend = turned  # type: ignore[method-assign]
    plain, _ = texts(target, NoDrafter(), PARAMS["greedy"], [PROMPTS[0]])
    drafter = Pearl(Here(wrong), window=3)
    found, [done] = texts(target, drafter, PARAMS["greedy"], [PROMPTS[0]])
    assert found == plain
    assert done.stats.drafted_tokens == 0
    assert done.stats.target_forwards == 40


def test_pearl_takes_its_window_from_the_speeds() -> None:
    drafter = Pearl(table_worker(), coupled=False)
    drafter.open(Generation.start(0, [0], PARAMS["greedy"]))
    sequence = Generation.start(0, [0], PARAMS["greedy"])
    for _ in range(60):
        drafter.propose([sequence], [Budget(4, 4)])
        drafter._forward_seconds = 7.2
        worker = drafter.worker
        worker.receive = lambda: type("R", (), {"tokens": [[]], "seconds": 3.0, "rounds": 3})()  # type: ignore[method-assign]
    assert drafter._window == 7


def test_mirror_continues_every_row() -> None:
    """A right guess behind each row: no draft but the first is waited for."""
    target = cpu()
    draft = tiny_cpu.target("int4", CONFIG, threads=1, kv_tokens=32_768)
    drafter = Mirror(Here(ChainDrafting(draft)), target=target, layers=4, branches=95, window=2)
    _, [done] = texts(target, drafter, PARAMS["greedy"], [PROMPTS[0]])
    assert drafter.misses == 1  # the first
    assert drafter.hits >= done.stats.target_forwards - 2


# Fuzzy drafts:


def cached(target: CpuTarget, cache: Any, rows: int) -> np.ndarray:
    pool = target.memory
    return np.stack(
        [
            np.stack(pool.slabs[0].token(cache.blocks[row // 32], row % 32)).copy()
            for row in range(rows)
        ]
    )


def test_groups_of_one_are_the_draft_model() -> None:
    exact, single, double = (
        ChainDrafting(cpu()),
        FuzzyChains(cpu(), group=1),
        FuzzyChains(cpu(), group=2),
    )
    drafts = []
    for chains in (exact, single, double):
        text = list(range(30))
        chains.open(
            0, text, 30, PARAMS["greedy"], Generation.start(0, text, PARAMS["greedy"]).randomness
        )
        drafts.append(chains.draft([DraftRequest(0, tuple(text), 20)]).tokens[0])
    assert drafts[0] == drafts[1]
    assert drafts[0][0] == drafts[2][0]  # the first is exact
    assert drafts[0] != drafts[2]


@pytest.mark.parametrize("calibrated", [True, False])
def test_the_cache_is_calibrated_bit_for_bit(calibrated: bool) -> None:
    """And is not, where drafted keys stay (negative control)."""
    chains = FuzzyChains(cpu(), group=2)
    if not calibrated:
        chains._cut = lambda text, length: ChainDrafting._cut(chains, text, length)  # type: ignore[method-assign]
    target = cpu()
    decoder = AutoregressiveDecoder(
        target, EasySpec(Here(chains)), Coupled(), Fixed(4, 4), StopRules((), 160)
    )
    sequence = Generation.start(0, PROMPTS[1], PARAMS["greedy"])
    decoder.open(sequence)
    for _ in range(8):
        decoder.step([sequence])
    assert sequence.stats.accepted_tokens > 3
    chains.draft([DraftRequest(0, tuple(sequence.tokens), 1)])
    draft, fresh = chains.model, chains.model.open()
    draft.prefill(fresh, sequence.tokens)
    rows = len(sequence.tokens)
    same = np.array_equal(
        cached(draft, chains._texts[0].cache, rows),  # type: ignore[arg-type]
        cached(draft, fresh, rows),  # type: ignore[arg-type]
    )
    assert same == calibrated


# The process:


def steps(decoder: AutoregressiveDecoder, sequence: Generation, count: int) -> None:
    for _ in range(count):
        decoder.step([sequence])


def test_a_process_that_dies_costs_drafts_alone(survived: list[str]) -> None:
    target = cpu()
    plain, _ = texts(target, NoDrafter(), PARAMS["sampled"], [PROMPTS[0]])
    for strict in (True, False):
        worker = DraftProcess(ChainDrafting(cpu("int4")))
        decoder = AutoregressiveDecoder(
            target, Pearl(worker, window=3), Coupled(), Fixed(4, 4), StopRules((), 160)
        )
        if not strict:
            decoder.isolate()
        sequence = Generation.start(0, PROMPTS[0], PARAMS["sampled"])
        decoder.open(sequence)
        steps(decoder, sequence, 4)
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGKILL)
        if strict:
            with pytest.raises(EngineFailed, match=r"draft process ended with exit code -9"):
                steps(decoder, sequence, 3)  # an answer may be there already
            continue
        while sequence.finish_reason is None:
            decoder.step([sequence])
        assert sequence.generated == plain[0]
        assert sequence.stats.drafter_errors == 1
        assert "draft process ended with exit code -9" in survived.pop()
        decoder.close(sequence)


def test_an_error_in_the_process_is_raised_here() -> None:
    worker = DraftProcess(ChainDrafting(cpu("int4")))
    worker.send([DraftRequest(7, (1, 2), 1)])
    with pytest.raises(KeyError):
        worker.receive()
    worker.send([])
    assert worker.receive().tokens == []
    worker.stop()


_SCRIPT = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored below a shell's background jobs
from tests.methods.test_schedules import *
target, worker = cpu(), DraftProcess(ChainDrafting(cpu("int4")))
print(worker.pid, flush=True)
while True:
    texts(target, Pearl(worker, window=3), PARAMS["greedy"])
"""


def gone(pid: int) -> bool:
    for _ in range(100):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    return False


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_process_is_left_behind(how: signal.Signals) -> None:
    """Ctrl-C goes to the whole group; the others to the owner alone."""
    owner = subprocess.Popen(
        [sys.executable, "-c", _SCRIPT],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert owner.stdout is not None
    pid = int(owner.stdout.readline())
    time.sleep(0.3)
    if how is signal.SIGINT:
        os.killpg(owner.pid, how)
    else:
        owner.send_signal(how)
    try:
        owner.wait(30)
        assert gone(pid)
    finally:
        owner.stdout.close()
        with suppress(ProcessLookupError):  # as it should be
            os.killpg(owner.pid, signal.SIGKILL)


def test_options() -> None:
    target = cpu()
    context = drafter_context(target.capabilities, lambda: cpu("int4"))

    def made(kind: type[Scheduled], **options: str) -> Any:
        return kind.create(replace(context, options=options))

    drafter = made(Pearl, window="5", threads="1", process="false")
    assert isinstance(drafter.worker, Here)
    assert drafter._window == 5
    assert made(EasySpec, group="3").worker._chains.group == 3
    process = made(Dovetail).worker
    assert isinstance(process, DraftProcess)
    process.stop()
    with pytest.raises(InvalidOption, match="no option 'speed'"):
        made(Pearl, speed="3")
    with pytest.raises(InvalidOption, match="window"):
        made(Dovetail, window="0")
    with pytest.raises(RuntimeUnavailable, match="in two parts"):
        Mirror.create(drafter_context(replace(target.capabilities, blocks=False), cpu))
    facts = replace(target.capabilities, runtime="torch")
    other = type("Other", (), {"capabilities": facts})()
    with pytest.raises(RuntimeUnavailable, match="pearl:process=false"):
        Pearl.create(drafter_context(facts, lambda: other))
