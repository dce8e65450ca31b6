"""Windows over a stream: the rows of overlapping windows, bit for bit, or a refusal."""

from __future__ import annotations

import os
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.watching.windows import speech_embedding

from paceline.core.types import LogitArray
from paceline.errors import InvalidOption
from paceline.methods.streams.windows import (
    Convolution,
    Layers,
    Pool,
    WindowStream,
    deviation,
    multiply_adds,
    multiply_adds_of_hop,
    of_window,
)

RNG = np.random.default_rng(8)
BINS = 8


def convolution(shape: tuple[int, int, int, int], **more: Any) -> Convolution:
    weights = RNG.standard_normal(shape, np.float32) / np.sqrt(np.prod(shape[:3], dtype=np.float32))
    return Convolution(weights, RNG.standard_normal(shape[3], np.float32), **more)


# As the speech embedding's: taps along time without padding, along bins with it, pools of 2.
NETWORK: Layers = [
    convolution((3, 3, 1, 4), bin_padding=1, slope=0.2, floor=-0.4),
    convolution((1, 3, 4, 4), bin_padding=1),
    Pool(2, 2),
    convolution((3, 1, 4, 6)),
    Pool(1, 2),
    convolution((4, 1, 6, 6), stride=2),
    convolution((3, 2, 6, 5), slope=1),
]
WINDOW, HOP = 40, 8
STREAM = RNG.standard_normal((150, BINS, 1), np.float32)


def windows(layers: Layers, window: int, hop: int) -> list[LogitArray]:
    starts = range(0, len(STREAM) - window + 1, hop)
    return [of_window(layers, STREAM[at : at + window]) for at in starts]


def streamed(stream: WindowStream, seed: int = 0) -> list[LogitArray]:
    """The stream's rows by window, heard in pieces of any sizes."""
    rng, at, out = random.Random(seed), 0, []
    while at < len(STREAM):
        size = rng.randrange(0, 20)
        out += stream.push(STREAM[at : at + size])
        at += size
    return out


@pytest.mark.parametrize(("window", "hop"), [(40, 8), (40, 4), (40, 40), (43, 12), (24, 28)])
def test_a_stream_has_the_rows_of_windows(window: int, hop: int) -> None:
    expected = windows(NETWORK, window, hop)
    for seed in range(3):
        found = streamed(WindowStream(NETWORK, window, hop), seed)
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one, other)
    assert not np.array_equal(expected[0], expected[1])


def test_a_hop_inside_a_stride_is_refused_and_has_other_rows() -> None:
    with pytest.raises(InvalidOption, match="hop of 6 rows ends inside a stride of 4 at layer 5"):
        WindowStream(NETWORK, WINDOW, 6)
    found = streamed(WindowStream(NETWORK, WINDOW, 6, inexact=True))
    expected = windows(NETWORK, WINDOW, 6)
    assert len(found) == len(expected)
    np.testing.assert_array_equal(found[0], expected[0])
    np.testing.assert_array_equal(found[2], expected[2])  # 12 rows on: whole strides
    assert deviation(found[1], expected[1]) > 0.01


def test_padding_along_time_is_refused_and_has_other_rows() -> None:
    padded = [NETWORK[0], NETWORK[1], NETWORK[2], replace(NETWORK[3], padding=1), *NETWORK[4:]]
    with pytest.raises(InvalidOption, match="layer 3 pads 1 rows along time"):
        WindowStream(padded, WINDOW, HOP)
    found = streamed(WindowStream(padded, WINDOW, HOP, inexact=True))
    expected = windows(padded, WINDOW, HOP)
    # Not at the beginning of the stream, where there are no rows before a window yet.
    one, other = found[-1], expected[-1][-len(found[-1]) :]
    assert deviation(one, other) > 0.001


def test_windows_without_a_row_and_strides_beyond_the_taps_are_refused() -> None:
    with pytest.raises(InvalidOption, match="window must be long enough"):
        WindowStream(NETWORK, 12, 8)
    with pytest.raises(InvalidOption, match="hop must be 1 or more"):
        WindowStream(NETWORK, WINDOW, 0)
    with pytest.raises(InvalidOption, match="stride must be from 1 to 3 taps"):
        convolution((3, 1, 1, 1), stride=4)


def test_a_convolution_is_the_sum_of_its_taps() -> None:
    layer = replace(NETWORK[1], stride=1)
    x = RNG.standard_normal((9, 6, 4), np.float32)
    padded = np.pad(x.astype(np.float64), ((0, 0), (1, 1), (0, 0)))
    expected = sum(np.einsum("tbc,co->tbo", padded[:, at : at + 6], layer.weights[0, at])
                   for at in range(3)) + layer.bias  # fmt: skip
    np.testing.assert_allclose(layer.run(x), np.maximum(expected, 0), atol=1e-5)


def test_what_a_stream_saves_is_counted() -> None:
    whole, hop = multiply_adds(NETWORK, WINDOW, BINS), multiply_adds_of_hop(NETWORK, HOP, BINS)
    assert hop < whole * HOP / (WINDOW - 20)
    # A window as long as many hops costs those.
    assert multiply_adds(NETWORK, 8000, BINS) == pytest.approx(1000 * hop, rel=0.02)


def test_a_stream_keeps_few_rows() -> None:
    stream = WindowStream(NETWORK, WINDOW, HOP)
    for _ in range(30):
        stream.push(STREAM)
        held = [0 if each is None else len(each) for each in stream._held]
        assert max(held) < 4
        assert stream._made is not None
        assert len(stream._made) < 12


EMBEDDING = Path(os.environ.get("PACELINE_MODELS", "/nowhere"), "embedding_model.tflite")


@pytest.mark.models
@pytest.mark.skipif(not EMBEDDING.is_file(), reason="PACELINE_MODELS has no embedding network")
def test_the_speech_embedding_over_a_stream_is_that_of_its_windows() -> None:
    pytest.importorskip("tflite")
    layers = speech_embedding(EMBEDDING)
    frames = RNG.standard_normal((76 + 5 * 8, 32, 1), np.float32)
    found = WindowStream(layers, 76, 8).push(frames)
    assert len(found) == 6
    for at, each in enumerate(found):
        window = of_window(layers, frames[8 * at : 8 * at + 76])
        assert window.shape == (1, 1, 96)
        np.testing.assert_array_equal(each, window)
    with pytest.raises(InvalidOption, match="hop of 4 rows ends inside a stride of 8"):
        WindowStream(layers, 76, 4)
