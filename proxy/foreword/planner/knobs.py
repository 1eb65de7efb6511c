"""What each knob changes, from the setting that runs today."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from .grid import Planner, Row, Setting
from .target import Target

_ROADMAP_MIB: Final = 24_000
_DENSE: Final = 4_096
"""What the operators of Strata proposed after the storm of evictions: a budget, and the step between checkpoints."""


@dataclass(frozen=True, slots=True)
class Knob:
    """One change, or two together, and the outcome. ``met``: whether the target is met with it."""

    name: str
    row: Row
    met: bool

    @property
    def alone(self) -> bool:
        """Whether it is one change."""
        return ", " not in self.name or "prompt-cache" in self.name


def turned(planner: Planner, today: Setting, enough: Setting, target: Target) -> list[Knob]:
    """Today's setting first, then each change alone, then two together. ``enough``: one with room for the load."""
    named = list(_changes(planner, today, enough))
    rows = planner.rows(setting for _, setting in named)
    return [
        Knob(name, row, target.met(row.outcome, row.ram_mib))
        for (name, _), row in zip(named, rows, strict=True)
    ]


def _changes(planner: Planner, today: Setting, enough: Setting) -> Iterator[tuple[str, Setting]]:
    half = planner.largest_snapshot() // 2
    longest = max(request.prompt for request in planner.load.requests)
    admit, cap = (200_000, 120_000) if longest > 200_000 else (longest * 3 // 4, longest // 2)
    yield "as today", today
    if today.mib < _ROADMAP_MIB < enough.mib:
        yield f"mib {_ROADMAP_MIB}", replace(today, mib=_ROADMAP_MIB)
    if enough.mib > today.mib:
        yield f"mib {enough.mib}", replace(today, mib=enough.mib)
    if today.parks and enough.slots > today.slots:
        yield f"slots {enough.slots}", replace(today, slots=enough.slots)
    if today.every != _DENSE:
        yield f"every {_DENSE}", replace(today, every=_DENSE)
        yield (
            f"every {_DENSE}, prompt-cache {today.kept * 4}",
            replace(today, every=_DENSE, kept=today.kept * 4),
        )
    if today.parks:
        yield f"skip parking above {half} MiB", replace(today, skip_above_mib=half)
    yield f"refuse prompts above {admit}", replace(today, admit=admit)
    yield f"cap assembled prompts at {cap}", replace(today, cap=cap)
    if enough.mib > today.mib and enough.slots > today.slots:
        yield f"mib {enough.mib}, slots {enough.slots}", replace(today, mib=enough.mib, slots=enough.slots)
    if today.mib < _ROADMAP_MIB < enough.mib:
        yield f"mib {_ROADMAP_MIB}, cap {cap}", replace(today, mib=_ROADMAP_MIB, cap=cap)
