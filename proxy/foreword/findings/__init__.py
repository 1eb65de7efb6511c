"""What many exchanges, or the engine's own counters, say together: findings with evidence and advice."""

from foreword.findings.board import Board
from foreword.findings.detectors import Detectors
from foreword.findings.finding import IDS, Finding, Severity

__all__ = ["IDS", "Board", "Detectors", "Finding", "Severity"]
