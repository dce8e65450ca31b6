"""Pictures in prompts: each is read once, in pieces, between the steps of other requests."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import partial

from paceline.core.rows import Placed, RowRun
from paceline.core.target import TakesRows
from paceline.core.types import LogitArray
from paceline.engine.hearing import Piecewise
from paceline.errors import ContextExceeded, OutOfMemory, PromptError
from paceline.models.pictures import Picture
from paceline.models.text import Tokenizer
from paceline.models.vision import PictureReader


@dataclass(frozen=True, slots=True, eq=False)
class Shown:
    """A picture in a prompt: the place of its first row, how many, its content, its patches."""

    at: int
    rows: int
    key: bytes
    patches: Callable[[], LogitArray]


class Looking:
    """Finds pictures in prompts, and reads them into the row store of a target.

    Attributes:
        read: pictures that a tower has read.
        known: those of requests that were there already.
    """

    def __init__(self, reader: PictureReader, target: TakesRows) -> None:
        self.reader, self.read, self.known = reader, 0, 0
        self._rows, self._work = target.rows, Piecewise()
        self._patches: dict[RowRun, Callable[[], LogitArray]] = {}  # of those that wait

    def find(
        self, pictures: Sequence[Picture], ids: Sequence[int], tokenizer: Tokenizer
    ) -> tuple[Shown, ...]:
        """Return where pictures stand in a prompt; any thread may call this.

        PromptError: the prompt has other places for pictures, or ends with one; ContextExceeded:
        they are too many at once.
        """
        rows, words = self.reader.vision.rows, tokenizer.pictures
        assert words is not None
        row = tokenizer.special_ids[words.row]
        places = [at for at, token in enumerate(ids) if token == row]
        firsts = places[::rows]
        whole = [at for first in firsts for at in range(first, first + rows)] == places
        if not whole or len(firsts) != len(pictures) or places[-1] == len(ids) - 1:
            raise PromptError(
                f"the prompt has {len(places)} tokens {words.row} for {len(pictures)} pictures of "
                f"{rows} rows, and must end with another: write it by the chat template"
            )
        if rows * len(pictures) > self._rows.capacity:
            raise ContextExceeded(
                f"{len(pictures)} pictures have {rows * len(pictures)} rows, and there is room for "
                f"{self._rows.capacity}: send fewer"
            )
        return tuple(map(self._shown, firsts, pictures))

    def _shown(self, at: int, picture: Picture) -> Shown:
        # Resized here, and not between steps; what is known need not be.
        key, vision = picture.key(self.reader.settings), self.reader.vision
        if self._rows.knows(key):
            return Shown(at, vision.rows, key, partial(picture.patches, vision))
        patches = picture.patches(vision)
        return Shown(at, vision.rows, key, lambda: patches)

    def hold(self, pictures: Sequence[Shown]) -> tuple[tuple[Placed, ...], tuple[range, ...]]:
        """Keep their rows until `drop`; return these, and places of rows that see one another.

        OutOfMemory: those of other requests leave no room.
        """
        held: list[Placed] = []
        try:
            for each in pictures:
                run = self._rows.hold(each.key, each.rows)
                held.append(Placed(each.at, run))
                self.known += run.filled
                if not run.filled:
                    self._patches.setdefault(run, each.patches)
        except OutOfMemory:
            self.drop(held)
            raise
        together = pictures if self.reader.vision.together else ()
        return tuple(held), tuple(range(each.at, each.at + each.rows) for each in together)

    def look(self, pictures: Sequence[Placed], alone: bool) -> bool:
        """Read pictures for a while, as `Piecewise.go_on`; return whether all are read.

        InvalidOption: rows are no finite numbers.
        """
        for _, run in pictures:
            if run.filled:
                continue
            rows = self._work.go_on(run, partial(self._reading, run), alone)
            if rows is None:
                return False
            self._rows.fill(run, rows)
            self._patches.pop(run, None)
            self.read += 1
        return True

    def _reading(self, run: RowRun) -> Generator[LogitArray | None, None, None]:
        return self.reader.reading(self._patches[run]())

    def drop(self, pictures: Sequence[Placed]) -> None:
        """Let rows go that `hold` has kept."""
        for _, run in pictures:
            self._rows.drop(run)
            if not run.users:
                self._patches.pop(run, None)
                self._work.leave(run)
