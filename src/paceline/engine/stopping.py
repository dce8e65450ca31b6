"""Stop rules: cut an accepted path where autoregressive decoding would have stopped."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Protocol

from paceline.core.types import FinishReason, SamplingParams
from paceline.models.text import Tokenizer
from paceline.sampling.generation import Generation

_TIMES = 3
# Shorter repetition is legitimate: a row of dots, three equal lines, a number full of zeros.
_LEAST = 24

_LONGEST = 128

# Length of the suffix that `ends_in_loop` looks at.
WINDOW = _TIMES * _LONGEST


def ends_in_loop(tokens: Sequence[int]) -> bool:
    """Return whether a text ends in a repetition: a run of up to 128 tokens three times over."""
    backwards = list(tokens[: -WINDOW - 1 : -1])
    period = 0
    while True:
        try:  # a run ends with the last token, and so does every earlier copy of it
            period = backwards.index(backwards[0], period + 1, _LONGEST + 1)
        except (ValueError, IndexError):
            return False
        span = max(_TIMES * period, _LEAST)
        if span <= len(backwards) and backwards[period:span] == backwards[: span - period]:
            return True


class TextWatch(Protocol):
    """Watch the text of one sequence for stop strings."""

    def feed(self, token: int) -> bool:
        """Add the next token; return True once the text holds a stop string."""
        ...


class StopRules:
    """Stop conditions: end tokens, stop tokens, stop strings, repetition, length, context."""

    def __init__(self, eos_token_ids: Sequence[int], max_context: int) -> None:
        self._eos = frozenset(eos_token_ids)
        self._max_context = max_context

    def ends(self, params: SamplingParams) -> frozenset[int]:
        """Return the model's end tokens, if they end this text."""
        return frozenset() if params.ignore_eos else self._eos

    def cut(
        self, sequence: Generation, run: Sequence[int], watch: TextWatch | None = None
    ) -> tuple[int, FinishReason | None]:
        """Return how many tokens of a run to commit (stop token included) and the finish reason."""
        params = sequence.params
        eos = self.ends(params)
        room = sequence.room
        if not sequence.window:
            room = min(room, self._max_context - len(sequence.tokens))
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


class StopStrings:
    def __init__(self, stops: Sequence[str]) -> None:
        # Looked up, not tried in turn: there may be thousands.
        self._stops = frozenset(stops)
        self._sizes = sorted({len(stop) for stop in stops}, reverse=True)
        self._sorted = sorted(self._stops)

    def find(self, text: str, searched: int = 0) -> tuple[int, int] | None:
        """Return begin and end of the first match, or None. Skips a searched prefix of `text`.

        The match that ends first counts, then the longest: independent of how the text was split.
        """
        for end in range(searched + 1, len(text) + 1) if self._stops else ():
            for size in self._sizes:
                if size <= end and text[end - size : end] in self._stops:
                    return end - size, end
        return None

    def held(self, text: str) -> int:
        """Return the length of the longest suffix of `text` that may begin a stop string."""
        most = self._sizes[0] - 1 if self._sizes else 0
        for size in range(min(most, len(text)), 0, -1):
            tail = text[len(text) - size :]
            after = bisect_right(self._sorted, tail)  # what begins with it follows it
            if after < len(self._sorted) and self._sorted[after].startswith(tail):
                return size
        return 0


class Transcript:
    """Text of a sequence; releases the part that can no longer change."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        stops: Sequence[str],
        shown: Sequence[int] = (),
        *,
        keep: bool = False,
    ) -> None:
        """Set the stop strings, of which `keep` leaves the one found, and special tokens shown."""
        self._decoder = tokenizer.stream(shown)
        self._stops = StopStrings(stops)
        self._keep = keep
        # Ends with the stop string, or before it, once one was found.
        self.text = ""
        self._released = 0
        self._stopped = False

    def feed(self, token: int) -> bool:
        searched = len(self.text)
        self.text += self._decoder.feed([token])
        return self._cut(searched)

    def finish(self) -> None:
        """Flush the decoder; no tokens follow."""
        if not self._stopped:
            searched = len(self.text)
            self.text += self._decoder.finish()
            self._cut(searched)
            self._stopped = True

    def take(self) -> str:
        """Return new text that cannot become part of a stop string."""
        end = len(self.text) - (0 if self._stopped else self._stops.held(self.text))
        piece = self.text[self._released : end]
        self._released = max(self._released, end)
        return piece

    def _cut(self, searched: int) -> bool:
        found = self._stops.find(self.text, searched)
        if found is not None:
            begin, end = found
            self.text = self.text[: end if self._keep else begin]
            self._stopped = True
        return self._stopped
