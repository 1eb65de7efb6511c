"""Asks an engine without the Rust core: for commands that run beside no sidecar. One connection a question."""

import asyncio
import http.client
import socket
import ssl
from typing import NamedTuple
from urllib.parse import urlsplit

from foreword.asking import why
from foreword.engines.base import FetchError


class DirectAnswer(NamedTuple):
    """Status, headers and body."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class Direct:
    """A `Fetch` that opens a connection for each question. ``timeout`` is seconds, for each step on the wire."""

    def __init__(self, upstream: str, key: str | None, timeout: float = 60.0) -> None:
        self._upstream = upstream
        self._key = key
        self._timeout = timeout

    async def __call__(self, method: str, path: str, body: bytes | None = None) -> DirectAnswer:
        """Raises FetchError when the engine cannot be reached or breaks off."""
        try:
            return await asyncio.to_thread(self._ask, method, path, body)
        except (OSError, http.client.HTTPException) as error:
            raise FetchError(why(error)) from error

    def _ask(self, method: str, path: str, body: bytes | None) -> DirectAnswer:
        connection, prefix = self._connect()
        headers = {"content-type": "application/json"} if body is not None else {}
        if self._key is not None:
            headers["authorization"] = f"Bearer {self._key}"
        try:
            connection.request(method, prefix + path, body, headers)
            answer = connection.getresponse()
            names = [
                (name.lower().encode("latin-1"), value.encode("latin-1"))
                for name, value in answer.getheaders()
            ]
            return DirectAnswer(answer.status, names, answer.read())
        finally:
            connection.close()

    def _connect(self) -> tuple[http.client.HTTPConnection, str]:
        if self._upstream.startswith("unix:"):
            return _UnixConnection(self._upstream.removeprefix("unix:"), self._timeout), ""
        parts = urlsplit(self._upstream)
        host = parts.hostname or ""
        if parts.scheme == "https":
            secure = http.client.HTTPSConnection(
                host, parts.port, timeout=self._timeout, context=ssl.create_default_context()
            )
            return secure, parts.path
        return http.client.HTTPConnection(host, parts.port, timeout=self._timeout), parts.path
