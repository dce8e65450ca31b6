"""How far rows of a stream are from those of its windows, and what they save (StreamiNNC).

    python -m benchmarks.watching.windows --sounds FOLDER --embedding embedding_model.tflite \\
        --silero silero_vad_16k.safetensors --record streams-windows

Two networks that run all day. Google's speech embedding, in the package pyopen-wakeword, reads 76
frames every 8, and pads none: rows of the stream are those of the windows, bit for bit; every 4
frames, which its strides do not divide, they are others. The encoder of Silero VAD pads each window
of four rows with zeros, and so no stream has its rows, also with later ones in their place.
A reader of the first needs the package tflite.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from benchmarks.script import Findings, add_output, run_script

from paceline.audio.mel import RATE
from paceline.audio.read import read_sound
from paceline.core.types import LogitArray
from paceline.errors import InvalidOption
from paceline.lab.measure import results
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
from paceline.models.safetensors import SafetensorsFiles

BINS, WINDOW, HOP = 32, 76, 8
"""Of the speech embedding: mels of a frame of 10 ms, frames of a window, and between windows."""

COLUMNS = (
    *("network", "window", "hop", "from the windows, %", "multiply-adds of a window, M"),
    *("of a hop, M", "times fewer", "times faster"),
)
Row = dict[str, Any]


def speech_embedding(path: Path) -> Layers:
    """Read the layers of the speech embedding network, as pyopen-wakeword has it."""
    import tflite

    model = tflite.Model.GetRootAsModel(path.read_bytes(), 0)
    graph = model.Subgraphs(0)

    def tensor(at: int) -> LogitArray:
        found = graph.Tensors(at)
        shape = found.ShapeAsNumpy().tolist() if found.ShapeLength() else []
        numbers = model.Buffers(found.Buffer()).DataAsNumpy().tobytes()
        return np.frombuffer(numbers, np.float32).reshape(shape)

    def options(kind: Any, operator: Any) -> Any:
        table, out = operator.BuiltinOptions(), kind()
        out.Init(table.Bytes, table.Pos)
        return out

    layers: list[Convolution | Pool] = []
    for number in range(graph.OperatorsLength()):
        operator = graph.Operators(number)
        code, inputs = model.OperatorCodes(operator.OpcodeIndex()), operator.InputsAsNumpy()
        name = max(code.BuiltinCode(), code.DeprecatedBuiltinCode())
        if name == tflite.BuiltinOperator.CONV_2D:
            weights = np.ascontiguousarray(tensor(inputs[1]).transpose(1, 2, 3, 0))
            # The first layer's padding is an operation of its own.
            same = options(tflite.Conv2DOptions, operator).Padding() == tflite.Padding.SAME
            padding = weights.shape[1] // 2 if same or not layers else 0
            layers.append(Convolution(weights, tensor(inputs[2]), bin_padding=padding, slope=1))
        elif name == tflite.BuiltinOperator.LEAKY_RELU:
            slope = options(tflite.LeakyReluOptions, operator).Alpha()
            layers[-1] = replace(layers[-1], slope=slope)  # type: ignore[call-arg]
        elif name == tflite.BuiltinOperator.MAXIMUM:
            floor = float(tensor(inputs[1]))
            layers[-1] = replace(layers[-1], floor=floor)  # type: ignore[call-arg]
        elif name == tflite.BuiltinOperator.MAX_POOL_2D:
            pool = options(tflite.Pool2DOptions, operator)
            layers.append(Pool(pool.FilterHeight(), pool.FilterWidth()))
        else:
            assert name == tflite.BuiltinOperator.PAD
    return layers


def mel_frames(sound: LogitArray) -> LogitArray:
    """Return float32 `[time, 32, 1]`, log-mels of 60 to 3,800 Hz at the embedding's scale."""
    size, hop, bins = 400, 160, 257
    framed = np.lib.stride_tricks.sliding_window_view(sound * 32768.0, size)[::hop]
    power = np.abs(np.fft.rfft(framed * np.hanning(size), 2 * (bins - 1))) ** 2
    edges = 700 * (np.geomspace(1 + 60 / 700, 1 + 3800 / 700, BINS + 2) - 1)
    hertz = np.arange(bins) * RATE / (2 * (bins - 1))
    rising = (hertz - edges[:-2, None]) / np.diff(edges)[:-1, None]
    falling = (edges[2:, None] - hertz) / np.diff(edges)[1:, None]
    mels = power @ np.maximum(np.minimum(rising, falling), 0).T
    return (np.log10(np.maximum(mels, 1e-10)) + 2).astype(np.float32)[..., None]


def silero_encoder(path: Path) -> tuple[LogitArray, Layers]:
    """Return the waves `[samples, bins]` of Silero's spectrum, and its convolutions."""
    files = SafetensorsFiles(path)
    layers = [
        Convolution(
            np.ascontiguousarray(files.read(f"conv{number}.weight").transpose(2, 1, 0))[:, None],
            files.read(f"conv{number}.bias"),
            stride=stride,
            padding=1,
        )
        for number, stride in enumerate((1, 2, 2, 1), 1)
    ]
    return files.read("stft_conv.weight")[:, 0].T, layers


def spectrum(sound: LogitArray, waves: LogitArray) -> LogitArray:
    """Return magnitudes `[time, 1, bins]`, a row every 128 samples."""
    found = np.lib.stride_tricks.sliding_window_view(sound, len(waves))[::128] @ waves
    bins = found.shape[1] // 2
    rows = np.sqrt(found[:, :bins] ** 2 + found[:, bins:] ** 2)
    return rows.astype(np.float32)[:, None]


def beside_windows(
    name: str, layers: Layers, rows: LogitArray, window: int, hop: int, inexact: bool = False
) -> Row:
    """Run a network by windows and over the stream, hop by hop; times are of the same hops."""
    stream = WindowStream(layers, window, hop, inexact=inexact)
    stream.push(rows[:window])
    found, expected, spent = [], [], [0.0, 0.0]
    for end in range(window + hop, len(rows) + 1, hop):
        begin = perf_counter()
        [last] = stream.push(rows[end - hop : end])
        middle = perf_counter()
        whole = of_window(layers, rows[end - window : end])
        spent = [spent[0] + middle - begin, spent[1] + perf_counter() - middle]
        found.append(last)
        expected.append(whole)
    found_rows, expected_rows = np.array(found), np.array(expected)
    row = _row(name, layers, rows, (window, hop), found_rows, expected_rows)
    return row | {"faster": spent[1] / spent[0]}


def beside_padded(name: str, layers: Layers, rows: LogitArray, window: int, late: int) -> Row:
    """As `beside_windows`, of windows side by side that are padded with zeros.

    The stream has the next rows in their place, which it waits for: so many windows.
    """
    stream = WindowStream(layers, window, window, inexact=True)
    found = stream.push(rows)
    expected = [
        of_window(layers, rows[at : at + window]) for at in range(0, len(rows) - window + 1, window)
    ]
    count = len(found) - late
    found_rows, expected_rows = np.array(found[2 * late :]), np.array(expected[late:count])
    return _row(name, layers, rows, (window, window), found_rows, expected_rows)


def _row(
    name: str,
    layers: Layers,
    rows: LogitArray,
    sizes: tuple[int, int],
    found: LogitArray,
    expected: LogitArray,
) -> Row:
    window, hop = sizes
    return {
        "network": name,
        "window": window,
        "hop": hop,
        "windows": len(expected),
        "equal": bool(np.array_equal(found, expected)),
        "deviation": deviation(found, expected),
        "whole": multiply_adds(layers, window, rows.shape[1]),
        "each": multiply_adds_of_hop(layers, hop, rows.shape[1]),
        "faster": None,
    }


def measure(given: argparse.Namespace) -> list[Row]:
    """Hear the sounds of a folder, up to `--seconds`.

    InvalidOption: there are none.
    """
    parts = [read_sound(each) for each in sorted(given.sounds.glob("*.wav"))]
    if not parts:
        raise InvalidOption(f"{given.sounds} has no WAV files: name a folder of sounds")
    sound = np.concatenate(parts)[: int(given.seconds * RATE)]
    rows: list[Row] = []
    if given.embedding is not None:
        layers, frames = speech_embedding(given.embedding), mel_frames(sound)
        rows += [
            beside_windows("speech embedding", layers, frames, WINDOW, HOP),
            beside_windows("speech embedding", layers, frames, WINDOW, HOP // 2, inexact=True),
        ]
    if given.silero is not None:
        waves, layers = silero_encoder(given.silero)
        name = "Silero's encoder, rows of the next two windows in place of zeros"
        rows.append(beside_padded(name, layers, spectrum(sound, waves), 4, 2))
    return rows


def cells(rows: Sequence[Row]) -> list[list[results.Cell]]:
    """Rows of the table."""
    return [
        [
            row["network"],
            row["window"],
            row["hop"],
            "0, the same bits" if row["equal"] else f"{100 * row['deviation']:,.2f}",
            round(row["whole"] / 1e6, 2),
            round(row["each"] / 1e6, 2),
            round(row["whole"] / row["each"], 1),
            "" if row["faster"] is None else f"{row['faster']:.1f}",
        ]
        for row in rows
    ]


def findings(given: argparse.Namespace) -> Findings:
    """Measure, and put it as a table."""
    rows = measure(given)
    return Findings(
        title="StreamiNNC: rows of a stream beside those of its windows",
        topic="methods",
        command="python -m benchmarks.watching.windows --sounds FOLDER --embedding "
        f"embedding_model.tflite --silero silero_vad_16k.safetensors --seconds {given.seconds:g}",
        columns=COLUMNS,
        rows=cells(rows),
        note=f"{given.seconds:g} s of speech by a synthetic voice. The deviation is the root of "
        "the mean squared difference over the range; times are of NumPy, hop by hop, on one "
        "thread. The second row takes the rows before a hop that no stride divides; the third has "
        "no zeros at the ends of a window, which its weights count on. The paper's networks, "
        "trained for it, stay within 2.03 to 3.55%.",
        data=rows,
        timed=True,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, and write --record."""
    parser = argparse.ArgumentParser(prog="windows", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sounds", type=Path, required=True, metavar="FOLDER", help="WAV files")
    parser.add_argument("--seconds", type=float, default=20.0, help="of sound at most")
    parser.add_argument("--embedding", type=Path, help="embedding_model.tflite")
    parser.add_argument("--silero", type=Path, help="silero_vad_16k.safetensors")
    add_output(parser)
    return run_script(parser, findings, argv)


if __name__ == "__main__":
    sys.exit(main())
