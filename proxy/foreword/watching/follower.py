"""Follows a log file that another process writes, as it is: rotated, truncated, cut in mid-line, in any encoding.

What was rotated more than once between two looks stands beside it under other names (`log.1`, `log-20261130`): it is
read in the order of its last writing, before the file that has the name now. What a copy took before the file was cut
is read from the copy. Each read is bounded, and so is what is kept of a line that never ends. Lines come out as text;
whoever takes them stamps them.
"""

import os
import re
import stat
from collections import deque
from pathlib import Path
from typing import NamedTuple

READ_BYTES = 32 << 10
"""The most that one poll reads: some hundred lines, whose reading must not hold up the event loop."""
TAIL_BYTES = 64 << 10
"""How much of a file that is there already is read, as history."""
LINE_BYTES = 64 << 10
"""A longer line is dropped."""
_MARK_BYTES = 256
_SIBLINGS = 64
"""Rotated files that are looked at, those written last; and files that are known to have been read."""
_PACKED = (".gz", ".xz", ".zst", ".bz2", ".lz4")

_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


class Lines(NamedTuple):
    """What one poll brought."""

    lines: list[str]
    history: bool
    """Whether they were written before the following began."""


class _Sibling(NamedTuple):
    """A file beside the log, by when it was written last."""

    written: int
    number: int
    """The N of `log.N`, negative: the greater it is the older."""
    path: Path
    identity: tuple[int, int]
    size: int


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
        self._rest: deque[int] = deque()
        """Files that are to be read before the one that has the name now."""
        self._written = 0
        self._live = True
        """Whether the file that is read is the one that had the name when it was opened, and may still grow."""
        self._seen: deque[tuple[int, int]] = deque(maxlen=_SIBLINGS)
        self.trouble: str | None = "not read yet"
        """Why nothing can be read; None when the file is followed."""
        self.rotations = 0
        """How often the file was replaced or cut."""
        self.dropped = 0
        """Lines that were too long."""
        self.lost = 0
        """Files that were rotated unread and cannot be read any more: packed, or closed to this process."""

    @property
    def behind(self) -> bool:
        """Whether the last poll left something unread."""
        return bool(self._rest) or (self._file is not None and self._size() > self._offset)

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
        for file in self._rest:
            os.close(file)
        self._rest.clear()
        self._leave()

    def _poll(self) -> Lines:
        if self._file is None and not self._open():
            return Lines([], history=False)
        if self._live and self._cut():
            self.rotations += 1
            self._begin_anew(self._copy())
        history = self._offset < self._history_until
        lines = self._split(self._read())
        if not lines and self._ended():
            # It is read to its end; the rest of it is its last line.
            lines = self._split(b"\n") if self._partial else []
            self._leave()
        return Lines(lines, history)

    def _ended(self) -> bool:
        """Whether nothing will come of this file any more; then what was rotated after it is next."""
        if self._file is None or self._size() > self._offset:
            return False
        if not self._live:
            return True
        if not self._replaced():
            return False
        self.rotations += 1
        self._take_rotated(self._file)
        return True

    def _leave(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _take_rotated(self, file: int) -> None:
        """Opens what had the name after ``file`` and has lost it again, in order."""
        status = os.fstat(file)
        own = (status.st_dev, status.st_ino)
        self._seen.append(own)
        for sibling in self._siblings():
            if sibling.written < status.st_mtime_ns or sibling.identity in self._seen:
                continue
            self.rotations += 1
            self._seen.append(sibling.identity)
            if sibling.path.name.endswith(_PACKED):
                self.lost += 1
                continue
            try:
                self._rest.append(os.open(sibling.path, os.O_RDONLY | os.O_CLOEXEC))
            except OSError:
                self.lost += 1

    def _siblings(self) -> list[_Sibling]:
        """Files that bear the log's name with something behind it, in the order in which they were written last."""
        found = []
        for path in self._path.parent.iterdir():
            behind = path.name.removeprefix(self._path.name)
            if behind == path.name or behind[:1] not in (".", "-"):
                continue
            try:
                status = path.lstat()
            except OSError:
                continue
            number = re.fullmatch(r"\.(\d{1,4})(\.\w+)?", behind)
            if stat.S_ISREG(status.st_mode):
                order = -int(number[1]) if number else 0
                identity = (status.st_dev, status.st_ino)
                found.append(_Sibling(status.st_mtime_ns, order, path, identity, status.st_size))
        return sorted(found)[-_SIBLINGS:]

    def _open(self) -> bool:
        if self._rest:
            self._file, self._offset, self._live = self._rest.popleft(), 0, False
            self._partial, self._skipping, self._history_until = b"", False, 0
            return True
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
        self._live = True
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
        if self._live:
            self._written = os.fstat(self._file).st_mtime_ns
        data = os.pread(self._file, room, self._offset)
        self._offset += len(data)
        return data

    def _cut(self) -> bool:
        """Whether the file was cut, or cut and written anew."""
        head = self._head()
        if self._size() < self._offset or not head.startswith(self._mark):
            return True
        if len(self._mark) < _MARK_BYTES:
            self._mark = head
        return False

    def _begin_anew(self, copy: int | None) -> None:
        """After a cut: in the ``copy`` where it was left, and the file itself from its beginning when that is read."""
        if copy is not None:
            self._leave()
            self._file, self._live = copy, False
            return
        self._mark = self._head()
        self._offset = self._history_until = 0
        self._partial, self._skipping = b"", False

    def _copy(self) -> int | None:
        """The copy that was taken before the file was cut, if it is there."""
        for sibling in reversed(self._siblings() if self._mark else []):
            if (
                sibling.written < self._written
                or sibling.size < self._offset
                or sibling.identity in self._seen
            ):
                continue
            try:
                copy = os.open(sibling.path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                continue
            if os.pread(copy, len(self._mark), 0) == self._mark:
                self._seen.append(sibling.identity)
                return copy
            os.close(copy)
        return None

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
