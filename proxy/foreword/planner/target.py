"""What a setting must reach: ``--target``."""

import re
from dataclasses import dataclass
from typing import Final

from foreword._core import PlannedOutcome

DEFAULT: Final = "evictions<=1%,lost<=1%,refused<=1%"
"""Who parks nothing evicts nothing, and who serves nobody loses nothing: the other two conditions say so."""

_SHARES: Final = {
    "evictions": "evictions over turns",
    "lost": "turns whose conversation was not there any more, over turns",
    "reread": "tokens read again, over prompt tokens",
    "refused": "requests refused for their length, over requests",
}
_SECONDS: Final = {"ttft_p50": "seconds", "ttft_p95": "seconds", "ttft_p99": "seconds"}
_OTHERS: Final = {"ram_mib": "MiB of host memory"}
NAMES: Final = _SHARES | _SECONDS | _OTHERS

_CONDITION = re.compile(r"([a-z_0-9]+)\s*<=\s*(\d+(?:\.\d+)?)\s*(%|s)?")


@dataclass(frozen=True, slots=True)
class Target:
    """Conditions that all must hold: name, most, as it was written."""

    conditions: tuple[tuple[str, float, str], ...]

    @classmethod
    def parse(cls, text: str) -> "Target":
        """From ``evictions<=1%,ttft_p95<=20s``. Raises ValueError."""
        conditions = []
        for part in text.split(","):
            found = _CONDITION.fullmatch(part.strip())
            if found is None or found[1] not in NAMES:
                raise ValueError(
                    f"{part.strip()!r}: must be NAME<=NUMBER, with a name of {', '.join(NAMES)}; shares are 0.01 or 1%"
                )
            name, number, unit = found[1], float(found[2]), found[3] or ""
            if (unit == "%" and name not in _SHARES) or (unit == "s" and name not in _SECONDS):
                raise ValueError(f"{part.strip()!r}: {name} is not told in {unit}")
            conditions.append((name, number / 100 if unit == "%" else number, f"{name}<={found[2]}{unit}"))
        return cls(tuple(conditions))

    def met(self, outcome: PlannedOutcome, ram_mib: int) -> bool:
        """Whether all conditions hold. A time that is not known holds nothing."""
        return all(
            (value := _value(name, outcome, ram_mib)) is not None and value <= most
            for name, most, _ in self.conditions
        )

    @property
    def needs_times(self) -> bool:
        """Whether it asks for times."""
        return any(name in _SECONDS for name, _, _ in self.conditions)

    def __str__(self) -> str:
        return ",".join(text for _, _, text in self.conditions)


def _value(name: str, outcome: PlannedOutcome, ram_mib: int) -> float | None:
    turns = outcome.turns + outcome.refused
    match name:
        case "evictions":
            return outcome.evictions / max(1, turns)
        case "lost":
            return outcome.lost_turns / max(1, turns)
        case "refused":
            return outcome.refused / max(1, turns)
        case "reread":
            return outcome.reread_tokens / max(1, outcome.prompt_tokens)
        case "ttft_p50":
            return outcome.ttft_p50
        case "ttft_p95":
            return outcome.ttft_p95
        case "ttft_p99":
            return outcome.ttft_p99
        case _:
            return float(ram_mib)
