"""What all detectors together remember of a conversation: one small object a line, for there are thousands."""

from dataclasses import dataclass

from foreword.findings.memory import Memory

LINES = 4096
"""Conversation lines that are remembered unless a setting says otherwise (`FOREWORD_SESSIONS`)."""


@dataclass(slots=True)
class Line:
    """Each member belongs to the detector that it is named after. Tokens, but for the lengths of blocks."""

    places: tuple[tuple[str, ...] | None, ...] = ()
    """volatile-segment: where the latest continuations left the line; None for those that did not."""
    turns: bytes = b""
    """pinned: the latest turns, packed (`foreword.findings.pinned.remember`)."""
    reused: int = 0
    """Losses of the engine: what was reused last, ..."""
    left: int | None = None
    """... and what the last loss had left."""
    blocks: tuple[tuple[str, int], ...] = ()
    """reassembled-block: paths of long blocks and their lengths in bytes, as last seen."""
    peak: int = 0
    """early-compaction: the longest prompt since the line was compacted."""


Lines = Memory[int, Line]
