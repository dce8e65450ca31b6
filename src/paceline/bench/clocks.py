"""Clocks around the parts of the decoding loop: seconds by part, step by step."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from time import perf_counter
from typing import Any

PARTS = ("target", "drafter", "verifier", "controller")
"""Attributes of a decoder that can be clocked."""

INFERENCE = "inference"
"""The target's forward without what it takes to hand numbers in and out."""

_FORWARD = "inputs and outputs"
_METHODS = {
    ("target", "forward"): _FORWARD,
    ("target", "keep"): "keeping the path",
    ("verifier", None): "sampling and verification",
    ("drafter", None): "drafting",
    ("controller", None): "draft sizing",
}
"""What is booked, by attribute of the decoder and method, or any method of it."""

_LOOP = "loop and text"
_ORDER = (INFERENCE, *_METHODS.values(), _LOOP)


class Clocks:
    """Clocks around the methods of a decoder's parts, taken away again in the end.

    Every moment is booked on the innermost part that runs, or on the loop itself.
    """

    def __init__(self, decoder: Any, parts: Sequence[str]) -> None:
        self.passes: Sequence[Any] = ()
        self._decoder = decoder
        self._parts = {name: getattr(decoder, name) for name in parts}
        self._spent: dict[str, float] = {}
        self._open: list[str] = []
        self._since = 0.0

    def __enter__(self) -> Clocks:
        for name, part in self._parts.items():
            setattr(self._decoder, name, _Clocked(name, part, self))
        return self

    def __exit__(self, *error: object) -> None:
        for name, part in self._parts.items():
            setattr(self._decoder, name, part)

    def begin(self) -> None:
        """A step begins."""
        self._spent = defaultdict(float)
        self._open = [_LOOP]
        self._since = perf_counter()

    def end(self) -> dict[str, float]:
        """Seconds by part since `begin`."""
        self._book()
        inference = getattr(self._decoder.target, "inference_seconds", None)
        if inference is None:  # this runtime does not tell its inputs from its inference
            self._spent[INFERENCE] = self._spent.pop(_FORWARD, 0.0)
        else:
            self._spent[INFERENCE] = inference
            self._spent[_FORWARD] -= inference
        return {name: self._spent[name] for name in _ORDER if name in self._spent}

    def call(self, part: str, method: Any, given: Any, named: Any) -> Any:
        """Call a method with its clock running."""
        self._book()
        self._open.append(part)
        try:
            return method(*given, **named)
        finally:
            self._book()
            self._open.pop()

    def _book(self) -> None:
        now = perf_counter()
        self._spent[self._open[-1]] += now - self._since
        self._since = now


class _Clocked:
    """A part of the loop whose methods are clocked."""

    def __init__(self, name: str, part: Any, clocks: Clocks) -> None:
        self._name, self._part, self._clocks = name, part, clocks

    def __getattr__(self, attribute: str) -> Any:
        value = getattr(self._part, attribute)
        part = _METHODS.get((self._name, attribute), _METHODS.get((self._name, None)))
        if part is None or not callable(value):
            return value

        def clocked(*given: Any, **named: Any) -> Any:
            if attribute == "forward":
                self._clocks.passes = given[0]
            return self._clocks.call(part, value, given, named)

        return clocked
