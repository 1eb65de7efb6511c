"""The findings that are open now, from whoever found them."""

from dataclasses import replace

from foreword.findings.finding import Finding, worst_first


class Board:
    """What `/admin/findings` and `/health` show. Detectors put findings on it and take them off again."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, str], Finding] = {}

    def set(self, finding: Finding) -> None:
        """Opens a finding, or puts a newer state in its place; the time at which it was first seen stays."""
        key = (finding.id, finding.subject)
        known = self._open.get(key)
        if known is not None and known.first_seen < finding.first_seen:
            finding = replace(finding, first_seen=known.first_seen)
        self._open[key] = finding

    def clear(self, finding_id: str, subject: str) -> None:
        """Takes a finding off that holds no more; nothing happens if it is not there."""
        self._open.pop((finding_id, subject), None)

    def open(self) -> list[Finding]:
        """All open findings, worst first."""
        return sorted(self._open.values(), key=worst_first)
