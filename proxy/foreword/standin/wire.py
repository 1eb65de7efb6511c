"""One answer on its connection, with the mishaps that a script asks for."""

import asyncio
import contextlib
import os
import socket
import struct
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import orjson

from .script import Script

Send = Callable[[dict[str, Any]], Awaitable[None]]
Header = tuple[bytes, bytes]

JSON = b"application/json"
EVENTS = b"text/event-stream; charset=utf-8"


class Over(Exception):
    """The script ended this answer here. ``cut``: the connection breaks instead of the answer ending."""

    def __init__(self, *, cut: bool) -> None:
        super().__init__()
        self.cut = cut


class Wire:
    """Sends one answer. ``headers`` go with every one."""

    def __init__(self, send: Send, client: tuple[str, int] | None, headers: Iterable[Header] = ()) -> None:
        self._send = send
        self._client = client
        self._headers = [(b"server", b"uvicorn"), *headers, (b"vary", b"Origin")]
        self._script = Script()
        self._chunks = 0

    async def whole(
        self, status: int, body: bytes, kind: bytes = JSON, headers: Iterable[Header] = ()
    ) -> None:
        """An answer in one piece."""
        length = (b"content-length", b"%d" % len(body))
        await self._start(status, [length, *([(b"content-type", kind)] if body else []), *headers])
        await self._send({"type": "http.response.body", "body": body, "more_body": False})

    async def json(self, status: int, value: object) -> None:
        """A JSON answer in one piece."""
        await self.whole(status, orjson.dumps(value))

    async def half(self, body: bytes, script: Script) -> None:
        """The first half of an answer, and then the connection breaks."""
        self._script = script
        await self._start(200, [(b"content-length", b"%d" % len(body)), (b"content-type", JSON)])
        await self._push(body[: len(body) // 2])
        self._cut()

    async def open(self, script: Script) -> None:
        """The head of a stream."""
        self._script = script
        await self._start(200, [(b"content-type", EVENTS)])
        await self._push(b"")  # the head goes out now, and not with the first event
        await self._mishap()

    async def chunk(self, data: bytes) -> None:
        """One chunk of a stream. Raises Over where the script ends the answer."""
        await self._push(data)
        self._chunks += 1
        await self._mishap()

    async def drop(self, how: str) -> None:
        """Closes the connection without an answer, and waits until the server has seen it."""
        if self._client is not None:
            if how == "rst":
                reset_on_close(self._client)
            # Shut for writing too it would say good-bye before the reset.
            hang_up(self._client, socket.SHUT_RD if how == "rst" else socket.SHUT_RDWR)
        await asyncio.Event().wait()

    @property
    def failing(self) -> bool:
        """Whether the script lets the engine fail here."""
        return self._script.error_after == self._chunks

    async def close(self) -> None:
        """The good end of a stream's HTTP answer."""
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _start(self, status: int, headers: list[Header]) -> None:
        await self._send(
            {"type": "http.response.start", "status": status, "headers": [*headers, *self._headers]}
        )

    async def _push(self, data: bytes) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def _mishap(self) -> None:
        script = self._script
        if script.stall_after == self._chunks:
            await asyncio.sleep(script.stall_seconds)
        if script.cut_after == self._chunks:
            self._cut()
        if script.end_after == self._chunks:
            raise Over(cut=False)

    def _cut(self) -> None:
        if self._script.cut == "rst" and self._client is not None:
            reset_on_close(self._client)
        raise Over(cut=True)


def reset_on_close(peer: tuple[str, int]) -> None:
    """Makes the connection to ``peer`` end in a reset instead of an orderly close."""
    _with_socket(
        peer, lambda found: found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    )


def hang_up(peer: tuple[str, int], how: int) -> None:
    """Closes the connection to ``peer`` under the server's feet, which then believes that the peer has left."""
    _with_socket(peer, lambda found: found.shutdown(how))


def _with_socket(peer: tuple[str, int], do: Callable[[socket.socket], None]) -> None:
    """The server does not hand out its sockets, so the one to this peer is looked for among the open descriptors."""
    for entry in Path("/dev/fd").iterdir():
        try:
            copy = os.dup(int(entry.name))
        except OSError:
            continue
        try:
            found = socket.socket(fileno=copy)
        except OSError:
            os.close(copy)
            continue
        with (
            found,
            contextlib.suppress(OSError, TypeError),
        ):  # not connected, or of a family without addresses
            if found.getpeername()[:2] == peer:
                do(found)
