"""Text of one sequence: incremental detokenisation with stop strings.

Tokens are fed one at a time, so a stop string ends the text at the same token, drafted or not.
"""

from __future__ import annotations

from collections.abc import Sequence

from paceline.text import StopStrings, Tokenizer


class Transcript:
    """Text of a sequence; releases the part that can no longer change."""

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str]) -> None:
        self._decoder = tokenizer.stream()
        self._stops = StopStrings(stops)
        # Ends before the stop string once one was found.
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
        cut = self._stops.find(self.text, searched)
        if cut is not None:
            self.text = self.text[:cut]
            self._stopped = True
        return self._stopped
