"""Times as users write them."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime

from foreword.doctor.errors import DoctorError

_AGO = re.compile(r"(\d+)\s*(s|m|h|d|w)")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


@dataclass(frozen=True, slots=True)
class Window:
    """A span of time, seconds since 1970: from ``since`` on, before ``until``. None: open."""

    since: float | None = None
    until: float | None = None

    def sql(self, column: str = "time") -> str:
        """A condition."""
        terms = []
        if self.since is not None:
            terms.append(f"{column} >= {self.since!r}")
        if self.until is not None:
            terms.append(f"{column} < {self.until!r}")
        return " AND ".join(terms) or "TRUE"


def parse_time(text: str, now: float) -> float:
    """``text`` in seconds since 1970: a date or date and time (UTC unless it names a zone), seconds since 1970, or
    how long ago (``90m``, ``24h``, ``7d``). Raises DoctorError."""
    stripped = text.strip()
    if ago := _AGO.fullmatch(stripped):
        return now - int(ago[1]) * _SECONDS[ago[2]]
    if re.fullmatch(r"\d{9,}(\.\d+)?", stripped):
        return float(stripped)
    try:
        moment = datetime.fromisoformat(stripped)
    except ValueError:
        raise DoctorError(
            f"{text!r} is no time: give a date (2026-08-17), a date and time (2026-08-17T09:30), seconds since 1970,"
            " or how long ago (90m, 24h, 7d)"
        ) from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def parse_range(text: str, now: float) -> Window | None:
    """``FROM..TO`` as a window (either side may be empty), None if ``text`` is no range. Raises DoctorError."""
    since, dots, until = text.partition("..")
    if not dots or "/" in text:
        return None
    return Window(parse_time(since, now) if since else None, parse_time(until, now) if until else None)
