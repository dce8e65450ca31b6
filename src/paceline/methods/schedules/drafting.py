"""What the schedules share: a draft model that continues texts, here or in a process of its own.

The process is forked, so that it shares the weights' memory and needs nothing but the text. It
ends with its owner: when the pipe closes, or at exit.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from time import perf_counter, process_time
from typing import Any, ClassVar, NamedTuple, Self, cast

from paceline.core import tree as trees
from paceline.core.options import arguments, require
from paceline.core.processor import usable_threads
from paceline.core.target import Rows, Target
from paceline.core.types import Budget, LogitArray, SamplingParams, TokenTree
from paceline.drafters.base import Drafter, DrafterContext
from paceline.errors import (
    EngineFailed,
    InvalidOption,
    OutOfMemory,
    PacelineError,
    RuntimeUnavailable,
)
from paceline.sampling.generation import Generation
from paceline.sampling.randomness import Randomness
from paceline.sampling.sampler import Sampler


class DraftRequest(NamedTuple):
    """Text of a request to be continued by `wanted` tokens.

    What is asked for a `branch` leaves no trace in the request's cache.
    """

    id: int
    text: tuple[int, ...]
    wanted: int
    branch: bool = False


class Reply(NamedTuple):
    """Continuations in the order of asking, and the time they took.

    They are shorter than asked for where context or memory end.
    `rounds` is the number of the draft model's forwards, `work` processor seconds.
    """

    tokens: list[list[int]]
    seconds: float
    rounds: int
    work: float = 0.0


@dataclass(eq=False)
class ReadText:
    """What the draft model has read of a request: `tokens` from `begin` on are in the cache."""

    tokens: list[int]
    prompt: int
    sampler: Sampler
    randomness: Randomness
    cache: Any
    begin: int
    # Of a cache that is calibrated: tokens that stay, and whether a chain begins.
    exact: int = 0
    begins: bool = False


class ChainDrafting:
    """Continue texts with a draft model, each token the one it would draw as the target."""

    def __init__(self, model: Target, recent: int = 256) -> None:
        """Bind the model, which reads at most the last `recent` tokens of a prompt."""
        self.model = model
        self._recent = recent
        self._texts: dict[int, ReadText] = {}

    def open(
        self, id: int, tokens: Sequence[int], prompt: int, params: SamplingParams, draws: Randomness
    ) -> None:
        """Read a request: its first `prompt` tokens are its prompt."""
        cache, begin = self.model.open(), max(0, len(tokens) - self._recent)
        sampler = Sampler(params, tokens[:prompt], randomness=draws)
        text = ReadText(list(tokens), prompt, sampler, draws, cache, begin)
        self._texts[id] = text
        if self._room(text):
            self.model.prefill(cache, tokens[begin:-1])
        text.exact = cache.length

    def close(self, id: int) -> None:
        text = self._texts.pop(id, None)
        if text is not None:
            self.model.release(text.cache)

    def draft(self, asks: Sequence[DraftRequest]) -> Reply:
        """Continue texts side by side. Several branches of one request may be asked for."""
        start, work, rounds = perf_counter(), process_time(), 0
        texts = [self._follow(each) for each in asks]
        try:
            goals = [len(each.text) + each.wanted for each in asks]
            done = [False] * len(asks)
            while live := [
                at
                for at, text in enumerate(texts)
                if not done[at] and len(text.tokens) < goals[at] and self._room(text)
            ]:
                some = [texts[at] for at in live]
                try:
                    found = self._logits(some)
                except OutOfMemory:
                    break
                rounds += 1
                for at, text, logits in zip(live, some, found, strict=True):
                    done[at] = not self._extend(text, logits)
            out = [t.tokens[len(each.text) :] for t, each in zip(texts, asks, strict=True)]
        finally:
            for text, each in zip(texts, asks, strict=True):
                if each.branch:
                    self.model.release(text.cache)
        return Reply(out, perf_counter() - start, rounds, process_time() - work)

    def _follow(self, ask: DraftRequest) -> ReadText:
        text = self._texts[ask.id]
        old, new = text.tokens, ask.text
        same = next(
            (at for at, pair in enumerate(zip(old, new, strict=False)) if pair[0] != pair[1]),
            min(len(old), len(new)),
        )
        length = max(0, min(same, len(new) - 1) - text.begin)
        if ask.branch:
            text = replace(text, cache=self.model.fork(text.cache))
        self._cut(text, length)
        text.tokens = list(new)
        return text

    def _cut(self, text: ReadText, length: int) -> None:
        if text.cache.length > length:
            self.model.truncate(text.cache, length)

    def _logits(self, texts: Sequence[ReadText]) -> list[LogitArray]:
        # Of the next token; the cache then holds all but it.
        rows = [Rows.draft(t.cache, t.tokens[t.begin + t.cache.length :]) for t in texts]
        outputs = self.model.forward(rows)
        for each in rows:
            self.model.keep(each.cache, each.num_new, ())
        return [each.logits[0] for each in outputs]

    def _extend(self, text: ReadText, logits: LogitArray) -> bool:
        path = text.tokens[text.prompt :]
        try:
            token = text.sampler.sample(logits, path, len(text.tokens), text.randomness)
        except PacelineError:  # the guess leads to where nothing may follow
            return False
        text.tokens.append(token)
        return True

    def _room(self, text: ReadText) -> int:
        return max(0, self.model.capabilities.max_context - len(text.tokens))


class Here:
    """Draft in the process of the target, at `receive`, which follows every `send`."""

    def __init__(self, chains: ChainDrafting) -> None:
        self._asks: Sequence[DraftRequest] = ()
        self._chains = chains
        self.open, self.close = chains.open, chains.close

    def send(self, asks: Sequence[DraftRequest]) -> None:
        self._asks = asks

    def receive(self) -> Reply:
        return self._chains.draft(self._asks)


class DraftProcess:
    """Draft in a forked process, while the target runs. Raises EngineFailed once it has ended."""

    def __init__(self, chains: ChainDrafting) -> None:
        fork = multiprocessing.get_context("fork")
        mine, its = fork.Pipe()
        self._pipe = mine
        self._child = fork.Process(target=_serve, args=(chains, mine, its), daemon=True)
        self._child.start()
        self.pid = self._child.pid
        its.close()
        self.stop = weakref.finalize(self, _end, self._pipe, self._child)

    def open(self, *given: Any) -> None:
        self._call("open", *given)
        self._answer()

    def send(self, asks: Sequence[DraftRequest]) -> None:
        self._call("draft", asks)

    def receive(self) -> Reply:
        return cast(Reply, self._answer())

    def close(self, id: int) -> None:
        with contextlib.suppress(EngineFailed):  # there is nothing left to close
            self._call("close", id)
            self._answer()

    def _call(self, *message: Any) -> None:
        try:
            self._pipe.send(message)
        except OSError:
            raise self._ended() from None

    def _answer(self) -> Any:
        try:
            found = self._pipe.recv()
        except (EOFError, OSError):
            raise self._ended() from None
        if isinstance(found, Exception):
            raise found
        return found

    def _ended(self) -> EngineFailed:
        self._child.join(1)
        return EngineFailed(
            f"the draft process ended with exit code {self._child.exitcode}: the text goes on "
            "without drafts; load the model again to draft"
        )


def _end(pipe: Connection, child: Any) -> None:
    pipe.close()
    child.join(0.2)  # it ends by itself between two drafts
    if child.is_alive():
        child.kill()
        child.join()


def _serve(chains: ChainDrafting, theirs: Connection, pipe: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the owner decides
    theirs.close()  # or the pipe would never end
    with contextlib.suppress(EOFError, OSError):
        while True:
            call, *given = pipe.recv()
            try:
                answer = getattr(chains, call)(*given)
            except Exception as error:
                answer = error
            pipe.send(answer)


Worker = Here | DraftProcess


class Scheduled(Drafter):
    """Chains of a draft model, drafted by a `Worker` before each forward; subclasses overlap."""

    apart: ClassVar[bool] = True  # whether there is a process unless it is declined

    def __init__(self, worker: Worker, *, coupled: bool = True, window: int = 4) -> None:
        """Bind a worker.

        Args:
            worker: drafts.
            coupled: draft with the target's Gumbel noise; False drafts the argmax.
            window: tokens of a draft.

        Raises:
            InvalidOption: `window` is below 1.
        """
        require(window >= 1, "window", window, "1 or more")
        self.worker = worker
        self.gumbel_coupled = coupled
        self._window = window
        self._owed = False  # an answer that was not fetched

    @classmethod
    def create(cls, context: DrafterContext) -> Self:
        """Load the draft model, and start its process.

        Options: `threads` of the draft model; `process` false drafts in the target's own process;
        and those of the constructor.

        Raises:
            InvalidOption: an option is unknown or out of range.
            RuntimeUnavailable: the draft model's runtime cannot be forked.
        """
        options = dict(context.options)
        place = {str(key): options.pop(key) for key in ("threads", "process") if key in options}
        chosen = arguments(cls, "drafter", options, "worker", "coupled", *cls._given)
        worker = cls._worker(context, chosen, **arguments(_Place, "drafter", place))
        return cls(worker, coupled=context.gumbel_coupled, **cls._parts(context), **chosen)

    @classmethod
    def _worker(
        cls, context: DrafterContext, chosen: dict[str, Any], threads: int = 0, process: bool = True
    ) -> Worker:
        require(threads >= 0, "threads", threads, "0 (all) or more")
        model = context.resources.draft_model(cls.name).target
        runtime = model.capabilities.runtime
        if threads and runtime != "cpu":
            raise InvalidOption(f"option threads is for runtime cpu, not {runtime}: leave it out")
        if threads:
            model.threads = usable_threads(threads)  # type: ignore[attr-defined]
        chains = cls._chains(model, chosen)
        if not (cls.apart and process):
            return Here(chains)
        if runtime not in ("cpu", "tabular"):
            raise RuntimeUnavailable(
                f"drafter '{cls.name}' forks a process for its draft model, which runtime "
                f"'{runtime}' does not survive: use runtime cpu, or {cls.name}:process=false"
            )
        return DraftProcess(chains)

    @classmethod
    def _chains(cls, model: Target, chosen: dict[str, Any]) -> ChainDrafting:
        return ChainDrafting(model)

    # Arguments of the constructor that are not options.
    _given: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def _parts(cls, context: DrafterContext) -> dict[str, Any]:
        return {}

    def open(self, sequence: Generation) -> None:
        self._settle()
        params = sequence.params
        if not self.gumbel_coupled:
            off: dict[str, Any] = {"typical_p": 1.0, "dynatemp_range": 0.0, "xtc_probability": 0.0}
            params = replace(params, temperature=0.0, mirostat=0, **off)
        tokens, prompt = list(sequence.tokens), sequence.prompt_length
        self.worker.open(sequence.id, tokens, prompt, params, sequence.randomness)

    def close(self, sequence: Generation) -> None:
        with contextlib.suppress(EngineFailed):
            self._settle()
        self.worker.close(sequence.id)

    def _send(self, asks: Sequence[DraftRequest]) -> None:
        if asks:
            self.worker.send(asks)
            self._owed = True

    def _receive(self) -> Reply | None:
        if not self._owed:
            return None
        self._owed = False
        return self.worker.receive()

    def _settle(self) -> None:
        # Calls go one after another.
        self._receive()

    def _draft(self, tokens: Sequence[int], budget: Budget) -> TokenTree:
        most = min(budget.nodes, budget.depth)
        return trees.chain(list(tokens[:most]), self.name) if tokens and most else trees.EMPTY

    def propose(
        self, sequences: Sequence[Generation], budgets: Sequence[Budget]
    ) -> list[TokenTree]:
        """Ask, and wait."""
        self._settle()
        counts = [min(self._window, each.nodes, each.depth) for each in budgets]
        pairs = zip(sequences, counts, strict=True)
        self._send([DraftRequest(s.id, tuple(s.tokens), count) for s, count in pairs if count])
        reply = self._receive()
        found = iter(reply.tokens if reply else ())
        return [
            self._draft(next(found) if count else (), budget)
            for count, budget in zip(counts, budgets, strict=True)
        ]


class _Place:
    # Options of every schedule, for their types.
    name = "schedule"

    def __init__(self, threads: int = 0, process: bool = True) -> None: ...
