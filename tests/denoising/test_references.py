"""The shipped decoder and rules against the steps of reference samplers at temperature 0."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.models.golden_denoisers import BLOCK, MASK, PROMPT
from tests.models.test_denoisers import GOLDEN, save, target

from paceline.core.types import CanvasParams, CanvasTraits, SamplingParams
from paceline.denoising.caches import CachePlan
from paceline.denoising.decoder import DenoisingDecoder
from paceline.denoising.process import Decision, View, best
from paceline.denoising.unmasking import Rule
from paceline.engine.stopping import StopRules
from paceline.models.source import resolve
from paceline.registry.samplers import make_parts
from paceline.sampling.generation import Generation

# Reference trace, what asks for the same here, and the places that both fill.
ASKED: list[tuple[str, str, CanvasParams, str | None, int]] = [
    ("llada", "blocks of 4, one a step", CanvasParams("counts", block=4), None, 8),
    ("llada", "blocks of 4, one a step", CanvasParams("counts:by=picked", block=4), None, 8),
    ("llada", "whole, three steps", CanvasParams("counts:steps=3", block=8), None, 8),
    ("sdar", "sequential", CanvasParams("counts:by=leftmost"), None, 10),
    ("sdar", "sequential", CanvasParams("counts:by=leftmost", cache="none"), None, 10),
    ("Fast_dLLM_Qwen", "threshold", CanvasParams("threshold:tau=0.3", block=8), "block=32", 26),
]


class Scheduled(Rule):
    """So many of the surest places at each step, as Dream's schedule asks."""

    def __init__(self, counts: list[int], by: str) -> None:
        self._counts, self._by = counts, by

    def begin(self, canvas: Any) -> list[int]:
        return list(self._counts)

    def choose(self, view: View, state: list[int]) -> Decision:
        worth = -view.entropy if self._by == "entropy" else getattr(view, self._by)
        return Decision(best(worth, state.pop(0)))


def states(made: Any, facts: CanvasTraits, options: CanvasParams, room: int, parts: Any) -> Any:
    """The canvas after every step, without the prompt."""
    decoder = DenoisingDecoder(made, facts, StopRules((), 64), parts)
    params = SamplingParams(max_new_tokens=room)
    sequence = Generation.start(0, PROMPT, params, denoising=options)
    decoder.admit(sequence)
    decoder.begin(sequence)
    canvas = sequence.work.process.canvas
    out, count = [], len(PROMPT)
    while sequence.finish_reason is None:
        assert len(out) < 64
        decoder.step([sequence])
        shown = canvas.tokens[count : count + room]
        out.append(shown + [MASK] * (room - len(shown)))
    return out


def expected(trace: dict[str, Any], room: int) -> list[list[int]]:
    """The same of a reference, whose forwards without a change are left out.

    SDAR reads one block at a time.
    """
    text, out = list(PROMPT) + [MASK] * room, []
    for read in [*trace["reads"], trace["tokens"]]:
        start = 0
        if len(read) == BLOCK:
            start = next(at for at in range(0, len(text), BLOCK) if fits(text, read, at))
        text[start : start + len(read)] = read
        state = text[len(PROMPT) : len(PROMPT) + room]
        if (out or [[MASK] * room])[-1] != state:
            out.append(state)
    return out


def fits(text: list[int], read: list[int], at: int) -> bool:
    """Whether `read` is `text` from there on, some masks of it filled."""
    there = text[at : at + len(read)]
    return all(new == old or old == MASK for new, old in zip(read, there, strict=True))


@pytest.mark.parametrize(("name", "trace", "options", "facts", "room"), ASKED)
def test_steps_are_those_of_the_reference(
    name: str, trace: str, options: CanvasParams, facts: str | None, room: int, tmp_path: Path
) -> None:
    source = resolve(str(save(tmp_path, name)), denoiser=facts)
    known = source.config.denoises
    assert known is not None
    wanted = expected(GOLDEN[name]["traces"][trace], room)
    found = states(target("cpu", source), known, options, room, make_parts)
    assert found == wanted
    assert MASK not in found[-1]
    # Negative control: rows that speak of another place.
    other = replace(known, shifted=not known.shifted)
    assert states(target("cpu", source), other, options, room, make_parts) != wanted


@pytest.mark.parametrize("alg", ["maskgit_plus", "topk_margin", "entropy"])
def test_dream_s_order_is_that_of_the_reference(alg: str, tmp_path: Path) -> None:
    source = resolve(str(save(tmp_path, "Dream")))
    known = source.config.denoises
    assert known is not None
    wanted = expected(GOLDEN["Dream"]["traces"][alg], 8)
    masked = [8, *(state.count(MASK) for state in wanted)]
    counts = [before - after for before, after in pairwise(masked)]
    by = {"maskgit_plus": "confidence", "topk_margin": "margin", "entropy": "entropy"}[alg]
    rule = Scheduled(counts, by)
    assert (
        states(
            target("cpu", source), known, CanvasParams(block=8), 8, lambda *_: (rule, CachePlan())
        )
        == wanted
    )
