"""What texts a data set is made of: which prompt, which temperature, which seed, by index."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.errors import InvalidOption
from paceline.types import SamplingParams

_STRIDE = 1_000_003
"""Seeds of one data set never meet those of the next seed's."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A data set before it is written. Text `i` is a function of the plan, the model and `i`.

    Attributes:
        prompts: user turns from files; each is used in turn, and once over before any is repeated.
        self_written: share of the texts whose user turn the target writes itself, in [0, 1].
        temperatures: of the answers, by turns; 0 is greedy.
        new_tokens: longest answer.
        turn_tokens: longest user turn that the target writes.
        seed: of everything that is drawn.
    """

    prompts: Sequence[str]
    self_written: float = 0.5
    temperatures: tuple[float, ...] = (0.0,)
    new_tokens: int = 256
    turn_tokens: int = 160
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.self_written <= 1:
            raise InvalidOption(f"self_written must be in [0, 1], not {self.self_written}")
        if self.self_written < 1 and not self.prompts:
            raise InvalidOption("no prompts are given: name JSONL files, or set self_written to 1")
        if not self.temperatures:
            raise InvalidOption("temperatures is empty: give one or more, 0 for greedy")
        for name in ("new_tokens", "turn_tokens"):
            if getattr(self, name) < 1:
                raise InvalidOption(f"{name} must be 1 or more, not {getattr(self, name)}")
        self.answer(0)

    def prompt(self, index: int) -> str | None:
        """The user turn of a text, or None if the target writes it."""
        written = int((index + 1) * self.self_written) - int(index * self.self_written)
        if written:
            return None
        return self.prompts[(index - int(index * self.self_written)) % len(self.prompts)]

    def turn(self, index: int) -> SamplingParams:
        """How the target writes a user turn. The tail of the law is cut, or turns lose sense."""
        return SamplingParams(
            temperature=1.0,
            top_p=0.95,
            seed=self._seed(index),
            max_new_tokens=self.turn_tokens,
        )

    def answer(self, index: int) -> SamplingParams:
        """How the target answers."""
        return SamplingParams(
            temperature=self.temperatures[index % len(self.temperatures)],
            seed=self._seed(index) + 1,
            max_new_tokens=self.new_tokens,
        )

    def _seed(self, index: int) -> int:
        return 2 * (self.seed * _STRIDE + index)
