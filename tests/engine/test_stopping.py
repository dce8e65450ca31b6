"""Stop rules cut a run exactly where one-token decoding would have ended."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.core.types import FinishReason, SamplingParams
from paceline.engine.stopping import StopRules
from paceline.sampling.generation import Generation

EOS = 7


@dataclass
class Watch:
    """Stops at the token `stop`; counts what it was fed."""

    stop: int
    fed: int = 0

    def feed(self, token: int) -> bool:
        self.fed += 1
        return token == self.stop


def cut(
    run: list[int], max_context: int = 100, watch: Watch | None = None, **params: object
) -> tuple[int, FinishReason | None]:
    sequence = Generation.start(0, [1, 2, 3], SamplingParams(**params))  # type: ignore[arg-type]
    return StopRules((EOS,), max_context).cut(sequence, run, watch)


def test_a_run_without_a_stop_stands() -> None:
    assert cut([1, 2, 3]) == (3, None)


def test_the_stop_token_itself_stands() -> None:
    assert cut([1, EOS, 3]) == (2, "stop")
    assert cut([1, 2, 4], stop_token_ids=(1,)) == (1, "stop")


def test_end_tokens_may_be_ignored_but_stop_tokens_not() -> None:
    assert cut([1, EOS, 3], ignore_eos=True) == (3, None)
    assert cut([1, EOS, 3], ignore_eos=True, stop_token_ids=(3,)) == (3, "stop")


def test_length_limits() -> None:
    assert cut([1, 2, 3], max_new_tokens=2) == (2, "length")
    assert cut([1, 2, 3], max_context=5) == (2, "length")
    assert cut([1, 2, 3], max_context=6) == (3, "length")


def test_a_stop_at_the_last_token_is_a_stop() -> None:
    assert cut([1, EOS], max_new_tokens=2) == (2, "stop")
    assert cut([1, 4], max_new_tokens=2, watch=Watch(4)) == (2, "stop")


def test_the_watch_sees_tokens_up_to_the_stop_and_no_end_token() -> None:
    watch = Watch(4)
    assert cut([1, 4, 5], watch=watch) == (2, "stop")
    assert watch.fed == 2
    watch = Watch(4)
    assert cut([1, EOS, 4], watch=watch) == (2, "stop")
    assert watch.fed == 1


def test_a_loop_ends_the_text_if_asked_and_counts_generated_tokens_alone() -> None:
    loop = [4, 5, 6] * 20
    assert cut(loop) == (60, None)
    assert cut(loop, stop_loops=True) == (24, "loop")
    assert cut([*loop[:23], EOS], stop_loops=True) == (24, "stop")
    assert cut(loop, stop_loops=True, max_new_tokens=24) == (24, "loop")
    assert cut(loop, stop_loops=True, max_new_tokens=23) == (23, "length")
    sequence = Generation.start(0, loop, SamplingParams(stop_loops=True))
    sequence.tokens += loop[:20]
    assert StopRules((), 500).cut(sequence, loop[20:30]) == (4, "loop")


@given(
    begun=st.integers(0, 30),
    run=st.lists(st.integers(0, 9), min_size=1, max_size=8),
    stop=st.sets(st.integers(0, 9), max_size=2),
    watched=st.integers(0, 20),
    room=st.integers(1, 10),
    context=st.integers(4, 12),
    ignore=st.booleans(),
    loops=st.booleans(),
)
def test_a_run_is_cut_like_its_tokens_one_by_one(
    begun: int,
    run: list[int],
    stop: set[int],
    watched: int,
    room: int,
    context: int,
    ignore: bool,
    loops: bool,
) -> None:
    params = SamplingParams(
        stop_token_ids=tuple(stop),
        max_new_tokens=begun + room,
        ignore_eos=ignore,
        stop_loops=loops,
    )
    rules = StopRules((EOS,), context + begun)

    def start() -> Generation:
        sequence = Generation.start(0, [1, 2, 3], params)
        sequence.tokens += run[:1] * begun  # nearly a loop, or one soon
        return sequence

    whole = rules.cut(start(), run, Watch(watched))
    single = start()
    watch = Watch(watched)
    reason: FinishReason | None = None
    for token in run:
        kept, reason = rules.cut(single, [token], watch)
        assert kept == 1
        single.tokens.append(token)
        if reason:
            break
    assert whole == (len(single.generated) - begun, reason)


@pytest.mark.parametrize("ends", [(), (1, 2)])
def test_models_may_have_any_number_of_end_tokens(ends: tuple[int, ...]) -> None:
    sequence = Generation.start(0, [5], SamplingParams())
    expected = (1, "stop") if ends else (2, None)
    assert StopRules(ends, 100).cut(sequence, [2, 1]) == expected
