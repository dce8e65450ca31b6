"""The models of a server: one loads when it is asked for, others go to make room for it."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from itertools import count
from time import time
from typing import TypeVar

from paceline.core.pages import give_back
from paceline.errors import PacelineError
from paceline.serving.admission import Closed
from paceline.serving.metrics import ModelCounts
from paceline.serving.model import ServedModel, find_name
from paceline.serving.worker import Worker

T = TypeVar("T")
_log = logging.getLogger("paceline.serving")


class NotLoaded(Closed):
    """A model could not be loaded: the message says why. Other models go on."""


class Hosted:
    """A model under its names, loaded or not.

    Attributes:
        load: loads it; may take its time.
        size: bytes of its files and of its full cache, as far as they are known before.
        worker: owns its engine; None while it is not loaded.
        fault: why it could not be loaded, when that was last tried.
        users: requests that hold it.
        used: larger for what was asked for later.
        leaving: it is let go once no request holds it, and until then takes no others.
        waiting: requests that are held up until it is loaded, in order.
        keep: seconds after which it is let go when no request holds it; below 0 it stays.
    """

    def __init__(
        self,
        names: Sequence[str],
        path: str,
        load: Callable[[], ServedModel],
        size: int = 0,
    ) -> None:
        self.names, self.path, self.load, self.size = tuple(names), path, load, size
        self.created = int(time())
        self.model: ServedModel | None = None
        self.worker: Worker | None = None
        self.counts = ModelCounts()
        self.fault: str | None = None
        self.users = self.used = 0
        self.leaving = False
        self.waiting: list[asyncio.Future[None]] = []
        self.coming: asyncio.Task[None] | None = None
        self.left = asyncio.Event()
        self.keep = -1.0
        self.going: asyncio.Task[None] | None = None

    @property
    def state(self) -> str:
        if self.model is not None:
            return "loaded"
        return "loading" if self.coming is not None else "failed" if self.fault else "unloaded"


class Hosting:
    """Gives models to requests. For the event loop."""

    def __init__(
        self, models: Sequence[Hosted], room: float, start: Callable[[Hosted, ServedModel], object]
    ) -> None:
        """`room` is the most bytes that loaded models have; `start` begins to serve a loaded one.

        Of one model alone, which loads at the start, nothing is known before.
        """
        self.models, self._room, self._start = list(models), room, start
        self._turn = asyncio.Lock()
        self._uses = count(1)

    def add(self, hosted: Hosted) -> None:
        self.models.append(hosted)

    @property
    def workers(self) -> list[Worker]:
        return [each.worker for each in self.models if each.worker is not None]

    def all(self) -> list[Hosted]:
        """Return the models; Closed while the only one loads."""
        if not self.models:
            raise Closed("the model is loading: try again later")
        return self.models

    def find(self, name: object) -> Hosted:
        """Return the model of a name; errors as of `find_name`, or Closed."""
        models = self.all()
        return models[find_name(name, [each.names for each in models])]

    async def take(self, hosted: Hosted) -> ServedModel:
        """Wait until a model is loaded, and hold it until `give`; NotLoaded if it cannot be."""
        hosted.used = next(self._uses)
        if hosted.model is not None and not hosted.leaving:
            hosted.users += 1
            return hosted.model
        ready = asyncio.get_running_loop().create_future()
        hosted.waiting.append(ready)
        if hosted.coming is None:
            hosted.coming = asyncio.ensure_future(self._bring(hosted))
        try:
            await ready
        except asyncio.CancelledError:
            if not ready.cancelled() and ready.exception() is None:  # it was held already
                self.give(hosted)
            raise
        assert hosted.model is not None  # it is held
        return hosted.model

    def give(self, hosted: Hosted) -> None:
        """Say that a request holds a model no more."""
        hosted.users -= 1
        hosted.left.set()
        if not hosted.users and hosted.keep >= 0:
            asyncio.get_running_loop().call_later(hosted.keep, self._expire, hosted, hosted.used)

    def keep(self, hosted: Hosted, seconds: float) -> bool:
        """Set how long a model stays from its last use on; False for the only one, which stays."""
        if len(self.models) < 2:
            return False
        hosted.keep = seconds
        return True

    @asynccontextmanager
    async def using(self, name: object) -> AsyncIterator[ServedModel]:
        """Hold the model of a name; errors as of `find` and `take`."""
        hosted = self.find(name)
        model = await self.take(hosted)
        try:
            yield model
        finally:
            self.give(hosted)

    def abort(self, error: PacelineError) -> None:
        """End all requests that wait for a model with an error."""
        for each in self.models:
            _settle(each, error)

    def lose(self, hosted: Hosted) -> bool:
        """Have a model loaded anew, since its engine has ended; False for the only one."""
        if len(self.models) > 1:
            hosted.model = hosted.worker = None
        return len(self.models) > 1

    async def _bring(self, hosted: Hosted) -> None:
        # One at a time, in the order in which they were asked for.
        error: PacelineError | None = None
        try:
            async with self._turn:
                if all(each.done() for each in hosted.waiting):
                    return  # nobody waits any more
                while (old := self._surplus(hosted)) is not None:
                    await self._let_go(old)
                _log.info("loading %s", hosted.names[0])
                self._start(hosted, await in_thread(hosted.load))
                hosted.fault = None
        except Exception as found:
            if not isinstance(found, PacelineError):
                _log.exception("%s could not be loaded", hosted.names[0])
            hosted.fault = str(found) or type(found).__name__
            error = NotLoaded(f"model {hosted.names[0]} cannot be loaded: {hosted.fault}")
        finally:
            hosted.coming = None
            _settle(hosted, error)

    def _expire(self, hosted: Hosted, used: int) -> None:
        hosted.going = asyncio.ensure_future(self._let_go_unused(hosted, used))

    async def _let_go_unused(self, hosted: Hosted, used: int) -> None:
        # Unless it was asked for since.
        async with self._turn:
            if hosted.model is not None and not hosted.users and hosted.used == used:
                await self._let_go(hosted)

    def _surplus(self, hosted: Hosted) -> Hosted | None:
        # What is to go before a model fits: an idle one, or else that used longest ago.
        loaded = [each for each in self.models if each.model is not None]
        if sum(each.size for each in (hosted, *loaded)) <= self._room:
            return None
        return min(loaded, key=lambda each: (each.users > 0, each.used), default=None)

    async def _let_go(self, old: Hosted) -> None:
        old.leaving = True
        while old.users:
            old.left.clear()
            await old.left.wait()
        _log.info("letting go of %s", old.names[0])
        worker, old.model, old.worker, old.leaving = old.worker, None, None, False
        if worker is not None:
            await in_thread(worker.stop)
        worker = None  # nobody knows the engine any more
        await in_thread(gc.collect)  # an engine's parts know one another
        await in_thread(give_back)


def _settle(hosted: Hosted, error: PacelineError | None) -> None:
    # Requests that wait hold the model now, or have an error.
    waiting, hosted.waiting = hosted.waiting, []
    for each in waiting:
        if each.done():
            continue
        if error is not None:
            each.set_exception(error)
        else:
            hosted.users += 1
            each.set_result(None)


def in_thread(work: Callable[[], T]) -> asyncio.Future[T]:
    """Run `work` in a thread of its own, for which the end of the process does not wait."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    held = [work]

    def tell(settle: Callable[[], object]) -> None:
        with suppress(RuntimeError):  # a signal has ended the loop before
            loop.call_soon_threadsafe(lambda: future.done() or settle())

    def run() -> None:
        try:
            done = held.pop()()  # when that is told, this thread holds nothing of the work
            tell(partial(future.set_result, done))
        except BaseException as error:
            tell(partial(future.set_exception, error))

    threading.Thread(target=run, daemon=True).start()
    return future
