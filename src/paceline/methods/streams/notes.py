"""Think While Watching (Wang et al. 2026, arXiv:2603.11896): a note of each segment stays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from paceline.core.options import require
from paceline.core.target import Target, stored
from paceline.core.types import Described, SamplingParams
from paceline.engine.engine import Engine, Event
from paceline.engine.writing import Writing
from paceline.errors import InvalidOption
from paceline.lab.measure.streams import Piece
from paceline.methods.streams.groups import TwoStreams
from paceline.methods.streams.thinking import Cues, Passage


class NoteTaker(Described):
    """Reads segments, writes a note of each, and answers: a system of `lab.measure.streams`.

    A note sees the notes before it and its segment. When the next segment comes, the last one
    leaves the cache, and its note is read again as text, by rows that see notes alone. So an answer
    is a function of the notes and of the present segment.

    Attributes:
        notes: tokens of those that have ended.
        rows: most rows that were in the cache.
    """

    name: ClassVar[str] = "think-while-watching"
    guarantee: ClassVar[str] = "lossy: what no note says is forgotten; answers are of notes alone"
    requires: ClassVar[str] = "a model trained to take notes; none ships"
    paper: ClassVar[str] = "after Think While Watching, Wang et al. 2026, arXiv:2603.11896"

    def __init__(
        self, target: Target, cues: Cues, question: Sequence[int], *, most: int = 32
    ) -> None:
        """Bind a model; `cues.closing` is the one in front of the answer to `question`.

        InvalidOption: `most` is below 1, a cue is empty, or as for `TwoStreams`.
        """
        require(most >= 1, "most", most, "1 or more")
        if len(cues.closing) != 1 or not cues.thought or not cues.closing[0]:
            raise InvalidOption("a note and an answer have a cue each: name tokens for both")
        self._groups, self._cues, self._most = TwoStreams(target), cues, most
        self._question = list(question)
        self._segments: list[list[int]] = []
        self._asked = False
        self._now: Passage | None = None
        self._kept, self._left = 0, list[int]()  # rows of notes; those of the last one, not run yet
        self._answer: Passage | None = None
        self.notes: list[list[int]] = []
        self.rows = 0

    def hear(self, piece: Piece) -> None:
        """Take the tokens of a segment; InvalidOption for one that would take others back."""
        _check_piece(piece)
        self._segments.append(list(piece.what))

    def ask(self) -> None:
        self._asked = True

    def work(self) -> bool:
        if self._now is None:
            if self._segments:
                self._turn(self._segments.pop(0))
                return True
            if not self._asked or self._answer:
                return False
            cue = [*self._question, *self._cues.closing[0]]
            self._now = self._answer = Passage(cue, self._cues.end, self._most)
        now = self._now
        logits = self._run([], self._left + now.rows)
        now.take(int(logits[-1].argmax()))
        self._left = now.rows if now.ended else []
        if now.ended:
            if now is not self._answer:
                self.notes.append(now.tokens)
            self._now = None
        return True

    def _turn(self, segment: Sequence[int]) -> None:
        # The segment before leaves with what was written while it was there.
        self._groups.back(self._kept)
        if self.notes:
            note = [*self._cues.thought, *self.notes[-1], self._cues.end]
            self._run([], note)
            self._kept += len(note)
        self._left = []
        if segment:
            self._run(segment, [])
        self._now = Passage(self._cues.thought, self._cues.end, self._most)

    def _run(self, source: Sequence[int], target: Sequence[int]) -> Any:
        logits = self._groups.forward(source, target)
        self._groups.keep()
        self.rows = max(self.rows, stored(self._groups.cache))
        return logits

    def said(self) -> Any:
        """Return the tokens of the answer so far, None before the first."""
        answer = self._answer
        return answer.tokens if answer and (answer.ended or answer.tokens) else None

    @property
    def done(self) -> bool:
        return self._answer is not None and self._answer.ended

    def close(self) -> None:
        self._groups.close()


class PromptedNotes:
    """The same by prompts alone, for a model that follows instructions: a system over an engine.

    A prompt is the notes so far, a segment, and what is asked of both. The notes are read before
    the segment comes.

    Attributes:
        notes: texts of those that have ended.
    """

    def __init__(
        self,
        engine: Engine,
        note: str,
        question: str,
        params: SamplingParams | None = None,
        **options: Any,
    ) -> None:
        """Bind an engine; `note` asks for a note of a segment. Errors as of `Engine.writing`."""
        self._engine, self._note, self._question = engine, note, question
        self._params, self._options = params, options
        self._segments: list[str] = []
        self._present = ""
        self._asked = self._answering = False
        self._text: str | None = None
        self._events: Iterator[Event] | None = None
        self.notes: list[str] = []
        self.done = False
        self._prompt = self._begun()

    def prompt(self, asked: str) -> str:
        """Return the prompt that asks something of the notes so far and of the present segment."""
        return f"{self._head()}{self._tail(asked)}"

    def _head(self) -> str:
        return "Notes:\n" + "".join(f"{at}. {note}\n" for at, note in enumerate(self.notes, 1))

    def _tail(self, asked: str) -> str:
        return f"\nText:\n{self._present}\n\n{asked}"

    def _begun(self) -> Writing:
        prompt = self._engine.writing(self._params, **self._options)
        prompt.append([{"role": "user", "content": self._head()}])
        return prompt

    def hear(self, piece: Piece) -> None:
        """Take the text of a segment; InvalidOption for one that would take others back."""
        _check_piece(piece)
        self._segments.append(piece.what)

    def ask(self) -> None:
        self._asked = True

    def work(self) -> bool:
        if self._events is not None:
            self._take(next(self._events))
        elif self._segments:
            self._present = self._segments.pop(0)
            self._finish(self._note)
        elif self._asked and not self._answering:
            self._answering = True
            self._finish(self._question)
        else:
            return not self.done and self._prompt.read()
        return True

    def _finish(self, asked: str) -> None:
        self._prompt.append(self._tail(asked))
        self._prompt.finish()
        self._events = self._prompt.events()

    def _take(self, event: Event) -> None:
        if self._answering:
            self._text = (self._text or "") + event.text
        if event.completion is None:
            return
        self._prompt.close()
        self._events = None
        if self._answering:
            self.done = True
        else:
            self.notes.append(" ".join(event.completion.text.split()))
            self._prompt = self._begun()

    def said(self) -> str | None:
        """Return the answer so far, None before it begins."""
        return self._text

    def close(self) -> None:
        self._prompt.close()


def _check_piece(piece: Piece) -> None:
    if piece.change:
        raise InvalidOption("a segment that was noted stands: send others behind it")
