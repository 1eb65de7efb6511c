"""Turns at the event loop: one an iteration, first come first served, whoever gives up."""

import asyncio

from foreword.turns import Turns


async def have(turns: Turns) -> None:
    if (turn := turns.take()) is not None:
        await turn


def test_nobody_waits_where_nobody_else_is() -> None:
    async def run() -> None:
        turns = Turns()
        for _ in range(5):
            assert turns.take() is None
            await asyncio.sleep(0)

    asyncio.run(run())


def test_one_has_its_turn_an_iteration_in_the_order_of_asking() -> None:
    async def run() -> None:
        turns = Turns()
        iteration = 0
        had: list[tuple[int, str]] = []

        async def part(name: str) -> None:
            for _ in range(3):
                await have(turns)
                had.append((iteration, name))
                await asyncio.sleep(0)  # as the network lets it wait: all others have asked

        parts = asyncio.gather(*map(part, "abcd"))
        while not parts.done():
            iteration += 1
            await asyncio.sleep(0)
        iterations = [number for number, _ in had]
        assert len(set(iterations)) == len(iterations)
        assert "".join(name for _, name in had) == "abcd" * 3

    asyncio.run(run())


def test_who_gives_up_holds_up_nobody() -> None:
    async def run() -> None:
        turns = Turns()
        assert turns.take() is None
        waiting = [asyncio.create_task(have(turns)) for _ in range(4)]
        await asyncio.sleep(0)
        waiting[0].cancel()  # has been given its turn by now, or is about to be
        waiting[2].cancel()  # still waits
        async with asyncio.timeout(10):
            results = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(result) for result in results[1::2]] == [type(None)] * 2
        assert isinstance(results[2], asyncio.CancelledError)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert turns.take() is None

    asyncio.run(run())
