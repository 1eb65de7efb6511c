#!/usr/bin/env python3
"""Scale: thousands of streams and connections, floods, slow readers, big bodies all at once.

Each measurement has an engine, a relay and readers of its own, all fresh: the journal is empty. Foreword stands beside
nginx as a raw relay and no relay at all, in turns. Writes a page, its data and a table as CSV into loadtest/results/.
Status 0: no event was lost, no idle connection closed, and big bodies added less than 5 ms to Foreword's p99.
"""

from __future__ import annotations

import datetime as dt
import socket
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from loadtest import stage, watch
from loadtest.compare import BODY_BYTES, ComparisonError, Result, finish
from loadtest.fits import percentile
from loadtest.stage import Ages, Play, Row

MIB = 2**20
QUIET_GOAL_MS = 5.0
"""What 50 bodies of 5 MB at once may add to the p99 of the streams beside them."""
FLOOD_SECONDS = 5.0
"""No paced stream beside a flood is longer."""


@dataclass(frozen=True)
class Sizes:
    """How much of everything; a factor makes tries of the instrument cheap."""

    seconds: float
    factor: float

    def of(self, number: int) -> int:
        """So many, or as many as the factor asks for."""
        return max(2, round(number * self.factor))

    def events(self, rate: float) -> int:
        """Of a paced stream."""
        return max(3, int(rate * self.seconds))


def milliseconds(report: Result, *path: str) -> float | None:
    """A time of a report, in milliseconds."""
    value: Any = report
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return None if value is None else 1e3 * float(value)


def memory(row: Row, before: list[watch.Use], peak: int) -> None:
    """Resident memory before and at its highest, and each process's now."""
    if before:
        row["rss_before_mib"] = watch.rss(before) / MIB
        row["rss_peak_mib"] = peak / MIB


def uses(on: Play) -> list[watch.Use]:
    """What the relay uses; nothing where there is none."""
    return watch.take(on.target.pid) if on.target.pid is not None else []


@dataclass
class Watched:
    """A row that is being measured, and the relay that is watched meanwhile."""

    on: Play
    row: Row
    faults: list[str]

    def note(self, what: str, report: Result) -> None:
        """Takes over what a reader found wrong."""
        self.faults += [f"{what}: {each}" for each in stage.bad(report)]
        self.row["lost"] = self.row.get("lost", 0) + int(report.get("lost", 0))


def paced(on: Play, sizes: Sizes) -> tuple[Row, list[str]]:
    """Thousands of open streams at a pace."""
    streams = sizes.of(2000)
    found = Watched(on, {"streams": streams}, [])
    before = uses(on)
    with ExitStack() as stack:
        watcher = stack.enter_context(watch.Watcher(on.target.pid)) if on.target.pid is not None else None
        report = stage.report_of(
            on.reader(
                "--streams", str(streams), "--mode", "spread", "--rate", "5", "--events", str(sizes.events(5))
            )
        )
    found.note("streams", report)
    row = found.row
    row |= {
        "events": report["received"],
        "events_per_s": report["events_per_s"],
        "p50_ms": milliseconds(report, "added_s", "p50"),
        "p99_ms": milliseconds(report, "added_s", "p99"),
        "ttft_p99_ms": milliseconds(report, "ttft_s", "p99"),
        "cpu_us": report.get("cpu_us_per_event"),
    }
    if watcher is not None and on.target.pid is not None:
        time.sleep(2)
        memory(row, before, watcher.peak_rss)
        row["rss_after_mib"] = watch.rss(uses(on)) / MIB
        row["kib_per_stream"] = (watcher.peak_rss - watch.rss(before)) / 1024 / streams
        row["fds_peak"] = watcher.peak_fds
        row["by_process"] = per_process(watcher.samples)
    return row, found.faults


def per_process(samples: list[list[watch.Use]]) -> str:
    """Each process's greatest resident memory."""
    peaks: dict[tuple[str, int], int] = {}
    for use in (use for sample in samples for use in sample):
        peaks[use.role, use.pid] = max(use.rss, peaks.get((use.role, use.pid), 0))
    return ", ".join(f"{role} {peak / MIB:.0f}" for (role, _), peak in peaks.items())


def fast(on: Play, sizes: Sizes, *, streams: int = 100, rate: float = 50) -> list[str]:
    """The command of paced streams in bursts, with a file of their ages."""
    words = ["--streams", str(sizes.of(streams)), "--rate", str(rate), "--mode", "burst"]
    return on.reader(*words, "--events", str(sizes.events(rate)), "--ages", str(on.folder / "ages"))


def quiet_then(found: Watched, sizes: Sizes, beside: Callable[[], Result], *, streams: int) -> None:
    """Paced streams alone, then beside something else."""
    quiet = stage.report_of(fast(found.on, sizes, streams=streams))
    for when, report in (("quiet", quiet), ("beside", beside())):
        found.note(f"paced streams, {when}", report)
        found.row[f"{when}_p50_ms"] = milliseconds(report, "added_s", "p50")
        found.row[f"{when}_p99_ms"] = milliseconds(report, "added_s", "p99")
    alone, other = found.row["quiet_p99_ms"], found.row["beside_p99_ms"]
    found.row["more_ms"] = other - alone if alone is not None and other is not None else None


class IdleConnections:
    """Connections that had one answer and now say nothing."""

    def __init__(self, base: str, count: int) -> None:
        self._host = urlsplit(base).netloc
        host, _, port = self._host.partition(":")
        self.sockets: list[socket.socket] = []
        for _ in range(count):
            self.sockets.append(socket.create_connection((host, int(port)), timeout=10))
            self._ask(self.sockets[-1])

    def _ask(self, connection: socket.socket) -> bool:
        """One request; whether it was answered."""
        try:
            connection.sendall(f"GET /health/live HTTP/1.1\r\nhost: {self._host}\r\n\r\n".encode())
            return connection.recv(4096).startswith(b"HTTP/1.1 ")
        except OSError:
            return False

    def closed(self) -> int:
        """How many the other side has closed, or that do not answer any more."""
        return sum(not self._ask(connection) for connection in self.sockets)

    def close(self) -> None:
        """Closes them all."""
        for connection in self.sockets:
            connection.close()


def idle(on: Play, sizes: Sizes) -> tuple[Row, list[str]]:
    """Thousands of connections that say nothing, beside paced streams."""
    count = sizes.of(5000)
    found = Watched(on, {"connections": count}, [])
    before = uses(on)
    with ExitStack() as stack:

        def beside() -> Result:
            connections = IdleConnections(on.base, count)
            stack.callback(connections.close)
            time.sleep(1)
            after = uses(on)
            if after:
                found.row["rss_before_mib"] = watch.rss(before) / MIB
                found.row["rss_idle_mib"] = watch.rss(after) / MIB
                found.row["kib_per_connection"] = (watch.rss(after) - watch.rss(before)) / 1024 / count
                found.row["fds"] = sum(use.fds for use in after)
            report = stage.report_of(fast(on, sizes))
            found.row["closed"] = connections.closed()
            return report

        quiet_then(found, sizes, beside, streams=100)
    if found.row["closed"]:
        found.faults.append(f"{found.row['closed']} of {count} idle connections were closed")
    return found.row, found.faults


def flood(on: Play, sizes: Sizes) -> tuple[Row, list[str]]:
    """Hundreds of streams as fast as they go, a few paced ones beside them."""
    # The flood has to outlast the paced streams, whatever carries it.
    sizes = Sizes(min(sizes.seconds, FLOOD_SECONDS), sizes.factor)
    streams, events = sizes.of(500), int(sizes.seconds * 2500)
    found = Watched(on, {"streams": streams}, [])
    words = ["--streams", str(streams), "--mode", "flood", "--events", str(events), "--timeout", "60"]
    words += ["--ramp", "500"]

    def beside() -> Result:
        with stage.started(on.reader(*words), "running") as flooding:
            began = time.monotonic()
            report = stage.report_of(fast(on, sizes, streams=20))
            took = time.monotonic() - began
            over = flooding.poll() is not None
            flooded = finish(flooding, "the flood")
        found.note("flood", flooded)
        found.row["flood_events"] = flooded["received"]
        found.row["flood_events_per_s"] = flooded["events_per_s"]
        found.row["flood_cpu_us"] = flooded.get("cpu_us_per_event")
        found.row["flood_s"] = flooded["wall_s"]
        found.row["covered"] = min(1.0, flooded["wall_s"] / took) if over else 1.0
        return report

    with ExitStack() as stack:
        before = uses(on)
        watcher = stack.enter_context(watch.Watcher(on.target.pid)) if on.target.pid is not None else None
        quiet_then(found, sizes, beside, streams=20)
    if watcher is not None:
        memory(found.row, before, watcher.peak_rss)
    return found.row, found.faults


def slow(on: Play, sizes: Sizes) -> tuple[Row, list[str]]:
    """Readers that do not read, of streams that would fill the memory, beside paced ones."""
    readers, events = sizes.of(10), max(1000, int(400_000 * sizes.factor))
    found = Watched(on, {"slow": readers}, [])
    words = ["--streams", str(readers + 1), "--slow-reader", str(readers), "--hold", "--mode", "flood"]
    words += ["--events", str(events), "--timeout", "60"]
    before = uses(on)

    def beside() -> Result:
        with stage.started(on.reader(*words), "running") as held, ExitStack() as stack:
            watcher = stack.enter_context(watch.Watcher(on.target.pid)) if on.target.pid is not None else None
            time.sleep(2)
            report = stage.report_of(fast(on, sizes))
            if watcher is not None:
                memory(found.row, before, watcher.peak_rss)
            slow_report = finish(held, "the slow readers")  # ends its standard input: now they read
        found.note("slow readers", slow_report)
        found.row["pending_mib"] = slow_report["bytes"] * readers / (readers + 1) / MIB
        if watcher is not None:
            found.row["rss_drained_mib"] = watcher.peak_rss / MIB
        return report

    quiet_then(found, sizes, beside, streams=100)
    return found.row, found.faults


def bodies(on: Play, sizes: Sizes) -> tuple[Row, list[str]]:
    """Big requests all at once while hundreds of streams run."""
    count, size = sizes.of(50), max(100_000, int(BODY_BYTES * min(1.0, sizes.factor)))
    found = Watched(on, {"bodies": count, "body_mb": size / 1e6}, [])
    words = ["--bytes", str(size), "--count", str(count), "--at-once", "--timeout", "60"]
    before = uses(on)
    with ExitStack() as stack:
        # Clients are on other machines: what it takes to send must not push engine, relay and reader off their cores.
        sender = stack.enter_context(stage.started(["nice", "-n", "15", *on.bodies(*words)], "ready"))
        watcher = stack.enter_context(watch.Watcher(on.target.pid)) if on.target.pid is not None else None
        reader = stack.enter_context(stage.started(fast(on, sizes, streams=500, rate=20), "running"))
        time.sleep(max(1.0, sizes.seconds / 3))
        sent = finish(sender, "the bodies")  # ends its standard input: now it sends
        if reader.poll() is not None:
            raise ComparisonError("the streams ended before the bodies had arrived; give more --seconds")
        report = finish(reader, "the streams")
    found.note("streams", report)
    ages = Ages.read(on.folder / "ages")
    began, ended = int(sent["began_ns"]), int(sent["ended_ns"])
    start = int(ages.came[0])
    row = found.row
    row["quiet_p50_ms"], row["quiet_p99_ms"] = both(ages.between(start, began))
    during = ages.between(began, ended)
    row["beside_p50_ms"], row["beside_p99_ms"] = both(during)
    row["beside_events"] = len(during)
    if row["quiet_p99_ms"] is not None and row["beside_p99_ms"] is not None:
        row["more_ms"] = row["beside_p99_ms"] - row["quiet_p99_ms"]
    row["took_ms"] = (ended - began) / 1e6
    row["first_byte_p50_ms"] = milliseconds(sent, "first_byte_s", "p50")
    row["received_p50_ms"] = milliseconds(sent, "received_s", "p50")
    row["received_p99_ms"] = milliseconds(sent, "received_s", "p99")
    row["engine_late_ms"] = milliseconds(report, "engine_late_s")
    if watcher is not None:
        memory(row, before, watcher.peak_rss)
    return row, found.faults


def both(ages: list[float]) -> tuple[float | None, float | None]:
    """p50 and p99."""
    return percentile(ages, 0.5), percentile(ages, 0.99)


Columns = list[tuple[str, str, int | None]]
BESIDE: Columns = [
    ("quiet_p99_ms", "p99 quiet ms", 2),
    ("beside_p99_ms", "p99 beside ms", 2),
    ("more_ms", "more ms", 2),
    ("more_over_direct_ms", "more than direct's ms", 2),
]
RSS: Columns = [("rss_before_mib", "RSS before MiB", 1), ("rss_peak_mib", "RSS peak MiB", 1)]
LOST: tuple[str, str, int | None] = ("lost", "lost", 0)


@dataclass(frozen=True)
class Measurement:
    """One of the set."""

    title: str
    run: Callable[[Play, Sizes], tuple[Row, list[str]]]
    columns: Columns
    note: str = ""


MEASUREMENTS = {
    "paced": Measurement(
        "2,000 open streams, 5 events a second each, evenly spread",
        paced,
        [
            ("events", "events", 0),
            LOST,
            ("p50_ms", "p50 ms", 2),
            ("p99_ms", "p99 ms", 2),
            ("ttft_p99_ms", "TTFT p99 ms", 2),
            ("cpu_us", "CPU us/event", 1),
            *RSS,
            ("rss_after_mib", "RSS after MiB", 1),
            ("kib_per_stream", "KiB/stream", 1),
            ("fds_peak", "files", 0),
            ("by_process", "peak by process MiB", None),
        ],
        "RSS: all processes of the relay, pages that they share counted in each; after: 2 s after the last stream.",
    ),
    "idle": Measurement(
        "5,000 idle connections beside 100 streams x 50/s in bursts",
        idle,
        [
            ("connections", "idle", 0),
            ("closed", "closed", 0),
            LOST,
            *BESIDE,
            ("rss_before_mib", "RSS before MiB", 1),
            ("rss_idle_mib", "RSS idle MiB", 1),
            ("kib_per_connection", "KiB/connection", 1),
            ("fds", "files", 0),
        ],
        "Each connection had one answer before, and has one after the streams; closed: those that had none.",
    ),
    "flood": Measurement(
        "500 streams flooding, 20 streams x 50/s in bursts beside them",
        flood,
        [
            ("flood_events", "flooded", 0),
            ("flood_events_per_s", "events/s", 0),
            ("flood_cpu_us", "CPU us/event", 2),
            LOST,
            *BESIDE,
            ("covered", "flooded share", 2),
            *RSS,
        ],
        "p99: of the paced streams. Flooded share: of the time of the paced streams beside the flood. Engine, relay and"
        " both readers take all cores here: hold the row against nginx's.",
    ),
    "slow": Measurement(
        "10 readers that do not read beside 100 streams x 50/s in bursts",
        slow,
        [
            ("slow", "slow readers", 0),
            ("pending_mib", "held back MiB", 0),
            LOST,
            *BESIDE,
            *RSS,
            ("rss_drained_mib", "RSS peak until read MiB", 1),
        ],
        "Held back: what the engine had for the slow readers, read to its end afterwards.",
    ),
    "bodies": Measurement(
        "50 requests of 5 MB at once while 500 streams run at 20/s in bursts",
        bodies,
        [
            ("bodies", "bodies", 0),
            ("body_mb", "MB each", 1),
            LOST,
            *BESIDE,
            ("beside_events", "events beside", 0),
            ("took_ms", "all answered ms", 0),
            ("first_byte_p50_ms", "first byte p50 ms", 1),
            ("received_p50_ms", "whole p50 ms", 0),
            ("engine_late_ms", "engine late ms", 1),
            *RSS,
        ],
        "Quiet: the same streams before the bodies; beside: events that the engine wrote between the first byte of the"
        " bodies and the end of their last answer. The senders run at low priority, as if on another machine. Engine"
        " late: its own delay, which no age contains. What direct has more is what these cores do by themselves.",
    ),
}


def over_direct(rows: list[Row]) -> None:
    """Adds what a relay has more than no relay has more."""
    alone = next((row.get("more_ms") for row in rows if row["target"] == "direct"), None)
    for row in rows:
        if alone is not None and row.get("more_ms") is not None and row["target"] != "direct":
            row["more_over_direct_ms"] = row["more_ms"] - alone


def merged(rows: list[Row]) -> Row:
    """The medians of repeats; of text the last, of what was lost or closed the sum."""
    found: Row = {}
    for key in {key: None for row in rows for key in row}:
        values = [row[key] for row in rows if row.get(key) is not None]
        if not values or isinstance(values[-1], str):
            found[key] = values[-1] if values else None
        elif key in ("lost", "closed"):
            found[key] = sum(values)
        else:
            found[key] = median(values)
    return found


def main() -> int:
    made = stage.parser(__doc__)
    made.add_argument("--targets", default=",".join(stage.TARGETS), help="default: %(default)s")
    made.add_argument("--scenarios", default=",".join(MEASUREMENTS), help="default: %(default)s")
    made.add_argument("--repeat", type=int, default=3, help="default: %(default)s")
    made.add_argument("--seconds", type=float, default=10, help="of paced streams; default: %(default)s")
    made.add_argument(
        "--factor", type=float, default=1, help="of all numbers, to try the instrument; default: 1"
    )
    options = made.parse_args()
    names = options.scenarios.split(",")
    if unknown := set(names) - set(MEASUREMENTS):
        made.error(f"unknown scenario: {', '.join(sorted(unknown))}")
    if options.repeat < 1 or options.seconds <= 0 or options.factor <= 0:
        made.error("--repeat, --seconds and --factor must be above 0")
    targets = stage.targets_of(made, options.targets)
    try:
        watch.allow_files(int(11_000 * options.factor) + 1000)
    except ValueError as error:
        made.error(str(error))
    tools, versions = stage.tools_of(made, options)
    sizes = Sizes(options.seconds, options.factor)

    def run(_: dt.datetime) -> stage.Report:
        report = stage.Report("scale", "Scale", versions)
        if "nginx" in targets and tools.nginx is None:
            targets.remove("nginx")
            report.skipped.append("nginx is not installed (Debian package nginx-light)")
        if options.factor != 1:
            report.skipped.append(f"the numbers in the titles: all were multiplied by {options.factor:g}")
        table: list[Row] = []
        for name in names:
            rows = measured(report, name, tools, targets, sizes, repeat=options.repeat)
            table += [
                {"scenario": name, "target": row["target"], "figure": key, "median": value}
                for row in rows
                for key, value in row.items()
                if key != "target"
            ]
        report.sections.append(f"Medians of {options.repeat}; lost and closed are sums.")
        report.rows = {"figures": table}
        return report

    return stage.main("scale", run, options.results)


def measured(
    report: stage.Report, name: str, tools: stage.Tools, targets: list[str], sizes: Sizes, *, repeat: int
) -> list[Row]:
    """One measurement on all targets in turns, as rows and as a section of the report."""
    measurement = MEASUREMENTS[name]
    found: dict[str, list[Row]] = {target: [] for target in targets}
    for turn in range(repeat):
        for target in targets:
            what = f"{name} {turn + 1}/{repeat}, {target}"
            print(what, file=sys.stderr)
            try:
                with stage.play(tools, target) as on:
                    row, faults = measurement.run(on, sizes)
            except ComparisonError as error:
                row, faults = {}, [str(error)]
            report.faults += [f"{what}: {fault}" for fault in faults]
            found[target].append(row)
    report.data[name] = found
    rows = [{"target": target} | merged(each) for target, each in found.items()]
    over_direct(rows)
    report.faults += judged(name, rows)
    report.sections += [f"## {measurement.title}", "", measurement.note, ""]
    report.sections += stage.markdown(rows, [("target", "target", None), *measurement.columns])
    return rows


def judged(name: str, rows: list[Row]) -> list[str]:
    """The bounds of Foreword's row."""
    more = next((row.get("more_ms") for row in rows if row["target"] == "foreword"), None)
    if name == "bodies" and more is not None and more > QUIET_GOAL_MS:
        return [
            f"bodies: p99 of the streams beside them is {more:.1f} ms above quiet; the bound is {QUIET_GOAL_MS:g}"
        ]
    return []


if __name__ == "__main__":
    sys.exit(main())
