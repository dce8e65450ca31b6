"""Chunk by chunk is the masked pass, in NumPy and by kernels, for every length of a chunk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.listening.test_windows import noise

from paceline.audio.mel import HOP
from paceline.errors import InvalidOption, ModelError
from paceline.methods.conformer.encoder import (
    BLANK,
    LETTERS,
    STACKED,
    ConformerShape,
    CpuConformer,
    Numbers,
    ReferenceConformer,
    load_conformer,
    sight,
)
from paceline.methods.conformer.stream import ConformerLive, ConformerStream, stacked

ROWS, LEFT = 75, 28
SHAPE = ConformerShape(width=64, layers=3, heads=2, ffn=96, taps=4, left=LEFT, longest=128)


def numbers(seed: int = 0) -> Numbers:
    rng = np.random.default_rng(seed)
    found = {}
    for name, size in SHAPE.tensors().items():
        ones = "norm" in name and not name.endswith(".bias")
        found[name] = (rng.normal(size=size) * 0.2 + ones).astype(np.float32)
    return Numbers(found)


def rows(seed: int = 1) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(ROWS, STACKED * SHAPE.mels)).astype(np.float32)


MODELS = {
    "reference": lambda: ReferenceConformer(SHAPE, numbers()),
    "cpu": lambda: CpuConformer(SHAPE, numbers(), 2),
}


@pytest.fixture(scope="module", params=list(MODELS))
def model(request: pytest.FixtureRequest) -> Any:
    return MODELS[request.param]()


def whole(model: Any, x: np.ndarray, sees: np.ndarray) -> np.ndarray:
    cache = model.open()
    out: np.ndarray = model.forward(cache, x, sees)
    model.close(cache)
    return out


def in_parts(model: Any, x: np.ndarray, chunk: int, size: int) -> np.ndarray:
    cache, out = model.open(), []
    for begin in range(0, ROWS, size):
        end = min(ROWS, begin + size)
        out.append(model.forward(cache, x[begin:end], sight(begin, end, chunk, LEFT)))
    model.close(cache)
    return np.concatenate(out)


@pytest.mark.parametrize("chunk", [1, 2, 7, 14, 28])
def test_chunk_by_chunk_is_the_masked_pass(model: Any, chunk: int) -> None:
    x = rows()
    masked = whole(model, x, sight(0, ROWS, chunk, LEFT))
    assert np.array_equal(masked, in_parts(model, x, chunk, chunk))  # the last one is cut
    assert np.array_equal(masked, in_parts(model, x, chunk, 2 * chunk))
    reference = MODELS["reference"]()
    assert np.array_equal(masked, whole(reference, x, sight(0, ROWS, chunk, LEFT)))


def test_later_rows_change_none_before_their_chunk(model: Any) -> None:
    x, chunk = rows(), 7
    other = x.copy()
    other[42:] += 1
    first, second = (whole(model, each, sight(0, ROWS, chunk, LEFT)) for each in (x, other))
    same = (first == second).all(axis=1)
    assert same[:42].all()
    assert not same[42:].any()


def test_look_ahead_row_by_row_grows_with_the_layers(model: Any) -> None:
    # The control: each row sees so many behind it, so that a stream cannot have its rows in time.
    x, ahead = rows(), 2
    at, seen = np.arange(ROWS)[:, None], np.arange(ROWS)
    sees = (seen >= at - LEFT) & (seen <= at + ahead)
    other = x.copy()
    other[42:] += 1
    first, second = (whole(model, each, sees) for each in (x, other))
    changed = np.flatnonzero((first != second).any(axis=1))
    assert changed[0] == 42 - ahead * SHAPE.layers
    leaky = whole(model, x, sight(0, ROWS, 7, LEFT) | sees)
    assert not np.array_equal(leaky, in_parts(model, x, 7, 7))


def test_rows_before_the_left_context_are_forgotten(model: Any) -> None:
    x, chunk = rows(), 14
    other = x.copy()
    other[0] += 1
    first, second = (whole(model, each, sight(0, ROWS, chunk, LEFT)) for each in (x, other))
    assert not np.array_equal(first[:42], second[:42])
    near = sight(70, ROWS, chunk, LEFT)
    assert near.sum(axis=1).tolist() == [LEFT + 5] * 5
    assert not near[:, : 70 - LEFT].any()


def test_a_stream_says_the_same_in_whichever_pieces(model: Any) -> None:
    sound = noise(2.2, 4)
    said = []
    for chunk, piece in ((7, 100), (7, 5000), (7, 10**6), (14, 5000)):
        stream = ConformerStream(model, chunk)
        parts = [stream.push(sound[at : at + piece]) for at in range(0, len(sound), piece)]
        parts.append(stream.end())
        assert "".join(parts) == stream.text
        assert len(stream.rows) == len(stream.text)
        said.append(stream.text)
    assert said[0] == said[1] == said[2]
    assert said[0]
    assert set(said[0]) <= set(LETTERS)
    assert len(LETTERS) == BLANK


def lived(model: Any, sound: np.ndarray, piece: int, chunk: int = 7) -> list[str]:
    """Words that became final as a sound came in pieces; each caption is whole."""
    live, final, last = ConformerLive(model, chunk), list[str](), list[str]()
    for begin in range(0, len(sound) + 1, piece):
        live.push(sound[begin : begin + piece])
        if begin + piece > len(sound):
            live.end()
        while (told := live.step(lambda: None)) is not None:
            assert len(told.draft) == len(told.drafted) <= 1
            now = [*told.final, *told.draft]
            assert not last or now[0].startswith(last[0])  # what may change only goes on
            final, last = [*final, *told.final], [*told.draft]
    assert not last
    assert not live.waiting
    live.let_go()
    with pytest.raises(InvalidOption, match="has ended"):
        live.push(sound)
    return final


def test_live_words_are_those_of_the_stream(model: Any) -> None:
    sound = noise(2.2, 4)
    stream = ConformerStream(model, 7)
    stream.push(sound)
    stream.end()
    assert stream.text.split()
    for piece in (100, 5000, 10**6):
        assert lived(model, sound, piece) == stream.text.split()


def test_a_stream_that_is_full_is_followed_by_another(model: Any) -> None:
    sound = noise(14.0, 4)  # 350 rows, of which a stream has at most 128
    whole = lived(model, sound, 10**6)
    assert lived(model, sound, 3000) == whole
    first = ConformerStream(model, 7)
    first.push(sound[: 112 * STACKED * HOP])
    first.end()
    assert "".join(whole).startswith("".join(first.text.split()))
    assert len("".join(whole)) > 1.5 * len(first.text)


def test_letters_that_repeat_have_a_blank_between() -> None:
    class Told:
        shape = SHAPE

        def __init__(self, letters: list[int]) -> None:
            self.letters = letters

        def open(self) -> None: ...

        def close(self, cache: None) -> None: ...

        def forward(self, cache: None, rows: np.ndarray, sees: np.ndarray) -> np.ndarray:
            letters, self.letters = self.letters[: len(rows)], self.letters[len(rows) :]
            return np.eye(BLANK + 1)[letters]

    a, b = LETTERS.index("a"), LETTERS.index("b")
    stream = ConformerStream(Told([a, a, BLANK, a, b, b, a, BLANK]), 2)
    stream.push(noise(8 * STACKED / 100))
    stream.end()
    assert stream.text == "aaba"
    assert stream.rows == [2, 4, 6, 8]


def test_what_cannot_be_heard_is_refused(model: Any) -> None:
    with pytest.raises(InvalidOption, match="a chunk of 5 rows does not divide the 28"):
        ConformerStream(model, 5)
    with pytest.raises(InvalidOption, match="chunk"):
        ConformerStream(model, 0)
    stream = ConformerStream(model, 28)
    with pytest.raises(InvalidOption, match="at most 128 rows"):
        stream.push(noise(129 * STACKED / 100 + 1))
    stream.end()
    for wrong in ({"width": 60}, {"taps": 9}):
        with pytest.raises(InvalidOption, match=next(iter(wrong))):
            ConformerShape(**wrong)


def test_the_last_row_is_filled_up() -> None:
    frames = np.arange(6, dtype=np.float32)[:, None].repeat(SHAPE.mels, 1)
    found = stacked(frames)
    assert found.shape == (2, STACKED * SHAPE.mels)
    assert found[1, :: SHAPE.mels].tolist() == [4, 5, 5, 5]


def test_files_that_are_no_conformer_are_refused(tmp_path: Path) -> None:
    save = pytest.importorskip("safetensors.numpy").save_file
    told = {"width": "64", "layers": "3", "heads": "2", "ffn": "96", "taps": "4", "left": "28"}
    told |= {"mels": "80", "longest": "128"}
    save(numbers().tensors, tmp_path / "whole", told)
    shape, found = load_conformer(tmp_path / "whole")
    assert shape == SHAPE
    assert np.array_equal(found["stack"], numbers()["stack"])
    save(numbers().tensors, tmp_path / "none", {})
    save({"stack": numbers()["stack"]}, tmp_path / "less", told)
    save(numbers().tensors, tmp_path / "flat", told | {"heads": "0"})
    whole = (tmp_path / "whole").read_bytes()
    (tmp_path / "cut").write_bytes(whole[:-9])
    for name, why in (
        ("none", "is no conformer: train"),
        ("less", "other tensors"),
        ("flat", "is no conformer .heads must be from 1"),
        ("cut", "it is cut short"),
        ("gone", "gone"),
    ):
        with pytest.raises(ModelError, match=why):
            load_conformer(tmp_path / name)
