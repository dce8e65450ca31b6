"""Dynamic and word-pooled tokens: what merging keeps, and what a pooled word sees."""

from __future__ import annotations

import json
import random
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.tokens import dynamic, word_pooled
from benchmarks.tokens.texts import CODES
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers.tiny_model import save_directory, tiny_config, tiny_tokenizer

from paceline.core.rows import RowStore
from paceline.lab.measure import results
from paceline.models.source import DirectorySource
from paceline.models.text import Tokenizer
from paceline.runtimes.cpu.target import CpuTarget

TOKENIZER = Tokenizer(tiny_tokenizer())


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock on which a step of training takes a hundredth of a second."""
    ticks = count(0.0, 0.01)
    for each in (dynamic, word_pooled):
        monkeypatch.setattr(each, "process_time", lambda: next(ticks))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"WIDTH": 32, "HEADS": 2, "INNER": 32, "INNER_HEADS": 2, "RUN": 12, "PEAK": 0.01}
    for name, size in sizes.items():
        monkeypatch.setattr(word_pooled, name, size)


TEXTS = st.text(st.sampled_from("ab cdé\n,th "), max_size=60)


@given(TEXTS, st.sampled_from(["pretoken", "word"]), st.integers(0, 9))
def test_merged_pieces_spell_the_text_and_never_grow(
    text: str, boundary: dynamic.Boundary, merges: int
) -> None:
    by_word = dynamic.words(TOKENIZER, text, boundary)
    plain = [token for word in by_word for token in word]
    assert plain == TOKENIZER.plain(text)
    pieces = dynamic.merged(by_word, merges)
    assert [token for piece in pieces for token in piece] == plain
    assert len(pieces) <= len(plain)
    assert len(dynamic.merged(by_word, merges + 1)) <= len(pieces)
    ends, at = set(np.cumsum([len(word) for word in by_word]).tolist()), 0
    for piece in pieces:
        assert not ends & set(range(at + 1, at + len(piece))), "no piece crosses a word"
        at += len(piece)


def test_the_most_frequent_pair_of_a_word_is_one_row() -> None:
    a, b, c = 10, 11, 12
    prompt = [[a, b, c], [a, b], [b, c], [a, b, a, b]]
    assert dynamic.merged(prompt, 1) == [(a, b), (c,), (a, b), (b,), (c,), (a, b), (a, b)]
    assert dynamic.merged([[a, b], [b, c]], 5) == [(a,), (b,), (b,), (c,)], "none occurs twice"
    assert dynamic.merged([[a, a, a]], 5) == [(a, a), (a,)]
    assert dynamic.merged([[a, a, a, a]], 5) == [(a, a), (a, a)]


def test_words_begin_at_white_space_and_pretokens_at_signs() -> None:
    spelled = {
        kind: [TOKENIZER.decode(word) for word in dynamic.words(TOKENIZER, "ab, cd", kind)]  # type: ignore[arg-type]
        for kind in ("pretoken", "word")
    }
    assert spelled == {"pretoken": ["ab", ",", " cd"], "word": ["ab,", " cd"]}


def test_rows_are_found_by_their_tokens_and_embedding() -> None:
    store, made = RowStore(50, 4), list[Any]()

    def embed(pieces: Any) -> Any:
        made.extend(pieces)
        return np.full((len(pieces), 4), float(sum(pieces[0])), np.float32)

    ids = dynamic.as_ids([(3,), (1, 2), (1, 2), (2, 1)], store, "x", embed)
    assert ids[0] == 3
    assert ids[1] == ids[2] != ids[3]
    assert made == [(1, 2), (2, 1)]
    assert store.rows(np.array(ids[1:2])).tolist() == [[3.0] * 4]
    assert dynamic.as_ids([(1, 2)], store, "y", embed) != ids[1:2]
    assert dynamic.as_ids([(7,), (8,)], store, "x", embed) == [7, 8]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_directory(tmp_path_factory.mktemp("tiny"), tiny_config())


def test_no_merge_is_the_plain_prompt_bit_for_bit(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = DirectorySource(folder)
    target = CpuTarget(source.config, source.weights(), "fp32", threads=1, kv_tokens=1024)
    table = source.weights()["embed"]
    embeds = {"mean": dynamic.mean_of(table)}
    monkeypatch.setattr(dynamic, "SETTINGS", (("word", 0), ("word", 9)))
    text = "the cat and the hat and the bat, " * 4
    plain, some = dynamic.told(target, source.tokenizer(), text, embeds, 8).values()
    assert plain == {"fewer": 0.0, "agreement, mean": 1.0, "lost, mean": 0.0}
    assert some["fewer"] > 0
    assert some["lost, mean"] != 0
    # A token's own row in place of its id is the same, to the bit.
    ids = source.tokenizer().plain(text)
    run = target.rows.hold(b"own", len(ids))
    target.rows.fill(run, table[ids])
    logits = [dynamic.behind(target, each, [ids[:5]])[0] for each in (ids, list(run.ids))]
    np.testing.assert_array_equal(*logits)


def test_tokens_are_split_into_tokens_that_spell_them() -> None:
    splits, rng = dynamic.Splits(TOKENIZER, 320), random.Random(1)
    assert splits.tokens
    for token in splits.tokens:
        parts = splits.draw(token, rng)
        assert len(parts) > 1
        spelled = b"".join(TOKENIZER.bytes_of(each) for each in parts)
        assert spelled == TOKENIZER.bytes_of(token)


@pytest.mark.usefixtures("steps")
def test_a_network_begins_as_the_mean_and_learns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dynamic, "INNER", 32)
    monkeypatch.setattr(dynamic, "BATCH", 64)
    rng = np.random.default_rng(0)
    table = rng.standard_normal((320, 64)).astype(np.float32)
    splits, draw = dynamic.Splits(TOKENIZER, 320), random.Random(0)
    pieces = [splits.draw(token, draw) for token in splits.tokens]
    ids, there = map(torch.from_numpy, dynamic.padded(pieces))
    with torch.no_grad():
        rows = dynamic.network(64)(torch.from_numpy(table)[ids], there).numpy()
    np.testing.assert_allclose(rows, dynamic.mean_of(table)(pieces), atol=1e-5)
    file = tmp_path / "network.safetensors"
    embed = dynamic.trained(table, TOKENIZER, 0.015, file)
    wanted = table[splits.tokens]
    mean, own = (
        np.square(np.concatenate([each([piece]) for piece in pieces]) - wanted).mean()
        for each in (dynamic.mean_of(table), embed)
    )
    assert own < 0.9 * mean
    again = dynamic.trained(table, TOKENIZER, 9.0, file)
    np.testing.assert_array_equal(again(pieces[:1]), embed(pieces[:1]))


def test_dynamic_tokens_are_told_by_language(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "docs/results/data"
    for each in (data, tmp_path / "tokens/texts"):
        each.mkdir(parents=True)
    for code in CODES:
        (tmp_path / f"tokens/texts/{code}.txt").write_text("the bat and the cat and é " * 9)
    monkeypatch.chdir(tmp_path)
    line = ["--texts", "tokens", "--model", str(folder), "--languages", "eng,fra", "--tokens", "60"]
    assert dynamic.main([*line, "--prompts", "1", "--next", "8", "--record", "some"]) == 0
    written = json.loads((data / "some.json").read_text())
    results.validate("some", written)
    assert [row[:2] for row in written["rows"][:3]] == [
        ["eng", "pretoken, every pair"],
        ["eng", "word, 8"],
        ["eng", "word, every pair"],
    ]
    assert dynamic.main([*line[:3], "none", *line[4:]]) == 2


@given(st.text(st.sampled_from("aB3_é ,.\n\t "), max_size=80))
def test_words_of_bytes_join_to_the_text(text: str) -> None:
    found = word_pooled.words(text)
    assert b"".join(found) == text.encode()
    assert all(1 <= len(word) <= word_pooled.LONGEST for word in found)


def test_a_word_begins_where_the_last_ends() -> None:
    found = word_pooled.words("It's  a_1 day,\n\nsaid: é-x ... (no) ")
    for word, behind in pairwise(found):
        assert word_pooled.begins(word[-1], behind[0]), (word, behind)
    for word in found:
        for last, first in pairwise(word):
            assert not word_pooled.begins(last, first), word


RUN = word_pooled.words("one two three four five six seven " * 9)[: word_pooled.RUN]


def changed(at: int, word: bytes) -> list[bytes]:
    return [*RUN[:at], word, *RUN[at + 1 :]]


def test_pool_and_speller_see_one_word_alone() -> None:
    torch.manual_seed(1)
    model = word_pooled.Pooled().eval()
    spelled, other = (word_pooled.as_bytes([each]) for each in (RUN, changed(3, b" fowr")))
    given = torch.randn(len(RUN), word_pooled.WIDTH)
    with torch.no_grad():
        for rows in (model.pool, lambda each: model.spell(given, each)):
            one, two = rows(spelled), rows(other)
            apart = (one != two).flatten(1).any(1)
            assert apart.nonzero().flatten().tolist() == [3]


def test_a_word_alone_is_spelled_as_among_others() -> None:
    torch.manual_seed(1)
    model, spelled = word_pooled.Pooled().eval(), word_pooled.as_bytes([RUN])
    given = torch.randn(len(RUN), word_pooled.WIDTH)
    with torch.no_grad():
        among = model.spell(given, spelled)
        for at in (0, 3, len(RUN) - 1):
            alone = model.spell(given[at : at + 1], spelled[at : at + 1])
            torch.testing.assert_close(alone[0], among[at], atol=1e-5, rtol=1e-5)
        # Nor does a byte see those behind it.
        cut = spelled[3:4].clone()
        cut[0, 2:] = -1
        found = model.spell(given[3:4], cut)
        torch.testing.assert_close(found[0, :3], among[3, :3], atol=1e-5, rtol=1e-5)
        assert (found[0, 3] - among[3, 3]).abs().max() > 1e-4


def test_words_of_a_size_are_read_without_what_none_has() -> None:
    model, spelled = word_pooled.Pooled().eval(), word_pooled.as_bytes([RUN])
    with torch.no_grad():
        whole = model.pool(spelled)
        for at, some in word_pooled.by_size(spelled):
            assert some.shape[1] < word_pooled.LONGEST
            torch.testing.assert_close(model.pool(some), whole[at], atol=1e-5, rtol=1e-5)
    assert sorted(torch.cat([at for at, _ in word_pooled.by_size(spelled)]).tolist()) == list(
        range(len(RUN))
    )


@pytest.mark.usefixtures("steps", "small")
@pytest.mark.parametrize("kind", word_pooled.KINDS)
def test_every_kind_learns_what_comes_next(kind: str) -> None:
    torch.set_num_threads(1)
    text = word_pooled.words("aa bb, cc. " * 400)
    found = word_pooled.measure(kind, text[:1500], text[1500:], 2.5)
    assert found["next words"] > 0.9
    assert found["bits a byte"] < 0.5


@pytest.mark.parametrize("kind", word_pooled.KINDS)
def test_no_guess_sees_what_follows(kind: str) -> None:
    model = word_pooled.model_of(kind, RUN * 9).eval()
    assert 1e6 < sum(each.numel() for each in model.parameters()) < 3e6
    wrong = word_pooled.words("one two three four five six nine ")
    with torch.no_grad():
        one, two = (model.guess([each]).nats for each in (RUN, [*RUN[:-1], wrong[-1]]))
        three = model.guess([changed(0, b"ten")]).nats
    assert one != three, "what came before is seen"
    assert one != two


@pytest.mark.usefixtures("steps", "small")
def test_kinds_are_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tmp_path / "docs/results/data"
    data.mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "text.txt"
    file.write_text("one two three four five six seven. " * 200)
    line = ["--text", str(file), "--minutes", "0.001", "--record", "some"]
    assert word_pooled.main(line) == 0
    written = json.loads((data / "some.json").read_text())
    results.validate("some", written)
    assert [row[0] for row in written["rows"]] == list(word_pooled.KINDS)
    file.write_text("too few")
    assert word_pooled.main(line) == 2
