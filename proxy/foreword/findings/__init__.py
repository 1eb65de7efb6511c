"""What many exchanges, or the engine's own counters, say together: findings with evidence and advice."""

from foreword.findings.board import Board
from foreword.findings.finding import Finding, Severity

__all__ = ["Board", "Finding", "Severity"]
