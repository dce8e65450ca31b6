"""Captions by an encoder that hears as sound comes: what it made of a chunk it never makes again.

With every chunk the last caption is verified in one pass, and goes on from where it no longer
holds. So it is the greedy text of all that was heard, as if the sound had ended there. The paper
looks at the last two tokens alone, which spares rows of the decoder and leaves what was wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np

from paceline.audio.mel import HOP, RATE, MelStream
from paceline.core.options import require
from paceline.core.target import Heard, HearsOn, Listens, Rows
from paceline.core.tree import chain
from paceline.core.types import Described, IntArray, LogitArray
from paceline.engine.turns import turns_of
from paceline.errors import InvalidOption
from paceline.listening.agreement import words_of
from paceline.listening.live import LiveCaption
from paceline.listening.windows import Listener, Listening

ROW = 2 * HOP / RATE
"""Seconds of an encoder's row."""

_WORDS = 224  # most tokens of a window
_TURN = 16  # most tokens that are added while requests beside the captions wait


def chunk_ends(begin: int, end: int, chunk: int) -> IntArray:
    """Return what rows from `begin` to `end` see: up to the end of their chunk, or of all."""
    at = np.arange(begin, end)
    return np.minimum((at // chunk + 1) * chunk, end)


def prompt_of(listener: Listener, language: str, before: Sequence[int] = ()) -> list[int]:
    """Return the tokens before a text without times; `before` it stands what was said."""
    known = listener.ids
    task = [listener.languages[language], known["<|transcribe|>"]] if listener.languages else []
    said = [known["<|startofprev|>"], *before] if before else []
    return [*said, known["<|startoftranscript|>"], *task, known["<|notimestamps|>"]]


class CausalCaptions(Described):
    """The captions of one sound, a caption after every chunk.

    Attributes:
        final: tokens of windows that are full, which stay.
        caption: tokens behind them, which may change.
        forwards: of the decoder.
    """

    name: ClassVar[str] = "careless-whisper"
    guarantee: ClassVar[str] = "lossy: another encoder; streaming is its masked pass, bit for bit"
    requires: ClassVar[str] = "a Whisper and its adapter (paceline train causal; base's ships)"
    paper: ClassVar[str] = "after CarelessWhisper, Krichli et al. 2025, arXiv:2508.12301"

    def __init__(
        self,
        listener: Listener,
        chunk: int = 15,
        look_back: int | None = None,
        language: str = "en",
    ) -> None:
        """Begin.

        Args:
            listener: whose engine may have requests beside these captions.
            chunk: encoder rows that are heard at once, of 20 ms each.
            look_back: so many of the last tokens may change (2 in the paper); None for all.
            language: of the words.

        InvalidOption: the runtime hears no sounds that grow, or a number is out of bounds.
        """
        target = listener.engine.decoder.target
        if not (isinstance(target, HearsOn) and isinstance(target, Listens)):
            raise InvalidOption("this runtime hears sounds whole: use runtime cpu or reference")
        require(look_back is None or look_back >= 0, "look_back", look_back, "0 or more, or None")
        longest = target.longest_sound
        require(1 <= chunk <= longest, "chunk", chunk, f"from 1 to {longest} rows")
        self._rows = longest // chunk * chunk
        if listener.languages and language not in listener.languages:
            raise InvalidOption(f"language {language!r} is unknown: give a code such as en")
        assert listener.engine.hearing is not None  # or there is no listener
        self._listener, self._hearing = listener, listener.engine.hearing
        self._target: Any = target
        self._turns, self._left = turns_of(target, survives_fork=True), False
        self._context = self._target.capabilities.max_context
        rules = listener.rules
        # Neither marks nor times, nor what nobody speaks.
        self._unsaid = [*rules.suppressed, *range(rules.times, rules.vocabulary)]
        self._chunk, self._look_back, self._language = chunk, look_back, language
        self._mel = MelStream(2 * chunk, listener.mels)
        # Of the window: what other sounds need the room of is heard anew, to the same bits.
        self._frames: LogitArray = np.zeros((0, listener.mels), np.float32)
        self._heard: Heard | None = None
        self._prompt = prompt_of(listener, language)
        self._scores: list[float] = []  # of the caption's tokens, when they were last looked at
        self.final: list[int] = []
        self.caption: list[int] = []
        self.forwards = 0

    @classmethod
    def live(cls, listener: Listener, asked: Listening) -> CausalLive:
        """Return captions whose words are final behind the two tokens that may change."""
        return CausalLive(cls(listener, look_back=2, language=asked.language or "en"), listener)

    @property
    def samples(self) -> int:
        """Of a chunk."""
        return 2 * HOP * self._chunk

    @property
    def stays(self) -> int:
        """How many tokens of the caption may no longer change."""
        return 0 if self._look_back is None else max(0, len(self.caption) - self._look_back)

    def push(self, samples: LogitArray) -> bool:
        """Hear float32 samples at `audio.mel.RATE`; return whether there is a new caption.

        InvalidOption: some are not finite. OutOfMemory: there is no room for more.
        """
        return self._hear(self._mel.push(samples))

    def end(self) -> None:
        """Hear what is left of the sound."""
        self._hear(self._mel.end())

    def let_go(self) -> None:
        """Free what was heard, on any thread: nothing more is heard, also of what is in work."""
        self._left = True
        self._turns.later(partial(self._hearing.free, self))

    def _free(self) -> None:
        heard, self._heard = self._heard, None
        if heard is not None:
            self._target.let_go(heard)

    def _hear(self, frames: LogitArray) -> bool:
        new = len(frames) > 0
        while len(frames):
            with self._turns:
                if self._left:
                    return False
                if len(self._frames) == 2 * self._rows:
                    self._renew()
                part = frames[: 2 * self._rows - len(self._frames)]
                self._frames = np.concatenate([self._frames, part])
                self._window()
            while not self._write():
                pass
            frames = frames[len(part) :]
        return new

    def _window(self) -> Heard:
        # All of it, of which only what is not in memory is heard.
        return self._hearing.hear_on(self, self._whole, self._free)

    def _whole(self) -> Heard:
        past = 0 if self._heard is None else self._heard.memory.length
        if self._heard is None or 2 * past < len(self._frames):
            sees = chunk_ends(past, len(self._frames) // 2, self._chunk)
            self._heard = self._target.hear(self._frames[2 * past :], sees, self._heard)
        return self._heard

    def _renew(self) -> None:
        # The window is full: another one begins, whose text goes on behind that of this one.
        self.final += self.caption
        before = self.final[-max(1, self._context // 2 - 5) :]
        self._prompt = prompt_of(self._listener, self._language, before)
        self.caption, self._scores, self._frames = [], [], self._frames[:0]
        self._hearing.free(self)

    def _write(self) -> bool:
        # Go on with the caption for a turn; whether it is whole. Requests find the memory between
        # turns as they have left it.
        with self._turns:
            return self._left or self._written(self._window())

    def _written(self, heard: Heard) -> bool:
        target, said, end = self._target, self.caption, self._listener.rules.end
        cache = target.open_to(heard.memory)
        try:
            rows = Rows.draft(cache, self._prompt, chain(said) if said else None)
            logits = self._allowed(target.forward([rows])[0].logits)
            self.forwards += 1
            kept = self._stable(logits)
            target.keep(cache, len(self._prompt), range(kept))
            best = int(logits[kept].argmax())
            del said[kept:], self._scores[kept:]
            last = logits[kept]
            most = min(_WORDS, self._context - len(self._prompt))
            while best != end and len(said) < min(most, kept + _TURN):
                said.append(best)
                self._scores.append(float(last[best]))
                [out] = target.forward([Rows.draft(cache, [best])])
                target.keep(cache, 1, ())
                self.forwards += 1
                last = self._allowed(out.logits, len(said))[0]
                best = int(last.argmax())
            return best == end or len(said) >= most
        finally:
            target.release(cache)

    def _stable(self, logits: LogitArray) -> int:
        # How many tokens of the caption hold: those whose score did not fall, or that are the best.
        # Where all are looked at, the best alone.
        count = len(self.caption)
        first = 0 if self._look_back is None else max(0, count - self._look_back)
        for at in range(first, count):
            token = self.caption[at]
            score, before = float(logits[at, token]), self._scores[at]
            self._scores[at] = score
            rises = self._look_back is not None and score >= before
            if not rises and int(logits[at].argmax()) != token:
                return at
        return count

    def _allowed(self, logits: LogitArray, said: int = 0) -> LogitArray:
        out = np.array(logits, np.float32)
        out[:, self._unsaid] = -np.inf
        if not said:
            out[0, list(self._listener.rules.first)] = -np.inf
        return out


class CausalLive:
    """Captions with the face of `listening.live.Live`, a step a chunk.

    So what is said is a function of the sound, in whichever pieces it comes.

    Attributes:
        tokens: of all captions, with their ends.
        forwards: of the decoder.
    """

    def __init__(self, captions: CausalCaptions, listener: Listener) -> None:
        """Begin, with captions that look back at so many tokens."""
        self._captions, self._decode = captions, listener.engine.tokenizer.decode
        self._samples: LogitArray = np.zeros(0, np.float32)
        self._at = self._said = 0  # tokens of windows that are full; words of the last, final ones
        self._words: list[str] = []  # of its last caption
        self._ends = self._ended = False
        self.tokens = 0

    @property
    def forwards(self) -> int:
        return self._captions.forwards

    @property
    def waiting(self) -> float:
        return len(self._samples) / RATE

    def push(self, samples: LogitArray) -> None:
        if self._ends:
            raise InvalidOption("the sound has ended: begin another")
        self._samples = np.concatenate([self._samples, samples])

    def end(self) -> None:
        self._ends = True

    def step(self, meanwhile: Callable[[], object]) -> LiveCaption | None:
        captions, size = self._captions, self._captions.samples
        while len(self._samples) >= size or (self._ends and not self._ended):
            part, self._samples = self._samples[:size], self._samples[size:]
            new = captions.push(part)
            if self._ends and not len(self._samples):
                captions.end()
                new = self._ended = True
            if new:
                self.tokens += len(captions.caption) + 1
                meanwhile()
                return self._told()
        return None

    def let_go(self) -> None:
        self._captions.let_go()

    def _told(self) -> LiveCaption:
        captions, final = self._captions, list[str]()
        if full := captions.final[self._at :]:
            final = words_of(self._decode(full))[self._said :]
            self._at, self._said, self._words = len(captions.final), 0, []
        words = words_of(self._decode(captions.caption))
        # A word has ended where another one begins among tokens that stay.
        stays = len(words_of(self._decode(captions.caption[: captions.stays]))) - 1
        known = len(words) if self._ended else max(self._said, stays)
        final += words[self._said : known]
        same = [at < len(self._words) and self._words[at] == each for at, each in enumerate(words)]
        self._said, self._words = known, words
        return LiveCaption(final, words[known:], same[known:], self.waiting)
