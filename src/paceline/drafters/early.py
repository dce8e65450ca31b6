"""Drafts that begin before they are asked for.

Behind a step one core learns from it, commits and chooses sizes, and the others have nothing to do.
So the next draft of a lone sequence begins as soon as its last tokens are known, of the size that
was asked for last, if the steps before asked for one. Who asks then waits for what is left of it.
What nobody asks for has cost idle cores' time; its rows are in the network's cache either way.
"""

from __future__ import annotations

from paceline.drafters.trained_progress import Progress
from paceline.errors import OutOfMemory
from paceline.networks.runner import Chain, Grown

_STEADY = 2
"""Steps in a row that asked for a draft."""


class EarlyDraft:
    """The one that has begun, if there is one."""

    def __init__(self) -> None:
        """None has."""
        self._progress: Progress | None = None

    def expects(self, progress: Progress) -> bool:
        """Whether a sequence will ask for a chain, and its network can begin one."""
        version = progress.version
        return progress.steady >= _STEADY and version.trees is None and version.early is not None

    def has_begun(self, progress: Progress) -> bool:
        """Whether `finish` has something for a sequence."""
        return self._progress is progress

    def begin(self, progress: Progress, grown: Grown, depth: int) -> None:
        """Begin it; one of another sequence is given up.

        Args:
            progress: of a sequence that expects one.
            grown: what its context has gained.
            depth: most tokens.
        """
        if self._progress is not None:
            self.give_up(self._progress)
        runner = progress.version.early
        assert runner is not None
        try:
            runner.begin(grown, depth)
        except OutOfMemory:  # who asks for the draft will hear of it
            return
        self._progress = progress

    def finish(self, progress: Progress) -> Chain | None:
        """What a sequence's network has drafted, or None if nothing has begun for it.

        Raises:
            OutOfMemory: there is none for so many rows.
        """
        if not self.has_begun(progress):
            return None
        self._progress = None
        runner = progress.version.early
        assert runner is not None
        return runner.finish()

    def give_up(self, progress: Progress) -> None:
        """Nobody has asked for it, if it has begun; but its rows are in the network's cache."""
        if self.finish(progress) is not None:
            progress.taken()
