"""The window of ended texts: what it holds, how it moves on, and how it is kept on disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.drafters.automata import seen

from paceline.drafters.suffix.automaton import BREAK, ROOT_STATE, Automaton
from paceline.drafters.suffix.history import Corpus, History, HistoryReader
from paceline.errors import InvalidOption

Text = list[int]

TEXTS = st.lists(st.lists(st.integers(0, 2), max_size=9), max_size=12)
FEWER = settings(max_examples=60)
CAPACITIES = st.sampled_from([8, 13, 20, 31, 1000])
VOCABULARY = 3


def held(history: History) -> list[Text]:
    """The texts in a history, oldest first."""
    log = np.array(history.texts.log)
    parts = np.split(log, np.flatnonzero(log == BREAK))
    return [part[1:].tolist() for part in parts if len(part) > 1]


def filled(texts: list[Text], capacity: int) -> History:
    history = History(capacity)
    for text in texts:
        history.add(text)
    history.absorb()
    return history


@FEWER
@given(TEXTS, CAPACITIES)
def test_it_holds_the_latest_texts_up_to_its_capacity(texts: list[Text], capacity: int) -> None:
    history = filled(texts, capacity)
    quarter = capacity // 4
    expected = [text[-(quarter - 1) :] for text in texts if text]
    found = held(history)
    assert found == expected[len(expected) - len(found) :]
    assert len(history.texts.log) <= capacity
    if len(found) < len(expected):  # something was forgotten, but never more than needed
        assert len(history.texts.log) > quarter


@FEWER
@given(TEXTS, CAPACITIES)
def test_forgetting_leaves_what_was_never_told_of_the_forgotten(
    texts: list[Text], capacity: int
) -> None:
    history = filled(texts, capacity)
    fresh = Automaton()
    for text in held(history):
        fresh.begin()
        fresh.extend(text)
    assert seen(history.texts) == seen(fresh)


@FEWER
@given(TEXTS, CAPACITIES, st.lists(st.integers(1, 9), min_size=1, max_size=9))
def test_learning_in_pieces_is_learning_at_once(
    texts: list[Text], capacity: int, paces: list[int]
) -> None:
    history = History(capacity)
    for index, text in enumerate(texts):
        history.add(text)
        history.absorb(paces[index % len(paces)])
    history.absorb()
    assert seen(history.texts) == seen(filled(texts, capacity).texts)


def test_no_more_is_learned_than_asked_for() -> None:
    history = History()
    history.add([1, 2, 3, 4, 5])
    history.add([6, 7])
    sizes = []
    for _ in range(5):
        history.absorb(2)
        sizes.append(sum(token != BREAK for token in history.texts.log))
    assert sizes == [2, 4, 6, 7, 7]


def test_where_nobody_reads_the_line_is_bounded_and_nothing_is_lost() -> None:
    texts = [[index % 7] * 300 for index in range(100)]
    history = History(1 << 17)
    for text in texts:
        history.add(text)
        assert history.waiting <= 8192
    assert history.waiting > 8192 - 300  # and no longer than need be
    history.absorb()
    assert history.waiting == 0
    assert held(history) == texts


def longest_suffix(text: Text, texts: list[Text]) -> int:
    """Length of the longest suffix, up to 32 tokens, that occurs in any of the texts."""
    return max(
        n
        for n in range(min(32, len(text)) + 1)
        if n == 0 or any(t[i : i + n] == text[-n:] for t in texts for i in range(len(t) - n + 1))
    )


@FEWER
@given(TEXTS, CAPACITIES, st.lists(st.integers(0, 2), min_size=1, max_size=30), st.data())
def test_readers_find_the_longest_suffix_whatever_happens_to_the_history(
    texts: list[Text], capacity: int, text: Text, data: st.DataObject
) -> None:
    history = History(capacity)
    reader = HistoryReader(history)
    reader.read(text[:1], 1)
    known = 1
    for ended in texts:
        history.add(ended)
        history.absorb(data.draw(st.one_of(st.none(), st.integers(1, 9))))
        new = data.draw(st.integers(0, len(text) - known))
        known += new
        reader.read(text[:known], new)
        if not history._line:  # all texts are complete
            assert reader.match[1] == longest_suffix(text[:known], held(history))
        assert reader.texts is history.texts
        found, length, end = reader.match
        state = ROOT_STATE
        for token in text[known - length : known]:
            state = reader.texts.step(state, token)
        assert found == reader.texts.read(state, length, ())[0]
        assert end == reader.texts.end[found]


def test_a_corpus_is_read_as_a_history_is() -> None:
    corpus = Corpus([[1, 2, 3], [2, 3, 4]])
    reader = HistoryReader(corpus)
    reader.read([9, 2, 3], 3)
    state, length, end = reader.match
    assert (length, reader.texts.count[state]) == (2, 2)
    assert reader.texts.behind(end, 9) == [4]  # the latest


@FEWER
@given(TEXTS, CAPACITIES)
def test_saving_and_restoring_gives_the_same_history(
    tmp_path_factory: pytest.TempPathFactory, texts: list[Text], capacity: int
) -> None:
    path = tmp_path_factory.mktemp("history") / "texts.npz"
    history = History(capacity)
    for text in texts:
        history.add(text)  # some may still be in line
    history.save(path, VOCABULARY)
    other = filled([[1, 1, 1]], capacity)
    generation = other.generation
    assert other.restore(path, VOCABULARY) is None
    assert held(other) == held(history)
    assert seen(other.texts) == seen(history.texts)
    assert other.generation > generation  # readers must find their place anew
    assert [part.name for part in path.parent.iterdir()] == [path.name]


def test_an_absent_file_leaves_it_empty(tmp_path: Path) -> None:
    history = filled([[1, 2]], 100)
    reason = history.restore(tmp_path / "none.npz", VOCABULARY)
    assert reason is not None
    assert "none.npz cannot be read" in reason
    assert held(history) == []


def spoil(path: Path, how: str) -> None:
    if how == "text":
        path.write_text("hello")
    elif how == "cut":
        path.write_bytes(path.read_bytes()[:-40])
    elif how == "flipped":
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 0xFF
        path.write_bytes(content)
    elif how == "array":
        with path.open("wb") as file:
            np.save(file, np.arange(3))
    elif how == "foreign":
        np.savez(path, magic="another", vocab_size=VOCABULARY, log=np.array([BREAK, 1]))
    elif how == "pickle":
        np.savez(path, magic="paceline history 1", vocab_size=3, log=np.array([None]))
    else:
        log = {"tokens": [BREAK, 7], "floats": [0.5], "empty": [], "table": [[BREAK, 1]]}[how]
        np.savez(path, magic="paceline history 1", vocab_size=VOCABULARY, log=np.array(log))


@pytest.mark.parametrize(
    "how",
    ["text", "cut", "flipped", "array", "foreign", "pickle", "tokens", "floats", "empty", "table"],
)
def test_a_damaged_or_foreign_file_is_set_aside(how: str, tmp_path: Path) -> None:
    path = tmp_path / "texts.npz"
    filled([[1, 2, 0, 1, 2]], 100).save(path, VOCABULARY)
    spoil(path, how)
    history = filled([[1]], 100)
    reason = history.restore(path, VOCABULARY)
    assert reason is not None
    assert "\n" not in reason
    assert "texts.npz is damaged or foreign" in reason
    assert [part.name for part in tmp_path.iterdir()] == ["texts.npz.bad"]
    assert held(history) == []
    history.add([1, 2])
    history.save(path, VOCABULARY)
    assert history.restore(path, VOCABULARY) is None


def test_tokens_of_another_model_are_set_aside(tmp_path: Path) -> None:
    path = tmp_path / "texts.npz"
    filled([[1, 2]], 100).save(path, VOCABULARY)
    reason = History().restore(path, 50)
    assert reason is not None
    assert "it is for 3 tokens, not 50" in reason


def test_a_file_that_cannot_be_set_aside_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "texts.npz"
    path.write_text("hello")

    def refuse(*_: object) -> Path:
        raise PermissionError

    monkeypatch.setattr(Path, "replace", refuse)
    assert History().restore(path, VOCABULARY) is not None
    assert path.exists()


def test_what_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="absent"):
        History().save(tmp_path / "absent" / "texts.npz", VOCABULARY)


def test_only_the_owner_may_read_what_users_were_told(tmp_path: Path) -> None:
    path = tmp_path / "texts.npz"
    filled([[1, 2]], 100).save(path, VOCABULARY)
    assert path.stat().st_mode & 0o077 == 0


def test_a_capacity_must_hold_something() -> None:
    with pytest.raises(InvalidOption, match="8 or more, not 7"):
        History(7)
