"""What the two runs came to: a table, a summary, and the same as JSON."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

from .conversation import INTERRUPTED
from .play import Turn

_BAR = 10


@dataclass(frozen=True, slots=True)
class Run:
    """A run in figures. Shares are 0..1, lengths in tokens."""

    turns: list[Turn]

    @property
    def hit_rate(self) -> float:
        """Reused over prompt tokens, sum over sum."""
        return sum(turn.reused for turn in self.turns) / sum(turn.prompt for turn in self.turns)

    @property
    def pinned(self) -> tuple[int, int] | None:
        """The one length at which reuse stays on most turns while prompts grow, and on how many turns."""
        lengths = Counter(turn.reused for turn in self.turns if turn.reused)
        if not lengths:
            return None
        (length, count), *_ = lengths.most_common(1)
        return (length, count) if count > len(self.turns) / 2 else None

    def json(self) -> dict[str, Any]:
        """As ``foreword demo --json`` prints it."""
        length, count = self.pinned or (None, 0)
        return {
            "hit_rate": round(self.hit_rate, 4),
            "pinned_at": length,
            "pinned_share": round(count / len(self.turns), 4),
            "ttft_s": [round(turn.ttft, 3) for turn in self.turns],
        }


def as_json(before: Run, after: Run) -> dict[str, Any]:
    """The whole outcome."""
    usage = {
        "before_context_tokens": [turn.context for turn in before.turns],
        "after_context_tokens": [turn.context for turn in after.turns],
    }
    return {"before": before.json(), "after": after.json(), "usage": usage}


def table(before: Run, after: Run) -> str:
    """One line a turn."""
    lines = [
        "                 |           before             |            after",
        "turn     prompt  |     reused              TTFT |     reused              TTFT",
        "-----------------+------------------------------+------------------------------",
    ]
    for n, (old, new) in enumerate(zip(before.turns, after.turns, strict=True)):
        note = "  first" if n == 0 else "  evicted" if n in INTERRUPTED else ""
        lines.append(f"{n + 1:4} {new.prompt:10,}  | {_cell(old)} | {_cell(new)}{note}")
    return "\n".join(lines)


def summary(before: Run, after: Run) -> str:
    """What the table shows."""
    last_before, last_after = before.turns[-1], after.turns[-1]
    rows = [
        ("hit rate (reused / prompt tokens)", _share(before), _share(after)),
        ("reuse pinned at", _pin(before), _pin(after)),
        ("  on turns", _pin_turns(before), _pin_turns(after)),
        ("time to first token, mean", _mean_ttft(before), _mean_ttft(after)),
        ("last turn: prompt the engine read", f"{last_before.prompt:,}", f"{last_after.prompt:,}"),
        ("  context as Claude Code counts it", f"{last_before.context:,}", f"{last_after.context:,}"),
    ]
    lines = [f"{'':36}{'before':>18}{'after':>18}"]
    lines += [f"{label:36}{old:>18}{new:>18}" for label, old, new in rows]
    return "\n".join(lines)


def shortfalls(before: Run, after: Run) -> list[str]:
    """Where the outcome is not the incident's; empty if it is."""
    found = []
    if before.hit_rate > 0.20:
        found.append(f"before: the hit rate is {before.hit_rate:.1%}, and should be at most 20 %")
    if before.pinned is None:
        found.append("before: reuse is not pinned at one length")
    if after.hit_rate < 0.83:
        found.append(f"after: the hit rate is {after.hit_rate:.1%}, and should be at least 83 %")
    if after.pinned is not None:
        found.append(f"after: reuse is pinned at {after.pinned[0]:,} tokens")
    return found


def _cell(turn: Turn) -> str:
    share = turn.reused / turn.prompt
    # Only nothing is empty, and only everything is full.
    filled = min(_BAR - (share < 1), max(share > 0, round(share * _BAR)))
    bar = ("#" * filled).ljust(_BAR, ".")
    return f"{turn.reused:10,} {bar} {turn.ttft:5.2f} s"


def _share(run: Run) -> str:
    return f"{run.hit_rate:.1%}"


def _pin(run: Run) -> str:
    return f"{run.pinned[0]:,} tokens" if run.pinned else "no length"


def _pin_turns(run: Run) -> str:
    return f"{run.pinned[1]} of {len(run.turns)}" if run.pinned else "-"


def _mean_ttft(run: Run) -> str:
    return f"{sum(turn.ttft for turn in run.turns) / len(run.turns):.2f} s"
