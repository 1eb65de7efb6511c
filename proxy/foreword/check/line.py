"""One line of the preflight's report."""

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warn", "fail"]
"""warn: something is not as good as it could be, or could not be found out. fail: a warm cache will not come of it."""


@dataclass(frozen=True, slots=True)
class Line:
    """What was looked at, and what came out."""

    name: str
    level: Level
    value: object
    """For machines; None where it could not be found out."""
    text: str
    todo: str | None = None
    """The one thing to do about it."""
