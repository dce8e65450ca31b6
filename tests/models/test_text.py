"""Tokenizer, chat templates, streaming detokenisation and stop strings."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers.tiny_model import CHAT_TEMPLATE, SPECIAL, tiny_tokenizer

from paceline.errors import PromptError
from paceline.models.text import StopStrings, Tokenizer

CORE = tiny_tokenizer()
TOKENIZER = Tokenizer(CORE, eos_token_ids=(2,), chat_template=CHAT_TEMPLATE)
EMOJI = "a \N{FAMILY} b \N{GRINNING FACE}\N{ZERO WIDTH JOINER}é"


def with_template(template: str, **special: str) -> Tokenizer:
    return Tokenizer(CORE, special_tokens=special, chat_template=template)


def pieces(tokenizer: Tokenizer, ids: Sequence[int], size: int = 1) -> list[str]:
    stream = tokenizer.stream()
    out = [stream.feed(ids[i : i + size]) for i in range(0, len(ids), size)]
    return [*out, stream.finish()]


def test_special_tokens_are_parsed_and_skipped() -> None:
    ids = TOKENIZER.encode("<|im_start|>the<|im_end|>")
    assert (ids[0], ids[-1]) == (1, 2)
    assert TOKENIZER.decode(ids) == "the"
    assert TOKENIZER.decode(ids, skip_special=False) == "<|im_start|>the<|im_end|>"


def test_fingerprint_tells_vocabularies_apart() -> None:
    assert Tokenizer(tiny_tokenizer()).fingerprint == TOKENIZER.fingerprint
    assert Tokenizer(tiny_tokenizer(vocab_size=270)).fingerprint != TOKENIZER.fingerprint


def test_chat_renders_the_template() -> None:
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "hi"}]
    text = "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"
    assert TOKENIZER.chat(messages, add_generation_prompt=False) == TOKENIZER.encode(text)
    assert TOKENIZER.chat(messages) == TOKENIZER.encode(text + "<|im_start|>assistant\n")


def test_templates_see_special_tokens_helpers_and_loop_controls() -> None:
    template = (
        "{{ bos_token }}{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}"
        "{{ m.content }}{% endfor %}{{ ['<é>'] | tojson }}{{ strftime_now('%Y') | length }}"
    )
    tokenizer = with_template(template, bos_token=SPECIAL[0])
    messages = [{"role": "user", "content": "x"}, {"role": "user", "content": "y"}]
    decoded = tokenizer.decode(tokenizer.chat(messages), skip_special=False)
    assert decoded == SPECIAL[0] + 'x["<é>"]4'


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('roles must\nalternate') }}",
        "{% if %}",
        "{{ messages[0].content + 1 }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    ],
)
def test_template_failures_are_one_line_prompt_errors(template: str) -> None:
    with pytest.raises(PromptError, match="chat template refuses") as caught:
        with_template(template).chat([{"role": "user", "content": "x"}])
    assert "\n" not in str(caught.value)


def test_a_model_without_template_cannot_chat() -> None:
    with pytest.raises(PromptError, match="no chat template"):
        Tokenizer(CORE).chat([{"role": "user", "content": "x"}])


def test_characters_are_never_cut() -> None:
    ids = TOKENIZER.encode(EMOJI)
    assert len(ids) > len(EMOJI)  # the characters are several tokens each
    got = pieces(TOKENIZER, ids)
    assert "".join(got) == EMOJI
    assert not any("\ufffd" in piece for piece in got)


@given(text=st.text(max_size=30), size=st.integers(1, 5))
def test_streamed_text_is_the_text(text: str, size: int) -> None:
    ids = TOKENIZER.encode(text)
    assert "".join(pieces(TOKENIZER, ids, size)) == TOKENIZER.decode(ids)


@given(ids=st.lists(st.integers(0, CORE.get_vocab_size() - 1), max_size=30))
def test_any_ids_stream_to_what_they_decode_to(ids: list[int]) -> None:
    assert "".join(pieces(TOKENIZER, ids)) == TOKENIZER.decode(ids)


def test_tokens_are_looked_up_where_none_depends_on_those_before() -> None:
    """Streams of one tokenizer share what they looked up, and show or skip special tokens apart."""
    from tokenizers import Tokenizer as Core
    from tokenizers import models

    ids = TOKENIZER.encode("the quick<|im_end|> " + EMOJI) * 2
    for special in (True, False, True):
        stream = TOKENIZER.stream(special)
        assert TOKENIZER.context_free
        got = "".join(stream.feed([token]) for token in ids) + stream.finish()
        assert got == TOKENIZER.decode(ids, special)
    assert not Tokenizer(Core(models.BPE())).context_free


def test_streams_keep_the_spaces_of_sentencepiece() -> None:
    from tokenizers import Tokenizer as Core
    from tokenizers import decoders, models

    core = Core(models.WordLevel({"\u2581a": 0, "\u2581b": 1, "c": 2}, unk_token="c"))
    core.decoder = decoders.Metaspace()
    tokenizer = Tokenizer(core)
    assert pieces(tokenizer, [0, 1, 2, 0]) == ["a", " b", "c", " a", ""]


def test_a_stream_starts_anew_after_finish() -> None:
    stream = TOKENIZER.stream()
    half = TOKENIZER.encode("\N{GRINNING FACE}")[:1]
    assert stream.feed(half) == ""
    assert stream.finish() == "\ufffd"
    assert stream.feed(TOKENIZER.encode("the")) == "the"


def test_the_match_that_completes_first_counts() -> None:
    stops = StopStrings(["abcd", "bc"])
    assert stops.find("xabcd") == 2
    assert stops.find("xab") is None
    assert StopStrings(["b", "ab"]).find("xab") == 1
    assert StopStrings([]).find("anything") is None


def test_held_is_the_longest_beginning_of_a_stop() -> None:
    stops = StopStrings(["\n\nUser", "###"])
    assert stops.held("text") == 0
    assert stops.held("text\n") == 1
    assert stops.held("text\n\n\n") == 2
    assert stops.held("text\n\nUse") == 5
    assert stops.held("text##") == 2
    assert StopStrings(["x"]).held("text") == 0


SHORT = st.text("ab", max_size=12)


@given(text=SHORT, stops=st.lists(st.text("ab", min_size=1, max_size=4), max_size=3))
def test_growing_text_finds_the_same_match_and_never_shows_it(text: str, stops: list[str]) -> None:
    finder = StopStrings(stops)
    shown, cut = "", None
    for end in range(1, len(text) + 1):
        cut = finder.find(text[:end], searched=end - 1)
        if cut is not None:
            break
        shown = text[: max(len(shown), end - finder.held(text[:end]))]
    assert cut == finder.find(text)
    assert len(shown) <= (len(text) if cut is None else cut)
    assert (cut is None) == (not any(stop in text for stop in stops))
