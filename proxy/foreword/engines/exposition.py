"""Reads Prometheus' text format as engines write it: tolerantly, and only the families that are asked for.

A line that cannot be read is skipped. A last line without a line end is skipped too: a text that was cut off in a
number would otherwise look like a counter that fell.
"""

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

_NAME = re.compile(rb"[A-Za-z_:][\w:.]*")
_LABELS = re.compile(rb'\s*([A-Za-z_][\w.]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*,?')
_ESCAPES = {"\\n": "\n", '\\"': '"', "\\\\": "\\"}
_SUFFIX = b"_total"


class Sample(NamedTuple):
    """One line."""

    labels: Mapping[str, str]
    value: float


class Exposition:
    """The samples of some families, by the family's plain name: ``vllm:prefix_cache_hits_total`` is
    ``vllm_prefix_cache_hits`` (exporters differ in the colon and in the suffix)."""

    def __init__(self, text: bytes, families: Collection[str]) -> None:
        """``families`` are plain names; all else in ``text`` is passed over unread."""
        self._samples: dict[str, list[Sample]] = {}
        self.lines = 0
        """Lines of samples, of whatever family: none means that this is no exposition."""
        wanted = {name.encode(): name for name in families}
        for line in _whole_lines(text):
            name, rest = _name_of(line)
            # Any text has words with a blank between them; one line that is a sample shows that this is what it seems.
            if not name or (not self.lines and (not _NAME.fullmatch(name) or _sample(rest) is None)):
                continue
            self.lines += 1
            family = wanted.get(name.replace(b":", b"_").removesuffix(_SUFFIX))
            if family is not None and (sample := _sample(rest)) is not None:
                self._samples.setdefault(family, []).append(sample)

    def __contains__(self, family: str) -> bool:
        return family in self._samples

    def samples(self, family: str, labels: Mapping[str, str] | None = None) -> list[Sample]:
        """The family's samples that carry all of ``labels``."""
        found = self._samples.get(family, [])
        if not labels:
            return found
        return [
            sample
            for sample in found
            if all(sample.labels.get(key) == value for key, value in labels.items())
        ]


def first_known(exposition: Exposition, spellings: Iterable[str]) -> str | None:
    """The first spelling of a family that is there."""
    return next((name for name in spellings if name in exposition), None)


def _whole_lines(text: bytes) -> Iterator[bytes]:
    lines = text.split(b"\n")
    lines.pop()  # nothing, or what was cut off
    for line in map(bytes.strip, lines):
        if line and not line.startswith(b"#"):
            yield line


def _name_of(line: bytes) -> tuple[bytes, bytes]:
    """The name and the rest from the label's brace or the blank on; an empty name where there is none."""
    end = line.find(b"{")
    blank = line.find(b" ")
    if end < 0 or 0 <= blank < end:
        end = blank
    return (line[:end], line[end:]) if end > 0 else (b"", b"")


def _sample(rest: bytes) -> Sample | None:
    labels: dict[str, str] = {}
    rest = rest.lstrip()
    if rest.startswith(b"{"):
        position = 1
        while (found := _LABELS.match(rest, position)) is not None:
            labels[found[1].decode()] = _unescaped(found[2].decode("utf-8", "replace"))
            position = found.end()
        closing = rest[position:].lstrip()
        if not closing.startswith(b"}"):
            return None
        rest = closing[1:]
    words = rest.split(None, 1)
    try:
        value = float(words[0]) if words else math.nan
    except ValueError:
        return None
    return Sample(labels, value) if math.isfinite(value) else None


def _unescaped(text: str) -> str:
    return re.sub(r'\\[n"\\]', lambda found: _ESCAPES[found[0]], text) if "\\" in text else text
