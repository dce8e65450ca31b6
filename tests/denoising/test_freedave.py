"""FreeDave on tables: the rule's own text, trace and cached keys in fewer forwards."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from tests.helpers.canvases import decode, decoder_of, finish, start

from paceline.core.types import CanvasParams
from paceline.errors import InvalidOption
from paceline.methods.canvas import freedave
from paceline.methods.canvas.freedave import StateLookahead
from paceline.proof.table_denoiser import TableDenoiser, random_joint

RULES = ("counts", "counts:per_step=2", "counts:steps=3,by=margin", "threshold:tau=0.6")
PICKED = "counts:by=picked"  # noise anew at each step


def forwards(target, rule, width, **params):
    """Compare with the rule alone; return its forwards and those of FreeDave."""
    alone = decode(target, rule, **params)
    ahead = decode(target, f"freedave:width={width}>{rule}", **params)
    assert ahead.generated == alone.generated
    assert ahead.work.process.canvas.trace == alone.work.process.canvas.trace
    few, all_ = ahead.stats.target_forwards, alone.stats.target_forwards
    assert few <= all_
    assert width > 1 or few == all_
    return all_, few


@pytest.mark.parametrize("rule", [*RULES, PICKED])
@pytest.mark.parametrize("params", [{}, {"temperature": 1.0, "seed": 3}])
def test_the_text_is_that_of_the_rule(rule, params):
    total = np.zeros((4, 2), dtype=int)
    for seed in range(40):
        joint = random_joint(3, 6, seed)
        for row, width in enumerate((1, 2, 4, 8)):
            block = (None, 2, 3)[seed % 3]
            total[row] += forwards(TableDenoiser(joint), rule, width, block=block, **params)
    saved = (total[:, 0] - total[:, 1]).tolist()
    assert saved[0] == 0 < saved[1] <= saved[2] <= saved[3]


@pytest.mark.parametrize("block", [1, 2, 3, 6])
@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize("cache", ["none", "exact"])
@pytest.mark.parametrize("params", [{}, {"temperature": 0.7, "seed": 5, "ending": "cut"}])
def test_attention_blocks_shifts_and_caches(block, shifted, cache, params):
    for seed in range(6):
        joint = random_joint(3, 6, seed)
        target = TableDenoiser(joint, 1 + seed % 3, "block", block, shifted=shifted)
        for rule in RULES:
            forwards(target, rule, 4, cache=cache, **params)


def test_penalties_and_pinned_places():
    for seed in range(10):
        target = TableDenoiser(random_joint(3, 6, seed))
        for params in ({"frequency_penalty": 2.0}, {"forced_tokens": {2: 1}}, {"top_k": 2}):
            forwards(target, "counts", 4, temperature=1.0, seed=seed, **params)


def test_a_step_that_is_not_the_rules_own_does_not_stand(monkeypatch):
    monkeypatch.setattr("paceline.methods.canvas.freedave.same", lambda one, other: True)
    different = 0
    for seed in range(20):
        target = TableDenoiser(random_joint(3, 6, seed))
        try:
            found = decode(target, "freedave>counts").generated
        except (KeyError, ValueError):
            different += 1
        else:
            different += found != decode(target, "counts").generated
    assert different > 5


def test_texts_are_the_same_in_company_and_after_preemption():
    target = TableDenoiser(random_joint(3, 6, 7), attention="block", block=3)
    options = CanvasParams("freedave>counts")
    alone = [decode(target, "counts", temperature=0.8, seed=seed).generated for seed in range(4)]
    decoder = decoder_of(target)
    batch = [start(target, options, id=i, temperature=0.8, seed=i) for i in range(4)]
    for each in batch:
        decoder.admit(each)
    steps = 0
    while left := [each for each in batch if each.finish_reason is None]:
        decoder.step(left)
        steps += 1
        for each in left[steps % 2 :: 2]:
            if each.finish_reason is None:  # preempted, and admitted again
                decoder.close(each)
                decoder.admit(each)
    assert [each.generated for each in batch] == alone


def test_a_joint_that_is_certain_needs_one_forward_after_the_first():
    joint = np.zeros((3,) * 5)
    joint[0, 1, 2, 1, 0] = 1.0
    assert forwards(TableDenoiser(joint), "counts", 8) == (5, 2)
    assert forwards(TableDenoiser(joint), "counts", 2) == (5, 3)


def test_a_walk_that_stops_earlier_is_seldom_shorter(monkeypatch):
    """With one draft never; with more, an earlier state has at times the better drafts."""
    genuine, walk = freedave.same, StateLookahead.take
    room, caps = [0], list[int]()

    def take(self, logits):
        room[0] = caps.pop(0) if caps else 9
        return walk(self, logits)

    def same(one, other):
        room[0] -= 1
        return room[0] >= 0 and genuine(one, other)

    monkeypatch.setattr(StateLookahead, "take", take)
    monkeypatch.setattr(freedave, "same", same)
    for width, shorter in ((2, 0), (3, 1)):
        found, longer = 0, 0
        for seed in range(12):
            target = TableDenoiser(random_joint(3, 5, seed))
            most = decode(target, f"freedave:width={width}>counts").stats.target_forwards
            others = []
            for each in product(range(width), repeat=3):
                caps[:] = each
                others.append(decode(target, f"freedave:width={width}>counts"))
                caps.clear()
            forwards = [each.stats.target_forwards for each in others]
            assert min(forwards) >= most - 1
            found += min(forwards) < most
            longer += max(forwards) > most
        assert found == shorter
        assert longer > 6, "most that stop earlier are longer"


def test_what_it_cannot_wrap_is_an_error():
    target = TableDenoiser(random_joint(3, 3, 0))
    with pytest.raises(InvalidOption, match="write freedave>counts"):
        decode(target, "freedave")
    with pytest.raises(InvalidOption, match="width"):
        decode(target, "freedave:width=0>counts")
    decoder = decoder_of(target)
    sequence = start(target, CanvasParams("freedave>counts"))
    finish(decoder, [sequence])
    assert isinstance(sequence.work.process, StateLookahead)
