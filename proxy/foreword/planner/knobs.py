"""What each knob changes alone, from the setting that runs today."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from .grid import Planner, Row, Setting
from .target import Target


@dataclass(frozen=True, slots=True)
class Knob:
    """One change and its outcome. ``met``: whether the target is met with it alone."""

    name: str
    row: Row
    met: bool


def turned(planner: Planner, today: Setting, enough: Setting, target: Target) -> list[Knob]:
    """Today's setting first, then one change after the other. ``enough``: a setting with room for the load."""
    named = list(_changes(planner, today, enough))
    rows = planner.rows(setting for _, setting in named)
    return [
        Knob(name, row, target.met(row.outcome, row.ram_mib))
        for (name, _), row in zip(named, rows, strict=True)
    ]


def _changes(planner: Planner, today: Setting, enough: Setting) -> Iterator[tuple[str, Setting]]:
    yield "as today", today
    if today.mib < 24_000 < enough.mib:
        yield "mib 24000", replace(today, mib=24_000)
    if enough.mib > today.mib:
        yield f"mib {enough.mib}", replace(today, mib=enough.mib)
    if enough.slots > today.slots:
        yield f"slots {enough.slots}", replace(today, slots=enough.slots)
    if (enough.mib > today.mib) and (enough.slots > today.slots):
        yield f"mib {enough.mib} and slots {enough.slots}", replace(today, mib=enough.mib, slots=enough.slots)
    dense = 4_096
    if today.every != dense:
        yield f"every {dense}", replace(today, every=dense)
        yield (
            f"every {dense} and prompt-cache {today.kept * 4}",
            replace(today, every=dense, kept=today.kept * 4),
        )
    half = planner.largest_snapshot() // 2
    yield f"skip parking above {half} MiB", replace(today, skip_above_mib=half)
    longest = max(request.prompt for request in planner.load.requests)
    admit, cap = (200_000, 120_000) if longest > 200_000 else (longest * 3 // 4, longest // 2)
    yield f"refuse prompts above {admit}", replace(today, admit=admit)
    yield f"cap assembled prompts at {cap}", replace(today, cap=cap)
