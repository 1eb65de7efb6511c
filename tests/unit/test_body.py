"""How a request body is collected: its bounds, and the turns that large ones take."""

import asyncio
import select
import socket
import time
from collections.abc import Awaitable, Callable, Iterable

import pytest

from foreword._core import Body, Sidecar
from foreword.asgi import Message, Scope
from foreword.body import BodyRefused, ClientLeft, Closing, collect
from foreword.settings import Settings
from foreword.turns import Turns

LIMIT = 10_000_000
NEVER = 3600.0
LARGE = bytes(200_000)

SCOPE: Scope = {"headers": []}


class NoTurns(Turns):
    """For those who need none."""

    def take(self, number: int, left: int) -> asyncio.Future[None] | None:
        raise AssertionError("a small body took a turn")


class LateTurns(Turns):
    """Each turn comes when others have had theirs for a while."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds

    def take(self, number: int, left: int) -> asyncio.Future[None]:
        return asyncio.ensure_future(asyncio.sleep(self._seconds))


def sends(*chunks: bytes) -> Callable[[], Awaitable[Message]]:
    """A client's ``receive``: the chunks, of which the last ends the body. Of none, nothing ever comes."""
    left = list(chunks)

    async def receive() -> Message:
        if not left:
            await asyncio.get_running_loop().create_future()
        chunk = left.pop(0)
        return {"type": "http.request", "body": chunk, "more_body": bool(left)}

    return receive


def pauses_after(*chunks: bytes) -> Callable[[], Awaitable[Message]]:
    """A client that says that there is more, and does not send it."""
    left = list(chunks)

    async def receive() -> Message:
        if not left:
            await asyncio.get_running_loop().create_future()
        return {"type": "http.request", "body": left.pop(0), "more_body": True}

    return receive


@pytest.mark.parametrize("chunks", [[b""], [b"abc"], [b"a" * 60_000, b"b"], [b"", LARGE, b"x", LARGE, b""]])
def test_all_of_a_body_is_collected(chunks: list[bytes]) -> None:
    body = asyncio.run(collect(SCOPE, sends(*chunks), LIMIT, NEVER, Turns(), closing=Closing(), json=True))
    assert len(body) == sum(map(len, chunks))


def test_a_small_body_needs_no_turn() -> None:
    for chunks in ([b"a" * 60_000], [b"a" * 1000] * 60, [LARGE]):
        asyncio.run(collect(SCOPE, sends(*chunks), LIMIT, NEVER, NoTurns(), closing=Closing(), json=True))


def test_of_many_large_bodies_one_asks_for_a_chunk_at_a_time() -> None:
    async def run() -> None:
        turns = Turns()
        stated: Scope = {"headers": [(b"content-length", str(5 * len(LARGE)).encode())]}
        asked: list[int] = []
        open_asks = 0

        def client(number: int) -> Callable[[], Awaitable[Message]]:
            receive, begun = sends(*[LARGE] * 5), False

            async def asking() -> Message:
                nonlocal begun, open_asks
                if not begun:
                    begun = True
                    return await receive()
                asked.append(number)
                open_asks += 1
                assert open_asks == 1
                await asyncio.sleep(0)  # no chunk is there at once: all others have asked
                open_asks -= 1
                return await receive()

            return asking

        bodies = await asyncio.gather(
            *(
                collect(stated, client(number), LIMIT, NEVER, turns, closing=Closing(), json=True)
                for number in range(10)
            )
        )
        # One is whole before the next goes on.
        assert asked == [number for number in range(10) for _ in range(4)]
        assert {len(body) for body in bodies} == {5 * len(LARGE)}

    asyncio.run(run())


def test_behind_a_small_chunk_none_takes_a_turn() -> None:
    """Its client sends no faster than is read: to wait for it would hold up those who do."""

    class Counted(Turns):
        taken = 0

        def take(self, number: int, left: int) -> asyncio.Future[None] | None:
            self.taken += 1
            return super().take(number, left)

    turns = Counted()
    chunks = [LARGE, b"a" * 60_000, b"a" * 60_000, LARGE, b"a"]
    asyncio.run(collect(SCOPE, sends(*chunks), LIMIT, NEVER, turns, closing=Closing(), json=True))
    assert turns.taken == 2


def test_who_pauses_or_leaves_holds_up_nobody() -> None:
    async def run() -> None:
        turns = Turns()

        def begin(receive: Callable[[], Awaitable[Message]]) -> asyncio.Task[object]:
            return asyncio.create_task(
                collect(SCOPE, receive, LIMIT, NEVER, turns, closing=Closing(), json=True)
            )

        pausing = [begin(pauses_after(LARGE)) for _ in range(3)]
        cancelled = [begin(sends(*[LARGE] * 20)) for _ in range(3)]
        others = [begin(sends(*[LARGE] * 20)) for _ in range(3)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        for task in cancelled:
            task.cancel()
        async with asyncio.timeout(10):
            await asyncio.gather(*others)
        assert not any(task.done() for task in pausing)
        for task in pausing:
            task.cancel()
        await asyncio.gather(*pausing, *cancelled, return_exceptions=True)
        # Nobody has the turn; what has come may still have to be gathered.
        async with asyncio.timeout(10):
            if (turn := turns.take(Body().number, 1)) is not None:
                await turn

    asyncio.run(run())


def test_to_wait_for_a_turn_is_no_pause_of_the_client() -> None:
    body = asyncio.run(
        collect(SCOPE, sends(*[LARGE] * 3), LIMIT, 0.05, LateTurns(0.2), closing=Closing(), json=True)
    )
    assert len(body) == 3 * len(LARGE)


@pytest.mark.parametrize("begun", [[], [b"abc"], [LARGE], [LARGE, LARGE]])
@pytest.mark.parametrize("turns", [Turns, lambda: LateTurns(0.02)])
def test_a_client_that_pauses_too_long_is_refused(begun: list[bytes], turns: Callable[[], Turns]) -> None:
    async def run() -> None:
        await collect(SCOPE, pauses_after(*begun), LIMIT, 0.01, turns(), closing=Closing(), json=True)

    with pytest.raises(BodyRefused) as refused:
        asyncio.run(run())
    assert refused.value == BodyRefused("slow_body", "0")


@pytest.mark.parametrize("stated", [[], [(b"content-length", b"400000")]])
def test_a_body_above_the_limit_is_refused(stated: list[tuple[bytes, bytes]]) -> None:
    with pytest.raises(BodyRefused) as refused:
        asyncio.run(
            collect(
                {"headers": stated},
                pauses_after(LARGE, LARGE),
                399_999,
                NEVER,
                Turns(),
                closing=Closing(),
                json=True,
            )
        )
    assert refused.value == BodyRefused("too_large", "399999")


@pytest.mark.parametrize("begun", [[], [b"abc"], [LARGE]])
def test_a_client_that_leaves_has_left(begun: Iterable[bytes]) -> None:
    left: list[Message] = [{"type": "http.request", "body": chunk, "more_body": True} for chunk in begun]
    left.append({"type": "http.disconnect"})

    async def receive() -> Message:
        return left.pop(0)

    with pytest.raises(ClientLeft):
        asyncio.run(collect(SCOPE, receive, LIMIT, NEVER, Turns(), closing=Closing(), json=True))


@pytest.mark.parametrize("begun", [[], [b"abc"], [LARGE, LARGE]])
@pytest.mark.parametrize("turns", [Turns, lambda: LateTurns(0.02)])
def test_at_the_end_what_has_come_is_enough(begun: list[bytes], turns: Callable[[], Turns]) -> None:
    async def run() -> None:
        closing = Closing()

        def begin() -> asyncio.Task[Body]:
            receive = pauses_after(*begun)
            return asyncio.create_task(
                collect(SCOPE, receive, LIMIT, NEVER, turns(), closing=closing, json=True)
            )

        pausing = begin()
        await asyncio.sleep(0.1)
        running = begin()  # has not asked for anything
        assert not pausing.done()
        closing.tell()
        closing.tell()
        async with asyncio.timeout(10):
            assert len(await pausing) == sum(map(len, begun))
            assert len(await running) == len(await begin()) == 0

    asyncio.run(run())


@pytest.mark.parametrize("waited", [-1.0, float("nan"), float("inf")])
def test_a_time_that_is_none_is_refused(waited: float) -> None:
    with pytest.raises(ValueError, match="float seconds"):
        Body.may_come(Body().number, waited, False)


def test_only_who_asks_keeps_a_large_body_waiting() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        upstream = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        sidecar = Sidecar(Settings.from_env({"FOREWORD_UPSTREAM": upstream}).core_config())

        def may_come(body: Body) -> bool:
            """Whether it may come right after a client was handed something."""
            sidecar.open("other", "POST", b"/v1/embeddings", [], Body(), "req_1", None)
            assert select.select([sidecar.fileno()], [], [], 10)[0]
            may_come = Body.may_come(body.number, 0.0, False)
            sidecar.drain()
            return may_come

        time.sleep(0.06)  # who asked before this test is forgotten
        one, other = Body(len(LARGE)), Body(len(LARGE))
        other.push(LARGE)
        assert all(may_come(one) for _ in range(10))
        assert not all(may_come(body) for _ in range(5) for body in (one, other))
