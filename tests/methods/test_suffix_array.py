"""The index on disk: order and search against brute force, and what happens to bad directories."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.errors import InvalidOption
from paceline.methods.datastore import drafter as suffix_array
from paceline.methods.datastore.drafter import LONGEST, ROUNDS, SuffixArray, build, sort_suffixes

VOCABULARY = 5
TEXT = st.lists(st.integers(0, 3), min_size=1, max_size=120)
PERIODIC = st.builds(lambda part, n: (part * n)[:200], TEXT, st.integers(1, 60))
EXAMPLES = settings(max_examples=50)


def array(tokens: list[int]) -> suffix_array.Tokens:
    return np.array(tokens, dtype=np.int32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("indices")


def built(tokens: list[int], directory: Path) -> SuffixArray:
    build(array(tokens), directory, VOCABULARY, "words")
    return SuffixArray(directory)


@EXAMPLES
@given(st.one_of(TEXT, PERIODIC))
def test_suffixes_are_in_the_order_of_their_first_32_tokens(tokens: list[int]) -> None:
    rounds: list[int] = []
    order = sort_suffixes(array(tokens), lambda: rounds.append(1))
    assert order.tolist() == sorted(range(len(tokens)), key=lambda i: tokens[i : i + 32])
    assert 1 <= len(rounds) <= ROUNDS


def occurrences(tokens: list[int], pattern: list[int]) -> set[int]:
    n = len(pattern)
    return {i for i in range(len(tokens) - n + 1) if tokens[i : i + n] == pattern}


@EXAMPLES
@given(st.one_of(TEXT, PERIODIC), st.lists(st.integers(0, 5), min_size=1, max_size=24))
def test_search_equals_brute_force(folder: Path, tokens: list[int], context: list[int]) -> None:
    index = built(tokens, folder / "search")
    suffixes = np.load(folder / "search" / "suffixes.npy")
    for n in range(1, min(LONGEST, len(context)) + 1):
        begin, end = index.range(context[-n:])
        assert set(suffixes[begin:end].tolist()) == occurrences(tokens, context[-n:])
    lengths = [n for n in range(1, len(context) + 1) if occurrences(tokens, context[-n:])]
    longest = min(max(lengths, default=0), LONGEST)
    for most in (0, 1, 3, LONGEST, 99):
        length, begin, end = index.find(context, most)
        assert length == min(longest, most)
        if length:
            assert set(suffixes[begin:end].tolist()) == occurrences(tokens, context[-length:])


@EXAMPLES
@given(st.one_of(TEXT, PERIODIC), st.integers(1, 40))
def test_a_sample_has_every_continuation_in_proportion(
    folder: Path, tokens: list[int], most: int
) -> None:
    index = built(tokens, folder / "sample")
    begin, end = index.range(tokens[:1])
    sample = index.sample(begin, end, most)
    everything = index.sample(begin, end, len(tokens))
    assert set(everything) == occurrences(tokens, tokens[:1])
    assert len(sample) == min(most, end - begin)
    assert len(set(sample)) == len(sample)
    assert set(sample) <= set(everything)
    for following in {tuple(tokens[i + 1 : i + 2]) for i in everything}:
        share = sum(tuple(tokens[i + 1 : i + 2]) == following for i in everything)
        expected = share * len(sample) / len(everything)
        found = sum(tuple(tokens[i + 1 : i + 2]) == following for i in sample)
        assert abs(found - expected) <= 1


def test_the_index_is_mapped_and_not_read(tmp_path: Path) -> None:
    index = built([1, 2, 3, 1, 2], tmp_path / "index")
    for view in (index.tokens, index._suffixes, index._starts):
        assert isinstance(view.obj, np.memmap)
        assert view.readonly


def test_an_index_says_what_it_is(tmp_path: Path) -> None:
    manifest = built([1, 2, 3], tmp_path / "deep" / "index").manifest
    assert (manifest.tokens, manifest.vocab_size, manifest.vocabulary) == (3, 5, "words")


def test_another_tokenizer_is_refused(tmp_path: Path) -> None:
    built([1, 2, 3], tmp_path / "index")
    SuffixArray(tmp_path / "index", "words")
    with pytest.raises(InvalidOption, match="another tokenizer"):
        SuffixArray(tmp_path / "index", "letters")


@pytest.mark.parametrize("tokens", [[], [5], [-1, 2]])
def test_texts_that_cannot_be_indexed_leave_nothing_behind(
    tokens: list[int], tmp_path: Path
) -> None:
    with pytest.raises(InvalidOption):
        build(array(tokens), tmp_path / "index", VOCABULARY, "words")
    assert list(tmp_path.iterdir()) == []


def test_a_new_index_takes_the_place_of_an_old_one(tmp_path: Path) -> None:
    built([1, 2, 3], tmp_path / "index")
    open_before = SuffixArray(tmp_path / "index")
    index = built([4, 4], tmp_path / "index")
    assert index.tokens.tolist() == [4, 4]
    assert open_before.tokens.tolist() == [1, 2, 3]  # who reads the old one goes on
    assert [path.name for path in tmp_path.iterdir()] == ["index"]
    assert len(list((tmp_path / "index").iterdir())) == 4


def test_an_interrupted_build_leaves_the_old_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built([1, 2, 3], tmp_path / "index")

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(np, "save", interrupted)
    with pytest.raises(KeyboardInterrupt):
        build(array([4, 4]), tmp_path / "index", VOCABULARY, "words")
    monkeypatch.undo()
    assert SuffixArray(tmp_path / "index").tokens.tolist() == [1, 2, 3]
    assert [path.name for path in tmp_path.iterdir()] == ["index"]


def test_other_directories_are_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    build(array([1]), tmp_path / "mine", VOCABULARY, "words")  # empty: fine
    (tmp_path / "file").write_text("precious")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "notes").write_text("precious")
    for name in ("file", "folder"):
        with pytest.raises(InvalidOption, match=f"{name} exists and is no index"):
            build(array([1]), tmp_path / name, VOCABULARY, "words")
    assert (tmp_path / "folder" / "notes").read_text() == "precious"


def test_what_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidOption, match="cannot write to"):
        build(array([1]), tmp_path / "file" / "index", VOCABULARY, "words")


def damage(directory: Path, how: str) -> None:
    manifest = directory / "index.json"
    if how == "manifest":
        manifest.write_text("{")
    elif how == "version":
        manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"format": 0}))
    elif how == "keys":
        manifest.write_text("{}")
    elif how == "length":
        manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"tokens": 2}))
    elif how == "absent":
        (directory / "starts.npy").unlink()
    elif how == "cut":
        path = directory / "suffixes.npy"
        path.write_bytes(path.read_bytes()[:-4])
    elif how == "type":
        np.save(directory / "tokens.npy", np.array([1.0, 2.0, 3.0]))
    else:
        (directory / "tokens.npy").write_text("tokens")


@pytest.mark.parametrize(
    "how", ["manifest", "version", "keys", "length", "absent", "cut", "type", "text"]
)
def test_a_damaged_index_is_named(how: str, tmp_path: Path) -> None:
    built([1, 2, 3], tmp_path / "index")
    damage(tmp_path / "index", how)
    with pytest.raises(InvalidOption, match="index is damaged or of another version: build it"):
        SuffixArray(tmp_path / "index")
    built([1, 2, 3], tmp_path / "index")  # and that is the way out


def test_no_index_is_told_from_a_damaged_one(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="is no index: build one with `paceline index"):
        SuffixArray(tmp_path)
