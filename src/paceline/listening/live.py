"""Captions of a sound while it comes.

The window grows, is written down anew at each step with the last caption as its draft, and loses
the sound of what is final. So each text is that of its window alone, whatever was drafted. Where
nobody speaks there are no steps, and a pause makes the words before it final.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate, chain
from typing import NamedTuple, Protocol

import numpy as np

from paceline.audio.mel import RATE, WINDOW
from paceline.audio.silence import CHUNK, LEAD, SpeechFinder, begin_of_speech
from paceline.core.types import BoolArray, LogitArray
from paceline.engine.engine import Completion, Prepared
from paceline.errors import InvalidOption
from paceline.listening.agreement import Agreement, words_of
from paceline.listening.timestamps import STEP
from paceline.listening.windows import LEAST, Listener, Listening, Transcription

AHEAD = 60.0
"""Seconds of sound that may wait within captions; whoever has more keeps it."""

_KEPT = WINDOW // 2  # samples that a window holds before it loses any: words need what came before
_TEXTS = 2  # that draft the next one, which often goes back on what the last one has changed
_TOLD = 500  # final words that are kept to be told the next window, which reads about 220 tokens
_PAUSE = round(0.8 * RATE)  # samples without speech that end what was said
_REST = 2 * RATE  # samples behind a text that may hold more
_SAID = RATE  # least samples of a text behind which more is heard: the next ones may be as short


class LiveCaption(NamedTuple):
    """What a step has told.

    Attributes:
        final: words that are final now, behind those before; they stay.
        draft: words behind them, which may change.
        drafted: of each of these, whether the last caption has drafted all of it.
        lag: seconds of sound that came since the step began: the next step takes all of it.
    """

    final: Sequence[str]
    draft: Sequence[str]
    drafted: Sequence[bool]
    lag: float


class LiveCaptions(Protocol):
    """Captions of a sound that comes; members are as of `Live`."""

    tokens: int
    forwards: int

    @property
    def waiting(self) -> float: ...

    def push(self, samples: LogitArray) -> None: ...

    def end(self) -> None: ...

    def step(self, meanwhile: Callable[[], object]) -> LiveCaption | None: ...

    def let_go(self) -> None: ...


LiveMethod = Callable[[Listener, Listening], LiveCaptions]
"""What begins captions by a method of `--live-by`."""


class Live:
    """A sound that comes in pieces: `next` asks for a text, and `heard` takes it.

    Its caller drives it beside the engine, and lets it go in the end.

    Attributes:
        tokens: that `step` has decoded.
        forwards: that these took.
    """

    def __init__(
        self,
        listener: Listener,
        asked: Listening,
        every: float = 1.0,
        finder: SpeechFinder | None = None,
    ) -> None:
        """Begin; a step is due when so many seconds have come since the last one began.

        Without a finder of speech there may be some everywhere.
        """
        self._listener, self._asked, self._every = listener, asked, round(every * RATE)
        self._finding = None if finder is None else finder.stream()
        self._samples: LogitArray = np.zeros(0, np.float32)  # from where the window begins
        self._lost = 0  # samples before it
        self._spoken: BoolArray = np.zeros(0, np.bool_)  # by chunk, from the window's first one on
        self._known = 0  # samples of the window that the last step has heard
        self._words = 0  # of its caption, those of the window
        self._before: list[str] = []  # final words that the window has lost
        self._agreement = Agreement()
        self._step: Transcription | None = None
        self._texts: tuple[tuple[int, ...], ...] = ()  # of the last steps, the newest first
        self._ended = False
        self.tokens = self.forwards = 0

    def push(self, samples: LogitArray) -> None:
        """Add float32 samples at `RATE`; InvalidOption if the sound has ended."""
        if self._ended:
            raise InvalidOption("the sound has ended: begin another")
        self._samples = np.concatenate([self._samples, samples])
        if self._finding is not None:
            self._spoken = np.concatenate([self._spoken, self._finding.feed(samples)])

    def end(self) -> None:
        """Say that no more comes: what is left becomes final."""
        self._ended = True

    @property
    def waiting(self) -> float:
        """Seconds of sound that no step has heard."""
        return (len(self._samples) - self._known) / RATE

    def step(self, meanwhile: Callable[[], object]) -> LiveCaption | None:
        """Return the next caption, None if none is due; meanwhile more sound may be pushed."""
        engine = self._listener.engine
        while (request := self.next()) is not None:
            done = engine.generate(request)
            self.tokens += len(done.token_ids)
            self.forwards += done.stats.target_forwards
            meanwhile()
            if (caption := self.heard(done)) is not None:
                return caption
        return None

    def next(self) -> Prepared | None:
        """Return the text to decode next; None if no step is due. Takes its time, on any thread."""
        if self._step is None:
            if not self._words and not self._speaks():
                return None
            fresh = len(self._samples) - self._known
            due = self._ended or fresh >= (1 if self._pauses(len(self._samples)) else self._every)
            if len(self._samples) < LEAST or not due:
                return None
            window = self._samples[:WINDOW]
            asked = self._asked
            if self._listener.continues:
                asked = replace(asked, prompt=" ".join([asked.prompt, *self._before]).strip())
            self._step = self._listener.begin(window, asked)
            self._step.likely, self._known = (*chain(*self._texts),), len(window)
        return self._step.next()

    def heard(self, done: Completion) -> LiveCaption | None:
        """Take a text that was asked for; None if the window needs another one."""
        step, agreement = self._step, self._agreement
        assert step is not None  # which has asked for it
        found = step.heard(done)
        lag = self.waiting
        if not step.at:
            return None
        self._step = None
        self._asked = replace(self._asked, language=step.language)
        said = [words_of(self._listener.engine.tokenizer.decode(each.tokens)) for each in found]
        words, ends = [*chain(*said)], [*accumulate(map(len, said))]
        final = agreement.add(words)
        told = [min(round(each.end * RATE), self._known) for each in found]
        cuts = [(0, 0)]
        if paused := self._pauses(self._known):
            cuts.append((self._known, len(words)))
        elif self._known == WINDOW or (self._ended and not lag):
            # A text may end where speech does not, and what follows is heard anew.
            heard = min(step.at, self._known)
            early = bool(told) and _SAID <= told[-1] < heard - _REST
            cuts.append((told[-1] if early else heard, len(words)))
        elif self._known > _KEPT:
            cuts += [cut for cut in zip(told, ends, strict=True) if cut[1] <= agreement.settled]
        cut, gone = cuts[-1]
        final += agreement.settle(gone)
        draft = words[agreement.settled :]
        drafted = self._drafted(done, words)[agreement.settled :]
        if len(done.token_ids) > 1:  # a text, and no answer to whether there is speech
            texts = (done.token_ids, *self._texts[: _TEXTS - 1])
            self._texts = () if paused else tuple(self._ahead(each, cut) for each in texts)
        self._words = len(words) - gone
        self._before = [*self._before, *agreement.drop(gone)][-_TOLD:]
        if paused:
            self._agreement = Agreement()
        self._lose(cut)
        return LiveCaption(final, draft, drafted, lag)

    def let_go(self) -> None:
        """Free what the engine holds of the window."""
        if self._step is not None:
            self._step.let_go()

    def _lose(self, samples: int) -> None:
        first = self._lost // CHUNK
        self._samples, self._known = self._samples[samples:], max(0, self._known - samples)
        self._lost += samples
        self._spoken = self._spoken[self._lost // CHUNK - first :]

    def _speaks(self) -> bool:
        # Whether there is speech in the window. It begins there: nothing is said before.
        if self._finding is None:
            return True
        inside = self._lost % CHUNK
        begin = begin_of_speech(self._spoken, inside)
        silent = len(self._samples) - LEAD if begin is None else begin - inside
        self._lose(max(0, silent))
        return begin is not None

    def _pauses(self, samples: int) -> bool:
        # Whether the first samples of the window end with a pause.
        if self._finding is None:
            return False
        inside = self._lost % CHUNK + samples
        found = np.flatnonzero(self._spoken[: inside // CHUNK])
        return not len(found) or inside - (int(found[-1]) + 1) * CHUNK >= _PAUSE

    def _drafted(self, done: Completion, words: Sequence[str]) -> list[bool]:
        # Letter by letter, for words begin and end within tokens. Of another text nothing is known.
        decoder, end = self._listener.engine.tokenizer.stream(), self._listener.rules.end
        said, drafted = "", list[bool]()
        for token, source in zip(done.token_ids, done.sources, strict=True):
            if token < end:
                more = "".join(decoder.feed([token]).split())
                said += more
                drafted += [source is not None] * len(more)
        whole = ["".join(word.split()) for word in words]
        if not said.startswith("".join(whole)):
            return [False] * len(words)
        ends = [*accumulate(map(len, whole))]
        return [all(drafted[to - len(word) : to]) for word, to in zip(whole, ends, strict=True)]

    def _ahead(self, tokens: Sequence[int], lost: int) -> tuple[int, ...]:
        # What is left of a text once the window has lost so many samples: words behind them, at
        # earlier times. The text begins as ever, at the window's begin.
        if not lost:
            return tuple(tokens)
        times, steps = self._listener.rules.times, round(lost / RATE / STEP)
        ends = [at for at in range(1, len(tokens)) if tokens[at - 1] < times <= tokens[at]]
        behind = [at + 1 for at in ends if tokens[at] - times >= steps]
        left = tokens[behind[0] :] if behind else ()
        moved = [token if token < times else max(times, token - steps) for token in left]
        return (*([times] if moved and moved[0] < times else []), *moved)
