#!/usr/bin/env python3
"""A soak: an hour of mixed load on one Foreword, and whether it stays what it is.

All the time at once: paced streams in engine-step bursts, counted event by event; users whose conversations grow, call
tools, compact, and leave answers in mid-stream; a few bodies of 5 MB each minute; readers that all leave at once. Each
minute has a row: memory, files and threads of each process, losses, p99. Whatever remembers conversations (the prefix
journal and the findings) has one low bound, and is filled before the warm-up ends: what grows afterwards is something
else. Memory is judged by the minutes behind the warm-up and the filling; a run in which the bounds were never reached
says nothing of it, and that is a fault. Writes a page, its data and a plot into loadtest/results/. Status 0: nothing
was lost, no user saw an error, and memory and files do not grow.
"""

from __future__ import annotations

import datetime as dt
import http.client
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from loadtest import fits, plots, stage, watch
from loadtest.compare import BODY_BYTES, ComparisonError, Result, finish
from loadtest.growth import metrics
from loadtest.scale import milliseconds
from loadtest.sessions import CLIENTS, Answer, Habits, Request, Session
from loadtest.stage import Play, Row
from loadtest.streams import Splitter

MIB = 2**20
HABITS = Habits(
    think_seconds=2,
    tool_seconds=0.3,
    questions=6,
    leave_share=0.1,
    window_tokens=60_000,
)
"""Of users in a hurry: one answer of ten is stopped in mid-stream, and long conversations are compacted."""
ANSWERS = "mode=spread&rate=60&events=60&gate=1"
"""What the engine does for users: a second of text, at once."""
LINES, JOURNAL_MIB = 64, 8
"""The bounds of journal and findings; the lines come on top of the counted streams, whose prompts are the same each
minute. Users begin ten to twenty lines a minute."""
TURNS = 32
"""Turns of a line that the journal keeps: the counted streams have so many before the first minute."""
LEAVERS = 20


class Users:
    """Users in threads, one conversation after the other, until they are stopped."""

    def __init__(self, on: Play, count: int) -> None:
        self.seen: Counter[str] = Counter()
        """Exchanges by what became of them: answered, left, failed."""
        self.first_failure: str | None = None
        self._address = urlsplit(on.base).netloc
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._run, args=(n,), daemon=True) for n in range(count)]

    def start(self) -> None:
        """Lets them go."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Ends them after the answers that they are reading."""
        self._over.set()
        for thread in self._threads:
            thread.join(timeout=60)

    def _run(self, number: int) -> None:
        conversation = 0
        kinds = list(CLIENTS.values())
        while not self._over.is_set():
            kind = kinds[(number + conversation) % len(kinds)]
            self._converse(kind(number * 100_003 + conversation, HABITS))
            conversation += 1

    def _converse(self, session: Session) -> None:
        connection = http.client.HTTPConnection(self._address, timeout=120)
        try:
            while not session.done:
                request = session.next()
                if self._over.wait(request.pause):
                    return
                answer = self._ask(connection, request)
                if answer is None:
                    return
                session.answered(answer)
        finally:
            connection.close()

    def _ask(self, connection: http.client.HTTPConnection, request: Request) -> Answer | None:
        text, ended, events = "", False, 0
        try:
            headers = request.headers | {"content-type": "application/json", "x-rig": ANSWERS}
            connection.request("POST", request.path, request.body, headers)
            response = connection.getresponse()
            if response.status != 200:
                return self._failed(f"status {response.status}: {response.read(300)!r}")
            splitter = Splitter()
            while data := response.read1(65536):
                for event in splitter.feed(data):
                    if event.error is not None:
                        return self._failed(f"error event: {event.error}")
                    text, ended, events = text + event.text, ended or event.end, events + 1
                if request.leave_after is not None and events >= request.leave_after and not ended:
                    connection.close()
                    self._count("left")
                    return Answer(text, complete=False)
        except (OSError, http.client.HTTPException, ValueError) as error:
            return self._failed(f"{type(error).__name__}: {error}")
        if not ended:
            return self._failed("the stream has no end")
        self._count("answered")
        return Answer(text)

    def _failed(self, reason: str) -> Answer | None:
        """Counts a failure; there is no answer."""
        self.first_failure = self.first_failure or reason
        self._count("failed")
        return None

    def _count(self, what: str) -> None:
        with self._lock:
            self.seen[what] += 1


def minute(on: Play, seconds: float, streams: int, rate: float) -> tuple[Result, Result, Result]:
    """The counted streams of a minute, big bodies beside them, and readers that leave; their reports."""
    # A second of ramp, the engine's pause before the first event, and time for the ends.
    events = max(3, int(rate * (seconds - streams / 200 - 3)))
    words = ("--streams", str(streams), "--mode", "burst", "--rate", f"{rate:g}", "--events", str(events))
    leavers = ("--streams", str(LEAVERS), "--rate", f"{rate:g}", "--events", "5000", "--abort-after", "10")
    with stage.started(on.reader(*words, control=False), "running") as reader:
        time.sleep(seconds / 4)
        bodies = stage.report_of(on.bodies("--bytes", str(BODY_BYTES), "--count", "3"))
        left = stage.report_of(on.reader(*leavers, control=False))
        report = finish(reader, "the streams")
    return report, bodies, left


def row_of(on: Play, number: int, report: Result, bodies: Result, left: Result) -> Row:
    """A minute as a row, but for what users saw."""
    uses = watch.take(on.target.pid or 0)
    told = metrics(on)
    row: Row = {
        "minute": number,
        "p50_ms": milliseconds(report, "added_s", "p50"),
        "p99_ms": milliseconds(report, "added_s", "p99"),
        "ttft_p99_ms": milliseconds(report, "ttft_s", "p99"),
        "events": report["received"],
        "lost": len(stage.bad(report)) and int(report.get("lost", 0)),
        "wrong": "; ".join([*stage.bad(report), *stage.bad(left)]),
        "cpu_us_per_event": report.get("cpu_us_per_event"),
        "body_first_byte_ms": milliseconds(bodies, "first_byte_s", "p50"),
        "rss_mib": watch.rss(uses) / MIB,
    }
    for role in ("main", "worker", "tracker"):
        mine = [use for use in uses if use.role == role]
        row[f"{role}_rss_mib"] = sum(use.rss for use in mine) / MIB if mine else None
        row[f"{role}_fds"] = sum(use.fds for use in mine) if mine else None
    row["fds"] = sum(use.fds for use in uses)
    row["threads"] = sum(use.threads for use in uses)
    row["journal_mib"] = told["foreword_journal_bytes"] / MIB
    row["journal_lines"] = told["foreword_journal_lines"]
    row["lines_seen"] = row["journal_lines"] + told["foreword_journal_forgotten_total"]
    return row


JUDGED = (
    ("rss_mib", "RSS of all processes, MiB", True),
    ("worker_rss_mib", "RSS of the worker, MiB", True),
    ("main_rss_mib", "RSS of the main process, MiB", True),
    ("fds", "open files", True),
    ("threads", "threads", True),
    ("p99_ms", "p99 of added time, ms", False),
)
"""What is held against flatness; whether its growth is a fault."""

COLUMNS: list[tuple[str, str, int | None]] = [
    ("minute", "minute", 0),
    ("events", "events", 0),
    ("lost", "lost", 0),
    ("p50_ms", "p50 ms", 2),
    ("p99_ms", "p99 ms", 2),
    ("answered", "answered", 0),
    ("left", "left", 0),
    ("failed", "failed", 0),
    ("body_first_byte_ms", "5 MB: first byte ms", 1),
    ("main_rss_mib", "main MiB", 1),
    ("worker_rss_mib", "worker MiB", 1),
    ("rss_mib", "RSS MiB", 1),
    ("fds", "files", 0),
    ("threads", "threads", 0),
    ("journal_lines", "journal lines", 0),
    ("journal_mib", "journal MiB", 2),
    ("lines_seen", "lines seen", 0),
]


def verdicts(rows: list[Row], after: int) -> tuple[list[str], list[str], dict[str, Any]]:
    """Flatness of the rows after minute ``after``: Markdown, faults, data."""
    counted = [row for row in rows if row["minute"] > after]
    lines = ["| what | mean | slope per hour | +- | share per hour | verdict |", "|---|--:|--:|--:|--:|---|"]
    faults: list[str] = []
    data: dict[str, Any] = {}
    for key, title, counts in JUDGED:
        points = [(float(row["minute"]), float(row[key])) for row in counted if row.get(key) is not None]
        found = fits.flatness([x for x, _ in points], [y for _, y in points])
        data[key] = vars(found)
        slope = "-" if found.slope is None else f"{found.slope:+.3f}"
        error = "-" if found.slope_error is None else f"{found.slope_error:.3f}"
        share = "-" if found.share is None else f"{found.share:+.1%}"
        lines.append(f"| {title} | {found.mean:.2f} | {slope} | {error} | {share} | {found.verdict} |")
        if counts and found.verdict == "grows":
            faults.append(f"{title}: grows by {share} an hour")
    return [*lines, ""], faults, data


def filled(rows: list[Row], most: int) -> int | None:
    """The minute by which journal and findings had as many lines as they remember, ``most``; None: they never had."""
    return next((row["minute"] for row in rows if row["lines_seen"] >= most), None)


def statement(rows: list[Row], after: int, full: int | None, data: dict[str, Any]) -> str:
    """Whether memory is flat, in one sentence."""
    count, found = sum(row["minute"] > after for row in rows), data["rss_mib"]
    if full is None:
        return "**Memory: not judged**, for what remembers conversations was never full."
    if found["slope"] is None:
        return f"**Memory: undecided**: {count} minutes after minute {after} are too few to tell."
    verdict = {"flat": "flat", "grows": "not flat, it grows"}.get(found["verdict"], found["verdict"])
    return (
        f"**Memory: {verdict}**: {found['slope']:+.2f} MiB an hour, +- {2 * (found['slope_error'] or 0):.2f}, on"
        f" {found['mean']:.1f} MiB, over the {count} minutes after minute {after}; all that remembers conversations was"
        f" full in minute {full}."
    )


def halves(rows: list[Row], after: int) -> str:
    """The slope of memory in each half of the judged minutes: a leak keeps its slope, a heap that settles does not."""
    counted = [row for row in rows if row["minute"] > after]
    middle = len(counted) // 2
    slopes = [
        fits.flatness([row["minute"] for row in half], [row["rss_mib"] for row in half]).slope
        for half in (counted[:middle], counted[middle:])
    ]
    first, second = ("-" if slope is None else f"{slope:+.2f}" for slope in slopes)
    return f"RSS of all processes: {first} MiB an hour in the first half of these minutes, {second} in the second."


def fill(on: Play, streams: int) -> None:
    """Gives the conversations of the counted streams as many turns as are kept of one."""
    words = ("--streams", str(streams), "--mode", "burst", "--rate", "50", "--events", "3")
    for _ in range(TURNS):
        stage.report_of(on.reader(*words))


def plot(rows: list[Row], after: int) -> str:
    """Memory, files and p99 over the minutes."""
    minutes = [float(row["minute"]) for row in rows]

    def series(name: str, key: str) -> plots.Series:
        points = [
            (x, float(row[key])) for x, row in zip(minutes, rows, strict=True) if row.get(key) is not None
        ]
        return plots.Series(name, [x for x, _ in points], [y for _, y in points])

    memory = [
        ("all", "rss_mib"),
        ("worker", "worker_rss_mib"),
        ("main", "main_rss_mib"),
        ("journal", "journal_mib"),
    ]
    x_title = f"minute (judged after {after})"
    return plots.svg(
        [
            plots.Panel("RSS, MiB", x_title, [series(name, key) for name, key in memory]),
            plots.Panel("added time, ms", x_title, [series("p99", "p99_ms"), series("p50", "p50_ms")]),
            plots.Panel("open files", x_title, [series("files", "fds")]),
            plots.Panel(
                "exchanges of users", x_title, [series("answered", "answered"), series("left", "left")]
            ),
        ]
    )


def soak(on: Play, options: Any, rows: list[Row]) -> Users:  # noqa: ANN401 - argparse's namespace
    """The load, minute by minute; appends to ``rows``."""
    fill(on, options.streams)
    users = Users(on, options.users)
    users.start()
    try:
        for number in range(1, options.minutes + 1):
            began, before = time.monotonic(), Counter(users.seen)
            row = row_of(on, number, *minute(on, options.minute_seconds, options.streams, options.rate))
            rows.append(row | {key: users.seen[key] - before[key] for key in ("answered", "left", "failed")})
            print(
                "  ".join(f"{title} {stage.shown(rows[-1].get(key), n)}" for key, title, n in COLUMNS),
                file=sys.stderr,
            )
            time.sleep(max(0.0, options.minute_seconds - (time.monotonic() - began)))
    finally:
        users.stop()
    return users


def main() -> int:
    made = stage.parser(__doc__)
    made.add_argument("--minutes", type=int, default=60, help="default: %(default)s")
    made.add_argument(
        "--warm-up", type=int, default=20, help="minutes that do not count; default: %(default)s"
    )
    made.add_argument("--minute-seconds", type=float, default=60, help="shorter: a try; default: %(default)s")
    made.add_argument("--streams", type=int, default=200, help="default: %(default)s")
    made.add_argument(
        "--rate", type=float, default=20, help="events a second and stream; default: %(default)s"
    )
    made.add_argument("--users", type=int, default=8, help="default: %(default)s")
    options = made.parse_args()
    if options.minutes < 1 or options.warm_up < 0 or options.streams < 1 or options.rate <= 0:
        made.error("--minutes, --streams and --rate must be above 0")
    if options.minute_seconds < options.streams / 200 + 5:
        made.error("--minute-seconds leaves no time for the streams")
    try:
        watch.allow_files(4 * options.streams + 1000)
    except ValueError as error:
        made.error(str(error))
    tools, versions = stage.tools_of(made, options)

    def run(_: dt.datetime) -> stage.Report:
        report = stage.Report("soak", f"Soak of {options.minutes} minutes", versions)
        rows: list[Row] = []
        most = options.streams + LINES
        settings = {"FOREWORD_SESSIONS": str(most), "FOREWORD_JOURNAL_MIB": str(JOURNAL_MIB)}
        with stage.play(tools, "foreword", settings) as on:
            before = watch.take(on.target.pid or 0)
            try:
                users = soak(on, options, rows)
            except (ComparisonError, subprocess.SubprocessError, KeyboardInterrupt, SystemExit) as error:
                # What was measured is told, however the run ended.
                if not rows:
                    raise
                report.faults.append(f"ended in minute {len(rows) + 1}: {str(error) or type(error).__name__}")
                users = None
            time.sleep(5)
            over = watch.take(on.target.pid or 0)
        report.faults += [f"minute {row['minute']}: {row['wrong']}" for row in rows if row["wrong"]]
        if failed := sum(row["failed"] for row in rows):
            reason = users.first_failure if users is not None else None
            report.faults.append(f"{failed} exchanges of users failed; the first: {reason}")
        full = filled(rows, most)
        after = max(options.warm_up, full or 0)
        lines, faults, data = verdicts(rows, after)
        if full is None:
            faults = [
                f"journal and findings never had the {most} lines that they remember: memory is not judged"
            ]
        report.faults += faults
        told = statement(rows, after, full, data)
        report.rows = {"minutes": rows}
        report.data = {"minutes": rows, "full": full, "judged_after": after, "flatness": data}
        report.plots = {"plot": plot(rows, after)}
        report.sections += [
            f"{options.streams} streams at {options.rate:g} events a second in bursts, {options.users} users, three",
            f"bodies of 5 MB and {LEAVERS} readers that leave each minute. Journal and findings remember at most",
            f"{most} lines, the journal {TURNS} turns of each and {JOURNAL_MIB} MiB in all.",
            "",
            told,
            "",
            "![Soak](@STEM@-plot.svg)",
            "",
            "## Minutes",
            "",
            *stage.markdown(rows, COLUMNS),
            f"## After minute {after}",
            "",
            *lines,
            f"Flat: the slope, two standard errors to each side, stays within {fits.FLAT_SHARE:.0%} an hour. It grows",
            "when even the slope less two standard errors is above that; undecided lies between.",
            halves(rows, after),
            f"Before the load {watch.rss(before) / MIB:.1f} MiB and {sum(use.fds for use in before)} files;",
            f"5 s after it {watch.rss(over) / MIB:.1f} MiB and {sum(use.fds for use in over)} files.",
            "",
            told,
        ]
        return report

    return stage.main("soak", run, options.results)


if __name__ == "__main__":
    sys.exit(main())
