"""Turns at the event loop: of many who are ready, one an iteration."""

import asyncio
from collections import deque


class Turns:
    """One turn an iteration of the loop, in the order of asking.

    Between two turns the loop looks at its descriptors, so that whatever runs beside never waits for more than one.
    """

    def __init__(self) -> None:
        self._taken = False
        self._waiting: deque[asyncio.Future[None]] = deque()

    def take(self) -> asyncio.Future[None] | None:
        """Takes this iteration's turn: None. If another has it, what to wait for; who waits may be cancelled."""
        loop = asyncio.get_running_loop()
        if self._taken:
            turn = loop.create_future()
            self._waiting.append(turn)
            return turn
        self._taken = True
        loop.call_soon(self._next, loop)
        return None

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                loop.call_soon(self._next, loop)
                return
        self._taken = False
