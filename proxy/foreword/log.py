"""Log lines on stderr: one for each exchange, and what Python has to say. Never a text of a prompt.

JSON lines carry their time as seconds since 1970, lines for people as a date in UTC.

Lines are written by a thread of their own: a slow reader of stderr must not hold up the streams. When it falls far
behind, lines are dropped, and their number is logged.
"""

import logging
import queue
import sys
import threading
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import BinaryIO, Literal

import orjson

Form = Literal["json", "text"]

_QUEUED_LINES = 10_000


def _clock() -> str:
    """The time of a line for people."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class LineWriter:
    """Writes lines to a stream, from a thread of its own."""

    def __init__(self, stream: BinaryIO, limit: int = _QUEUED_LINES) -> None:
        self._stream = stream
        self._lines: queue.Queue[bytes | None] = queue.Queue(limit)
        self._dropped = 0
        self._thread = threading.Thread(target=self._run, name="foreword-log", daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        """Lines that found the queue full."""
        return self._dropped

    def put(self, line: bytes) -> None:
        """Queues one line, without its line end."""
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            self._dropped += 1

    def close(self, timeout: float = 2.0) -> None:
        """Writes what is queued, for at most ``timeout`` seconds."""
        try:
            self._lines.put(None, timeout=timeout)
        except queue.Full:
            return
        self._thread.join(timeout)

    def _run(self) -> None:
        told = 0
        while (line := self._lines.get()) is not None:
            dropped = self._dropped
            lines = [line]
            if dropped > told:
                lines.append(b'{"level":"warning","event":"log-lines-dropped","count":%d}' % (dropped - told))
                told = dropped
            try:
                for each in lines:
                    self._stream.write(each + b"\n")
                self._stream.flush()
            except (OSError, ValueError):
                continue  # nobody reads stderr: serving goes on


class ExchangeLog:
    """One line for each exchange, made of the record that the core hands over."""

    def __init__(self, writer: LineWriter, form: Form) -> None:
        self._writer = writer
        self._json = form == "json"

    def __call__(self, record: bytes) -> None:
        """``record`` is one JSON object; a member ``time`` says when the exchange began."""
        if self._json:
            self._writer.put(b'{"level":"info","event":"exchange",' + record[1:])
        else:
            self._writer.put(f"{_clock()} info exchange {' '.join(_fields(orjson.loads(record)))}".encode())


class _Formatter(logging.Formatter):
    """A record of Python's logging in one line."""

    def __init__(self, form: Form) -> None:
        super().__init__()
        self._json = form == "json"

    def format(self, record: logging.LogRecord) -> str:
        level, message = record.levelname.lower(), record.getMessage()
        trace = self.formatException(record.exc_info) if record.exc_info else None
        if not self._json:
            return f"{_clock()} {level} {message}" + (f"\n{trace}" if trace else "")
        line: dict[str, object] = {"level": level, "event": "message", "time": round(record.created, 3)}
        line["message"] = message
        if trace:
            line["trace"] = trace
        return orjson.dumps(line).decode()


class _WriterHandler(logging.Handler):
    def __init__(self, writer: LineWriter) -> None:
        super().__init__()
        self._writer = writer

    def emit(self, record: logging.LogRecord) -> None:
        self._writer.put(self.format(record).encode("utf-8", "replace"))


def _fields(record: Mapping[str, object], within: str = "") -> Iterator[str]:
    """The members of a record for people: objects by their members, lists of objects (segments) left out."""
    for name, value in record.items():
        if isinstance(value, dict):
            yield from _fields(value, f"{within}{name}.")
        elif not (isinstance(value, list) and any(isinstance(each, dict) for each in value)):
            yield f"{within}{name}={_plain(value)}"


def _plain(value: object) -> str:
    text = value if isinstance(value, str) else orjson.dumps(value).decode()
    return orjson.dumps(text).decode() if not text or any(c.isspace() or c in '="' for c in text) else text


def configure(form: Form) -> tuple[LineWriter, ExchangeLog]:
    """Sends Python's logging and the exchange lines of this process to stderr."""
    writer = LineWriter(sys.stderr.buffer)
    handler = _WriterHandler(writer)
    handler.setFormatter(_Formatter(form))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    return writer, ExchangeLog(writer, form)


def granian_config(form: Form) -> dict[str, object]:
    """granian's own log lines in the same form (a `logging.config` dictionary)."""
    return {
        "formatters": {"foreword": {"()": _Formatter, "form": form}},
        "handlers": {
            "foreword": {
                "class": "logging.StreamHandler",
                "formatter": "foreword",
                "stream": "ext://sys.stderr",
            }
        },
        "loggers": {"_granian": {"handlers": ["foreword"], "propagate": False}},
    }
