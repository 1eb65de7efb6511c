"""The plan as text and as JSON."""

from collections.abc import Sequence
from dataclasses import dataclass

from .costs import Costs, Fit
from .grid import Planner, Row
from .knobs import Knob
from .load import Load
from .target import Target


@dataclass(frozen=True, slots=True)
class Plan:
    """All that was found out."""

    planner: Planner
    sizes: Fit
    prefill: Fit
    target: Target
    rows: list[Row]
    knobs: list[Knob]
    recommended: Row | None
    working_set: Row
    """The smallest budget with which no turn finds its conversation gone."""
    needed: Row | None
    """The smallest budget that meets the target, with a slot for each conversation."""
    returning: Row | None
    """The smallest budget with which hardly a turn is lost: evicting what never comes back costs nothing."""

    @property
    def load(self) -> Load:
        return self.planner.load

    @property
    def costs(self) -> Costs:
        return self.planner.costs


def as_json(plan: Plan) -> dict[str, object]:
    """For machines. What is not known is null."""
    load = plan.load
    about: dict[str, object] = {
        "source": load.source,
        "requests": len(load.requests),
        "conversations": load.conversations,
        "prompt_tokens": load.prompt_tokens,
        "identities": load.identities,
        "times": load.timed,
        "observed": load.observed or None,
        "working_set_mib": plan.working_set.setting.mib,
        "snapshot_fit": _fit(plan.sizes) | {"points": [list(point) for point in plan.costs.sizes] or None},
        "prefill_fit": _fit(plan.prefill)
        | {"tokens_per_s": round(plan.costs.prefill_rate, 1), "floor_s": round(plan.costs.prefill_floor, 3)},
        "target": str(plan.target),
        "knobs": [
            {"knob": knob.name, "meets_target": knob.met}
            | knob.row.as_json(plan.costs)
            | {
                "turns": knob.row.outcome.turns,
                "refused": knob.row.outcome.refused,
                "lost_turns": knob.row.outcome.lost_turns,
                "lost_reuse": knob.row.outcome.lost_reuse,
            }
            for knob in plan.knobs
        ],
        "needed": None if plan.needed is None else plan.needed.as_json(plan.costs),
        "enough_for_what_returns": None if plan.returning is None else plan.returning.as_json(plan.costs),
        "notes": load.notes,
    }
    return {
        "load": about,
        "settings": [row.as_json(plan.costs) for row in plan.rows],
        "recommended": None if plan.recommended is None else plan.recommended.as_json(plan.costs),
    }


def _fit(fit: Fit) -> dict[str, object]:
    return {
        "source": fit.source,
        "samples": fit.samples,
        "error_mean": None if fit.mean_error is None else round(fit.mean_error, 4),
        "error_max": None if fit.max_error is None else round(fit.max_error, 4),
    }


def as_text(plan: Plan) -> str:
    """For people."""
    parts = [_about(plan), _knobs(plan), _grid(plan), conclusion(plan)]
    return "\n\n".join(parts)


def conclusion(plan: Plan) -> str:
    """What to do."""
    lines = []
    if plan.recommended is not None:
        lines.append(f"Smallest setting that meets {plan.target}: {flags(plan.recommended)}")
        lines.append(f"  {_costs_of(plan.recommended)}")
    else:
        lines.append(f"No setting of the grid meets {plan.target}.")
        if plan.target.needs_times and not plan.load.timed:
            lines.append(
                "  It asks for times, and this load has none: use a ledger, or describe think times."
            )
        elif plan.needed is not None:
            lines.append(f"  Needed: {flags(plan.needed)}")
            lines.append(f"  {_costs_of(plan.needed)}")
        else:
            lines.append("  No budget meets it either. With every conversation kept that comes back:")
            lines.append(f"  {_costs_of(plan.working_set)}")
    best = plan.recommended or plan.needed
    if (
        plan.returning is not None
        and best is not None
        and plan.returning.setting.mib < best.setting.mib * 3 / 4
    ):
        lines.append(
            "Most of those evictions cost nothing, because what was evicted never came back. At most 1 % of"
        )
        lines.append(f"turns are lost with {flags(plan.returning)}")
        lines.append(f"  {_costs_of(plan.returning)}")
    if not any(knob.met for knob in plan.knobs if knob.alone):
        lines.append("  No knob alone is enough; the table of knobs shows what each is worth.")
    return "\n".join(lines)


def flags(row: Row) -> str:
    """The engine's command line for a row."""
    setting = row.setting
    if not setting.parks:
        return f"no parking (--conversation-cache-mib 0), --prompt-cache-every {setting.every}"
    shown = f"--conversation-cache-mib {setting.mib} --conversation-cache-slots {setting.slots}"
    shown += f" --prompt-cache-every {setting.every}"
    skip = setting.skip_above_mib
    return (
        shown
        if skip is None
        else f"{shown}, not parking snapshots above {skip} MiB (no flag of the engine's)"
    )


def _costs_of(row: Row) -> str:
    outcome = row.outcome
    turns = max(1, outcome.turns)
    times = "" if outcome.ttft_p95 is None else f", TTFT p95 {outcome.ttft_p95:.1f} s"
    return (
        f"evictions on {outcome.evictions / turns:.1%} of {outcome.turns:,} turns, {outcome.lost_turns:,} turns lost, "
        f"{_short(outcome.reread_tokens)} tokens read again, prefill {outcome.prefill_seconds:,.0f} s{times}, "
        f"{row.ram_mib:,} MiB of host memory"
    )


def _about(plan: Plan) -> str:
    load, costs = plan.load, plan.costs
    times = "" if load.timed else ", without times"
    largest, enough = plan.planner.largest_snapshot(), plan.working_set.setting
    held = f"{enough.mib:,} MiB lose no turn" if enough.parks else "none, no turn is lost without parking"
    lines = [
        f"Load: {len(load.requests):,} requests of {load.conversations:,} conversations ({load.identities}), ",
        f"Working set: {held} (largest snapshot {largest:,} MiB)",
        f"Snapshot sizes: {_how(plan.sizes, f'{len(costs.sizes)} points')}",
        f"Prefill: {costs.prefill_rate:,.0f} tokens/s and {costs.prefill_floor:.2f} s a prompt, ",
    ]
    source = "" if load.source == "described" else f", from {load.source}"
    lines[0] += f"{_short(load.prompt_tokens)} prompt tokens{source}{times}"
    lines[3] += _how(plan.prefill, "a line")
    if load.observed:
        counts = ", ".join(f"{name.replace('_', ' ')} {count:,}" for name, count in load.observed.items())
        lines.append(f"The log's own counts: {counts}")
    return "\n".join(lines + [f"Note: {note}" for note in load.notes])


def _how(fit: Fit, shape: str) -> str:
    if fit.source == "told":
        return "as told"
    if fit.source == "default":
        return "as measured once on Strata; no samples of this engine"
    error = "too few samples to tell the error"
    if fit.mean_error is not None:
        most = "" if fit.max_error is None else f", {fit.max_error:.1%} at most"
        error = f"error {fit.mean_error:.1%} on average{most}"
    return f"{shape} through {fit.samples:,} samples of the log, {error}"


def _knobs(plan: Plan) -> str:
    head = [
        "knob",
        "evictions",
        "lost turns",
        "fall back to",
        "read again",
        "prefill s",
        "TTFT p95",
        "RAM MiB",
        "",
    ]
    first, today = plan.knobs[0].row.outcome, plan.knobs[0].row.setting
    rows = [head]
    for knob in plan.knobs:
        outcome = knob.row.outcome
        remark = "meets the target" if knob.met else ""
        if outcome.refused:
            remark = f"refuses {outcome.refused:,} requests" + (f"; {remark}" if remark else "")
        rows.append(
            [
                knob.name if today.parks or knob.row.setting != today else f"{knob.name} (parking off)",
                _change(outcome.evictions, first.evictions),
                _change(outcome.lost_turns, first.lost_turns),
                "-" if outcome.lost_reuse is None else f"{outcome.lost_reuse:,}",
                _short(outcome.reread_tokens),
                f"{outcome.prefill_seconds:,.0f}",
                _seconds(outcome.ttft_p95),
                f"{knob.row.ram_mib:,}",
                remark,
            ]
        )
    return _table(rows)


def _grid(plan: Plan) -> str:
    columns = "mib,slots,every,skip above,evictions,lost turns,read again,prefill s,TTFT p95,RAM MiB,"
    rows = [columns.split(",")]
    shown = [row for row in plan.rows if row is plan.recommended or not _idle(row, plan.rows)]
    for row in shown:
        setting, outcome = row.setting, row.outcome
        skip = setting.skip_above_mib if setting.parks else None
        rows.append(
            [
                f"{setting.mib:,}" if setting.parks else "off",
                f"{setting.slots}" if setting.parks else "-",
                f"{setting.every:,}",
                "-" if skip is None else f"{skip:,}",
                f"{outcome.evictions:,}",
                f"{outcome.lost_turns:,}",
                _short(outcome.reread_tokens),
                f"{outcome.prefill_seconds:,.0f}",
                _seconds(outcome.ttft_p95),
                f"{row.ram_mib:,}",
                "<- smallest" if row is plan.recommended else "",
            ]
        )
    hidden = len(plan.rows) - len(shown)
    more = (
        f"\nof {len(plan.rows)} settings {hidden} gain nothing over one of these; --json has all"
        if hidden
        else ""
    )
    return _table(rows) + more


def _idle(row: Row, rows: Sequence[Row]) -> bool:
    """Whether a setting that is no larger does as well in everything."""

    def size(other: Row) -> tuple[int, ...]:
        setting = other.setting
        return setting.mib, setting.slots, setting.every != 16_384, setting.skip_above_mib is not None

    def result(other: Row) -> tuple[int, ...]:
        return other.outcome.evictions, other.outcome.lost_turns, other.outcome.reread_tokens

    def no_more(one: tuple[int, ...], two: tuple[int, ...]) -> bool:
        return all(a <= b for a, b in zip(one, two, strict=True))

    return any(
        no_more(size(other), size(row)) and no_more(result(other), result(row)) and size(other) != size(row)
        for other in rows
    )


def _change(now: int, before: int) -> str:
    if now == before or not before:
        return f"{now:,}"
    return f"{now:,} ({(now - before) / before:+.0%})"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f} s"


def _short(count: int) -> str:
    for least, unit, name in ((10**9, 10**9, "G"), (10**6, 10**6, "M"), (10**4, 10**3, "k")):
        if count >= least:
            return f"{count / unit:.1f}{name}"
    return f"{count:,}"


def _table(rows: Sequence[Sequence[str]]) -> str:
    """Columns, the first and the last to the left, numbers to the right."""
    last = len(rows[0]) - 1
    widths = [max(len(row[column]) for row in rows) for column in range(last + 1)]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(widths[n]) if n in (0, last) else cell.rjust(widths[n]) for n, cell in enumerate(row)
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
