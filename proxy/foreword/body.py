"""Collecting a request body: bounded in size and in time without progress, and never in the way of running streams."""

import asyncio
from dataclasses import dataclass

from foreword._core import Body
from foreword.asgi import Receive, Scope
from foreword.turns import Turns

#: Room made at once for a body that states its length: to grow would copy it. A lie costs no more than this, and of
#: memory nothing: the system gives pages when they are filled.
_PRESIZE_AT_MOST = 32 * 1024 * 1024

#: Behind a chunk of so many bytes, the next one is asked for by turns: its client sends faster than is read here.
#: granian's are up to 400 KB then, each made with the GIL held.
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
    it. Bodies whose clients send faster than is read here share ``turns``.

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
                    chunk = message.pop("body", b"")
                    come = body.push(chunk)
                    if come > limit:
                        raise _too_large(limit)
                    if not message.get("more_body", False):
                        return body
                    is_large = len(chunk) >= _LARGE
                    del chunk
                    # One that states no length is taken to be at its half.
                    left = max(stated - come, 0) if stated else come
                    if not is_large:
                        turns.give_back(body.number)
                    elif (turn := turns.take(body.number, left)) is not None:
                        clock.reschedule(None)  # the client does not pause now
                        await turn
                    clock.reschedule(loop.time() + seconds)
            finally:
                closing.clocks.discard(clock)
                turns.leave(body.number)
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
