"""Final words are those of two captions, and are never taken back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from paceline.listening.agreement import Agreement, edits_to, words_of

CAPTIONS = st.lists(st.lists(st.sampled_from(["a", "b", "C", "d,", "e"]), max_size=8), max_size=12)


def told(*captions: str) -> list[str]:
    agreement = Agreement()
    return [" ".join(agreement.add(words_of(each))) for each in captions]


def test_two_captions_in_a_row_make_words_final() -> None:
    assert told("it was", "it was the best", "it was the best of") == ["", "it was", "the best"]
    assert told("it was", "he is", "he is") == ["", "", "he is"]


def test_case_and_punctuation_change_no_word() -> None:
    assert told("times.", "Times, it", "times it was") == ["", "Times,", "it"]
    assert words_of("so - it goes .") == ["so -", "it", "goes ."]


def test_a_final_word_that_is_heard_otherwise_stays() -> None:
    captions = "the cat sat", "the cat sat on", "the hat sat on a", "hat sat on a mat"
    assert told(*captions) == ["", "the cat sat", "on", "a"]
    # One that is heard in two, or not at all.
    assert told("all right now", "all right now go", "alright now go on") == [
        "",
        "all right now",
        "go",
    ]


def test_what_is_dropped_is_not_asked_for_again() -> None:
    agreement = Agreement()
    agreement.add(words_of("one two three"))
    assert agreement.add(words_of("one two three four")) == ["one", "two", "three"]
    agreement.drop(2)
    assert agreement.settled == 1
    assert agreement.add(words_of("three four five")) == ["four"]
    assert agreement.settle(3) == ["five"]
    assert agreement.settle(3) == []


@given(CAPTIONS)
def test_final_words_come_from_two_captions(captions: list[list[str]]) -> None:
    agreement = Agreement()
    for last, words in zip([[], *captions], captions, strict=False):
        new = agreement.add(words)
        assert agreement.settled <= len(words)
        assert new == words[agreement.settled - len(new) : agreement.settled]
        keys = [each.casefold().strip(",") for each in last]
        for each in new:
            assert each.casefold().strip(",") in keys


@given(st.lists(st.sampled_from("abcdef"), max_size=20))
def test_a_caption_that_only_grows_is_final_but_for_its_end(words: list[str]) -> None:
    agreement, final = Agreement(), list[str]()
    for count in range(len(words) + 1):
        final += agreement.add(words[:count])
    assert final == words[:-1]
    assert final + agreement.settle(len(words)) == words


def test_edits_are_counted_to_each_begin() -> None:
    assert edits_to("kitten", "sitting")[-1] == 3
    assert edits_to("", "abc") == [0, 1, 2, 3]
    assert edits_to("abc", "")[-1] == 3
    assert edits_to("abc", "abc") == [3, 2, 1, 0]
    assert edits_to(["a", "b", "c"], ["a", "c", "d"])[-1] == 2
