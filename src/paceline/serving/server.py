"""The server as a process: socket, loading, signals, draining."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from paceline.errors import InvalidOption
from paceline.serving.app import Service
from paceline.serving.hosting import Hosted, in_thread
from paceline.serving.model import ServedModel
from paceline.serving.settings import Settings
from paceline.serving.worker import ShutDown

_log = logging.getLogger("paceline.serving")
_BACKLOG = 2048  # uvicorn's own
# Bytes of a stream that wait for its client, here and in the system, until the server waits too.
_UNREAD = 16 * 1024
_FLUSH_SECONDS = 0.5  # for errors to reach clients when time is up


def serve(
    settings: Settings,
    keys: tuple[str, ...],
    load: Callable[[], ServedModel] | None,
    models: Sequence[Hosted] = (),
) -> None:
    """Serve until a signal ends it.

    One model loads after the socket is bound; of several `models` each when it is asked for.

    Raises:
        InvalidOption: the address cannot be bound.
        PacelineError: the model cannot be loaded.
    """
    # While the event loop computes, the engine's thread waits no longer than this for its turn.
    sys.setswitchinterval(0.0005)
    listener = bind(settings)
    host, port = listener.getsockname()[:2]
    _log.info("listening on http://%s:%s", f"[{host}]" if ":" in host else host, port)
    try:
        asyncio.run(run(Service(settings, keys, models), load, listener))
    finally:
        listener.close()


def bind(settings: Settings) -> socket.socket:
    """Return a socket bound to the address; InvalidOption if that cannot be."""
    try:
        [(family, *_, address), *_] = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        listener = socket.socket(family)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _UNREAD)
        listener.bind(address)
        listener.listen(_BACKLOG)  # clients that come before the loop runs wait for it
    except OSError as error:
        raise InvalidOption(
            f"cannot listen on {settings.host}:{settings.port} ({error.strerror}): choose another "
            "--host or --port"
        ) from error
    return listener


async def run(
    service: Service, load: Callable[[], ServedModel] | None, listener: socket.socket
) -> None:
    """Serve on a bound socket until a signal ends it; raises what loading the one model raises."""
    settings = service.settings

    class Protocol(Impatient):
        patience = settings.body_timeout

    config = uvicorn.Config(
        service.app,
        http=Protocol,
        ws="auto",  # what the extra `realtime` brings
        ws_max_size=settings.max_body,
        ws_max_queue=4,  # messages that nobody has read
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=1,
    )
    server = Quiet(config)
    stopping = Stopping(service, server)
    loop = asyncio.get_running_loop()
    for each in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(each, stopping.asked)

    loading = None if load is None else in_thread(load)  # not waited for by a signal

    def opened(done: asyncio.Future[ServedModel]) -> None:
        if done.exception() is not None:
            server.should_exit = True
        elif not stopping.begun:
            service.open(done.result())
            _log.info("ready")

    if loading is None:
        service.begin()
        _log.info("ready")
    else:
        loading.add_done_callback(opened)
    try:
        await server.serve(sockets=[listener])
    finally:
        service.stop()
    if loading is not None and loading.done():
        loading.result()


class Quiet(uvicorn.Server):
    """Leaves signals to `Stopping`."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Stopping:
    """SIGTERM drains; a second one, or the time limit, ends what is left with an error."""

    def __init__(self, service: Service, server: uvicorn.Server) -> None:
        self._service = service
        self._server = server
        self._task: asyncio.Task[None] | None = None
        self._drained: asyncio.Future[None] | None = None

    @property
    def begun(self) -> bool:
        return self._task is not None

    def asked(self) -> None:
        """Answer a signal."""
        if self._drained is not None:
            self._drained.cancel()
        elif self._task is None:
            self._service.drain()
            self._task = asyncio.create_task(self._stop())

    async def _stop(self) -> None:
        service, seconds = self._service, self._service.settings.shutdown_timeout
        _log.info("draining, for at most %g s", seconds)
        self._drained = asyncio.ensure_future(service.emptied())
        await asyncio.wait((self._drained,), timeout=seconds)
        if not service.idle:
            service.abort(ShutDown("the server is shutting down: ask again elsewhere"))
            rest = asyncio.ensure_future(service.emptied())
            await asyncio.wait((rest,), timeout=_FLUSH_SECONDS)
        self._server.should_exit = True


class Impatient(H11Protocol):
    """Closes connections that do not send the head of a request in time."""

    patience: float

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=_UNREAD)
        self._timer = self.loop.call_later(self.patience, self._late)

    def handle_websocket_upgrade(self, event: Any) -> None:
        self._timer.cancel()
        super().handle_websocket_upgrade(event)

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._timer.cancel()
        self._timer = self.loop.call_later(self.patience, self._late)

    def _late(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()
