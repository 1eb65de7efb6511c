"""``foreword plan``: sizes Strata's parking by playing a load through the engine's own rules."""

import argparse
import json
import statistics
import sys
from dataclasses import replace
from pathlib import Path
from typing import Final

from . import ledger, logs, spec
from .costs import Costs, Fit, fit_prefill, fit_sizes
from .grid import Planner, Setting, chosen, default_grid, smallest
from .knobs import turned
from .load import Load, LoadError
from .plot import page
from .report import Plan, as_json, as_text
from .target import DEFAULT, NAMES, Target

__all__ = ["main"]

_NOTHING_LOST: Final = Target.parse("lost<=0")
_HARDLY_LOST: Final = Target.parse("lost<=1%")


def main(argv: list[str]) -> int:
    """Prints the plan: 0 if a setting meets the target, 1 if none does or something failed, 2 for wrong usage."""
    parser = _parser()
    options = parser.parse_args(argv)
    if not (options.log or options.ledger or options.load):
        parser.error("one of --log, --ledger, --load is needed")
    if options.ledger and options.load:
        parser.error("--ledger and --load are both the whole load: give one of them")
    try:
        load = spec.described(options.load) if options.load else None
    except LoadError as error:
        parser.error(f"--load: {error}")
    try:
        plan = _plan(options, load)
        if options.html is not None:
            options.html.write_text(page(plan), encoding="utf-8")
    except LoadError as error:
        return _failed(str(error))
    except OSError as error:
        return _failed(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    print(json.dumps(as_json(plan)) if options.json else as_text(plan))
    return 0 if plan.recommended is not None else 1


def _plan(options: argparse.Namespace, load: Load | None) -> Plan:
    facts = logs.read_log(options.log) if options.log else None
    if options.ledger:
        load = ledger.load_of(options.ledger)
    if facts is not None:
        if load is None:
            load = logs.load_of(facts)
        else:
            load.observed = facts.observed
            if load.source == "ledger":
                load.source = "log+ledger"
                note = ledger.beside_log(load, [prompt.tokens for prompt in facts.prompts])
                load.notes += [note] if note else []
    assert load is not None  # noqa: S101 - the command line has one of the three
    costs, sizes, prefill = _costs(facts, options)
    planner = Planner(load, costs)
    today = Setting(
        mib=options.today[0], slots=options.today[1], every=options.today[2], kept=options.prompt_cache
    )
    roomy = replace(today, slots=max(today.slots, load.conversations))
    working_set = planner.least(_NOTHING_LOST, roomy) or planner.row(roomy)
    target: Target = options.target
    needed = planner.least(target, roomy)
    enough = max(working_set, needed or working_set, key=lambda row: row.setting.mib).setting
    rows = planner.rows(_grid(options, planner, today, (working_set.setting.mib, enough.mib)))
    return Plan(
        planner=planner,
        sizes=sizes,
        prefill=prefill,
        target=target,
        rows=rows,
        knobs=turned(planner, today, enough, target),
        recommended=smallest(rows, target),
        working_set=working_set,
        needed=needed,
        returning=planner.least(_HARDLY_LOST, roomy),
    )


def _costs(facts: logs.LogFacts | None, options: argparse.Namespace) -> tuple[Costs, Fit, Fit]:
    costs, sizes, prefill = Costs(), Fit("default"), Fit("default")
    if facts is not None:
        points, sizes = fit_sizes(facts.sizes)
        rate, floor, prefill = fit_prefill(facts.prefill)
        costs = replace(costs, sizes=points, prefill_rate=rate, prefill_floor=floor)
        copied = [costs.snapshot_mib(tokens) * 2**20 / took for tokens, took in facts.restores if took > 0]
        if copied:
            costs = replace(costs, copy_rate=statistics.median(copied))
    if options.prefill_rate is not None:
        costs, prefill = replace(costs, prefill_rate=options.prefill_rate), Fit("told")
    return costs, sizes, prefill


def _grid(
    options: argparse.Namespace, planner: Planner, today: Setting, budgets: tuple[int, int]
) -> list[Setting]:
    standard = default_grid(today, budgets, planner.load.conversations, planner.largest_snapshot())
    if not any((options.mib, options.slots, options.every, options.skip_above)):
        return standard
    return chosen(
        today,
        mib=options.mib or sorted({setting.mib for setting in standard}),
        slots=options.slots or sorted({setting.slots for setting in standard}),
        every=options.every or [today.every],
        skip=options.skip_above or [None],
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="foreword plan",
        description="Sizes Strata's parking: plays a load through the engine's own rules under many settings, and"
        " names the smallest that meets the target. Exit status 0: there is one; 1: there is none; 2: wrong usage.",
        epilog="SPEC is key=value,... for one kind of conversation, kinds separated by ';'. A value is a number (254k)"
        " or a range (10k..40k). Keys: "
        + "; ".join(f"{key} ({default or 'none'}): {text}" for key, (default, text) in spec.KEYS.items())
        + ".",
    )
    source = parser.add_argument_group("the load")
    source.add_argument(
        "--log",
        type=_path,
        action="append",
        metavar="FILE",
        help="the engine's log; give rotated parts in their order",
    )
    source.add_argument(
        "--ledger",
        type=_path,
        metavar="DIR",
        help="Foreword's ledger; with --log, sizes and speeds come from the log",
    )
    source.add_argument("--load", metavar="SPEC", help="a described load, see below")
    wanted = parser.add_argument_group("what is wanted")
    wanted.add_argument(
        "--target",
        type=_target,
        default=Target.parse(DEFAULT),
        metavar="WHAT<=MOST,...",
        help=f"of {', '.join(f'{name} ({text})' for name, text in NAMES.items())} (default: {DEFAULT})".replace(
            "%", "%%"
        ),
    )
    wanted.add_argument("--html", type=_path, metavar="FILE", help="also write a page with plots")
    wanted.add_argument("--json", action="store_true", help="for machines")
    grid = parser.add_argument_group(
        "the grid; each a list such as 8192,24000 (default: up to the working set)"
    )
    grid.add_argument("--mib", type=_numbers, metavar="LIST", help="--conversation-cache-mib")
    grid.add_argument("--slots", type=_numbers, metavar="LIST", help="--conversation-cache-slots")
    grid.add_argument("--every", type=_numbers, metavar="LIST", help="--prompt-cache-every")
    grid.add_argument(
        "--skip-above",
        type=_skips,
        metavar="LIST",
        help="snapshots above so many MiB are not parked; none: all are",
    )
    engine = parser.add_argument_group("the engine")
    engine.add_argument(
        "--today",
        type=_today,
        default=(8_192, 20, 16_384),
        metavar="MIB/SLOTS[/EVERY]",
        help="the setting that the knobs are turned from (default: 8192/20/16384)",
    )
    engine.add_argument(
        "--prompt-cache",
        type=_number,
        default=6,
        metavar="N",
        help="checkpoints kept of a conversation (default: 6)",
    )
    engine.add_argument(
        "--prefill-rate", type=_rate, metavar="TOK/S", help="reading (default: from the log, else 4300)"
    )
    return parser


def _failed(text: str) -> int:
    print(f"foreword plan: {text}", file=sys.stderr)
    return 1


def _path(text: str) -> Path:
    if not text:
        raise argparse.ArgumentTypeError("the name is empty")
    return Path(text)


def _target(text: str) -> Target:
    try:
        return Target.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _number(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = -1
    if not 0 <= value < 2**32:
        raise argparse.ArgumentTypeError(f"{text!r}: must be a whole number from 0 to {2**32 - 1:,}")
    return value


def _rate(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r}: must be a number above 0")
    return value


def _numbers(text: str) -> list[int]:
    return [_number(part) for part in text.split(",")]


def _skips(text: str) -> list[int | None]:
    return [None if part.strip() == "none" else _number(part) for part in text.split(",")]


def _today(text: str) -> tuple[int, int, int]:
    numbers = [_number(part) for part in text.split("/")]
    if len(numbers) not in (2, 3):
        raise argparse.ArgumentTypeError(f"{text!r}: must be MIB/SLOTS or MIB/SLOTS/EVERY")
    return numbers[0], numbers[1], numbers[2] if len(numbers) == 3 else 16_384
