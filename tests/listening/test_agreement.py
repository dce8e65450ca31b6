"""Final words are those of two captions, are never taken back, and are said once."""

from __future__ import annotations

import random
import string
from collections.abc import Sequence
from typing import Any

import pytest
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
    # One that is heard in two, or in part, or not at all.
    assert told("all right now", "all right now go", "alright now go on") == [
        "",
        "all right now",
        "go",
    ]
    assert told("of the man", "of the man had", "of the manhattos, so", "of the manhattos, so") == [
        "",
        "of the man",
        "",
        "so",
    ]


def test_captions_that_lose_final_words_say_none_twice() -> None:
    west = "south and west. Yet here they all unite."
    assert told(west, west, "South and west.", f"{west} Tell", f"{west} Tell me") == [
        "",
        west,
        "",
        "",
        "Tell",
    ]
    assert told(west, west, "here they all unite. Tell", "all unite. Tell me") == [
        "",
        west,
        "",
        "Tell",
    ]


def test_what_is_dropped_is_not_asked_for_again() -> None:
    agreement = Agreement()
    agreement.add(words_of("one two three"))
    assert agreement.add(words_of("one two three four")) == ["one", "two", "three"]
    assert agreement.drop(2) == ["one", "two"]
    assert agreement.settled == 1
    assert agreement.add(words_of("three four five")) == ["four"]
    assert agreement.settle(3) == ["five"]
    assert agreement.settle(3) == []
    assert agreement.drop(3) == ["three", "four", "five"]


@pytest.mark.parametrize("leak", ["ips", "those ships", "all those ships", "e ships"])
def test_what_sounds_on_where_a_window_begins_is_said_once(leak: str) -> None:
    agreement = Agreement()
    for _ in range(2):
        agreement.add(words_of("the compasses of all those ships"))
    agreement.drop(6)
    for _ in range(2):
        new = agreement.add(words_of(f"{leak} attract them"))
    assert new == ["attract", "them"]
    # What is gone for longer may be said again, and a letter or two are chance.
    assert agreement.drop(agreement.settled) == ["attract", "them"]
    for _ in range(2):
        new = agreement.add(words_of("the compasses of all"))
    assert new == ["the", "compasses", "of", "all"]
    agreement.drop(4)
    for _ in range(2):
        new = agreement.add(words_of("All those"))
    assert new == ["those"]


def test_words_that_are_repeated_are_final_as_often() -> None:
    assert told("no no no", "no no no they", "no no no they must") == ["", "no no no", "they"]


def keys(words: Sequence[str]) -> list[str]:
    return ["".join(filter(str.isalnum, each.casefold())) for each in words]


class Misheard:
    """What is said, in captions of a window that grows and moves on: each is wrong somehow.

    Words are unlike each other, so that what is said twice is seen.
    """

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.words = ["".join(self.rng.choices(string.ascii_lowercase, k=7)) for _ in range(60)]

    def caption(self, first: int, end: int, known: int) -> tuple[list[str], list[int]]:
        """Return one of these words, and which each is; it holds the last one that is final."""
        rng, said, which = self.rng, list[str](), list[int]()
        first = max(first, min(first + rng.choice([0] * 6 + [1, 3]), known))
        end -= rng.choice([0] * 6 + [1, 4])
        for place in range(first, max(first, end)):
            word, wrong = self.words[place], rng.random()
            if wrong < 0.02:
                parts = [word[:3], word[3:]]
            elif wrong < 0.04:
                parts = [word[:2] + "x" + word[3:]]
            elif wrong < 0.2:
                parts = [word.capitalize() + rng.choice(".,?!")]
            else:
                parts = [word[2:] if place == first and wrong > 0.7 else word]
            said += parts
            which += [place] * len(parts)
        again = rng.random() < 0.1 and first > 0  # the window begins within a word before it
        return [self.words[first - 1][4:]] * again + said, [first - 1] * again + which


def follow(misheard: Misheard, agreement: Any) -> list[int]:
    """Return which words become final, in order; two parts of one are one."""
    rng, first, final = misheard.rng, 0, list[int]()
    for end in [*range(1, len(misheard.words), 2)] + [len(misheard.words)] * 3:
        said, which = misheard.caption(first, end, final[-1] if final else 0)
        new = agreement.add(said)
        places = which[agreement.settled - len(new) : agreement.settled]
        final += [each for at, each in enumerate(places) if at == 0 or places[at - 1] != each]
        if agreement.settled > 12 and rng.random() < 0.5:
            gone = rng.randrange(1, agreement.settled - 4)
            agreement.drop(gone)
            first = which[gone]
    return final


class NearestAgreement:
    """The rule before: as many words of a caption are final as are nearest to those, by edits."""

    def __init__(self) -> None:
        self.last: list[str] = []
        self.settled = 0

    def add(self, words: list[str]) -> list[str]:
        final, last = self.last[: self.settled], keys(self.last[self.settled :])
        row = edits_to(keys(final), keys(words))
        begin = min(range(len(row)), key=lambda at: (row[at], abs(at - len(final))))
        agreed = 0
        while [*last[: agreed + 1]] == keys(words[begin : begin + agreed + 1]) != []:
            if agreed == len(last) or begin + agreed == len(words):
                break
            agreed += 1
        self.last, self.settled = words, begin + agreed
        return words[begin : self.settled]

    def drop(self, count: int) -> None:
        self.last, self.settled = self.last[count:], self.settled - count


@pytest.mark.parametrize("begin", range(0, 200, 20))
def test_nothing_is_final_twice(begin: int) -> None:
    for seed in range(begin, begin + 20):
        final = follow(Misheard(seed), Agreement())
        assert final == sorted(set(final)), seed
        assert len(final) > 50


def test_words_nearest_by_edits_are_final_twice() -> None:
    found = [follow(Misheard(seed), NearestAgreement()) for seed in range(40)]
    assert sum(len({*each}) < len(each) for each in found) > 10


@given(CAPTIONS)
def test_final_words_come_from_two_captions(captions: list[list[str]]) -> None:
    agreement = Agreement()
    for last, words in zip([[], *captions], captions, strict=False):
        new = agreement.add(words)
        assert agreement.settled <= len(words)
        assert new == words[agreement.settled - len(new) : agreement.settled]
        assert not {*keys(new)} - {*keys(last)}


@given(st.lists(st.sampled_from("abcdef"), max_size=20))
def test_a_caption_that_only_grows_is_final_but_for_its_end(words: list[str]) -> None:
    agreement, final = Agreement(), list[str]()
    for count in range(len(words) + 1):
        final += agreement.add(words[:count])
    assert final == words[:-1]
    assert final + agreement.settle(len(words)) == words
