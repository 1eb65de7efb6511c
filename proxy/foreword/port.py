"""The completion port's Python side: what Rust has ready goes to the clients, one call for all exchanges.

Nothing here runs per event: once a head has gone out, Rust calls ``send`` itself. A ``send`` that is done at once
(granian's queue has room) costs no task; one that must wait becomes a task, and until it is done the exchange's bytes
stay in Rust.
"""

import asyncio
import logging
from collections.abc import Callable, Generator
from typing import Any, Protocol

from foreword._core import Sidecar
from foreword.asgi import Head, Message, Send

_log = logging.getLogger(__name__)


#: The token of records whose exchange is over already.
LATE = 0

#: What a ``send`` that never had to wait yields.
_DONE = object()

#: What a ``send`` may fail with. Nobody cancels what runs here: a cancelled future is the server's own.
_FAILED = (Exception, asyncio.CancelledError)

#: A ``send`` under way.
Step = Generator[Any, Any, None]


class Delivery(Protocol):
    """Takes what an exchange has ready."""

    def take(self, head: Head | None, data: bytes, record: bytes | None) -> None: ...

    def stuck(self, step: Step | None, why: object) -> None:
        """A ``send`` that Rust began is not done: its ``step`` waits for ``why``, or there is none and ``why`` is the
        exception. Only of deliveries that gave Rust their ``send``.
        """

    def give_up(self) -> None:
        """The exchange is over, and ``take`` failed: whoever waits must not wait on."""


class Port:
    """Watches the sidecar's descriptor and hands out what is ready."""

    def __init__(self, sidecar: Sidecar, on_record: Callable[[bytes], None]) -> None:
        self._sidecar = sidecar
        self.on_record = on_record
        self._deliveries: dict[int, Delivery] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begins to watch on ``loop``; once."""
        self._loop = loop
        loop.add_reader(self._sidecar.fileno(), self._drain)

    def stop(self) -> None:
        """Ends the watch."""
        if self._loop is not None:
            self._loop.remove_reader(self._sidecar.fileno())
            self._loop = None

    def attach(self, token: int, delivery: Delivery) -> None:
        """What comes for ``token`` goes to ``delivery``. To be called on the loop right after ``open``."""
        self._deliveries[token] = delivery

    def __len__(self) -> int:
        """Exchanges that run."""
        return len(self._deliveries)

    def _drain(self) -> None:
        deliveries = self._deliveries
        for token, head, data, record, stuck in self._sidecar.drain():
            if token == LATE:
                if record is not None:
                    self.on_record(record)
                continue
            delivery = deliveries.get(token) if record is None else deliveries.pop(token, None)
            if delivery is None:
                _log.error("nobody waits for exchange %d", token)
                self._sidecar.cancel(token)
                continue
            try:
                if stuck is None:
                    delivery.take(head, data, record)
                else:
                    delivery.stuck(*stuck)
            except _FAILED:
                _log.exception("a delivery failed")
                self._sidecar.cancel(token)
                if record is not None:
                    delivery.give_up()


class AsgiDelivery:
    """Sends an exchange's answer to its client as it comes."""

    __slots__ = ("_loop", "_on_record", "_send", "_sidecar", "_started", "_task", "_waiting", "done", "token")

    def __init__(
        self,
        sidecar: Sidecar,
        send: Send,
        on_record: Callable[[bytes], None],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._sidecar = sidecar
        self._send = send
        self._on_record = on_record
        self._loop = loop
        self._started = False
        self._waiting: list[Message] = []
        self._task: asyncio.Task[None] | None = None
        self.token = 0
        self.done: asyncio.Future[None] = loop.create_future()

    def take(self, head: Head | None, data: bytes, record: bytes | None) -> None:
        if head is not None:
            self._started = True
            self._put({"type": "http.response.start", "status": head[0], "headers": head[1]})
            if record is None:
                self._sidecar.send_by(self.token, self._send)
        if record is not None:
            if record:  # an empty one comes later, as LATE
                self._on_record(record)
            if not self._started:  # the client left before there was an answer
                self._finish()
                return
            self._put({"type": "http.response.body", "body": data, "more_body": False})
            if self._task is None:
                self._finish()
        elif data:
            self._put({"type": "http.response.body", "body": data, "more_body": True})

    def stuck(self, step: Step | None, why: object) -> None:
        if isinstance(why, BaseException):
            raise why
        if step is not None:
            self._wait(step, why, last=False)

    def _wait(self, step: Step, blocker: object, *, last: bool) -> None:
        self._sidecar.hold(self.token)
        self._task = self._loop.create_task(self._resume(step, blocker, last))

    def give_up(self) -> None:
        self._finish()

    def _put(self, message: Message) -> None:
        if self._task is not None:
            self._waiting.append(message)
            return
        step = self._send(message).__await__()
        blocker = next(step, _DONE)
        if blocker is not _DONE:
            self._wait(step, blocker, last=_is_last(message))

    async def _resume(self, step: Step, blocker: object, last: bool) -> None:
        """Finishes a ``send`` that had to wait, of the ``last`` message or another, then what came meanwhile."""
        try:
            await _Begun(step, blocker)
            while self._waiting:
                message = self._waiting.pop(0)
                last = _is_last(message)
                await self._send(message)
        except _FAILED:
            _log.exception("a send failed")
            self._sidecar.cancel(self.token)
            last = last or any(map(_is_last, self._waiting))
            self._waiting.clear()
        self._task = None
        if last:
            self._finish()
        else:
            self._sidecar.release(self.token)

    def _finish(self) -> None:
        if not self.done.done():
            self.done.set_result(None)


def _is_last(message: Message) -> bool:
    return message.get("more_body") is False


class _Begun:
    """An awaitable whose first step was taken outside a task."""

    __slots__ = ("_blocker", "_step")

    def __init__(self, step: Step, blocker: object) -> None:
        self._step = step
        self._blocker = blocker

    def __await__(self) -> Generator[Any, Any, None]:
        yield self._blocker
        yield from self._step
