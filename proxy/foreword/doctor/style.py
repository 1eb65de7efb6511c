"""Colours and bars of a terminal report."""

import os
import re
import sys
from typing import Final, TextIO

_CODES: Final = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
_UNSAFE_OR_COLOUR: Final = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")
_UNSAFE: Final = re.compile(r"(?!\x1b\[[0-9;]*m)" + _UNSAFE_OR_COLOUR.pattern)
_EIGHTHS: Final = " ▏▎▍▌▋▊▉█"


class Style:
    """Paints text where the output is a terminal that wants colours."""

    def __init__(self, *, colour: bool, blocks: bool) -> None:
        self._colour = colour
        self._blocks = blocks

    @classmethod
    def of(cls, stream: TextIO) -> "Style":
        """What a stream can show: colours on a terminal unless NO_COLOR is set, block characters in UTF-8."""
        terminal = stream.isatty() and os.environ.get("TERM") != "dumb"
        colour = terminal and not os.environ.get("NO_COLOR")
        return cls(colour=colour, blocks=(stream.encoding or "").lower().replace("-", "") == "utf8")

    def paint(self, text: str, *names: str) -> str:
        """``text`` in colours."""
        if not self._colour or not names:
            return text
        return f"\x1b[{';'.join(_CODES[name] for name in names)}m{text}\x1b[0m"

    def safe(self, text: str) -> str:
        """``text`` without control characters but line ends and our own colours: names come from clients."""
        return (_UNSAFE if self._colour else _UNSAFE_OR_COLOUR).sub("?", text)

    def bar(self, share: float, width: int = 20) -> str:
        """A bar of ``width`` characters; only nothing is empty."""
        share = min(1.0, max(0.0, share))
        if not self._blocks:
            filled = max(round(share * width), 1 if share > 0 else 0)
            return ("#" * filled).ljust(width)
        eighths = max(round(share * width * 8), 1 if share > 0 else 0)
        full, rest = divmod(eighths, 8)
        return ("█" * full + (_EIGHTHS[rest] if rest else "")).ljust(width)

    def rate(self, value: float | None, text: str) -> str:
        """A hit rate's text: red where most is read again."""
        if value is None:
            return self.paint(text, "dim")
        return self.paint(text, "green" if value >= 0.8 else "yellow" if value >= 0.5 else "red")


class ProgressLine:
    """One line on stderr that says how far a long work is; nothing where stderr is no terminal."""

    def __init__(self) -> None:
        self._shown = sys.stderr.isatty()
        self._dirty = False

    def __call__(self, text: str) -> None:
        """Shows ``text`` in place of what was shown."""
        if self._shown:
            sys.stderr.write(f"\r\x1b[2K{text} ...")
            sys.stderr.flush()
            self._dirty = True

    def clear(self) -> None:
        """Takes the line away."""
        if self._dirty:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()
            self._dirty = False
