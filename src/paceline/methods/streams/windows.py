"""StreamiNNC (Kechris et al. 2024, arXiv:2408.03223): windows of a stream that overlap, read once.

A convolution does not know where its window begins. So of a window that overlaps the last one only
the new rows are computed, where nothing is padded along time, and where the hop is a multiple of
all strides. Sums are elementwise, tap by tap: a row has the same bits in a window and in a stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from paceline.core.options import require
from paceline.core.types import Described, LogitArray
from paceline.errors import InvalidOption


@dataclass(frozen=True, slots=True, eq=False)
class Convolution:
    """Of rows `[time, bins, channels]`, then a leaky ReLU.

    Attributes:
        weights: float32 `[taps, bin taps, channels, outputs]`.
        bias: float32 `[outputs]`.
        stride: along time.
        padding: rows of zeros at both ends of time, which break what a stream is made of.
        bin_padding: of zeros at both ends of the bins.
        slope: of numbers below zero; 1 for no ReLU, 0 for a plain one.
        floor: the least number that comes out.
    """

    weights: LogitArray
    bias: LogitArray
    stride: int = 1
    padding: int = 0
    bin_padding: int = 0
    slope: float = 0.0
    floor: float = -np.inf

    def __post_init__(self) -> None:
        require(1 <= self.stride <= self.taps, "stride", self.stride, f"from 1 to {self.taps} taps")

    @property
    def taps(self) -> int:
        return len(self.weights)

    def run(self, x: LogitArray) -> LogitArray:
        """Return rows `[made, bins, outputs]` of rows that are padded along time already."""
        x = np.pad(x, ((0, 0), (self.bin_padding,) * 2, (0, 0)))
        taps, wide, channels, outputs = self.weights.shape
        rows, bins = made(len(x), taps, self.stride), x.shape[1] - wide + 1
        out = np.broadcast_to(self.bias, (rows, bins, outputs)).copy()
        for tap in range(taps):
            own = x[tap :: self.stride][:rows]
            for at in range(wide):
                for channel in range(channels):
                    column = own[:, at : at + bins, channel, None]
                    out += column * self.weights[tap, at, channel]
        out = np.where(out < 0, out * np.float32(self.slope), out)
        return np.maximum(out, np.float32(self.floor))

    def multiply_adds(self, rows: int, bins: int) -> int:
        """Count them for so many rows that are made, of so many bins that are read."""
        return rows * _bins(self, bins) * int(self.weights.size)


@dataclass(frozen=True, slots=True)
class Pool:
    """The largest number of `taps` rows and `bins` bins, which do not overlap."""

    taps: int
    bins: int = 1
    padding: ClassVar[int] = 0

    @property
    def stride(self) -> int:
        return self.taps

    def run(self, x: LogitArray) -> LogitArray:
        rows, bins = len(x) // self.taps, x.shape[1] // self.bins
        x = x[: rows * self.taps, : bins * self.bins]
        found: LogitArray = x.reshape(rows, self.taps, bins, self.bins, x.shape[2]).max(axis=(1, 3))
        return found

    def multiply_adds(self, rows: int, bins: int) -> int:
        return 0


Layers = Sequence[Convolution | Pool]


def made(rows: int, taps: int, stride: int) -> int:
    """Return how many rows a layer makes of so many."""
    return max(0, (rows - taps) // stride + 1)


def of_window(layers: Layers, window: LogitArray) -> LogitArray:
    """Return the last rows of a whole window `[time, bins, channels]`: what a stream must give."""
    for layer in layers:
        window = layer.run(np.pad(window, ((layer.padding,) * 2, (0, 0), (0, 0))))
    return window


def multiply_adds(layers: Layers, rows: int, bins: int) -> int:
    """Count them for a window of so many rows."""
    total = 0
    for layer in layers:
        rows = made(rows + 2 * layer.padding, layer.taps, layer.stride)
        total += layer.multiply_adds(rows, bins)
        bins = _bins(layer, bins)
    return total


def multiply_adds_of_hop(layers: Layers, hop: int, bins: int) -> float:
    """Count them for a hop of a stream, in the mean."""
    total, rows = 0.0, float(hop)
    for layer in layers:
        rows /= layer.stride
        total += rows * layer.multiply_adds(1, bins)
        bins = _bins(layer, bins)
    return total


def _bins(layer: Convolution | Pool, bins: int) -> int:
    if isinstance(layer, Pool):
        return bins // layer.bins
    wide: int = layer.weights.shape[1]
    return bins + 2 * layer.bin_padding - wide + 1


class WindowStream(Described):
    """The last rows of a network's windows over a stream, one each hop.

    Each layer keeps the rows that its next ones begin with. What stands behind the network, such as
    a dense head, reads the rows of a window whole.
    """

    name: ClassVar[str] = "streaminnc"
    guarantee: ClassVar[str] = "bit-exact where it is not refused: the rows of each window"
    requires: ClassVar[str] = "convolutions without padding along time; hops of whole strides"
    paper: ClassVar[str] = "after StreamiNNC, Kechris et al. 2024, arXiv:2408.03223"

    def __init__(self, layers: Layers, window: int, hop: int, *, inexact: bool = False) -> None:
        """Bind a network that reads windows of so many rows, so many rows apart.

        `inexact` takes networks too whose windows a stream does not give: padded rows then stand
        for rows of the stream (signal padding), a hop is that of the nearest rows before it.

        InvalidOption: it makes no row of a window; unless `inexact`, a layer pads along time, or
        strides do not divide the hop.
        """
        require(hop >= 1, "hop", hop, "1 or more")
        self._layers = layers if not inexact else [_unpadded(layer) for layer in layers]
        stride, rows = 1, window
        for number, layer in enumerate(layers):
            if layer.padding and not inexact:
                raise InvalidOption(
                    f"layer {number} pads {layer.padding} rows along time, so that rows of a "
                    "window are none of the stream: train it with real rows there"
                )
            rows = made(rows + 2 * layer.padding, layer.taps, layer.stride)
            stride *= layer.stride
            if hop % stride and not inexact:
                raise InvalidOption(
                    f"a hop of {hop} rows ends inside a stride of {stride} at layer {number}: take "
                    f"a multiple of {stride}"
                )
        require(rows >= 1, "window", window, "long enough for a row of the network")
        self._window, self._hop, self._stride, self._rows = window, hop, stride, rows
        self._held: list[LogitArray | None] = [None] * len(layers)
        self._heard, self._windows = 0, 0
        self._made: LogitArray | None = None
        self._dropped = 0  # rows of the network that no later window has

    def push(self, rows: LogitArray) -> list[LogitArray]:
        """Hear rows `[time, bins, channels]`; return those of each window that ends by now.

        Rows may come in pieces of any size.
        """
        self._heard += len(rows)
        for at, layer in enumerate(self._layers):
            rows = self._step(at, layer, rows)
        self._made = rows if self._made is None else np.concatenate([self._made, rows])
        out = []
        while self._window + self._windows * self._hop <= self._heard:
            end = self._end(self._windows) - self._dropped
            out.append(self._made[max(end - self._rows, 0) : end])
            self._windows += 1
        keep = max(self._end(self._windows) - self._rows - self._dropped, 0)
        keep = min(keep, len(self._made))
        self._made, self._dropped = self._made[keep:], self._dropped + keep
        return out

    def _step(self, at: int, layer: Convolution | Pool, rows: LogitArray) -> LogitArray:
        held = self._held[at]
        rows = rows if held is None else np.concatenate([held, rows])
        count = made(len(rows), layer.taps, layer.stride)
        self._held[at] = rows[count * layer.stride :]
        return layer.run(rows)

    def _end(self, window: int) -> int:
        # Rows of the network up to the end of a window.
        rows = self._window + window * self._hop
        for layer in self._layers:
            rows = made(rows, layer.taps, layer.stride)
        return rows


def _unpadded(layer: Convolution | Pool) -> Convolution | Pool:
    return replace(layer, padding=0) if isinstance(layer, Convolution) else layer


def deviation(found: LogitArray, expected: LogitArray) -> float:
    """Return the root of the mean squared difference over the range of what is expected (NRMSE)."""
    error = np.sqrt(np.mean((found - expected).astype(np.float64) ** 2))
    return float(error / np.ptp(expected))
