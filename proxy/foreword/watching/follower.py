"""Follows a log file that another process writes, as it is: rotated, truncated, cut in mid-line, in any encoding.

Each read is bounded, and so is what is kept of a line that never ends. Lines come out as text; whoever takes them
stamps them.
"""

import os
import re
import stat
from pathlib import Path
from typing import NamedTuple

READ_BYTES = 32 << 10
"""The most that one poll reads: some hundred lines, whose reading must not hold up the event loop."""
TAIL_BYTES = 64 << 10
"""How much of a file that is there already is read, as history."""
LINE_BYTES = 64 << 10
"""A longer line is dropped."""
_MARK_BYTES = 256

_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


class Lines(NamedTuple):
    """What one poll brought."""

    lines: list[str]
    history: bool
    """Whether they were written before the following began."""


class Follower:
    """One log file. Blocking, but for as long as a bounded read takes: call `poll` in a thread."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._file: int | None = None
        self._identity: tuple[int, int] | None = None
        self._mark = b""
        self._offset = 0
        self._history_until = 0
        self._partial = b""
        self._skipping = False
        self._waited = False
        self.trouble: str | None = "not read yet"
        """Why nothing can be read; None when the file is followed."""
        self.rotations = 0
        """How often the file was replaced or cut."""
        self.dropped = 0
        """Lines that were too long."""

    @property
    def behind(self) -> bool:
        """Whether the last poll left something unread."""
        return self._file is not None and self._size() > self._offset

    def poll(self) -> Lines:
        """What came since the last poll. Never raises for what the file does."""
        try:
            return self._poll()
        except OSError as error:
            self.trouble = os.strerror(error.errno) if error.errno else str(error)
            self.close()
            return Lines([], history=False)

    def close(self) -> None:
        """Lets go of the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _poll(self) -> Lines:
        if self._file is None and not self._open():
            return Lines([], history=False)
        if self._cut():
            self.rotations += 1
            self._offset = self._history_until = 0
            self._partial, self._skipping = b"", False
        history = self._offset < self._history_until
        lines = self._split(self._read())
        if not lines and not self.behind and self._replaced():
            # The old file is read to its end; the rest of it is its last line.
            self.rotations += 1
            lines = self._split(b"\n") if self._partial else []
            self.close()
        return Lines(lines, history)

    def _open(self) -> bool:
        try:
            # Not blocking: a pipe or a device in its place must not hold anyone up.
            file = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            self.trouble, self._waited = "there is no such file yet", True
            return False
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            os.close(file)
            self.trouble = "this is no regular file"
            return False
        first = self._identity is None and not self._waited
        self._file, self._identity = file, (status.st_dev, status.st_ino)
        # What stood there before the watch began says how the engine is, but nothing of when.
        self._offset = max(0, status.st_size - TAIL_BYTES) if first else 0
        self._history_until = status.st_size if first else 0
        self._partial, self._skipping = b"", self._offset > 0
        self._mark = self._head()
        self.trouble = None
        return True

    def _read(self) -> bytes:
        if self._file is None:
            return b""
        room = READ_BYTES
        if self._offset < self._history_until:  # history and news do not come together
            room = min(room, self._history_until - self._offset)
        data = os.pread(self._file, room, self._offset)
        self._offset += len(data)
        return data

    def _cut(self) -> bool:
        """Whether the file was cut, or cut and written anew."""
        if self._size() < self._offset:
            self._mark = self._head()
            return True
        head = self._head()
        cut = not head.startswith(self._mark)
        if cut or len(self._mark) < _MARK_BYTES:
            self._mark = head
        return cut

    def _head(self) -> bytes:
        return b"" if self._file is None else os.pread(self._file, _MARK_BYTES, 0)

    def _size(self) -> int:
        return 0 if self._file is None else os.fstat(self._file).st_size

    def _replaced(self) -> bool:
        """Whether the path names another file by now. Nothing there yet is none: the next one may be late."""
        try:
            status = self._path.stat()
        except FileNotFoundError:
            return False
        return (status.st_dev, status.st_ino) != self._identity

    def _split(self, data: bytes) -> list[str]:
        # UTF-16, as a Windows shell redirects, is plain text between NULs; the rest of it does not matter here.
        data = (self._partial + data).replace(b"\0", b"").replace(b"\r", b"\n")
        whole, end, self._partial = data.rpartition(b"\n")
        if not end:
            if self._skipping or len(self._partial) > LINE_BYTES:
                self.dropped += not self._skipping
                self._skipping, self._partial = True, b""
            return []
        lines = whole.split(b"\n")
        if self._skipping:
            self._skipping = False
            del lines[0]
        return [_COLOURS.sub("", line.decode("utf-8", "replace")).strip() for line in lines if line.strip()]
