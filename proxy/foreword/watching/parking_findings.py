"""Findings from what the engine's log says of prompts and parked conversations."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median

from foreword.engines.loglines import FullReread, PromptRead, Skipped
from foreword.engines.reading import Gauge
from foreword.findings import Board, Finding, Severity
from foreword.watching.parking import Park, Parking

SUBJECT = "engine"
"""What these findings are about: the engine as a whole."""

STORM_EVICTIONS = 5
STORM_SHARE = 0.1
"""Evictions for each turn: above it a conversation rarely finds its state again."""
LONG_TOKENS = 32_768
"""A prompt of two checkpoint steps and more: shorter ones end at a multiple of the step by their own length."""
COLLAPSES = 5
COLLAPSE_SHARE = 0.2
STEP_TOKENS = 4_096
"""All steps in use are multiples of it; by chance one length in 4,096 is."""
KEPT_TOKENS = 2_048
"""A prompt of that length leaves a checkpoint, if any are kept."""
CANNOT_HOLD_SKIPS = 3
REFUSALS = 5
REFUSED_SHARE = 0.3
GIANT_EVICTIONS = 5
GIANT_SHARE = 0.6


@dataclass(frozen=True, slots=True)
class _Lately:
    """What happened in the last hour, sorted."""

    prompts: list[PromptRead]
    parks: list[Park]
    skips: list[Skipped]
    rereads: list[FullReread]

    @property
    def evictions(self) -> int:
        return sum(park.evicted for park in self.parks)


class ParkingFindings:
    """Puts findings on the board, and takes them off when they hold no more."""

    def __init__(self, parking: Parking, board: Board) -> None:
        self._parking = parking
        self._board = board

    def review(self, now: float, wall: float, gauges: Mapping[Gauge, float], asked: int) -> None:
        """Looks at the last hour. ``now`` is the clock of the events, ``wall`` seconds since 1970, ``asked`` how many
        requests the engine had."""
        happened = list(self._parking.recent(now))
        lately = _Lately(
            [each for each in happened if isinstance(each, PromptRead)],
            [each for each in happened if isinstance(each, Park)],
            [each for each in happened if isinstance(each, Skipped)],
            [each for each in happened if isinstance(each, FullReread)],
        )
        budget = self._parking.budget_bytes
        if budget is None and "parking_budget_bytes" in gauges:
            budget = int(gauges["parking_budget_bytes"])
        found = [
            _storm(lately, wall, budget),
            _collapse(lately, wall),
            _cannot_hold(lately, wall, budget, self._parking),
            _off(lately, wall, gauges, asked),
            _giants(lately, wall, budget),
        ]
        for finding_id, finding in zip(IDS, found, strict=True):
            if finding is None:
                self._board.clear(finding_id, SUBJECT)
            else:
                self._board.set(finding)


IDS = ("eviction-storm", "checkpoint-collapse", "parking-cannot-hold", "parking-off", "giants-evict")


def _storm(lately: _Lately, wall: float, budget: int | None) -> Finding | None:
    turns = len(lately.prompts) or len(lately.parks)
    evictions = lately.evictions
    if evictions < STORM_EVICTIONS or evictions < STORM_SHARE * turns:
        return None
    sizes = [park.snapshot_bytes for park in lately.parks if park.snapshot_bytes]
    again = _reread(lately.prompts)
    fits = budget // round(median(sizes)) if budget and sizes else None
    return _finding(
        "eviction-storm",
        "critical" if evictions > 4 * STORM_SHARE * turns else "warning",
        wall,
        evictions,
        "Parked conversations push each other out, and each is read again when it comes back: raise"
        " --conversation-cache-mib so that all that take turns fit, or let fewer take turns.",
        again,
        {
            "evictions": evictions,
            "turns": turns,
            "parks": len(lately.parks),
            "snapshot_bytes_median": round(median(sizes)) if sizes else None,
            "budget_bytes": budget,
            "snapshots_that_fit": fits,
            "long_prompts_mostly_read_again": len(again),
        },
    )


def _collapse(lately: _Lately, wall: float) -> Finding | None:
    if lately.rereads:
        return _full_rereads(lately.rereads, wall)
    if (none := _no_checkpoints(lately.prompts, wall)) is not None:
        return none
    long = [prompt for prompt in lately.prompts if prompt.tokens >= LONG_TOKENS]
    low = [prompt for prompt in long if 0 < prompt.reused <= prompt.tokens // 2]
    stepped = [prompt for prompt in low if prompt.reused % STEP_TOKENS == 0]
    usual = Counter(prompt.reused for prompt in low).most_common(1)
    # Prompts of many sizes that stop at one and the same length: the root checkpoint, wherever it lies.
    rooted = [prompt for prompt in low if usual and prompt.reused == usual[0][0]]
    sizes = {prompt.tokens for prompt in rooted}
    fallen = stepped if len(stepped) >= len(rooted) or len(sizes) < COLLAPSES else rooted
    if len(fallen) < COLLAPSES or len(fallen) < COLLAPSE_SHARE * len(long):
        return None
    value, exactly = Counter(prompt.reused for prompt in fallen).most_common(1)[0]
    return _finding(
        "checkpoint-collapse",
        "critical" if 2 * len(fallen) > len(long) else "warning",
        wall,
        len(fallen),
        "Long prompts fall back to one old checkpoint: their newer state was evicted, or their text changed before it."
        " If the verdicts of these exchanges say `changed`, mend the prompt; else give parking more room, or set a"
        " smaller --prompt-cache-every.",
        fallen,
        {
            "long_prompts": len(long),
            "fallen": len(fallen),
            "reused_tokens": value,
            "exactly_so_often": exactly,
            "step_tokens": math.gcd(*(prompt.reused for prompt in fallen)),
        },
    )


def _no_checkpoints(prompts: list[PromptRead], wall: float) -> Finding | None:
    """``--prompt-cache 0``: nothing is kept or reused, where any other setting keeps at least the last turn."""
    asked = [prompt for prompt in prompts if prompt.tokens >= KEPT_TOKENS]
    if len(asked) < COLLAPSES or any(prompt.reused or prompt.checkpoints != 0 for prompt in asked):
        return None
    return _finding(
        "checkpoint-collapse",
        "critical",
        wall,
        len(asked),
        "The engine keeps no checkpoints, so it reads every prompt whole: start it with --prompt-cache above 0.",
        asked[1:],
        {"prompts": len(asked), "reused_tokens": 0, "checkpoints": 0},
    )


def _full_rereads(rereads: list[FullReread], wall: float) -> Finding | None:
    if len(rereads) < COLLAPSES:
        return None
    return _finding(
        "checkpoint-collapse",
        "warning",
        wall,
        len(rereads),
        "The engine reads whole prompts again because it has no checkpoint before the change: with sliding-window or"
        " recurrent layers raise --ctx-checkpoints and --cache-ram, or keep each conversation on one slot.",
        (),
        {"full_rereads": len(rereads), "reasons": dict(Counter(each.reason for each in rereads))},
    )


def _cannot_hold(lately: _Lately, wall: float, budget: int | None, parking: Parking) -> Finding | None:
    reasons = Counter(skip.reason for skip in lately.skips)
    over = reasons["snapshot-over-budget"]
    refused = reasons["ram-admission"] + reasons["ram-floor"]
    # A slot that was given away unparked has said before why it was not parked.
    skipped = len(lately.skips) - reasons["not-parked"]
    attempts = len(lately.parks) + skipped
    starved = refused >= REFUSALS and refused >= REFUSED_SHARE * attempts
    if over < CANNOT_HOLD_SKIPS and not starved:
        return None
    advice = (
        "The machine has too little free memory for the parking that was configured: free some, or lower"
        " --conversation-cache-mib and --conversation-cache-min-free-mib to what is there."
        if refused > over
        else "A conversation's snapshot is larger than what the parking budget leaves, so it is read again on every"
        " return: raise --conversation-cache-mib above the largest snapshot."
    )
    return _finding(
        "parking-cannot-hold",
        "warning" if lately.parks else "critical",
        wall,
        skipped,
        advice,
        (),
        {
            "skips": dict(reasons),
            "attempts": attempts,
            "parks": len(lately.parks),
            "largest_snapshot_bytes": parking.largest_snapshot_bytes,
            "budget_bytes": budget,
            "budget_configured_bytes": parking.budget_wanted_bytes,
        },
    )


def _off(lately: _Lately, wall: float, gauges: Mapping[Gauge, float], asked: int) -> Finding | None:
    enabled = gauges.get("parking_enabled")
    budget, slots = gauges.get("parking_budget_bytes"), gauges.get("parking_slots")
    off = enabled == 0 or (enabled is None and (budget == 0 or slots == 0))
    if not off or lately.parks or not asked:
        return None
    again = _reread(lately.prompts)
    return _finding(
        "parking-off",
        "warning" if len(again) >= CANNOT_HOLD_SKIPS else "info",
        wall,
        asked,
        "Parking is off: whenever two conversations take turns, each is read again from its last checkpoint. Start"
        " Strata with --conversation-cache-mib (and checkpoints, --prompt-cache, above 0).",
        again,
        {"requests": asked, "long_prompts_mostly_read_again": len(again)},
    )


def _giants(lately: _Lately, wall: float, budget: int | None) -> Finding | None:
    sized = [(park, park.snapshot_bytes) for park in lately.parks if park.snapshot_bytes]
    if lately.evictions < GIANT_EVICTIONS or not sized:
        return None
    usual = median(size for _, size in sized)
    limit = min(2 * usual, budget / 3) if budget else 2 * usual
    giants = [park for park, size in sized if size >= limit]
    small = [size for _, size in sized if size < limit]
    caused = sum(park.evicted for park in giants)
    if (
        len(small) < COLLAPSES
        or caused < GIANT_SHARE * lately.evictions
        or 2 * max(small) > max(size for _, size in sized)
    ):
        return None
    return _finding(
        "giants-evict",
        "warning",
        wall,
        caused,
        "A few very large conversations push many small ones out of parking: send them to an engine of their own, cap"
        " the prompt's length, or raise --conversation-cache-mib. `foreword plan` shows what each would change.",
        (),
        {
            "giants": len(giants),
            "others": len(small),
            "evictions": lately.evictions,
            "evictions_for_giants": caused,
            "giant_from_bytes": round(limit),
            "largest_bytes": max(size for _, size in sized),
            "median_bytes": round(usual),
            "budget_bytes": budget,
        },
    )


def _reread(prompts: Iterable[PromptRead]) -> list[PromptRead]:
    """Long prompts of which less than half was reused though some was: their conversation had been here."""
    return [each for each in prompts if each.tokens >= LONG_TOKENS and 0 < each.reused <= each.tokens // 2]


def _finding(  # noqa: PLR0917 - a finding's members, in their order
    finding_id: str,
    severity: Severity,
    wall: float,
    count: int,
    advice: str,
    cost: Iterable[PromptRead],
    evidence: Mapping[str, object],
) -> Finding:
    prompts = list(cost)
    seconds = [prompt.read_seconds for prompt in prompts]
    timed = [each for each in seconds if each is not None]
    return Finding(
        id=finding_id,
        subject=SUBJECT,
        severity=severity,
        first_seen=wall,
        last_seen=wall,
        count=count,
        advice=advice,
        tokens=sum(prompt.read for prompt in prompts) if prompts else None,
        seconds=round(sum(timed), 3) if timed and len(timed) == len(seconds) else None,
        evidence=evidence,
    )
