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
    """Whether a turn may be given, and what was told when that was asked last."""

    def __init__(self) -> None:
        self.is_open = True
        self.told = (-1, -1.0, False)

    def __call__(self, number: int, waited: float, many: bool) -> bool:
        self.told = (number, waited, many)
        return self.is_open


async def have(turns: Turns, number: int, left: int = 1) -> None:
    if (turn := turns.take(number, left)) is not None:
        await turn


def test_nobody_waits_where_nobody_else_is() -> None:
    async def test() -> None:
        turns = Turns(Gate())
        assert [turns.take(1, 9) for _ in range(3)] == [None] * 3
        turns.give_back(1)
        assert turns.take(2, 9) is None

    run(test)


def test_who_has_the_least_to_come_is_whole_before_the_next() -> None:
    async def test() -> None:
        turns = Turns(Gate())
        had: list[str] = []

        async def part(name: str, chunks: int) -> None:
            number = ord(name)
            for left in reversed(range(chunks)):
                await have(turns, number, left * 10**9)
                had.append(name)
                await asyncio.sleep(0)  # as a chunk lets it wait: all others have asked
            turns.leave(number)

        await asyncio.gather(part("a", 5), part("b", 3), part("c", 3), part("d", 1))
        # The turn is not taken from a, who had it first.
        assert "".join(had) == "a" + "d" + "bbb" + "ccc" + "aaaa"

    run(test)


def test_nobody_waits_for_ever_behind_smaller_ones() -> None:
    async def test() -> None:
        turns = Turns(Gate())
        assert turns.take(1, 1) is None
        large = turns.take(2, 10_000)
        await asyncio.sleep(0.01)
        small = turns.take(3, 0)
        assert large is not None
        assert small is not None
        turns.leave(1)
        await large
        assert not small.done()

    run(test)


def test_who_gives_up_holds_up_nobody() -> None:
    async def test() -> None:
        turns = Turns(Gate())
        assert turns.take(0, 1) is None
        waiting = [asyncio.create_task(have(turns, number)) for number in range(1, 5)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        waiting[2].cancel()
        turns.leave(0)
        await waiting[1]
        turns.leave(2)
        await waiting[3]
        assert waiting[0].cancelled()
        assert waiting[2].cancelled()
        turns.leave(4)
        assert turns.take(5, 1) is None

    run(test)


def test_to_give_back_what_one_has_not_is_nothing() -> None:
    async def test() -> None:
        turns = Turns(Gate())
        assert turns.take(1, 9) is None
        turn = turns.take(2, 9)
        assert turn is not None
        turns.give_back(2)
        assert not turn.done()

    run(test)


def test_who_sends_nothing_loses_the_turn() -> None:
    async def test() -> None:
        turns = Turns(Gate())
        pausing, other = 1, 2
        assert turns.take(pausing, 1) is None
        await have(turns, other)
        # Its chunk has come after all: it is none of the other's business.
        turns.give_back(pausing)
        third = turns.take(3, 1)
        assert third is not None
        await asyncio.sleep(0)
        assert not third.done()

    run(test)


def test_who_has_lost_a_turn_takes_none_while_it_is_slow() -> None:
    async def test() -> None:
        turns = Turns(Gate())
        slow, other = 1, 2
        assert turns.take(slow, 1) is None
        await have(turns, other, 50)
        for _ in range(3):
            assert turns.take(slow, 1) is None
            await asyncio.sleep(0.03)  # as its client lets it wait
        # It has not taken the other one's turn.
        turns.leave(other)
        assert turns.take(other, 50) is None
        assert turns.take(slow, 1) is None
        # What comes at once makes it one of the others again.
        turn = turns.take(slow, 1)
        assert turn is not None
        turns.leave(other)
        await turn

    run(test)


@pytest.mark.parametrize("held", [False, True])
def test_a_turn_is_given_when_it_may_be(held: bool) -> None:
    async def test() -> None:
        gate = Gate()
        turns = Turns(gate)
        if held:
            assert turns.take(1, 9) is None
        gate.is_open = False
        turn = turns.take(2, 9)
        turns.give_back(1)
        assert turn is not None
        await asyncio.sleep(0.02)
        assert not turn.done()
        number, waited, many = gate.told
        assert (number, many) == (2, False)
        assert waited >= 0.01  # since nobody has moved
        other = turns.take(3, 9)
        assert other is not None
        await asyncio.sleep(0.02)
        assert gate.told[2]
        gate.is_open = True
        await turn

    run(test)
