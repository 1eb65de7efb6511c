"""What becomes of the record of each exchange: the log line, then whatever counts and compares."""

import logging
from collections.abc import Callable, Mapping, Sequence

import orjson

_log = logging.getLogger(__name__)


class Records:
    """Hands each record to its consumers. A record is read once, and only if somebody wants it read.

    A consumer that fails harms neither the others nor the exchange: it is counted, and logged the first time.
    """

    def __init__(
        self,
        raw: Sequence[Callable[[bytes], None]],
        read: Sequence[Callable[[Mapping[str, object]], None]] = (),
    ) -> None:
        self._raw = tuple(raw)
        self._read = tuple(read)
        self.failures = 0

    def __call__(self, record: bytes) -> None:
        """``record`` is one JSON object."""
        for consumer in self._raw:
            try:
                consumer(record)
            except Exception:
                self._failed()
        if not self._read:
            return
        try:
            members = orjson.loads(record)
        except ValueError:
            self._failed()
            return
        for reader in self._read:
            try:
                reader(members)
            except Exception:
                self._failed()

    def _failed(self) -> None:
        self.failures += 1
        if self.failures == 1:
            _log.exception("a consumer of exchange records failed; further failures are only counted")
