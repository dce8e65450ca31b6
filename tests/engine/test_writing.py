"""Prompts that are written while the model reads: the answer is that to the whole, sent at once."""

from __future__ import annotations

from typing import Any

import pytest
from tests.engine.histories import Wrong, key, logits, simulate
from tests.helpers.paged_table import PagedTable
from tests.helpers.table_engines import SAMPLED, TOKENIZER, Target, make
from tests.serving.faults import Fault

from paceline.engine.engine import Engine
from paceline.engine.loop import AutoregressiveDecoder
from paceline.engine.prefill import Prefiller
from paceline.engine.requests import unsettled
from paceline.engine.writing import Writing, joined
from paceline.errors import (
    ContextExceeded,
    InvalidOption,
    PacelineError,
    PromptError,
    RequestFailed,
)

SEEDS, WITHIN = 120, 300


def lives(seeds: range) -> None:
    for seed in seeds:
        simulate(seed)


@pytest.mark.parametrize("first", range(0, SEEDS, 30))
def test_every_history_ends_in_the_answer_to_the_final_prompt(first: int) -> None:
    lives(range(first, first + 30))


FAULTS = {
    "too much of a changed prompt stays": Fault(
        Prefiller, "rewrite", "kept = min(before, shared", "kept = min(before, 1 + shared"
    ),
    "nothing is dropped": Fault(
        Prefiller, "rewrite", "self._target.truncate(new.cache, kept)", "pass"
    ),
    "features of another prompt stay": Fault(
        Prefiller, "rewrite", "rows[: kept - begin].copy()", "rows.copy()"
    ),
    "log-probabilities of another prompt stay": Fault(
        Prefiller, "rewrite", "old.prompt_logprobs[:kept]", "old.prompt_logprobs"
    ),
    "an open prompt is answered": Fault(
        AutoregressiveDecoder, "begin", "or sequence.open", "or False"
    ),
    "the text of the first prompt is watched": Fault(
        AutoregressiveDecoder, "rewrite", "self._watches[new.id] = watch", "pass"
    ),
    "penalties are of the first prompt": Fault(
        Engine,
        "replace",
        "sequence.stats = found.sequence.stats",
        "sequence.sampler = found.sequence.sampler",
    ),
    "a request that yields keeps its cache": Fault(
        Engine, "_gives_way", "self.decoder.close(request.sequence)", "pass"
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_every_planted_fault_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    FAULTS[name].plant(monkeypatch)
    with pytest.raises((Wrong, PacelineError, IndexError, ValueError, AssertionError)):
        lives(range(WITHIN))


def read(prompt: Writing) -> None:
    """Read all that is written."""
    for _ in range(100):
        if not prompt.read():
            return
    raise AssertionError("reading has no end")


def test_pieces_are_read_before_the_end_and_told_as_cached() -> None:
    target = Target()
    engine = make(target)
    with engine.writing(SAMPLED, raw=True) as prompt:
        for piece in ["the quick 12 x ", "brown 34 y fox ", "jumps"]:
            prompt.append(piece)
            read(prompt)
        assert target.live[0].length > 4
        prompt.finish()
        got = prompt.completion()
    whole = make().generate("the quick 12 x brown 34 y fox jumps", SAMPLED, raw=True)
    assert key(got) == key(whole)
    assert 4 < got.cached_tokens < got.prompt_tokens
    assert target.live == []


def test_no_token_is_read_twice_that_did_not_change() -> None:
    target = Target()
    engine = make(target)
    ids = TOKENIZER.encode("the quick brown fox jumps over the lazy dog")
    prompt = engine.writing(max_new_tokens=1)
    for token in ids:
        prompt.append([token])
        read(prompt)
    prompt.finish()
    got = prompt.completion()
    assert got.cached_tokens == len(ids) - 1
    assert len(target.batches) == len(ids)  # each token once


def shared(first: list[int], second: list[int]) -> int:
    """How many tokens both begin with."""
    return sum(first[: i + 1] == second[: i + 1] for i in range(min(len(first), len(second))))


def test_what_changes_is_read_again_and_nothing_else() -> None:
    target = PagedTable(logits, 320, 20)
    stops = make().decoder.stops
    engine = make(target)  # type: ignore[arg-type]  # a target all the same
    engine.decoder.stops = stops
    lists = [[3, 4, 5, 6, 7, 8], [3, 4, 9, 6, 7, 8, 10], [3, 4, 9, 6], [3, 4, 9, 6, 11, 12]]
    prompt, expected, before = engine.writing(max_new_tokens=1), 0, []
    for each in lists:
        prompt.replace(each)
        read(prompt)
        common = shared(before, each)
        expected += len(each) - 1 - min(common, max(len(before) - 1, 0), len(each) - 1)
        before = each
    computed = sum(each.num_new for rows in target.passes for each in rows)
    assert computed == expected
    prompt.close()
    assert target.memory.free == target.memory.blocks


def test_nothing_is_said_before_the_end() -> None:
    engine = make()
    prompt = engine.writing(SAMPLED)
    prompt.append("the quick brown fox")
    read(prompt)
    assert engine.resting
    assert [engine.step() for _ in range(5)] == [[]] * 5
    with pytest.raises(PromptError, match="still written"):
        prompt.events()
    prompt.finish()
    assert not engine.resting
    assert key(prompt.completion()) == key(make().generate("the quick brown fox", SAMPLED))


def test_what_is_decoded_cannot_change() -> None:
    engine = make()
    prompt = engine.writing(SAMPLED)
    prompt.append("dog")
    prompt.finish()
    prompt.finish()  # once is enough
    for change in (prompt.append, prompt.replace):
        with pytest.raises(PromptError, match="finished"):
            change("more")
    request = engine.add("dog", SAMPLED)
    engine.step()
    for _ in range(2):
        with pytest.raises(PromptError, match="whole, and is answered"):
            engine.replace(request, "cat")
    engine.cancel(request)
    with pytest.raises(PromptError, match="has ended"):
        engine.replace(request, "cat")
    assert key(prompt.completion()) == key(make().generate("dog", SAMPLED))


def test_empty_pieces_change_nothing_and_an_empty_prompt_is_none() -> None:
    engine = make()
    prompt = engine.writing(SAMPLED)
    for piece in ["", " ", [], ""]:
        prompt.append(piece)
    assert engine.pending == 0
    with pytest.raises(PromptError, match="empty"):
        prompt.finish()
    prompt.append("dog")
    prompt.append("")
    prompt.finish()
    assert key(prompt.completion()) == key(make().generate(" dog", SAMPLED))


def test_who_never_finishes_holds_nobody_up_and_leaves_nothing() -> None:
    target = PagedTable(logits, 320, 4)
    engine = make(target, max_batch=1)  # type: ignore[arg-type]  # a target all the same
    with engine.writing(SAMPLED, raw=True) as prompt:
        prompt.append("lazy 12 x dog " * 12)
        read(prompt)
        long = "the 34 y quick " * 9
        alone = make(Target(logits)).generate(long, SAMPLED, raw=True)
        assert key(engine.generate(long, SAMPLED, raw=True)) == key(alone)
        assert engine.scheduler.preemptions > 0
    assert engine.pending == 0
    assert target.memory.free == target.memory.blocks
    with pytest.raises(PromptError, match="finished"):
        prompt.append("more")


def test_pieces_that_are_too_much_change_nothing() -> None:
    engine = make(Target(max_context=40))
    prompt = engine.writing(max_new_tokens=3, raw=True)
    prompt.append("the quick")
    with pytest.raises(ContextExceeded):
        prompt.append(" brown" * 60)
    prompt.append(" fox")
    prompt.finish()
    whole = make().generate("the quick fox", max_new_tokens=3, raw=True)
    assert prompt.completion().token_ids == whole.token_ids


@pytest.mark.parametrize(
    ("prompt", "piece"),
    [
        ("text", [3]),
        ([3], "text"),
        ([3], [{"role": "user", "content": "a"}]),
        ([{"role": "user", "content": [{"type": "text", "text": "a"}]}], "b"),
    ],
)
def test_pieces_of_another_form_are_refused(prompt: Any, piece: Any) -> None:
    with pytest.raises(PromptError, match="in the form of the prompt"):
        joined(prompt, piece)


def test_wrong_options_are_told_before_anything_is_written() -> None:
    engine = make()
    with pytest.raises(InvalidOption, match="temperature"):
        engine.writing(temperature=-1.0)
    with pytest.raises(InvalidOption, match="pooling"):
        engine.writing(pooling="mean")
    with pytest.raises(InvalidOption, match="policy"):
        Engine(engine.decoder, TOKENIZER, prompt_policy="lifo")


def test_a_failure_while_reading_is_told_by_the_next_piece(survived: list[str]) -> None:
    target = Target()
    engine = make(target)
    prompt = engine.writing(SAMPLED)
    prompt.append("the quick brown fox")

    def broken(passes: Any) -> Any:
        raise ValueError("broken")

    target.forward = broken  # type: ignore[method-assign]
    prompt.read()
    with pytest.raises(RequestFailed, match="broken"):
        prompt.append(" jumps")
    assert engine.pending == 0
    survived.clear()


def test_who_waits_for_the_answer_to_an_open_prompt_is_told() -> None:
    engine = make()
    with pytest.raises(PromptError, match="still written"):
        engine.generate("the quick brown fox", SAMPLED, open=True)
    assert engine.pending == 0


def test_an_idle_engine_does_not_go_round() -> None:
    target = Target()
    engine = make(target)
    prompt = engine.writing(SAMPLED)
    prompt.append("the quick brown fox")
    read(prompt)
    count = len(target.batches)
    assert not prompt.read()
    assert len(target.batches) == count


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("the quick brown", "the quick"),
        ("the quick brown ", "the quick brown"),
        ("the", ""),
        ("", ""),
        ("字" * 40, "字" * 16),
        ("a\n  b", "a"),
    ],
)
def test_the_last_word_of_a_text_is_not_settled(text: str, kept: str) -> None:
    assert unsettled(text) == kept
    turn = {"role": "user", "content": text}
    assert unsettled([turn]) == [{"role": "user", "content": kept}]


def test_samples_of_a_prompt_that_was_written_follow_its_end() -> None:
    engine = make()
    prepared = engine.prepare("the quick brown", SAMPLED)
    first = engine.add("the quick", SAMPLED, open=True)
    engine.step()
    engine.replace(first, prepared)
    second = engine.add("the quick brown", SAMPLED, sample=1)
    done = {e.request: e.completion for _ in range(60) for e in engine.step() if e.completion}
    for request, sample in ((first, 0), (second, 1)):
        alone = make().generate("the quick brown", SAMPLED, sample=sample)
        assert key(done[request]) == key(alone)
