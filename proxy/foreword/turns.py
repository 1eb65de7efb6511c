"""Turns of large bodies: of many that come at once, one is given a chunk at a time."""

import asyncio
import heapq
from collections.abc import Callable

from foreword._core import Body

#: How long a turn is kept for a client that sends nothing, in seconds.
_KEEP = 0.02

#: To have waited for a second counts as so many bytes less to come: no body waits for ever behind smaller ones.
_BYTES_A_SECOND = 4_000_000

#: Between two looks whether the next turn may be given, in seconds.
_LOOK = 0.001


class Turns:
    """Of all large bodies one asks granian for its next chunk at a time, and of those that wait the one that has the
    least to come.

    So one is whole, and its memory used again, before the others have grown, and none waits for larger ones; what is
    not asked for waits in the kernel, where it costs nothing. Whose client let a turn go by asks without one while that
    client is so slow: else a few that pause would have every turn, and pass it in silence.

    ``may_come`` says whether the body of a number may ask, where no turn was given for so many seconds, and whether
    others wait (``Body.may_come``).
    """

    def __init__(self, may_come: Callable[[int, float, bool], bool] = Body.may_come) -> None:
        self._may_come = may_come
        #: What counts as to come, number, and what is told.
        self._waiting: list[tuple[float, int, asyncio.Future[None]]] = []
        self._holder: int | None = None
        self._keeping: asyncio.TimerHandle | None = None
        #: When the last turn was given, by the loop's clock.
        self._given = 0.0
        #: Whose clients are slow, and when they asked.
        self._slow: dict[int, float] = {}
        self._looks = False

    def take(self, number: int, left: int) -> asyncio.Future[None] | None:
        """Takes the next turn for the body of this number, of which ``left`` bytes are to come: None. If it is not to
        be had, what to wait for; who waits may be cancelled.
        """
        loop = asyncio.get_running_loop()
        if self._is_slow(number, loop.time()):
            return None
        self._end(number)
        if not self._waiting and self._is_free(number, loop):
            self._give(number, loop)
            return None
        turn = loop.create_future()
        heapq.heappush(self._waiting, (left + _BYTES_A_SECOND * loop.time(), number, turn))
        self._next(loop)
        return turn

    def give_back(self, number: int) -> None:
        """Ends the turn of this body, if it has it."""
        if self._end(number):
            self._next(asyncio.get_running_loop())

    def leave(self, number: int) -> None:
        """This body asks for nothing more."""
        self._slow.pop(number, None)
        self.give_back(number)

    def _is_slow(self, number: int, now: float) -> bool:
        """Whether the chunk that has just come took longer than a turn; then the next one is asked for now."""
        asked = self._slow.pop(number, None)
        if asked is None or now - asked < _KEEP:
            return False
        self._slow[number] = now
        return True

    def _lose(self, number: int) -> None:
        """Takes the turn from a body whose client sends nothing. The chunk that it has asked for comes all the same."""
        self._slow[number] = self._given
        self.give_back(number)

    def _end(self, number: int) -> bool:
        has_it = self._holder == number
        if has_it:
            self._holder = None
            if self._keeping is not None:
                self._keeping.cancel()
        return has_it

    def _is_free(self, number: int, loop: asyncio.AbstractEventLoop) -> bool:
        waited = max(0.0, loop.time() - self._given)
        return self._holder is None and self._may_come(number, waited, len(self._waiting) > 1)

    def _give(self, number: int, loop: asyncio.AbstractEventLoop) -> None:
        self._holder, self._given = number, loop.time()
        self._keeping = loop.call_later(_KEEP, self._lose, number)

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        """Gives the turn to the first who waits, at once or as soon as may be."""
        while self._waiting and self._waiting[0][2].done():
            heapq.heappop(self._waiting)
        if not self._waiting or self._holder is not None:
            return
        _, number, turn = self._waiting[0]
        if self._is_free(number, loop):
            heapq.heappop(self._waiting)
            self._give(number, loop)
            turn.set_result(None)
        elif not self._looks:
            self._looks = True
            loop.call_later(_LOOK, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        self._looks = False
        self._next(loop)
