"""Many clients at once, in one event loop: what each was sent, byte for byte."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from typing import Any


def post(path: str, body: bytes | dict[str, Any]) -> bytes:
    """A request whose connection ends with its answer."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {len(data)}\r\n\r\n"
    return head.encode() + data


def crowd(port: int, requests: Iterable[bytes], seconds: float = 60.0) -> list[bytes]:
    """Sends all requests at once, each on its own connection; the whole answers as they came."""

    async def one(request: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(request)
            return await reader.read(-1)
        finally:
            writer.close()

    async def all_of_them() -> list[bytes]:
        async with asyncio.timeout(seconds):
            return await asyncio.gather(*map(one, requests))

    return asyncio.run(all_of_them())


def body_of(answer: bytes) -> bytes:
    """The body of a chunked answer; fails where its end is missing."""
    head, _, rest = answer.partition(b"\r\n\r\n")
    assert b"transfer-encoding: chunked" in head.lower(), head
    body: list[bytes] = []
    while True:
        size, _, rest = rest.partition(b"\r\n")
        length = int(size, 16)
        if length == 0:
            assert rest == b"\r\n", rest
            return b"".join(body)
        body.append(rest[:length])
        assert rest[length : length + 2] == b"\r\n"
        rest = rest[length + 2 :]
