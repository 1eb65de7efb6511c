"""A finding: what many exchanges, or the engine's own counters, say together."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Severity = Literal["info", "warning", "critical"]
"""info: worth knowing; warning: costs something; critical: costs most of what the cache could save."""

IDS: tuple[str, ...] = (
    "volatile-segment",
    "pinned",
    "eviction-storm",
    "checkpoint-collapse",
    "reassembled-block",
    "early-compaction",
    "overflow-loop",
    "usage-not-reported",
    "below-minimum",
    "l2-write-only",
    "l2-too-small",
    "l2-undecided",
    "parking-cannot-hold",
    "parking-off",
    "giants-evict",
    "engine-restart",
    "metrics-missing",
)
"""Every kind of finding: those of many exchanges, then those of the engine's own counters and log."""

RANKS: Mapping[str, int] = {"critical": 0, "warning": 1, "info": 2}


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding as it stands. Times are seconds since 1970."""

    id: str
    """Which kind it is: an id of docs/findings.md."""
    subject: str
    """What it is about, as a short key: an entry, a client, a path. With the id it names the finding."""
    severity: Severity
    first_seen: float
    last_seen: float
    count: int
    """Exchanges, or events of the engine, that show it."""
    advice: str
    """What to do about it, in one sentence."""
    tokens: int | None = None
    """Prompt tokens that it cost; None where that is not known."""
    seconds: float | None = None
    """Time that it cost; None where that is not known."""
    evidence: Mapping[str, object] = field(default_factory=dict)
    """The numbers that it rests on. Names, lengths and counts, never a text of a conversation."""

    def as_json(self) -> dict[str, object]:
        """For /admin/findings, /health and reports."""
        return {
            "id": self.id,
            "subject": self.subject,
            "severity": self.severity,
            "first_seen": round(self.first_seen, 3),
            "last_seen": round(self.last_seen, 3),
            "count": self.count,
            "tokens": self.tokens,
            "seconds": self.seconds,
            "evidence": dict(self.evidence),
            "advice": self.advice,
        }

    def in_short(self) -> dict[str, object]:
        """For /health."""
        return {"id": self.id, "subject": self.subject, "severity": self.severity, "advice": self.advice}


def worst_first(finding: Finding) -> tuple[int, int, int, str, str]:
    """Sorts findings: by severity, then by what they cost, then by how often they were seen."""
    return (RANKS[finding.severity], -(finding.tokens or 0), -finding.count, finding.id, finding.subject)
