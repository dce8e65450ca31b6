"""Early drafting: overlaps the next draft of a lone sequence with the engine's work after a step.

An unused draft costs only idle cores, but its rows are in the network's KV cache.
"""

from __future__ import annotations

from paceline.drafters.trained_progress import Progress
from paceline.errors import OutOfMemory
from paceline.networks.runner import Chain, Grown

# Consecutive steps with a draft before one begins early.
_STEADY = 2


class EarlyDraft:
    """At most one draft in progress."""

    def __init__(self) -> None:
        self._progress: Progress | None = None

    def expects(self, progress: Progress) -> bool:
        """Return whether a sequence is likely to need a chain, and its network can begin one."""
        version = progress.version
        return progress.steady >= _STEADY and version.trees is None and version.early is not None

    def has_begun(self, progress: Progress) -> bool:
        """Return whether the draft in progress is of this sequence."""
        return self._progress is progress

    def begin(self, progress: Progress, grown: Grown, depth: int) -> None:
        """Begin a chain of up to `depth` tokens; one of another sequence is given up."""
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
        """Return this sequence's chain, if begun. Raises OutOfMemory if the rows do not fit."""
        if not self.has_begun(progress):
            return None
        self._progress = None
        runner = progress.version.early
        assert runner is not None
        return runner.finish()

    def give_up(self, progress: Progress) -> None:
        """Discard an unused draft; its rows are still in the network's KV cache."""
        if self.finish(progress) is not None:
            progress.taken()
