"""Collecting a request body: bounded in size and in time without progress."""

import asyncio
from dataclasses import dataclass

from foreword._core import Body
from foreword.asgi import Receive, Scope

#: Room made at once for a body that states its length; a lie costs no more than this.
_PRESIZE_AT_MOST = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class BodyRefused(Exception):
    """The body did not come whole: a kind and a detail of ``_core.fault``."""

    kind: str
    detail: str


class ClientLeft(Exception):
    """The client closed its connection before its body was complete."""


async def collect(scope: Scope, receive: Receive, limit: int, seconds: float) -> Body:
    """Reads the whole body into Rust.

    ``limit`` is in bytes as sent; ``seconds`` is how long the client may pause.

    Raises BodyRefused (too large, too slow) and ClientLeft.
    """
    stated = _content_length(scope)
    if stated > limit:
        raise _too_large(limit)
    body = Body(min(stated, _PRESIZE_AT_MOST))
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(seconds) as clock:
            coming = receive()
            while True:
                message = await coming
                if message["type"] == "http.disconnect":
                    raise ClientLeft
                more = message.get("more_body", False)
                if more:
                    # granian reads on while this chunk is copied.
                    coming = receive()
                chunk = message.get("body", b"")
                if chunk and body.push(chunk) > limit:
                    raise _too_large(limit)
                if not more:
                    return body
                clock.reschedule(loop.time() + seconds)
    except TimeoutError:
        raise BodyRefused("slow_body", f"{seconds:.0f}") from None


def _too_large(limit: int) -> BodyRefused:
    return BodyRefused("too_large", str(limit))


def _content_length(scope: Scope) -> int:
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            return int(value)
    return 0
