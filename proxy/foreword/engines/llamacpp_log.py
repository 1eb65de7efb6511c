"""llama.cpp's server log: the lines that mean that a prompt is read again from its start, or that cached state went.

It prints ``slot update_slots: id 0 | task 12 | ...`` with or without a time and a level before; which lines it prints
depends on ``--log-verbosity`` (the full re-read has been a warning, and is silent by default in newer builds).
"""

import re

from foreword.engines.loglines import Event, FullReread, Parked, Skipped

_MIB = 1 << 20
_SAVED = re.compile(r"saving prompt with length\s+(\d+),\s*total state size\s*=\s*([\d.]+)\s*MiB")
_TOO_LARGE = re.compile(r"prompt state size\s+([\d.]+)\s*MiB exceeds cache size limit")
_MARKS = (
    ("forcing full prompt re-processing", "no usable checkpoint"),
    ("failed to restore context checkpoint", "checkpoint not restored"),
    ("failed to truncate tokens", "cache not cut"),
)


class LlamaCppLog:
    """Reads llama-server's log."""

    joins = False

    def read(self, line: str) -> list[Event]:
        """What the line tells."""
        for mark, reason in _MARKS:
            if mark in line:
                return [FullReread(reason)]
        if (saved := _SAVED.search(line)) is not None:
            return [Parked(int(saved[1]), snapshot_bytes=_bytes(saved[2]))]
        if (large := _TOO_LARGE.search(line)) is not None:
            return [Skipped("snapshot-over-budget", _bytes(large[1]))]
        return []


def _bytes(mib: str) -> int | None:
    try:
        return round(float(mib) * _MIB)
    except ValueError:
        return None
