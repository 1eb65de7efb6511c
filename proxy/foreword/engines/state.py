"""What is known of the engine now. Written by the watch, read by health and metrics."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class EngineState:
    """The engine as of the last probe."""

    kind: str
    version: str | None = None
    reachable: bool = False
    models: tuple[str, ...] = ()
    window: int | None = None
    """The context window in tokens."""
    late_system: str | None = None
    """Where rule 2 puts late system messages: system or tool; None until it is known."""
    clock: Callable[[], float] = field(default=time.monotonic, repr=False)
    _seen: float | None = None

    def seen(self) -> None:
        """The engine answered just now."""
        self.reachable = True
        self._seen = self.clock()

    def last_seen_seconds(self) -> float | None:
        """Seconds since the last answer; None when there was none."""
        return None if self._seen is None else self.clock() - self._seen
