"""An HTTP/1.0 server, because Strata's is one: each reply ends with its connection, and nothing is chunked.

What it serves is an ASGI application. A client's leaving is told to it at once; an application that returns before its
answer is whole lets the connection break there.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any, Final

App = Callable[
    [dict[str, Any], Callable[[], Awaitable[Any]], Callable[[Any], Awaitable[None]]], Awaitable[None]
]

_MOST_HEAD: Final = 64 * 1024


class Server:
    """Serves until ``stop``."""

    def __init__(self, app: App, host: str, port: int) -> None:
        self._app = app
        self._host = host
        self._port = port
        self._stopped = asyncio.Event()

    def stop(self) -> None:
        """Ends ``serve``; connections that are open break."""
        self._stopped.set()

    async def serve(self) -> None:
        server = await asyncio.start_server(
            self._connection, self._host, self._port, limit=_MOST_HEAD, backlog=1024
        )
        await self._stopped.wait()
        server.close()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            try:
                scope = _scope(await reader.readuntil(b"\r\n\r\n"), writer.get_extra_info("peername"))
                if scope is None:
                    writer.write(b"HTTP/1.0 400 Bad Request\r\nconnection: close\r\n\r\n")
                else:
                    await _Exchange(reader, writer).run(self._app, scope)
                await writer.drain()
            finally:
                writer.close()


class _Exchange:
    """One request and its reply, between the application and the socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._body: bytes | None = None

    async def run(self, app: App, scope: dict[str, Any]) -> None:
        headers = dict(scope["headers"])
        length = headers.get(b"content-length", b"0")
        if b"transfer-encoding" in headers or not length.isdigit():
            self._writer.write(b"HTTP/1.0 411 Length Required\r\nconnection: close\r\n\r\n")
            return
        self._body = await self._reader.readexactly(int(length))
        await app(scope, self._receive, self._send)

    async def _receive(self) -> dict[str, Any]:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        with contextlib.suppress(OSError):
            while await self._reader.read(4096):
                pass  # a second request on this connection is never answered
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            status = message["status"]
            lines = [b"HTTP/1.0 %d %s" % (status, HTTPStatus(status).phrase.encode())]
            lines += [name + b": " + value for name, value in message["headers"]]
            self._writer.write(b"\r\n".join([*lines, b"", b""]))
        else:
            self._writer.write(message["body"])
            await self._writer.drain()


def _scope(head: bytes, client: tuple[Any, ...] | None) -> dict[str, Any] | None:
    """ASGI's description of a request; None for what is no HTTP."""
    first, *lines = head[:-4].split(b"\r\n")
    words = first.split(b" ")
    if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
        return None
    path, _, query = words[1].partition(b"?")
    fields = [line.partition(b":") for line in lines]
    return {
        "type": "http",
        "method": words[0].decode("latin-1"),
        "path": path.decode("latin-1"),
        "query_string": query,
        "headers": [(name.strip().lower(), value.strip()) for name, _, value in fields],
        "client": tuple(client[:2]) if client else None,
    }
