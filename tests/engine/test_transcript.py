"""Transcripts release text once, whole, and never a part of a stop string."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers.tiny_model import tiny_tokenizer

from paceline.engine.stopping import Transcript
from paceline.models.text import Tokenizer

TOKENIZER = Tokenizer(tiny_tokenizer(), eos_token_ids=(2,))


def feed(text: str, stops: tuple[str, ...] = ()) -> tuple[list[str], Transcript, bool]:
    """Feed a text token by token as the decoder does: nothing more after a stop."""
    transcript = Transcript(TOKENIZER, stops)
    pieces, stopped = [], False
    for token in TOKENIZER.encode(text):
        stopped = transcript.feed(token)
        pieces.append(transcript.take())
        if stopped:
            break
    transcript.finish()
    pieces.append(transcript.take())
    return pieces, transcript, stopped


def cut(text: str, stops: tuple[str, ...]) -> str:
    """Before the stop string that is complete first; the longest of those that end together."""
    for end in range(len(text) + 1):
        here = [len(stop) for stop in stops if text[:end].endswith(stop)]
        if here:
            return text[: end - max(here)]
    return text


@settings(max_examples=150)
@given(
    st.text("abc €", max_size=30),
    st.lists(st.text("abc €", min_size=1, max_size=4), max_size=3).map(tuple),
)
def test_pieces_add_up_and_text_is_cut_where_a_reader_would(
    text: str, stops: tuple[str, ...]
) -> None:
    pieces, transcript, stopped = feed(text, stops)
    assert transcript.text == cut(text, stops)
    assert "".join(pieces) == transcript.text
    assert stopped == any(stop in text for stop in stops)
    assert transcript.take() == ""
    transcript.finish()
    assert transcript.text == cut(text, stops)


@settings(max_examples=50)
@given(st.lists(st.integers(0, 319), max_size=30))
def test_any_tokens_give_the_decoded_text(ids: list[int]) -> None:
    """Also tokens that are halves of characters, and special tokens."""
    transcript = Transcript(TOKENIZER, ())
    text = ""
    for token in ids:
        assert not transcript.feed(token)
        text += transcript.take()
    transcript.finish()
    assert text + transcript.take() == transcript.text == TOKENIZER.decode(ids)


def test_what_may_become_a_stop_is_held_back_and_released() -> None:
    transcript = Transcript(TOKENIZER, ("STOP",))
    seen = ""
    for token in TOKENIZER.encode("ab STONE"):
        transcript.feed(token)
        seen += transcript.take()
        assert not seen.endswith(("S", "ST", "STO"))
    assert seen == "ab STONE"


def test_a_beginning_of_a_stop_at_the_end_is_text() -> None:
    pieces, transcript, stopped = feed("ab STO", ("STOP",))
    assert transcript.text == "ab STO"
    assert pieces[-1] == "STO"
    assert not stopped


def test_half_a_character_is_shown_at_the_end_alone() -> None:
    transcript = Transcript(TOKENIZER, ())
    ids = TOKENIZER.encode("a€")
    for token in ids[:-1]:
        transcript.feed(token)
    assert transcript.take() == "a"
    transcript.finish()
    assert transcript.take() == "\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize("stop", ["€", "\N{REPLACEMENT CHARACTER}"])
def test_stops_of_several_bytes(stop: str) -> None:
    transcript = Transcript(TOKENIZER, (stop,))
    found = [transcript.feed(token) for token in TOKENIZER.encode("a€b")]
    assert any(found) == (stop == "€")  # bytes that are not a character yet match nothing


def test_special_tokens_are_shown_on_demand() -> None:
    ids = TOKENIZER.encode("<|im_start|>the<|im_end|>")
    for shown, text in (((), "the"), ((1,), "<|im_start|>the")):
        transcript = Transcript(TOKENIZER, ("STOP",), shown)
        for token in ids:
            assert not transcript.feed(token)
        transcript.finish()
        assert transcript.take() == text


def test_a_stop_string_may_stay() -> None:
    for text in ("one STOP two", "one STO"):
        transcript = Transcript(TOKENIZER, ("STOP", "TOP", "two"), keep=True)
        seen = ""
        for token in TOKENIZER.encode(text):
            if transcript.feed(token):
                break
            seen += transcript.take()
        transcript.finish()
        seen += transcript.take()
        assert seen == transcript.text == text.removesuffix(" two")
