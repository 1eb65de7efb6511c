"""Before and after: did the hit rate change, and is that a change of the system rather than of its use?

A comparison holds only if use stayed the same: the same clients sent the same segments (but for headers, which rules
take out) at similar lengths. Otherwise it is said what differs.
"""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import orjson

from foreword.doctor import clickhouse
from foreword.doctor.diagnosis import Diagnosis, examine
from foreword.doctor.errors import DoctorError
from foreword.doctor.lengths import Plateau
from foreword.doctor.source import Loaded, Progress, load
from foreword.doctor.style import Style
from foreword.doctor.terminal import moment, percent, tokens
from foreword.doctor.values import real, whole
from foreword.doctor.window import Window, parse_range

Who = tuple[str, str]

_MAIN: Final = 0.05
"""Share of the requests from which an entry and client belong to the use."""

_SAME: Final = 0.8
"""Share of the usual segments that must be the same."""

_LENGTHS: Final = 1.5
"""Factor within which median prompt lengths count as similar."""


@dataclass(frozen=True, slots=True)
class Use:
    """How one side was used, by entry and client."""

    requests: dict[Who, int]
    median_prompt: dict[Who, int]
    usual: dict[Who, frozenset[str]]
    """Digests of tools and system segments that stand in at least half of the requests."""


@dataclass(frozen=True, slots=True)
class Side:
    """One side of the comparison."""

    name: str
    found: Diagnosis
    use: Use
    at_pins: list[tuple[int, int]]
    """The lengths at which reuse was pinned before, and how many requests of this side are at each."""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that must not have changed."""

    name: str
    good: bool
    text: str


def run(
    ledger: str | None,
    sides: list[str],
    now: float,
    progress: Progress,
    *,
    machine: bool,
    show: Callable[[str], None],
) -> int:
    """Compares. Returns 0 if the comparison holds and the hit rate did not fall, else 1. Raises DoctorError."""
    before = _side(ledger, sides[0], now, progress)
    after = _side(ledger, sides[1], now, progress, before)
    checks = [*_checks(before.use, after.use)]
    holds = all(check.good for check in checks)
    old, new = (side.found.rates.total["hit_rate"] for side in (before, after))
    if machine:
        answer = {
            "before": _figures(before),
            "after": _figures(after),
            "change": None if old is None or new is None else round(real(new) - real(old), 4),
            "holds": holds,
            "checks": [{"name": each.name, "good": each.good, "text": each.text} for each in checks],
        }
        show(orjson.dumps(answer, option=orjson.OPT_INDENT_2).decode())
    else:
        show("\n".join(_lines(before, after, checks)))
    return 0 if holds and (old is None or new is None or real(new) >= real(old)) else 1


def _side(ledger: str | None, text: str, now: float, progress: Progress, before: Side | None = None) -> Side:
    location, window = text, Window()
    if not clickhouse.is_url(text) and not Path(text).exists():
        window_of = parse_range(text, now)
        if window_of is None:
            raise DoctorError(f"{text} is neither a ledger nor a time FROM..TO")
        if ledger is None:
            raise DoctorError(
                f"{text} is a time: name the ledger too (foreword doctor LEDGER --compare {text} ..)"
            )
        location, window = ledger, window_of
    with load(location, window, progress) as loaded:
        found = examine(loaded, progress)
        if not found.rates.total["requests"]:
            raise DoctorError(f"{text}: no answered request")
        pins = (before.found if before else found).plateaus
        at_pins = [
            (plateau.tokens, _requests_at(loaded, plateau)) for plateau, _ in pins if not plateau.by_engine
        ]
        return Side(text, found, _use(loaded), at_pins)


def _use(loaded: Loaded) -> Use:
    rows = loaded.db.execute(
        "SELECT entry, client, count(*), median(prompt_tokens)::BIGINT FROM turns GROUP BY ALL"
    ).fetchall()
    usual: dict[Who, set[str]] = {}
    for entry, client, digest in loaded.db.execute(
        """
        WITH seen AS (SELECT coalesce(entry, 'other') AS entry, coalesce(client, 'other') AS client, unnest(head) AS id
                      FROM exchanges),
        sums AS (SELECT entry, client, count(*) AS requests FROM turns GROUP BY ALL)
        SELECT entry, client, digest FROM seen JOIN segments USING (id) JOIN sums USING (entry, client)
        WHERE class IN ('tools', 'system')
        GROUP BY entry, client, digest, requests HAVING count(*) >= 0.5 * requests
        """
    ).fetchall():
        usual.setdefault((entry, client), set()).add(digest)
    return Use(
        {(entry, client): count for entry, client, count, _ in rows},
        {(entry, client): whole(median) for entry, client, _, median in rows},
        {who: frozenset(digests) for who, digests in usual.items()},
    )


def _checks(before: Use, after: Use) -> Iterator[Check]:
    old, new = (_main(use) for use in (before, after))
    gone, come = (", ".join(" ".join(who) for who in sorted(each)) for each in (old - new, new - old))
    if old == new:
        yield Check("clients", good=True, text=f"the same: {', '.join(' '.join(who) for who in sorted(old))}")
    else:
        told = "; ".join(
            text for text in (gone and f"only before: {gone}", come and f"only after: {come}") if text
        )
        yield Check("clients", good=False, text=f"not the same ({told})")
    for who in sorted(old & new):
        yield _segments(who, before.usual.get(who, frozenset()), after.usual.get(who, frozenset()))
        yield _lengths(who, before.median_prompt[who], after.median_prompt[who])


def _main(use: Use) -> set[Who]:
    total = sum(use.requests.values())
    return {who for who, count in use.requests.items() if count >= _MAIN * total}


def _segments(who: Who, old: frozenset[str], new: frozenset[str]) -> Check:
    name = f"segments of {' '.join(who)}"
    if not old or not new:
        return Check(
            name, good=False, text="cannot be compared: one side has no tools or system that stay the same"
        )
    both, either = len(old & new), len(old | new)
    if not both:
        text = "none is on both sides: other prompts, or digests made with another key (FOREWORD_DIGEST_KEY)"
        return Check(name, good=False, text=text)
    return Check(
        name, good=both >= _SAME * either, text=f"{both} of {either} tools and system segments are the same"
    )


def _lengths(who: Who, old: int, new: int) -> Check:
    good = bool(old and new) and max(old, new) <= _LENGTHS * min(old, new)
    text = f"median prompt {tokens(old)} before, {tokens(new)} after"
    return Check(f"lengths of {' '.join(who)}", good=good, text=text)


def _requests_at(loaded: Loaded, plateau: Plateau) -> int:
    row = loaded.db.execute(
        "SELECT count(*) FROM turns WHERE entry = ? AND client = ? AND cached_tokens = ?",
        [plateau.entry, plateau.client, plateau.tokens],
    ).fetchone()
    return whole(row[0]) if row else 0


def _figures(side: Side) -> dict[str, object]:
    total = side.found.rates.total
    return {
        "name": side.name,
        **total,
        "by_entry": side.found.rates.by_entry,
        "at_pinned": [{"tokens": length, "requests": count} for length, count in side.at_pins],
        "lengths": side.found.lengths,
        "findings": [finding.id for finding in side.found.findings],
    }


def _lines(before: Side, after: Side, checks: list[Check]) -> Iterator[str]:
    style = Style.of(sys.stdout)
    totals = [side.found.rates.total for side in (before, after)]
    yield style.paint(f"{'':48} {'before':>18} {'after':>18}", "bold")
    rows: list[tuple[str, list[str]]] = [
        ("requests", [f"{whole(total['requests']):,}" for total in totals]),
        ("from (UTC)", [moment(total["first"]) for total in totals]),
        ("prompt tokens", [tokens(total["prompt_tokens"]) for total in totals]),
        ("hit rate", [percent(total["hit_rate"]) for total in totals]),
    ]
    rows += [
        (f"  {' '.join(who)}", [percent(_rate(side, who)) for side in (before, after)])
        for who in sorted(_main(before.use) | _main(after.use))
    ]
    rows += [
        (f"requests at exactly {length:,} tokens", [f"{old:,}", f"{new:,}"])
        for (length, old), (_, new) in zip(before.at_pins, after.at_pins, strict=True)
    ]
    rows.append(("findings", [str(len(side.found.findings)) for side in (before, after)]))
    for name, (old_text, new_text) in rows:
        yield f"{name:48} {old_text:>18} {new_text:>18}"
    yield ""
    for check in checks:
        yield (
            style.paint("same    ", "green") + f" {check.name}: {check.text}"
            if check.good
            else (style.paint("DIFFERS ", "red") + f" {check.name}: {check.text}")
        )
    if all(check.good for check in checks):
        yield style.paint("Use did not change: the comparison holds.", "bold")
    else:
        yield style.paint(
            "The comparison does not hold: use changed, or cannot be shown to be the same.", "red", "bold"
        )


def _rate(side: Side, who: Who) -> float | None:
    rows = [row for row in side.found.rates.by_entry if (row["entry"], row["client"]) == who]
    asked = sum(whole(row["prompt_tokens"]) for row in rows)
    return sum(whole(row["cached_tokens"]) for row in rows) / asked if asked else None
