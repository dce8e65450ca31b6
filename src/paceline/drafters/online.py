"""Online distillation of a drafter while it serves (Liu et al. 2024, arXiv:2310.07177, section 4).
Missed tokens with the target's features are training examples; updates run in the background. Each
update makes a new immutable version, and all of a draft comes from one version.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from collections.abc import Sequence as List
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from typing import ClassVar, Generic, Protocol, TypeVar

import numpy as np

from paceline.drafters.base import DrafterContext
from paceline.drafters.online_examples import Example, Examples, Trace
from paceline.drafters.online_file import LearntFile
from paceline.errors import RuntimeUnavailable
from paceline.networks.weights import Trained
from paceline.options import require
from paceline.sequence import Sequence
from paceline.target import Output
from paceline.types import LogitArray, TokenTree, Verdict

_LOG = logging.getLogger(__name__)

# Bytes of examples.
_MEMORY = 64 << 20

Version = TypeVar("Version")


class Learner(Protocol):
    """Trainer of a network's parameters."""

    def learn(self, examples: List[Example]) -> Mapping[str, LogitArray] | None:
        """Return the parameters after one more pass over examples; None if they are not finite."""
        ...


@dataclass(frozen=True)
class Learning:
    """Options of online distillation.

    Attributes:
        online: rounds between two updates; 0 learns nothing.
        rate: learning rate of matrices.
        save: file for what is learnt; empty leaves the choice to `LearntFile`.
    """

    name: ClassVar[str] = "online"

    online: int = 0
    rate: float = 0.005
    save: str = ""

    def __post_init__(self) -> None:
        require(self.online >= 0, "online", self.online, "0 (learn nothing) or more rounds")
        require(0 < self.rate < 1, "rate", self.rate, "between 0 and 1")


class Online(Generic[Version]):
    """Collect missed tokens, train on them in the background, and hand over new versions."""

    def __init__(
        self,
        trained: Trained,
        learner: Callable[[], Learner],
        run: Callable[[Trained], Version],
        *,
        every: int,
        file: LearntFile | None = None,
        background: Executor | None = None,
    ) -> None:
        """Start from trained weights.

        Args:
            trained: the weights to begin with.
            learner: makes the trainer; called in the background.
            run: makes weights ready to run; called in the background.
            every: rounds between two updates, at least.
            file: stores what is learnt; also written when this object goes.
            background: runs updates; by default a thread of low priority.
        """
        self._begin = trained
        self._learner = learner
        self._run = run
        self._every = every
        self._file = file
        self._background = background or ThreadPoolExecutor(1, "online", initializer=_behind)
        self._traces: dict[int, Trace] = {}
        self._said: set[str] = set()
        # Versions that were handed over, or wait for it.
        self.updates = 0
        self.reset()
        if file is not None:
            weakref.finalize(self, file.save)

    def reset(self) -> None:
        """Discard what was learnt, and the update that runs in the background."""
        self._student = _Student(self._learner)
        self._examples = Examples(_MEMORY)
        self._generator = np.random.default_rng(0)
        self._rounds = 0
        self._job: Future[Version | None] | None = None
        self._ready: Version | None = None

    def read(self, sequence: Sequence, features: LogitArray) -> None:
        """Note a new sequence, with features of the last tokens of its prompt except the root."""
        trace = self._traces[sequence.id] = Trace()
        trace.read(sequence.tokens, features)

    def observe(
        self,
        sequences: List[Sequence],
        drafts: List[TokenTree],
        verdicts: List[Verdict],
        outputs: List[Output],
    ) -> None:
        """Note a committed round; start an update if one is due."""
        for sequence, draft, verdict, output in zip(
            sequences, drafts, verdicts, outputs, strict=True
        ):
            assert output.features is not None
            trace = self._traces[sequence.id]
            rows = [0, *(node + 1 for node in verdict.path)]
            trace.note(sequence, draft, verdict, output.features[rows])
            if trace.full:
                self._take(trace)
        self._rounds += 1
        self._collect()
        if self._rounds >= self._every and self._job is None:
            self._rounds = 0
            for trace in self._traces.values():
                self._take(trace)
            if examples := self._examples.draw(self._generator):
                self._job = self._background.submit(self._update, self._student, examples)

    def close(self, sequence: Sequence) -> None:
        trace = self._traces.pop(sequence.id, None)
        if trace is not None:
            self._take(trace)

    def newest(self) -> Version | None:
        """Return the version that has become ready since the last call, or None."""
        self._collect()
        version, self._ready = self._ready, None
        return version

    def _take(self, trace: Trace) -> None:
        example = trace.cut()
        if example is not None:
            self._examples.add(example)

    def _collect(self) -> None:
        if self._job is None or not self._job.done():
            return
        job, self._job = self._job, None
        error = job.exception()
        if error is not None:
            self._say(f"an update failed, drafting goes on as before: {error}")
        elif (learnt := job.result()) is None:
            self._say("an update gave numbers that are none and was dropped: set a lower rate")
        else:
            self._ready = learnt
            self.updates += 1

    def _update(self, student: _Student, examples: List[Example]) -> Version | None:
        parameters = student.learn(examples)
        if parameters is None:
            return None
        trained = replace(self._begin, parameters=parameters)
        version = self._run(trained)
        if self._file is not None:
            self._file.keep(trained)
        return version

    def _say(self, message: str) -> None:
        if message not in self._said:
            self._said.add(message)
            _LOG.warning("the drafter learns while it serves: %s", message)


def find_learner(
    context: DrafterContext, trained: Trained, settings: Learning
) -> Callable[[], Learner]:
    """Return a factory of trainers that begin with these weights.

    Raises:
        RuntimeUnavailable: PyTorch is not installed, or the target's weights are out of reach.
    """
    source = context.source
    if source is None or find_spec("torch") is None:
        what = "PyTorch: pip install 'paceline[torch]'"
        if source is None:
            what = "the target's weights, which are not given here: load the model by its name"
        raise RuntimeUnavailable(f"option online needs {what}")

    def make() -> Learner:
        # By name: training stands above drafters, and is not imported where nothing learns.
        training = import_module("paceline.training.online")
        learner: Learner = training.OnlineLearner(trained, source, rate=settings.rate)
        return learner

    return make


class _Student:
    # Made on first use, since that reads the target's weights.

    def __init__(self, make: Callable[[], Learner]) -> None:
        self._make = make
        self._made: Learner | None = None

    def learn(self, examples: List[Example]) -> Mapping[str, LogitArray] | None:
        if self._made is None:
            self._made = self._make()
        return self._made.learn(examples)


def _behind() -> None:
    # On Linux a thread has a priority of its own: decoding goes first.
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
