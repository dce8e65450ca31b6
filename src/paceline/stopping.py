"""Stop rules: cut an accepted path where autoregressive decoding would have stopped."""

from __future__ import annotations

from collections.abc import Sequence as TokenIds
from typing import Protocol

from paceline.loops import WINDOW, ends_in_loop
from paceline.sequence import Sequence
from paceline.types import FinishReason


class TextWatch(Protocol):
    """Watch the text of one sequence for stop strings."""

    def feed(self, token: int) -> bool:
        """Add the next token; return True once the text holds a stop string."""
        ...


class StopRules:
    """Stop conditions: end tokens, stop tokens, stop strings, repetition, length, context."""

    def __init__(self, eos_token_ids: TokenIds[int], max_context: int) -> None:
        self._eos = frozenset(eos_token_ids)
        self._max_context = max_context

    def cut(
        self, sequence: Sequence, run: TokenIds[int], watch: TextWatch | None = None
    ) -> tuple[int, FinishReason | None]:
        """Return how many tokens of a run to commit (stop token included) and the finish reason."""
        params = sequence.params
        eos = () if params.ignore_eos else self._eos
        room = min(sequence.room, self._max_context - len(sequence.tokens))
        said = [*sequence.generated[-WINDOW:]] if params.stop_loops else []
        for index, token in enumerate(run):
            kept = index + 1
            if token in eos or token in params.stop_token_ids:
                return kept, "stop"
            if watch is not None and watch.feed(token):
                return kept, "stop"
            if params.stop_loops:
                said.append(token)
                if ends_in_loop(said):
                    return kept, "loop"
            if kept >= room:
                return kept, "length"
        return len(run), None
