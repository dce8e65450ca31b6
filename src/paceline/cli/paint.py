"""Text in the colours of who drafted it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import typer

from paceline.text import Tokenizer

_COLOURS = ("green", "cyan", "magenta", "yellow", "blue", "red")


class Painter:
    """Colours text that becomes final by the drafter of the token it came from.

    The engine may hold back characters (half characters, possible stop strings), so tokens are
    decoded here one by one into characters that wait until the engine has released as many.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Decode with the target's tokenizer."""
        self._decoder = tokenizer.stream()
        self._waiting: deque[tuple[str, str | None]] = deque()
        self._colours: dict[str, str] = {}

    def paint(self, text: str, tokens: Sequence[int], sources: Sequence[str | None]) -> str:
        """`text`, released after `tokens` from `sources` were committed, with ANSI colours."""
        for token, source in zip(tokens, sources, strict=True):
            if source is not None:
                self._colours.setdefault(source, _COLOURS[len(self._colours) % len(_COLOURS)])
            self._waiting.extend((char, source) for char in self._decoder.feed([token]))
        out = []
        run, owner = "", None
        for char in text:
            source = self._waiting.popleft()[1] if self._waiting else None
            if source != owner:
                out.append(self._style(run, owner))
                run, owner = "", source
            run += char
        return "".join([*out, self._style(run, owner)])

    def legend(self) -> str:
        """Which colour is whose."""
        drafted = [typer.style(name, fg=colour) for name, colour in self._colours.items()]
        return "drafted by " + ", ".join(drafted) if drafted else "nothing was drafted"

    def _style(self, text: str, source: str | None) -> str:
        if source is None or not text:
            return text
        return typer.style(text, fg=self._colours[source])
