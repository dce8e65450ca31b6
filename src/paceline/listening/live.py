"""Captions of a sound while it comes.

The window grows, is written down anew at each step with the last caption as its draft, and loses
the sound of what is final. So each text is that of its window alone, whatever was drafted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, chain
from typing import NamedTuple

import numpy as np

from paceline.audio.mel import RATE, WINDOW
from paceline.core.types import LogitArray
from paceline.engine.engine import Completion, Prepared
from paceline.errors import InvalidOption
from paceline.listening.agreement import Agreement, words_of
from paceline.listening.windows import LEAST, Listener, Listening, Transcription

_KEPT = WINDOW // 2  # samples that a window holds before it loses any: words need what came before


class LiveCaption(NamedTuple):
    """What a step has told.

    Attributes:
        final: words that are final now, behind those before; they stay.
        draft: words behind them, which may change.
        lag: seconds of sound that came since the step began: the next step takes all of it.
    """

    final: Sequence[str]
    draft: Sequence[str]
    lag: float


class Live:
    """A sound that comes in pieces: `next` asks for a text, and `heard` takes it.

    Its caller drives it beside the engine, and lets it go in the end.
    """

    def __init__(self, listener: Listener, asked: Listening, every: float = 1.0) -> None:
        """Begin; a step is due when so many seconds have come since the last one began."""
        self._listener, self._asked, self._every = listener, asked, round(every * RATE)
        self._samples: LogitArray = np.zeros(0, np.float32)  # from where the window begins
        self._known = 0  # of them, those that the last step has heard
        self._final: list[str] = []
        self._agreement = Agreement()
        self._step: Transcription | None = None
        self._likely: tuple[int, ...] = ()
        self._ended = False

    def push(self, samples: LogitArray) -> None:
        """Add float32 samples at `RATE`; InvalidOption if the sound has ended."""
        if self._ended:
            raise InvalidOption("the sound has ended: begin another")
        self._samples = np.concatenate([self._samples, samples])

    def end(self) -> None:
        """Say that no more comes: what is left becomes final."""
        self._ended = True

    def next(self) -> Prepared | None:
        """Return the text to decode next; None if no step is due. Takes its time, on any thread."""
        if self._step is None:
            fresh = len(self._samples) - self._known
            if len(self._samples) < LEAST or not (self._ended or fresh >= self._every):
                return None
            window = self._samples[:WINDOW]
            before = self._final[: len(self._final) - self._agreement.settled]
            asked = replace(self._asked, prompt=" ".join([self._asked.prompt, *before]).strip())
            self._step = self._listener.begin(window, asked)
            self._step.likely, self._known = self._likely, len(window)
        return self._step.next()

    def heard(self, done: Completion) -> LiveCaption | None:
        """Take a text that was asked for; None if the window needs another one."""
        step, agreement = self._step, self._agreement
        assert step is not None  # which has asked for it
        found = step.heard(done)
        lag = (len(self._samples) - self._known) / RATE
        if not step.at:
            return None
        self._step = None
        if len(done.token_ids) > 1:  # a text, and no answer to whether there is speech
            self._likely = done.token_ids
        self._asked = replace(self._asked, language=step.language)
        said = [words_of(self._listener.engine.tokenizer.decode(each.tokens)) for each in found]
        words, ends = [*chain(*said)], [*accumulate(map(len, said))]
        final = agreement.add(words)
        cuts = [(0, 0)]
        if self._known == WINDOW or (self._ended and not lag):
            final += agreement.settle(len(words))
            cuts.append((min(step.at, self._known), len(words)))
        elif self._known > _KEPT:
            told = [round(each.end * RATE) for each in found]
            cuts += [cut for cut in zip(told, ends, strict=True) if cut[1] <= agreement.settled]
        self._final += final
        draft = words[agreement.settled :]
        self._drop(*cuts[-1])
        return LiveCaption(final, draft, lag)

    def let_go(self) -> None:
        """Free what the engine holds of the window."""
        if self._step is not None:
            self._step.let_go()

    def _drop(self, samples: int, words: int) -> None:
        self._samples, self._known = self._samples[samples:], self._known - samples
        self._agreement.drop(words)
