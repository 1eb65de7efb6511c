"""Collecting a request body: bounded in size and in time without progress, and never in the way of running streams."""

import asyncio
from dataclasses import dataclass

from foreword._core import Body
from foreword.asgi import Receive, Scope
from foreword.turns import Turns

#: Room made at once for a body that states its length: to grow would copy it. A lie costs no more than this, and of
#: memory nothing: the system gives pages when they are filled.
_PRESIZE_AT_MOST = 32 * 1024 * 1024

#: From so many bytes on, a body's chunks come by turns. granian's are up to 400 KB then, each made with the GIL held.
_LARGE = 64 * 1024


@dataclass(frozen=True, slots=True)
class BodyRefused(Exception):
    """The body did not come whole: a kind and a detail of ``_core.fault``."""

    kind: str
    detail: str


class ClientLeft(Exception):
    """The client closed its connection before its body was complete."""


class Closing:
    """Breaks off all bodies under collection, and those that begin later, once it is told."""

    def __init__(self) -> None:
        self.told = False
        #: Of the bodies under collection: each expires at once when it is told.
        self.clocks: set[asyncio.Timeout] = set()

    def tell(self) -> None:
        self.told = True
        for clock in self.clocks:
            if not clock.expired():
                clock.reschedule(0)


async def collect(
    scope: Scope, receive: Receive, limit: int, seconds: float, turns: Turns, *, closing: Closing, json: bool
) -> Body:
    """Reads the whole body into Rust, or what has come of it when ``closing`` is told.

    ``limit`` is in bytes as sent; ``seconds`` is how long the client may pause; ``json`` is whether the core will read
    it. Of all large bodies that share ``turns``, one asks granian for a chunk at a time; nobody has the turn while a
    client pauses.

    Raises BodyRefused (too large, too slow) and ClientLeft.
    """
    stated = _content_length(scope)
    if stated > limit:
        raise _too_large(limit)
    body = Body(min(stated, _PRESIZE_AT_MOST), json)
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(seconds) as clock:
            closing.clocks.add(clock)
            try:
                while not closing.told:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ClientLeft
                    # Taken out: its memory is the next chunk's, not held until that has come.
                    length = body.push(message.pop("body", b""))
                    if length > limit:
                        raise _too_large(limit)
                    if not message.get("more_body", False):
                        return body
                    # What is not asked for, granian does not make.
                    if length >= _LARGE and (turn := turns.take()) is not None:
                        clock.reschedule(None)  # the client does not pause now
                        await turn
                    clock.reschedule(loop.time() + seconds)
            finally:
                closing.clocks.discard(clock)
    except TimeoutError:
        if not closing.told:
            raise BodyRefused("slow_body", f"{seconds:.0f}") from None
    return body


def _too_large(limit: int) -> BodyRefused:
    return BodyRefused("too_large", str(limit))


def _content_length(scope: Scope) -> int:
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            return int(value)
    return 0
