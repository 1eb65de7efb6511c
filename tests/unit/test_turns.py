"""Turns of large bodies: one at a time, the one that has the least to come first, whoever gives up or pauses."""

import asyncio
from collections.abc import Callable, Coroutine

import pytest

from foreword.turns import Turns


def run(test: Callable[[], Coroutine[None, None, None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(10):
            await test()

    asyncio.run(bounded())


class Gate:
    """Whether a turn may be given, and how long none was when that was asked last."""

    def __init__(self) -> None:
        self.is_open = True
        self.waited = -1.0

    def __call__(self, waited: float) -> bool:
        self.waited = waited
        return self.is_open


async def have(turns: Turns, number: int, left: int = 1) -> None:
    if (turn := turns.take(number, left)) is not None:
        await turn


def test_nobody_waits_where_nobody_else_is() -> None:
    async def test() -> None:
        turns = Turns(Gate())
        number = turns.enter()
        assert [turns.take(number, 1) for _ in range(3)] == [None] * 3
        turns.give_back(number)
        assert turns.take(turns.enter(), 1) is None

    run(test)


def test_who_has_the_least_to_come_is_whole_before_the_next() -> None:
    async def test() -> None:
        turns = Turns(Gate())
        had: list[str] = []

        async def part(name: str, chunks: int) -> None:
            number = turns.enter()
            for left in reversed(range(chunks)):
                await have(turns, number, left)
                had.append(name)
                await asyncio.sleep(0)  # as a chunk lets it wait: all others have asked
            turns.give_back(number)

        await asyncio.gather(part("a", 5), part("b", 3), part("c", 3), part("d", 1))
        # The turn is not taken from a, who had it first.
        assert "".join(had) == "a" + "d" + "bbb" + "ccc" + "aaaa"

    run(test)


def test_who_gives_up_holds_up_nobody() -> None:
    async def test() -> None:
        turns = Turns(Gate())
        numbers = [turns.enter() for _ in range(5)]
        assert turns.take(numbers[0], 1) is None
        waiting = [asyncio.create_task(have(turns, number)) for number in numbers[1:]]
        await asyncio.sleep(0)
        waiting[0].cancel()
        waiting[2].cancel()
        turns.give_back(numbers[0])
        await waiting[1]
        turns.give_back(numbers[2])
        await waiting[3]
        assert waiting[0].cancelled()
        assert waiting[2].cancelled()
        turns.give_back(numbers[4])
        assert turns.take(turns.enter(), 1) is None

    run(test)


def test_to_give_back_what_one_has_not_is_nothing() -> None:
    async def test() -> None:
        turns = Turns(Gate())
        first, second = turns.enter(), turns.enter()
        assert turns.take(first, 1) is None
        turn = turns.take(second, 1)
        assert turn is not None
        turns.give_back(second)
        assert not turn.done()

    run(test)


def test_who_sends_nothing_loses_the_turn() -> None:
    async def test() -> None:
        turns = Turns(Gate())
        pausing, other = turns.enter(), turns.enter()
        assert turns.take(pausing, 1) is None
        await have(turns, other)
        # Its chunk has come after all: it is none of the other's business.
        turns.give_back(pausing)
        third = turns.take(turns.enter(), 1)
        assert third is not None
        await asyncio.sleep(0)
        assert not third.done()

    run(test)


def test_who_has_lost_a_turn_has_one_now_and_then() -> None:
    async def test() -> None:
        turns = Turns(Gate())
        pausing, other = turns.enter(), turns.enter()
        had: list[str] = []

        async def asks(name: str, number: int, left: int) -> None:
            await have(turns, number, left)
            had.append(name)

        # It has less to come than anyone.
        assert turns.take(pausing, 1) is None
        await have(turns, other, 50)
        again = asyncio.ensure_future(asks("pausing", pausing, 1))
        await asyncio.sleep(0)
        for left in range(20, 0, -1):
            await asks("other", other, left)
            if again.done():
                break
            await asyncio.sleep(0)  # as a chunk lets it wait
        turns.leave(other)
        await again
        assert 5 < had.index("pausing") < 10
        # What it sends in its turn makes it one of the others again.
        turns.leave(other)
        await have(turns, pausing)
        more = [turns.take(turns.enter(), 2), turns.take(pausing, 1)]
        assert [turn is not None and turn.done() for turn in more] == [False, True]

    run(test)


@pytest.mark.parametrize("held", [False, True])
def test_a_turn_is_given_when_it_may_be(held: bool) -> None:
    async def test() -> None:
        gate = Gate()
        turns = Turns(gate)
        first, second = turns.enter(), turns.enter()
        if held:
            assert turns.take(first, 1) is None
        gate.is_open = False
        turn = turns.take(second, 1)
        turns.give_back(first)
        assert turn is not None
        await asyncio.sleep(0.02)
        assert not turn.done()
        # It is told how long nobody has moved.
        assert gate.waited >= 0.01
        gate.is_open = True
        await turn

    run(test)
