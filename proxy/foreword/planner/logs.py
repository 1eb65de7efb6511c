"""A load from Strata's log, which has neither times nor names: who asked is inferred from lengths.

A prompt that reused tokens goes on in the conversation whose last prompt ended there. One that fell back to a
checkpoint shows nothing but its length: it is taken for the conversation that is a little shorter. What cannot be told
apart that way is counted and said.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from foreword.engines.loglines import BudgetCut, Event, Parked, PromptRead, Restored, Skipped, Unknown
from foreword.engines.strata_log import StrataLog

from .load import Load, LoadError, Request

_LINE: Final = 64 * 1024
"""Bytes of a line that are looked at."""
_SLACK: Final = 64
"""Tokens by which a resume point may miss a turn's end: a template's own words."""
_GROWTH: Final = (8, 32_768)
"""Tokens that a turn adds, at least and at most, where nothing but length connects it with the one before."""
_MOST_LINES: Final = 1_000
"""Conversations that are thought of at once; those that were not used for longest are thought to be over."""
_ROOT: Final = 2_048
_STEP: Final = 16_384


@dataclass(slots=True)
class LogFacts:
    """What a log tells beside the requests."""

    prompts: list[PromptRead] = field(default_factory=list)
    sizes: list[tuple[int, int]] = field(default_factory=list)
    prefill: list[tuple[int, float]] = field(default_factory=list)
    restores: list[tuple[int, float]] = field(default_factory=list)
    skips: Counter[str] = field(default_factory=Counter)
    unknown: int = 0
    evictions: int | None = None
    parks: int = 0
    restarts: int = 0
    budget_cut: BudgetCut | None = None
    _last_count: int = 0

    def count_evictions(self, count: int) -> None:
        """The engine's counter; where it falls, the engine was started anew."""
        restarted = count < self._last_count
        self.restarts += restarted
        self.evictions = (self.evictions or 0) + count - (0 if restarted else self._last_count)
        self._last_count = count

    @property
    def observed(self) -> dict[str, int]:
        """The engine's own counts."""
        counts = {
            "prompts": len(self.prompts),
            "reused_tokens": sum(prompt.reused for prompt in self.prompts),
            "read_tokens": sum(prompt.read for prompt in self.prompts),
            "parks": self.parks,
            "restores": len(self.restores),
            "not_parked": self.skips["not-parked"],
            "skips": sum(self.skips.values()) - self.skips["not-parked"],
            "unreadable_lines": self.unknown,
        }
        return counts | ({} if self.evictions is None else {"evictions": self.evictions})


def read_log(paths: list[Path]) -> LogFacts:
    """All that the files tell, in their order. Raises LoadError for one that cannot be read."""
    facts, reader = LogFacts(), StrataLog()
    for line in _lines(paths):
        for event in reader.read(line):
            _note(facts, event)
    return facts


def _note(facts: LogFacts, event: Event) -> None:
    match event:
        case PromptRead():
            facts.prompts.append(event)
            if event.read_seconds:
                facts.prefill.append((event.read, event.read_seconds))
        case Parked():
            facts.parks += 1
            if event.snapshot_bytes:
                facts.sizes.append((event.tokens, event.snapshot_bytes))
            if event.evictions is not None:
                facts.count_evictions(event.evictions)
        case Restored():
            facts.restores.append((event.tokens, event.seconds or 0.0))
        case Skipped():
            facts.skips[event.reason] += 1
        case BudgetCut():
            facts.budget_cut = event
        case Unknown():
            facts.unknown += 1
        case _:
            pass


def load_of(facts: LogFacts) -> Load:
    """The requests of a log. Raises LoadError where it holds none."""
    if not facts.prompts:
        raise LoadError("the log has no line `prompt N tokens = A reused + B read`")
    inference = _Inference()
    placed = [inference.place(prompt) for prompt in facts.prompts]
    head = _common_head(inference.heads)
    system = head if head >= _ROOT and head % _STEP else 0
    requests = [
        Request(
            conversation,
            prompt.tokens,
            min(shared, prompt.tokens),
            min(head, prompt.tokens),
            min(system, prompt.tokens),
            prompt.generated or 0,
        )
        for prompt, (conversation, shared) in zip(facts.prompts, placed, strict=True)
    ]
    inferred = (
        "From a log alone: it has no times, so there are no times to first token; and no names, so conversations are"
        f" inferred from lengths. {inference.fallen:,} of {len(requests):,} prompts fell back to a checkpoint or"
        f" to nothing and were placed by their length alone, {inference.ambiguous:,} of them with more than one"
        " conversation to choose from."
    )
    notes = [inferred]
    if facts.unknown:
        notes.append(f"{facts.unknown:,} lines of the cache or of prompts could not be read.")
    if facts.restarts:
        notes.append(f"The engine was restarted {facts.restarts:,} times, which the simulation leaves out.")
    if facts.budget_cut is not None:
        notes.append(
            f"The engine had only {facts.budget_cut.bytes / 2**30:.1f} GiB for parking, whatever it was told."
        )
    return Load("log", requests, "inferred", notes, facts.observed)


@dataclass(slots=True)
class _Line:
    """One conversation so far: its last prompt, and that with the answer."""

    number: int
    prompt: int
    total: int


class _Inference:
    """Puts prompts into conversations."""

    def __init__(self) -> None:
        self._lines: list[_Line] = []
        self._made = 0
        self.fallen = 0
        """Prompts that a length alone placed."""
        self.heads: Counter[int] = Counter()
        """What prompts reused that did not go on where their conversation ended."""
        self.ambiguous = 0

    def place(self, prompt: PromptRead) -> tuple[int, int]:
        """The prompt's conversation, and how much of the prompt that had before."""
        line = self._resumed(prompt)
        if line is None:
            line = self._by_length(prompt)
            if prompt.reused:
                self.heads[prompt.reused] += 1
        if line is None:
            line = _Line(self._made, 0, 0)
            self._made += 1
        else:
            self._lines.remove(line)
        shared = line.total
        line.prompt = prompt.tokens
        line.total = prompt.tokens + (prompt.generated or 0)
        self._lines.append(line)  # the last used one last
        del self._lines[:-_MOST_LINES]
        return line.number, shared

    def _resumed(self, prompt: PromptRead) -> _Line | None:
        at = prompt.reused
        ends = [
            line
            for line in self._lines
            if at
            and line.prompt - _SLACK <= at <= line.total + _SLACK
            and line.prompt <= prompt.tokens + _SLACK
        ]
        return min(reversed(ends), key=lambda line: abs(at - line.prompt), default=None)

    def _by_length(self, prompt: PromptRead) -> _Line | None:
        if not self._lines:
            return None
        near = [
            line
            for line in self._lines[:-1]  # the last one is in the slot, and would have been resumed
            if _GROWTH[0] <= prompt.tokens - line.total <= _GROWTH[1]
        ]
        if near:
            self.fallen += 1
            self.ambiguous += len(near) > 1
        return min(near, key=lambda line: abs(prompt.tokens - line.total), default=None)


def _common_head(heads: Counter[int]) -> int:
    """What most prompts had in common with others: of equals the longest."""
    return max(heads, key=lambda reused: (heads[reused], reused), default=0)


def _lines(paths: list[Path]) -> Iterator[str]:
    for path in paths:
        try:
            with path.open("rb") as file:
                while raw := file.readline(_LINE):
                    yield raw.decode("utf-8", errors="replace")
        except OSError as error:
            raise LoadError(f"{path}: {error.strerror or error}") from None
