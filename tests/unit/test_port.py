"""How an answer comes to its end, whatever the server's `send` does."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from foreword._core import Sidecar
from foreword.asgi import Head, Message
from foreword.port import AsgiDelivery, Port

HEAD: Head = (200, [])

Item = tuple[int, Head | None, bytes, bytes | None, tuple[Any, object] | None]


class Core:
    """Has ready what a test says, and notes what it is told."""

    def __init__(self) -> None:
        self.read, self.write = os.pipe()
        self.items: list[Item] = []
        self.told: list[str] = []

    def fileno(self) -> int:
        return self.read

    def drain(self) -> list[Item]:
        os.read(self.read, 64)
        items, self.items = self.items, []
        return items

    def send_by(self, token: int, send: object) -> None:
        self.told.append("send_by")

    def hold(self, token: int) -> None:
        self.told.append("hold")

    def release(self, token: int) -> None:
        self.told.append("release")

    def cancel(self, token: int) -> None:
        self.told.append(f"cancel {token}")


def delivery(core: Core, send: Callable[[Message], Awaitable[None]]) -> AsgiDelivery:
    loop = asyncio.get_running_loop()
    return AsgiDelivery(cast(Sidecar, core), send, lambda record: None, loop)


async def waits() -> None:
    await asyncio.sleep(0)


async def fails_late() -> None:
    await asyncio.sleep(0)
    raise RuntimeError("the client is gone")


async def is_cancelled_late() -> None:
    future = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(future.cancel)
    await future


@pytest.mark.parametrize("does", [waits, fails_late, is_cancelled_late])
@pytest.mark.parametrize("first", [0, 1, 2])
def test_an_answer_is_done_when_its_last_piece_had_to_wait(
    does: Callable[[], Awaitable[None]], first: int
) -> None:
    async def run() -> None:
        sent = 0

        async def send(_: Message) -> None:
            nonlocal sent
            sent += 1
            if sent > first:
                await does()

        answer = delivery(Core(), send)
        answer.take(HEAD, b"", None)
        answer.take(None, b"a piece", None)
        await asyncio.sleep(0.01)
        answer.take(None, b"the rest", b"{}")
        await asyncio.wait_for(answer.done, 5)

    asyncio.run(run())


def test_a_cancelled_send_does_not_keep_others_from_theirs() -> None:
    async def run() -> None:
        core = Core()
        sent: list[Message] = []

        async def send(message: Message) -> None:
            sent.append(message)

        port = Port(cast(Sidecar, core), lambda record: None)
        port.start(asyncio.get_running_loop())
        for token in (1, 2):
            port.attach(token, delivery(core, send))
        core.items = [
            (1, None, b"x", None, (None, asyncio.CancelledError())),
            (2, HEAD, b"whole", b"{}", None),
        ]
        os.write(core.write, b"x")
        await asyncio.sleep(0.05)
        port.stop()
        assert [message.get("body") for message in sent] == [None, b"whole"]
        assert core.told == ["cancel 1"]
        assert len(port) == 1

    asyncio.run(run())
