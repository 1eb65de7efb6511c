"""Joins the engine's log lines with exchanges, where the log is the only place that tells what was reused.

A line names the size of a prompt and what was generated, an exchange knows both; neither knows the other. What fits
exactly one is joined. What fits several is joined only when it makes no difference which; else it is told to be
ambiguous, and the count stays unknown.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

from foreword.engines.loglines import PromptRead

WAIT_SECONDS = 3.0
"""How long an exchange waits for its line."""
KEEP_SECONDS = 30.0
"""How long a line waits for its exchange: a slow client may take its last bytes late."""
SLACK_SECONDS = 0.5
"""Between a line's writing and its reading, and between two clocks."""
NEAR_SECONDS = 1.0
"""An engine writes its line when it has sent its last byte: an exchange ends so soon after it."""
_MOST = 512
"""Of what is kept of each kind."""
_CROWD = 32
"""So many of one size are told apart at the end of their time only."""


class Settler(Protocol):
    """Closes a pending record: the part of the Rust core that the joiner needs."""

    def settle(self, request_id: str, cached: int | None) -> bytes | None:
        """The final record; None when the id is not known."""
        ...


@dataclass(slots=True, eq=False)
class _Waiting:
    request_id: str
    tokens: int | None
    generated: int | None
    began: float
    ended: float


@dataclass(slots=True, eq=False)
class _Line:
    read: PromptRead
    at: float


class Joiner:
    """Everything that waits: exchanges for their lines, and lines for their exchanges. Times are of one clock."""

    def __init__(
        self,
        settler: Settler,
        final: Callable[[bytes], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``final`` gets each record that was closed."""
        self._settler = settler
        self._final = final
        self._clock = clock
        # In the order of arrival; exchanges of unknown size under None.
        self._waiting: dict[int | None, list[_Waiting]] = {}
        self._lines: dict[int, list[_Line]] = {}
        self._order: deque[_Waiting] = deque()
        self._arrivals: deque[_Line] = deque()
        self._gone: deque[_Waiting] = deque(maxlen=_MOST)
        self.counts: dict[str, int] = dict.fromkeys(
            ("joined", "ambiguous", "unmatched", "late", "unclaimed"), 0
        )
        """joined; ambiguous: several fitted and disagreed; unmatched: no line came in time; late: a line came after
        its exchange had given up; unclaimed: lines that no exchange asked for."""

    def __len__(self) -> int:
        """Exchanges that wait."""
        return len(self._order)

    def pending(self, record: Mapping[str, object]) -> None:
        """An exchange has ended and waits for its line."""
        usage = record.get("usage")
        told = usage if isinstance(usage, dict) else {}
        now = self._clock()
        duration = record.get("duration_seconds")
        lasted = float(duration) if isinstance(duration, (int, float)) else 0.0
        waiting = _Waiting(
            str(record.get("request_id")),
            _count(told.get("prompt_tokens")),
            _count(told.get("completion_tokens")),
            now - lasted,
            now,
        )
        if len(self._order) >= _MOST:
            self._give_up(self._order[0])
        self._order.append(waiting)
        self._waiting.setdefault(waiting.tokens, []).append(waiting)
        self._resolve(waiting.tokens)

    def line(self, read: PromptRead) -> None:
        """The engine's log tells of a prompt."""
        line = _Line(read, self._clock())
        expected = self._waiting.get(read.tokens) or self._waiting.get(None)
        if not expected:
            gone = next(
                (gone for gone in self._gone if gone.tokens == read.tokens and _fits(gone, line)), None
            )
            if gone is not None:
                self._gone.remove(gone)
                self.counts["late"] += 1
                return
        if len(self._arrivals) >= _MOST:
            self._drop(self._arrivals[0])
            self.counts["unclaimed"] += 1
        self._arrivals.append(line)
        self._lines.setdefault(read.tokens, []).append(line)
        self._resolve(read.tokens)

    def tick(self) -> None:
        """Gives up what waited too long; to be called a few times a second while `len` is not 0."""
        now = self._clock()
        while self._order and now - self._order[0].ended >= WAIT_SECONDS:
            self._give_up(self._order[0])
        while self._arrivals and now - self._arrivals[0].at > KEEP_SECONDS:
            self._drop(self._arrivals[0])
            self.counts["unclaimed"] += 1
        while self._gone and now - self._gone[0].ended > KEEP_SECONDS:
            self._gone.popleft()

    def give_up(self) -> None:
        """Closes everything that waits, as at the end of the process."""
        while self._order:
            self._give_up(self._order[0])

    def _resolve(self, tokens: int | None) -> None:
        """Joins what is certain by now, of this size and of those that do not know theirs."""
        for size in dict.fromkeys((tokens, None)):
            joined = True
            while joined:
                joined = self._join_one(self._waiting.get(size, []))

    def _join_one(self, group: list[_Waiting]) -> bool:
        if not group or len(group) > _CROWD:
            return False
        found = [(waiting, self._candidates(waiting)) for waiting in group]
        for waiting, lines in found:
            if not lines or len(lines) > _CROWD:
                continue
            rivals = sum(1 for _, others in found if any(line in others for line in lines))
            # Each of them gets one, and all say the same: whose is whose makes no difference. A line from well before
            # the end may be another's, so there a better one may still come.
            if len(lines) < rivals or not _agree(lines) or not all(_near(waiting, line) for line in lines):
                continue
            if len(lines) == rivals or all(_same_length(waiting, line) for line in lines):
                self._take(waiting, lines[0])
                return True
        return False

    def _give_up(self, waiting: _Waiting) -> None:
        lines = self._candidates(waiting)
        if not lines:
            self._close(waiting, None, "unmatched")
            self._gone.append(waiting)
        elif _agree(lines):
            self._take(waiting, lines[0])
        else:
            self._drop(lines[0])
            self._close(waiting, None, "ambiguous")

    def _candidates(self, waiting: _Waiting) -> list[_Line]:
        """The lines that may be the exchange's: of those that fit, the ones that fit best."""
        if waiting.tokens is None:  # what fits another by its size is the other's
            lines = [line for line in self._arrivals if not self._waiting.get(line.read.tokens)]
        else:
            lines = self._lines.get(waiting.tokens, [])
        lines = [line for line in lines if _fits(waiting, line)]
        for better in (_same_length, _near):
            lines = [line for line in lines if better(waiting, line)] or lines
        return lines

    def _take(self, waiting: _Waiting, line: _Line) -> None:
        self._drop(line)
        self._close(waiting, line.read.reused, "joined")

    def _drop(self, line: _Line) -> None:
        self._arrivals.remove(line)
        _remove(self._lines, line.read.tokens, line)

    def _close(self, waiting: _Waiting, cached: int | None, how: str) -> None:
        self._order.remove(waiting)
        _remove(self._waiting, waiting.tokens, waiting)
        self.counts[how] += 1
        record = self._settler.settle(waiting.request_id, cached)
        if record is not None:
            self._final(record)


_Key = TypeVar("_Key")
_Item = TypeVar("_Item")


def _remove(groups: dict[_Key, list[_Item]], key: _Key, item: _Item) -> None:
    groups[key].remove(item)
    if not groups[key]:
        del groups[key]


def _fits(waiting: _Waiting, line: _Line) -> bool:
    """Whether the line may be the exchange's by its time: written while it ran or soon after."""
    return waiting.began - SLACK_SECONDS <= line.at


def _same_length(waiting: _Waiting, line: _Line) -> bool:
    """Whether both generated the same (an engine may count its end mark or not)."""
    told, generated = waiting.generated, line.read.generated
    return told is not None and generated is not None and abs(told - generated) <= 1


def _near(waiting: _Waiting, line: _Line) -> bool:
    """Whether the line came about when the exchange ended, or after it."""
    return line.at >= waiting.ended - NEAR_SECONDS


def _agree(lines: list[_Line]) -> bool:
    """Whether there are lines, and all of them tell the same."""
    return len({line.read.reused for line in lines}) == 1


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
