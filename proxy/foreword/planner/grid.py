"""Settings that are compared, and what they made of a load."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from foreword._core import PlannedOutcome, simulate

from .costs import MIB, Costs
from .load import Load
from .target import Target

_MOST_MIB: Final = 16 * 2**20
"""16 TiB: no host has more."""
_STEP_MIB: Final = 256


@dataclass(frozen=True, slots=True)
class Setting:
    """The engine's flags, and the remedies that are none. MiB, tokens."""

    mib: int = 8_192
    """0: nothing is parked."""
    slots: int = 20
    every: int = 16_384
    skip_above_mib: int | None = None
    kept: int = 6
    root: int = 2_048
    admit: int | None = None
    """Prompts above so many tokens are refused."""
    cap: int | None = None
    """Prompts are assembled of at most so many tokens."""

    @property
    def parks(self) -> bool:
        """Whether anything is parked; where nothing is, slots and the remedy of skipping mean nothing."""
        return self.mib > 0

    @property
    def budget(self) -> int:
        """In bytes."""
        return self.mib * MIB

    @property
    def skip_above(self) -> int | None:
        """In bytes."""
        return None if self.skip_above_mib is None else self.skip_above_mib * MIB


@dataclass(frozen=True, slots=True)
class Row:
    """One setting and what became of the load."""

    setting: Setting
    outcome: PlannedOutcome

    @property
    def ram_mib(self) -> int:
        """Host memory, rounded up."""
        return -(-self.outcome.ram_bytes // MIB)

    def as_json(self, costs: Costs) -> dict[str, object]:
        """The row as ``--json`` prints it."""
        setting, outcome = self.setting, self.outcome
        timed = costs.prefill_rate > 0
        return {
            "mib": setting.mib,
            "slots": setting.slots,
            "every": setting.every,
            "skip_above_mib": setting.skip_above_mib,
            "evictions": outcome.evictions,
            "reread_tokens": outcome.reread_tokens,
            "prefill_s": round(outcome.prefill_seconds, 3) if timed else None,
            "ttft_p95_s": None if outcome.ttft_p95 is None or not timed else round(outcome.ttft_p95, 3),
            "ram_mib": self.ram_mib,
        }


class Planner:
    """One load and its costs, to be tried under settings."""

    def __init__(self, load: Load, costs: Costs) -> None:
        self.load = load
        self.costs = costs

    def rows(self, settings: Iterable[Setting]) -> list[Row]:
        """Each setting with its outcome."""
        tried = list(settings)
        outcomes = simulate(self.load.requests, tried, self.costs)
        return [Row(setting, outcome) for setting, outcome in zip(tried, outcomes, strict=True)]

    def row(self, setting: Setting) -> Row:
        """One setting with its outcome."""
        return self.rows([setting])[0]

    def least(self, target: Target, setting: Setting) -> Row | None:
        """The smallest budget, in steps of 256 MiB, with which the setting meets the target; None where none does."""
        high = self.row(replace(setting, mib=_MOST_MIB))
        if not target.met(high.outcome, high.ram_mib):
            return None
        # What was held with room for all is room enough.
        top = min(_MOST_MIB, high.ram_mib + _STEP_MIB)
        low, steps = 0, -(-top // _STEP_MIB)
        while low < steps:
            middle = (low + steps) // 2
            row = self.row(replace(setting, mib=middle * _STEP_MIB))
            if target.met(row.outcome, row.ram_mib):
                steps = middle
            else:
                low = middle + 1
        return self.row(replace(setting, mib=steps * _STEP_MIB))

    def largest_snapshot(self) -> int:
        """MiB of the largest conversation parked."""
        longest = max(request.prompt + request.output for request in self.load.requests)
        return self.costs.snapshot_mib(longest)


def default_grid(
    baseline: Setting, budgets: tuple[int, int], conversations: int, largest: int
) -> list[Setting]:
    """Budgets up to the working set and one with which the target is met (``budgets``, MiB), slots up to one a
    conversation, two densities of checkpoints, and parking with and without the larger snapshots."""
    working_set, enough = budgets
    mib = {_up(working_set * part / 4) for part in (1, 2, 3, 4)} | {enough}
    mib |= {known for known in (baseline.mib, 24_000) if known < enough}
    slots = sorted({4, baseline.slots, conversations} if conversations > 4 else {4, baseline.slots})
    return [
        replace(baseline, mib=budget, slots=slot, every=every, skip_above_mib=skip)
        for budget in sorted(mib)
        for slot in slots
        for every in sorted({16_384, 4_096, baseline.every}, reverse=True)
        for skip in (None, largest // 2)
    ]


def chosen(
    baseline: Setting,
    mib: Sequence[int],
    slots: Sequence[int],
    every: Sequence[int],
    skip: Sequence[int | None],
) -> list[Setting]:
    """Every combination."""
    return [
        replace(baseline, mib=m, slots=s, every=e, skip_above_mib=k)
        for m in mib
        for s in slots
        for e in every
        for k in skip
    ]


def smallest(rows: Sequence[Row], target: Target) -> Row | None:
    """Of the rows that meet the target the one with the smallest budget, then the least memory, then nearest to the
    engine's defaults."""
    good = [row for row in rows if target.met(row.outcome, row.ram_mib)]

    def cost(row: Row) -> tuple[int, int, int, bool, bool]:
        setting = row.setting
        return (
            setting.mib,
            row.ram_mib,
            setting.slots,
            setting.every != 16_384,
            setting.skip_above_mib is not None,
        )

    return min(good, key=cost, default=None)


def _up(mib: float) -> int:
    return max(_STEP_MIB, -(-int(mib) // _STEP_MIB) * _STEP_MIB)
