"""Thoughts and notes beside a stream: what each sees, whatever comes when."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from tests.engine.histories import logits as table
from tests.helpers.table_engines import Target, make
from tests.helpers.tiny_model import tiny_config
from tests.runtimes.tiny_cpu import weights

from paceline.core.target import stored
from paceline.core.types import SamplingParams
from paceline.errors import InvalidOption
from paceline.lab.measure.streams import Piece, Stream, VirtualClock, play
from paceline.methods.streams.groups import masked_rows
from paceline.methods.streams.notes import NoteTaker, PromptedNotes
from paceline.methods.streams.thinking import Cues, StreamingThinker
from paceline.runtimes.cpu.target import CpuTarget
from paceline.runtimes.reference.target import ReferenceTarget

CONFIG = tiny_config("qwen2")
WEIGHTS = weights(CONFIG)
CPU = CpuTarget(CONFIG, WEIGHTS, "fp32", kv_tokens=2048)
RNG = np.random.default_rng(6)
SENTENCES = [RNG.integers(3, CONFIG.vocab_size, size).tolist() for size in (9, 4, 12, 6)]
SOURCE = [token for sentence in SENTENCES for token in sentence]
CUES = Cues([5, 6], 2, [[7], [8, 9]])
ONE = Cues(CUES.thought, CUES.end, [[8, 9]])
MOST = 5


def thinker(target: Any = CPU, **options: Any) -> StreamingThinker:
    return StreamingThinker(target, CUES, most=MOST, **options)


def note_taker(target: Any = CPU, question: Sequence[int] = (11, 12)) -> NoteTaker:
    return NoteTaker(target, ONE, question, most=MOST)


def finished(system: Any, sentences: Sequence[Sequence[int]] = SENTENCES, every: int = 1) -> Any:
    """A system that has worked `every` times behind each sentence, and to its end."""
    for sentence in sentences:
        system.hear(Piece(0.0, sentence))
        for _ in range(every):
            system.work()
    system.ask()
    while system.work():
        pass
    assert system.done
    return system


def of(thinking: StreamingThinker) -> list[list[int]]:
    thinking.close()
    return thinking.thoughts


@pytest.mark.parametrize(
    ("ride", "every"), [(0, 1), (1, 0), (3, 1), (16, 2), (16, 40)], ids=lambda each: str(each)
)
def test_thoughts_do_not_depend_on_when_sentences_come(ride: int, every: int) -> None:
    found = finished(thinker(ride=ride), every=every)
    assert of(found) == of(finished(thinker(ride=16), every=7))
    # Negative control: all of it is read first, so early thoughts see what is late.
    assert of(finished(thinker(waits=True))) != found.thoughts


def test_thoughts_are_those_of_masked_forwards() -> None:
    """Each token by a forward of its own over all rows, on the reference."""
    reference = ReferenceTarget(CONFIG, WEIGHTS, "fp32")
    ends = np.cumsum(list(map(len, SENTENCES))).tolist()
    parts = [(CUES.thought, end) for end in ends] + [(cue, ends[-1]) for cue in CUES.closing]
    rows: list[int] = []
    seen: list[int] = []
    found: list[list[int]] = []
    for cue, end in parts:
        rows += cue
        own: list[int] = []
        while len(own) < MOST:
            seen += [end] * (len(rows) - len(seen))
            cache = CPU.open()
            [out] = CPU.forward([masked_rows(cache, SOURCE[:end], rows, seen)])
            token = int(out.logits[-1].argmax())
            CPU.release(cache)
            if token == CUES.end:
                break
            rows.append(token)
            own.append(token)
        rows.append(CUES.end)
        seen += [end] * (len(rows) - len(seen))
        found.append(own)
    assert of(finished(thinker())) == found
    assert of(finished(thinker(reference))) == found


def test_a_thought_does_not_see_the_next_sentence() -> None:
    found = of(finished(thinker(), every=3))
    for at in range(1, len(SENTENCES)):
        other = [*SENTENCES[:at], [13, 14, 15], *SENTENCES[at + 1 :]]
        changed = of(finished(thinker(), other, every=3))
        assert changed[:at] == found[:at]
        assert changed[at:] != found[at:]


def test_rows_that_ride_along_save_passes_and_thinking_begins_early() -> None:
    alone, riding = (finished(thinker(ride=ride)) for ride in (0, 16))
    assert riding.passes < alone.passes
    early, late = finished(thinker(), every=9), finished(thinker(waits=True), every=9)
    assert early.read_first == len(SENTENCES[0])
    assert late.read_first == sum(map(len, SENTENCES))


def told(system: Callable[[Any], Any]) -> Any:
    """Play sentences to a system, a second apart, at 0.01 seconds a pass and 0.002 a row."""
    clock, target = VirtualClock(), CpuTarget(CONFIG, WEIGHTS, "fp32", kv_tokens=2048)
    clock.charge(target, lambda rows: 0.01 + 0.002 * rows)
    pieces = [Piece(float(at), each) for at, each in enumerate(SENTENCES)]
    [found] = play([Stream(system(target), pieces, 3.1)], clock)
    return found


def test_an_answer_comes_sooner_than_where_all_is_read_first() -> None:
    early, late = told(thinker), told(lambda target: thinker(target, waits=True))
    assert early.answer == finished(thinker()).said()
    assert early.asked == late.asked == 3.1
    assert early.ended - 3.1 < 0.7 * (late.ended - 3.1)
    assert early.asked < early.began <= early.ended


def test_sentences_are_not_taken_back_and_cues_are_not_empty() -> None:
    for system in (thinker(), note_taker()):
        with pytest.raises(InvalidOption, match="send others behind it"):
            system.hear(Piece(0.0, [5], change=True))
    for cues in (Cues([], 2, [[7]]), Cues([5], 2, []), Cues([5], 2, [[7], []])):
        with pytest.raises(InvalidOption, match="cue"):
            StreamingThinker(CPU, cues)
        with pytest.raises(InvalidOption, match="cue"):
            NoteTaker(CPU, cues, [5])
    with pytest.raises(InvalidOption, match="most must be 1 or more"):
        StreamingThinker(CPU, CUES, most=0)


def test_no_sentences_have_an_answer_too() -> None:
    assert len(of(finished(thinker(), []))) == len(CUES.closing)
    assert finished(note_taker(), []).notes == []


@pytest.mark.parametrize("every", [0, 1, 4, 50])
def test_notes_do_not_depend_on_when_segments_come(every: int) -> None:
    found, other = finished(note_taker(), every=every), finished(note_taker(), every=9)
    assert (found.notes, found.said()) == (other.notes, other.said())
    assert len(found.notes) == len(SENTENCES)


class Scribe(NoteTaker):
    """Writes notes that it is told."""

    name = "scribe"
    told: Sequence[Sequence[int]]

    def _run(self, source: Sequence[int], target: Sequence[int]) -> Any:
        logits = np.array(super()._run(source, target))
        if target and len(self.notes) < len(self.told) and self._now is not None:
            note = [*self.told[len(self.notes)], self._cues.end]
            logits[-1] = 0
            logits[-1, note[len(self._now.tokens)]] = 1
        return logits


def scribe(told: Sequence[Sequence[int]]) -> Any:
    made = Scribe(CPU, ONE, [11, 12], most=MOST)
    made.told = told
    return made


def test_an_answer_sees_notes_and_the_present_segment_and_nothing_of_the_past() -> None:
    notes = [[21, 22], [23], [24, 25, 26], [27]]
    found = finished(scribe(notes))
    assert found.notes == notes
    # Another past with the same notes.
    past = [[31, 32, 33], [34], [35] * 9, SENTENCES[-1]]
    assert finished(scribe(notes), past).said() == found.said()
    # Controls: another note, another present segment, and a thinker whose past stays.
    assert finished(scribe([[21, 22], [23], [29], [27]])).said() != found.said()
    assert finished(scribe(notes), [*SENTENCES[:-1], [35] * 6]).said() != found.said()
    assert finished(thinker(), past).said() != finished(thinker()).said()


def test_rows_are_those_of_notes_and_a_segment() -> None:
    many = [RNG.integers(3, CONFIG.vocab_size, 30).tolist() for _ in range(6)]
    found = finished(note_taker(), many)
    most = len(many) * (len(CUES.thought) + MOST + 1) + 30 + 2 + 2 + MOST
    assert found.rows <= most < sum(map(len, many))
    # Control: a thinker keeps everything.
    kept = finished(thinker(), many)
    assert stored(kept._groups.cache) > most


PARAMS = SamplingParams(max_new_tokens=6)
TEXTS = ["the quick", "brown fox jumps", "the lazy dog"]


def prompted(engine: Any = None) -> PromptedNotes:
    return PromptedNotes(engine or make(Target(table)), "note", "what jumps", PARAMS)


@pytest.mark.parametrize("every", [0, 1, 3, 30])
def test_notes_by_prompts_are_answers_to_prompts(every: int) -> None:
    """Each by a request of its own; what was read ahead changes nothing."""
    target = Target(table)
    found = finished(prompted(make(target)), TEXTS, every)
    expected = prompted()
    for text in TEXTS:
        expected._present = text
        message = {"role": "user", "content": expected.prompt("note")}
        said = make(Target(table)).generate([message], PARAMS).text
        expected.notes.append(" ".join(said.split()))
    message = {"role": "user", "content": expected.prompt("what jumps")}
    answer = make(Target(table)).generate([message], PARAMS).text
    assert (found.notes, found.said()) == (expected.notes, answer)
    assert not target.live  # nothing is held
    assert TEXTS[0] not in expected.prompt("what jumps")
    assert finished(prompted(), ["dog", *TEXTS[1:]]).notes != found.notes


def test_notes_are_read_before_their_text_comes() -> None:
    target = Target(table)
    system = prompted(make(target))
    while system.work():
        pass
    assert sum(target.batches) > 0
    assert not system.done
    assert system.said() is None
    system.close()
    assert not target.live
    with pytest.raises(InvalidOption, match="send others behind it"):
        system.hear(Piece(0.0, "dog", change=True))
