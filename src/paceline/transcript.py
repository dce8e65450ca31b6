"""The text of one sequence as it grows: stop strings found, half characters held back."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.text import StopStrings, Tokenizer


class Transcript:
    """Collects tokens into text and releases the part that can no longer change.

    It is the `TextWatch` of the stop rules: `feed` sees tokens one at a time, in the order in
    which plain decoding would have produced them, so a stop string ends the text at the same
    token whether or not that token was drafted.
    """

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str]) -> None:
        """Watch for `stops` in the text of a sequence."""
        self._decoder = tokenizer.stream()
        self._stops = StopStrings(stops)
        self.text = ""
        """All text so far; ends before the stop string once one was found."""
        self._released = 0
        self._stopped = False

    def feed(self, token: int) -> bool:
        """Take the next token; True once the text holds a stop string."""
        searched = len(self.text)
        self.text += self._decoder.feed([token])
        return self._cut(searched)

    def finish(self) -> None:
        """No more tokens follow: take in what the decoder still held back."""
        if not self._stopped:
            searched = len(self.text)
            self.text += self._decoder.finish()
            self._cut(searched)
            self._stopped = True

    def take(self) -> str:
        """Text that was not taken before and cannot become part of a stop string."""
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
