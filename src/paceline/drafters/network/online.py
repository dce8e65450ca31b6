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
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from time import monotonic
from typing import ClassVar, Generic, Protocol, TypeVar

import numpy as np

from paceline.core import tree as trees
from paceline.core.cache import cache_dir
from paceline.core.options import require
from paceline.core.types import ROOT, BoolArray, IntArray, LogitArray, TokenTree, Verdict
from paceline.drafters.base import DrafterContext
from paceline.drafters.network.weights import digest_of
from paceline.errors import InvalidOption, RuntimeUnavailable
from paceline.networks.weights import Trained, load_network, save_network
from paceline.policy.constants import STRETCH_CONTEXT, STRETCH_ROWS, UPDATE_ROWS
from paceline.sampling.generation import Generation, VerifiedDraft


@dataclass(frozen=True, slots=True)
class Example:
    """Stretch of committed text.

    Attributes:
        features: float32 `[rows, 4 * width]` of each token, see `Output.features`.
        tokens: int64 `[rows]`.
        missed: bool `[rows]`, the tokens that the target wrote where drafts had others.
    """

    features: LogitArray
    tokens: IntArray
    missed: BoolArray

    @property
    def size(self) -> int:
        """Return bytes, about."""
        return self.features.nbytes


@dataclass(slots=True)
class Trace:
    """Newest stretch of a sequence; the features of its last token, the root, are not known yet."""

    features: list[LogitArray] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    missed: list[bool] = field(default_factory=list)
    # Tokens of the sequence that were noted.
    known: int = 0

    def read(self, tokens: list[int], features: LogitArray) -> None:
        """Begin with the end of a prompt; features cover all tokens but the root."""
        kept = len(features[-STRETCH_CONTEXT:])
        self.features = [features[len(features) - kept :].copy()]
        self.tokens = tokens[len(tokens) - kept - 1 :]
        self.missed = [False] * len(self.tokens)
        self.known = len(tokens)

    def note(
        self, sequence: Generation, draft: TokenTree, verdict: Verdict, rows: LogitArray
    ) -> int:
        """Add a committed step; return the missed tokens, 1 or 0.

        `rows` is float32 `[1 + path, 4 * width]`, features of the root and of the accepted path.
        """
        new = sequence.tokens[self.known :]  # fewer than were accepted if the text ended there
        last = verdict.path[-1] if verdict.path else ROOT
        missed = len(new) > len(verdict.path) and last in trees.children(draft)
        self.features.append(rows[: len(new)].copy())
        self.tokens += new
        self.missed += [False] * len(new)
        self.known += len(new)
        if missed:
            self.missed[-1] = True
        return int(missed)

    @property
    def full(self) -> bool:
        """Return whether the stretch is due to be cut."""
        return len(self.tokens) > STRETCH_CONTEXT + STRETCH_ROWS

    def cut(self) -> Example | None:
        """Return the stretch if a token of it was missed; its end stays as context."""
        if not any(self.missed[:-1]):
            return None
        features = np.concatenate(self.features)
        tokens = np.array(self.tokens[:-1], dtype=np.int64)
        example = Example(features, tokens, np.array(self.missed[:-1]))
        kept = len(features[-STRETCH_CONTEXT:])
        self.features = [features[len(features) - kept :].copy()]
        self.tokens = self.tokens[-kept - 1 :]
        self.missed = [False] * kept + self.missed[-1:]
        return example


class Examples:
    """Queue of the newest examples, up to a limit of bytes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept: deque[Example] = deque()
        self._bytes = 0
        self._fresh = 0

    def add(self, example: Example) -> None:
        self._kept.append(example)
        self._bytes += example.size
        self._fresh += 1
        while self._bytes > self._limit and len(self._kept) > 1:
            self._bytes -= self._kept.popleft().size
        self._fresh = min(self._fresh, len(self._kept))

    def draw(self, generator: np.random.Generator) -> list[Example]:
        """Return the examples added since the last call, newest first, and as many older ones.

        Both are limited to what an update has time for. Empty if none were added.
        """
        old = len(self._kept) - self._fresh
        fresh = [self._kept[i] for i in range(len(self._kept) - 1, old - 1, -1)]
        again = [self._kept[i] for i in generator.permutation(old)[: self._fresh].tolist()]
        self._fresh = 0
        return [*_up_to(fresh, UPDATE_ROWS), *_up_to(again, UPDATE_ROWS)]


def _up_to(examples: Sequence[Example], rows: int) -> list[Example]:
    # The first examples, one at least, with so many rows together at most.
    sizes = np.cumsum([len(each.tokens) for each in examples])
    return list(examples[: max(1, int((sizes <= rows).sum()))])


_LOG = logging.getLogger(__name__)

_SUFFIX = ".online.safetensors"

# Between two writes: a kill loses at most that.
_SECONDS = 60.0

# Metadata: digest of the weights that learning began with.
_ORIGIN = "online_of"


class LearntFile:
    """Hold the newest weights, and write them now and then."""

    def __init__(self, origin: Path, chosen: str, *, ships: bool) -> None:
        """Choose the path: `chosen`, or beside `origin`, or in the cache if the origin `ships`.

        Raises:
            InvalidOption: the file would overwrite the origin.
        """
        self._origin = origin
        if chosen:
            self.path = Path(chosen)
        else:
            folder = cache_dir() / "online" if ships else origin.parent
            self.path = folder / (origin.name.removesuffix(".safetensors") + _SUFFIX)
        if self.path.exists() and self.path.samefile(origin):
            raise InvalidOption(f"save would write over the weights {origin}: name another file")
        self._unsaved: Trained | None = None
        self._written = monotonic()

    def begin(self, trained: Trained) -> Trained:
        """Return the weights to go on from: the file's, or the origin's, `trained`.

        Raises:
            InvalidOption: the file is damaged, or was learnt from other weights.
        """
        origin = digest_of(self._origin)
        if not self.path.exists():
            # Small updates would be lost in coarse blocks.
            metadata = {**trained.metadata, "stored": "F16", _ORIGIN: origin}
            return replace(trained, metadata=metadata)
        learnt = load_network(self.path)
        if learnt.metadata.get(_ORIGIN) != origin:
            raise InvalidOption(
                f"{self.path} was learnt from other weights than {self._origin}: move it away, or "
                "name another file with save=FILE"
            )
        return learnt

    def keep(self, trained: Trained) -> None:
        """Hold the newest weights; write them if the last write is a while ago."""
        self._unsaved = trained
        if monotonic() - self._written >= _SECONDS:
            self.save()

    def save(self) -> None:
        """Write what is not written yet. A failure is logged: decoding goes on."""
        trained, self._unsaved = self._unsaved, None
        if trained is None:
            return
        self._written = monotonic()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            save_network(self.path, trained)
        except (OSError, InvalidOption) as error:
            _LOG.warning("what the drafter learnt is not saved: %s", error)


# Bytes of examples.
_MEMORY = 64 << 20

LoadedNetwork = TypeVar("LoadedNetwork")


class Learner(Protocol):
    """Trainer of a network's parameters."""

    def learn(self, examples: Sequence[Example]) -> Mapping[str, LogitArray] | None:
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


class Online(Generic[LoadedNetwork]):
    """Collect missed tokens, train on them in the background, and hand over new versions."""

    def __init__(
        self,
        trained: Trained,
        learner: Callable[[], Learner],
        run: Callable[[Trained], LoadedNetwork],
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
        self._job: Future[LoadedNetwork | None] | None = None
        self._ready: LoadedNetwork | None = None

    def read(self, sequence: Generation, features: LogitArray) -> None:
        """Note a new sequence, with features of the last tokens of its prompt except the root."""
        trace = self._traces[sequence.id] = Trace()
        trace.read(sequence.tokens, features)

    def observe(self, step: Sequence[VerifiedDraft]) -> None:
        """Note a committed round; start an update if one is due."""
        for sequence, draft, verdict, output in step:
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

    def close(self, sequence: Generation) -> None:
        trace = self._traces.pop(sequence.id, None)
        if trace is not None:
            self._take(trace)

    def newest(self) -> LoadedNetwork | None:
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

    def _update(self, student: _Student, examples: Sequence[Example]) -> LoadedNetwork | None:
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
        RuntimeUnavailable: PyTorch is not installed, or the drafter serves a draft model.
    """
    source, load = context.resources.loaded.source, context.resources.learner
    if load is None:
        raise RuntimeUnavailable("option online is for a target, not for its draft model: leave it")
    if find_spec("torch") is None:
        raise RuntimeUnavailable("option online needs PyTorch: pip install 'paceline[torch]'")

    def make() -> Learner:
        learner: Learner = load()(trained, source, rate=settings.rate)
        return learner

    return make


class _Student:
    # Made on first use, since that reads the target's weights.

    def __init__(self, make: Callable[[], Learner]) -> None:
        self._make = make
        self._made: Learner | None = None

    def learn(self, examples: Sequence[Example]) -> Mapping[str, LogitArray] | None:
        if self._made is None:
            self._made = self._make()
        return self._made.learn(examples)


def _behind() -> None:
    # On Linux a thread has a priority of its own: decoding goes first.
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
