"""Turns of large bodies: of many that come at once, one is given a chunk at a time."""

import asyncio
import heapq
import itertools
from collections import deque
from collections.abc import Callable

from foreword._core import Body

#: How long a turn is kept for a client that sends nothing, in seconds.
_KEEP = 0.02

#: Of so many turns in a row, at most, those that have lost theirs wait.
_ROW = 8

#: Between two looks whether the next turn may be given, in seconds.
_LOOK = 0.001


class Turns:
    """Of all large bodies one asks granian for its next chunk at a time, and of those that wait the one that has the
    least to come.

    So one is whole, and its memory used again, before the others have grown, and none waits for larger ones; what is
    not asked for waits in the kernel, where it costs nothing. Bodies that have lost their turns have one now and then,
    in the order in which they ask: else a few clients that pause would have every turn, and pass most of it in silence.
    ``may_come`` says whether a chunk may be asked for when none was for so many seconds.
    """

    def __init__(self, may_come: Callable[[float], bool] = Body.may_come) -> None:
        self._may_come = may_come
        self._numbers = itertools.count()
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        #: Of those that have lost their last turn, who waits.
        self._behind: deque[tuple[int, asyncio.Future[None]]] = deque()
        #: Turns since one of them had one.
        self._row = 0
        self._holder: int | None = None
        #: Who has lost the last turn.
        self._pausing: set[int] = set()
        self._keeping: asyncio.TimerHandle | None = None
        #: When the last turn was given, by the loop's clock.
        self._given = 0.0
        self._looks = False

    def enter(self) -> int:
        """The number of a body that begins."""
        return next(self._numbers)

    def take(self, number: int, left: int) -> asyncio.Future[None] | None:
        """Takes the next turn for a body of which ``left`` bytes are to come: None. If it is not to be had, what to
        wait for; who waits may be cancelled.
        """
        loop = asyncio.get_running_loop()
        self._end(number)
        if not self._waiting and not self._behind and self._is_free(loop):
            self._give(number, loop)
            return None
        turn = loop.create_future()
        if number in self._pausing:
            self._behind.append((number, turn))
        else:
            heapq.heappush(self._waiting, (left, number, turn))
        self._next(loop)
        return turn

    def give_back(self, number: int) -> None:
        """Ends the turn of this body, if it has it. A client that sends nothing for a while has lost it by then."""
        if self._end(number):
            self._next(asyncio.get_running_loop())

    def leave(self, number: int) -> None:
        """Ends the turn of this body, which asks for none any more."""
        self._pausing.discard(number)
        self.give_back(number)

    def _lose(self, number: int) -> None:
        """Takes the turn from this body, which has it. The chunk that it has asked for comes all the same."""
        self.give_back(number)
        self._pausing.add(number)

    def _end(self, number: int) -> bool:
        has_it = self._holder == number
        if has_it:
            self._holder = None
            self._pausing.discard(number)
            if self._keeping is not None:
                self._keeping.cancel()
        return has_it

    def _is_free(self, loop: asyncio.AbstractEventLoop) -> bool:
        return self._holder is None and self._may_come(max(0.0, loop.time() - self._given))

    def _give(self, number: int, loop: asyncio.AbstractEventLoop) -> None:
        self._holder, self._given = number, loop.time()
        self._keeping = loop.call_later(_KEEP, self._lose, number)

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        """Gives the turn to the first who waits, at once or as soon as may be."""
        while self._waiting and self._waiting[0][2].done():
            heapq.heappop(self._waiting)
        while self._behind and self._behind[0][1].done():
            self._behind.popleft()
        if self._holder is not None or not (self._waiting or self._behind):
            return
        if self._is_free(loop):
            if self._behind and (not self._waiting or self._row >= _ROW):
                self._row = 0
                number, turn = self._behind.popleft()
            else:
                self._row += 1
                _, number, turn = heapq.heappop(self._waiting)
            self._give(number, loop)
            turn.set_result(None)
        elif not self._looks:
            self._looks = True
            loop.call_later(_LOOK, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        self._looks = False
        self._next(loop)
