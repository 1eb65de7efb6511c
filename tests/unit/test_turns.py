"""Turns of large bodies: one at a time, first come first served, whoever gives up or sends nothing."""

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


async def have(turns: Turns, number: int) -> None:
    if (turn := turns.take(number)) is not None:
        await turn


def test_nobody_waits_where_nobody_else_is() -> None:
    async def test() -> None:
        turns = Turns(Gate())
        number = turns.enter()
        assert [turns.take(number) for _ in range(3)] == [None] * 3
        turns.give_back(number)
        assert turns.take(turns.enter()) is None

    run(test)


def test_who_began_first_has_all_turns_before_the_next() -> None:
    async def test() -> None:
        turns = Turns(Gate())
        had: list[str] = []

        async def part(name: str, number: int) -> None:
            for _ in range(3):
                await have(turns, number)
                had.append(name)
                await asyncio.sleep(0)  # as a chunk lets it wait: all others have asked
            turns.give_back(number)

        numbers = {name: turns.enter() for name in "abcd"}
        await asyncio.gather(*(part(name, numbers[name]) for name in "badc"))
        # The turn is not taken from b, who had it first.
        assert "".join(had) == "b" + "aaa" + "bb" + "ccc" + "ddd"

    run(test)


def test_who_gives_up_holds_up_nobody() -> None:
    async def test() -> None:
        turns = Turns(Gate())
        numbers = [turns.enter() for _ in range(5)]
        assert turns.take(numbers[0]) is None
        waiting = [asyncio.create_task(have(turns, number)) for number in numbers[1:]]
        await asyncio.sleep(0)
        waiting[0].cancel()
        waiting[2].cancel()
        turns.give_back(numbers[0])
        await waiting[1]
        turns.give_back(numbers[2])
        await waiting[3]
        assert waiting[0].cancelled() and waiting[2].cancelled()
        turns.give_back(numbers[4])
        assert turns.take(turns.enter()) is None

    run(test)


def test_to_give_back_what_one_has_not_is_nothing() -> None:
    async def test() -> None:
        turns = Turns(Gate())
        first, second = turns.enter(), turns.enter()
        assert turns.take(first) is None
        turn = turns.take(second)
        assert turn is not None
        turns.give_back(second)
        assert not turn.done()

    run(test)


def test_who_sends_nothing_loses_the_turn() -> None:
    async def test() -> None:
        turns = Turns(Gate())
        pausing, other = turns.enter(), turns.enter()
        assert turns.take(pausing) is None
        await have(turns, other)
        # Its chunk has come after all: it is none of the other's business.
        turns.give_back(pausing)
        third = turns.take(turns.enter())
        assert third is not None
        await asyncio.sleep(0)
        assert not third.done()

    run(test)


@pytest.mark.parametrize("held", [False, True])
def test_a_turn_is_given_when_it_may_be(held: bool) -> None:
    async def test() -> None:
        gate = Gate()
        turns = Turns(gate)
        first, second = turns.enter(), turns.enter()
        if held:
            assert turns.take(first) is None
        gate.is_open = False
        turn = turns.take(second)
        turns.give_back(first)
        assert turn is not None
        await asyncio.sleep(0.02)
        assert not turn.done()
        # It is told how long nobody has moved.
        assert gate.waited >= 0.01
        gate.is_open = True
        await turn

    run(test)
