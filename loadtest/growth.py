#!/usr/bin/env python3
"""How cost grows: with the number of streams, their rate, the size of bodies, the number of conversations.

Four plots with their data, in loadtest/results/. A straight line is fitted to each curve and printed with its
residuals; a point that lies off the line of the others by more than 15 % and more than its repeats differ is named as
a bend, to be explained. Foreword stands beside nginx as a raw relay where nginx has what is measured. Status 0: no
event was lost.
"""

from __future__ import annotations

import datetime as dt
import http.client
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from loadtest import fits, plots, stage, watch
from loadtest.compare import MESSAGES, ROOT, ComparisonError
from loadtest.scale import milliseconds
from loadtest.stage import Play, Row

MIB = 2**20
WARM_UP = ("--streams", "20", "--rate", "100", "--events", "60")


@dataclass(frozen=True)
class Figure:
    """What is drawn against x."""

    key: str
    title: str
    decimals: int


@dataclass(frozen=True)
class Axis:
    """One way to grow."""

    title: str
    x_title: str
    xs: tuple[float, ...]
    figures: tuple[Figure, ...]
    targets: tuple[str, ...]
    measure: Callable[[Play, tuple[float, ...], float], Iterator[Row]]
    """Rows with an ``x`` for a fresh relay, in the order of the xs."""
    note: str
    settings: tuple[tuple[str, str], ...] = ()
    """Foreword's environment."""


def paced(on: Play, streams: int, rate: float, seconds: float) -> Row:
    """Streams in bursts: processor time a second, and what they waited."""
    words = ("--streams", str(streams), "--rate", f"{rate:g}", "--mode", "burst")
    report = stage.report_of(on.reader(*words, "--events", str(max(3, int(rate * seconds)))))
    if wrong := stage.bad(report):
        raise ComparisonError(f"{streams} streams at {rate:g}/s: {'; '.join(wrong)}")
    cpu, wall = report.get("cpu_s"), report["wall_s"]
    return {
        "cpu_ms": 1e3 * cpu / wall if cpu is not None and wall else None,
        "cpu_us_per_event": report.get("cpu_us_per_event"),
        "p50_ms": milliseconds(report, "added_s", "p50"),
        "p99_ms": milliseconds(report, "added_s", "p99"),
        "engine_late_ms": milliseconds(report, "engine_late_s"),
        "rss_mib": report["rss_bytes"] / MIB if report.get("rss_bytes") else None,
    }


def by_streams(on: Play, xs: tuple[float, ...], seconds: float) -> Iterator[Row]:
    """20 events a second each, ever more streams."""
    stage.report_of(on.reader(*WARM_UP))
    for x in xs:
        yield {"x": x} | paced(on, int(x), 20, seconds)


def by_rate(on: Play, xs: tuple[float, ...], seconds: float) -> Iterator[Row]:
    """100 streams, ever faster."""
    stage.report_of(on.reader(*WARM_UP))
    for x in xs:
        yield {"x": x} | paced(on, 100, x, seconds)


def by_size(on: Play, xs: tuple[float, ...], _: float) -> Iterator[Row]:
    """Bodies one by one, ever larger; x in MB."""
    for x in xs:
        count = 20 if x < 5 else 10
        report = stage.report_of(on.bodies("--bytes", str(int(x * 1e6)), "--count", str(count)))
        yield {
            "x": report["bytes"] / 1e6,
            "first_byte_ms": milliseconds(report, "first_byte_s", "p50"),
            "whole_ms": milliseconds(report, "received_s", "p50"),
            "ttft_ms": milliseconds(report, "ttft_s", "p50"),
        }


class Conversations:
    """Conversations with texts of their own, as a client holds them over one connection."""

    system = "You are a careful programmer. " * 40
    turns = 12
    """Messages of a conversation's first prompt, about 1 KB each."""

    def __init__(self, on: Play) -> None:
        self._connection = http.client.HTTPConnection(urlsplit(on.base).netloc, timeout=60)
        self._path = on.target.path
        self.count = 0

    def body(self, number: int, more: int = 0) -> bytes:
        """The prompt of a conversation, ``more`` messages after its first."""
        messages = [
            {
                "role": "user" if turn % 2 == 0 else "assistant",
                "content": f"{number} {turn} " + f"words of conversation {number} at {turn}; " * 24,
            }
            for turn in range(self.turns + 1 + more)
        ]
        body: dict[str, Any] = {"model": "rig", "max_tokens": 1, "stream": True}
        if self._path == MESSAGES:
            return json.dumps(body | {"system": self.system, "messages": messages}).encode()
        return json.dumps(
            body | {"messages": [{"role": "system", "content": self.system}, *messages]}
        ).encode()

    def ask(self, number: int, more: int = 0) -> float:
        """One exchange to its end; seconds to the first byte of the answer."""
        body = self.body(number, more)
        headers = {"content-type": "application/json", "anthropic-version": "2023-06-01"}
        began = time.perf_counter()
        self._connection.request("POST", self._path, body, headers)
        answer = self._connection.getresponse()
        answer.read(1)
        took = time.perf_counter() - began
        answer.read()
        if answer.status != 200:
            raise ComparisonError(f"conversation {number}: status {answer.status}")
        return took

    def grow(self, count: int) -> None:
        """Begins conversations until there are so many."""
        while self.count < count:
            self.ask(self.count)
            self.count += 1


GOES_ON = 200
"""Conversations that go on at each step, spread over all of them; each does so once."""


def by_sessions(on: Play, xs: tuple[float, ...], _: float) -> Iterator[Row]:
    """Ever more conversations in the journal: memory, and what a further turn of one costs."""
    pid = on.target.pid
    if pid is None:
        raise ComparisonError("conversations need a relay")
    conversations = Conversations(on)
    # What grows with the first exchanges is no conversation's: allocators, caches, Python's own.
    conversations.grow(100)
    gone_on: set[int] = set()
    for x in xs:
        conversations.grow(int(x))
        time.sleep(1)
        told = metrics(on)
        before = watch.take(pid)
        times = [conversations.ask(number, more=2) for number in spread(conversations.count, gone_on)]
        time.sleep(0.2)
        spent = sum(use.cpu_ns for use in watch.take(pid)) - sum(use.cpu_ns for use in before)
        yield {
            "x": told.get("foreword_journal_lines", x),
            "journal_mib": told["foreword_journal_bytes"] / MIB,
            "rss_mib": watch.rss(before) / MIB,
            "turn_cpu_us": spent / 1e3 / GOES_ON,
            "turn_ttft_ms": 1e3 * median(times),
        }


def spread(count: int, taken: set[int]) -> list[int]:
    """GOES_ON numbers below ``count``, as evenly as may be, none twice; ``taken`` has all that were ever chosen."""
    if count < len(taken) + GOES_ON:
        raise ValueError(f"{count} conversations, and {len(taken)} have gone on")
    found = []
    for n in range(GOES_ON):
        number = n * count // GOES_ON
        while number in taken:
            number = (number + 1) % count
        taken.add(number)
        found.append(number)
    return found


def metrics(on: Play) -> dict[str, float]:
    """Foreword's own numbers that have no labels."""
    connection = http.client.HTTPConnection(urlsplit(on.base).netloc, timeout=10)
    try:
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
    finally:
        connection.close()
    lines = (line.split(" ") for line in text.splitlines() if line and line[0] != "#" and "{" not in line)
    return {words[0]: float(words[1]) for words in lines}


def looks(cargo_flags: list[str]) -> list[Row]:
    """What a look costs among ever more lines, by the core's own bench (`look_among`), in microseconds."""
    command = [
        "cargo",
        "bench",
        "--quiet",
        "--locked",
        *cargo_flags,
        "-p",
        "foreword-core",
        "--bench",
        "prompt",
    ]
    done = subprocess.run(
        [*command, "--", "look_among"], cwd=ROOT, capture_output=True, text=True, timeout=1800, check=False
    )
    if done.returncode:
        raise ComparisonError(f"{' '.join(command)}: {done.stderr.strip()[-1000:]}")
    return parsed_looks(done.stdout)


_UNITS = {"ns": 1e-3, "µs": 1.0, "us": 1.0, "ms": 1e3, "s": 1e6}


def parsed_looks(text: str) -> list[Row]:
    """The rows of a divan table whose names are numbers: x, median and fastest in microseconds."""
    rows: list[Row] = []
    for line in text.splitlines():
        if not (name := re.match(r"\W*(\d+)\s", line)):
            continue
        times = [
            float(value) * _UNITS[unit] for value, unit in re.findall(r"([\d.]+) (ns|µs|us|ms|s)\b", line)
        ]
        if len(times) == 4:  # fastest, slowest, median, mean
            rows.append({"x": float(name[1]), "look_us": times[2], "fastest_us": times[0]})
    return rows


CPU = Figure("cpu_ms", "processor time, ms a second", 1)
P99 = Figure("p99_ms", "p99 of added time, ms", 2)
PACED = (CPU, P99)
AXES = {
    "streams": Axis(
        "Number of streams",
        "streams, 20 events a second each, in bursts",
        (50, 100, 200, 400, 600, 800),
        PACED,
        ("nginx", "foreword"),
        by_streams,
        "All streams of a step have their events at one instant: the last waits for all others, and p99 grows too.",
    ),
    "rate": Axis(
        "Event rate",
        "events a second of each of 100 streams, in bursts",
        (5, 10, 20, 50, 100, 200),
        PACED,
        ("nginx", "foreword"),
        by_rate,
        "p99 is expected to be level as long as a step is done before the next begins.",
    ),
    "size": Axis(
        "Body size",
        "MB of the request",
        (0.05, 0.5, 1, 2, 5, 10, 20),
        (
            Figure("first_byte_ms", "first byte at the engine, ms", 2),
            Figure("whole_ms", "last byte at the engine, ms", 2),
        ),
        ("nginx", "foreword"),
        by_size,
        "One request at a time, medians; both relays hold a body until all of it is there.",
    ),
    "sessions": Axis(
        "Number of conversations",
        "lines in the journal",
        (250, 500, 1000, 2000, 3000, 4000),
        (
            Figure("journal_mib", "journal by its own count, MiB", 2),
            Figure("rss_mib", "RSS of all processes, MiB", 1),
            Figure("turn_cpu_us", "processor time of one more turn, us", 0),
        ),
        ("foreword",),
        by_sessions,
        "Each conversation has texts of its own, 13 messages of about 1 KB. One more turn: 200 conversations spread"
        " over all of them go on by two messages, each once. The journal's bounds are above what is reached.",
        (("FOREWORD_SESSIONS", "100000"), ("FOREWORD_JOURNAL_MIB", "1024")),
    ),
}


@dataclass(frozen=True)
class Curve:
    """The medians of one figure on one target, and the line through them."""

    target: str
    figure: Figure
    xs: list[float]
    ys: list[float]
    spreads: list[float]
    line: fits.Line
    bends: list[fits.Bend]


def curve(target: str, figure: Figure, runs: list[list[Row]]) -> Curve | None:
    """A curve from the repeats of one target; None where it was not measured."""
    points = []
    for same in zip(*runs, strict=True):
        values = [row[figure.key] for row in same if row.get(figure.key) is not None]
        if values:
            points.append((median(row["x"] for row in same), median(values), max(values) - min(values)))
    if len({x for x, _, _ in points}) < 2:
        return None
    xs, ys, spreads = (list(column) for column in zip(*points, strict=True))
    return Curve(target, figure, xs, ys, spreads, fits.fit(xs, ys), fits.bends(xs, ys, spreads))


def described(found: list[Curve]) -> list[str]:
    """Lines and residuals as Markdown."""
    lines = [
        "| target | figure | at 0 | slope | +- | R2 | residuals, in the order of x |",
        "|---|---|--:|--:|--:|--:|---|",
    ]
    for each in found:
        line, decimals = each.line, each.figure.decimals
        cells = [
            f"{line.intercept:.{decimals}f}",
            f"{line.slope:.4g}",
            "-" if line.slope_error is None else f"{line.slope_error:.2g}",
            "-" if line.r_squared is None else f"{line.r_squared:.4f}",
            ", ".join(f"{residual:+.{decimals}f}" for residual in line.residuals),
        ]
        lines.append(f"| {each.target} | {each.figure.title} | {' | '.join(cells)} |")
    odd = [
        f"- Bend: {each.target}, {each.figure.title}: {bend.y:.{each.figure.decimals}f} at x = {bend.x:g},"
        f" where the line of the other points has {bend.expected:.{each.figure.decimals}f}"
        for each in found
        for bend in each.bends
    ]
    return [*lines, "", *(odd or ["No bend."]), ""]


def section(name: str, axis: Axis, found: list[Curve], rows: list[Row]) -> list[str]:
    """An axis as Markdown: plot, points, lines."""
    columns: list[tuple[str, str, int | None]] = [("target", "target", None), ("x", "x", 2)]
    keys = {figure.key: figure for figure in axis.figures}
    columns += [(key, figure.title, figure.decimals) for key, figure in keys.items()]
    columns += [
        (key, key.replace("_", " "), 2)
        for key in rows[0]
        if key not in keys and key not in ("target", "x", "repeat")
    ]
    medians: list[Row] = []
    for target in dict.fromkeys(row["target"] for row in rows):
        mine = [row for row in rows if row["target"] == target]
        steps = [
            [row for row in mine if row["step"] == step] for step in dict.fromkeys(r["step"] for r in mine)
        ]
        for same in steps:
            row: Row = {"target": target}
            for key in same[0]:
                values = [each[key] for each in same if each.get(key) is not None]
                if key not in ("target", "repeat", "step"):
                    row[key] = median(values) if values else None
            medians.append(row)
    columns = [column for column in columns if column[0] != "step"]
    return [
        f"## {axis.title}",
        "",
        f"x: {axis.x_title}. {axis.note}",
        "",
        f"![{axis.title}](@STEM@-{name}.svg)",
        "",
        *stage.markdown(medians, columns),
        *described(found),
    ]


def plot(axis: Axis, found: list[Curve]) -> str:
    """An axis as SVG: a panel for each figure."""
    panels = [
        plots.Panel(
            figure.title,
            axis.x_title,
            [
                plots.Series(each.target, each.xs, each.ys, (each.line.intercept, each.line.slope))
                for each in found
                if each.figure == figure
            ],
        )
        for figure in axis.figures
    ]
    return plots.svg([panel for panel in panels if panel.series])


def main() -> int:
    made = stage.parser(__doc__)
    made.add_argument("--axes", default=",".join(AXES), help="default: %(default)s")
    made.add_argument("--repeat", type=int, default=3, help="default: %(default)s")
    made.add_argument("--seconds", type=float, default=6, help="of paced streams; default: %(default)s")
    made.add_argument("--points", type=int, help="only so many of each axis, from its beginning: a try")
    made.add_argument(
        "--bench", action="store_true", help="the core's bench of the journal's look too (cargo bench)"
    )
    made.add_argument("--cargo-flags", default="", help="for the bench; default: none")
    options = made.parse_args()
    names = options.axes.split(",")
    if unknown := set(names) - set(AXES):
        made.error(f"unknown axis: {', '.join(sorted(unknown))}")
    if options.repeat < 1 or options.seconds <= 0 or (options.points is not None and options.points < 2):
        made.error("--repeat and --seconds must be above 0, --points above 1")
    try:
        watch.allow_files(5000)
    except ValueError as error:
        made.error(str(error))
    tools, versions = stage.tools_of(made, options)

    def run(_: dt.datetime) -> stage.Report:
        report = stage.Report("growth", "How cost grows", versions)
        if tools.nginx is None:
            report.skipped.append("nginx is not installed (Debian package nginx-light): Foreword alone")
        for name in names:
            axis = AXES[name]
            targets = [each for each in axis.targets if each != "nginx" or tools.nginx is not None]
            runs: dict[str, list[list[Row]]] = {target: [] for target in targets}
            for turn in range(options.repeat):
                for target in targets:
                    print(f"{name} {turn + 1}/{options.repeat}, {target}", file=sys.stderr)
                    with stage.play(tools, target, dict(axis.settings)) as on:
                        runs[target].append(
                            list(axis.measure(on, axis.xs[: options.points], options.seconds))
                        )
            rows: list[Row] = [
                {"target": target, "repeat": turn + 1, "step": step + 1} | row
                for target, repeats in runs.items()
                for turn, repeat in enumerate(repeats)
                for step, row in enumerate(repeat)
            ]
            found = [
                made_curve
                for figure in axis.figures
                for target in targets
                if (made_curve := curve(target, figure, runs[target])) is not None
            ]
            report.rows[name] = rows
            report.data[name] = {
                "points": rows,
                "lines": [
                    {
                        "target": each.target,
                        "figure": each.figure.key,
                        "intercept": each.line.intercept,
                        "slope": each.line.slope,
                        "slope_error": each.line.slope_error,
                        "r_squared": each.line.r_squared,
                        "residuals": each.line.residuals,
                        "bends": [vars(bend) for bend in each.bends],
                    }
                    for each in found
                ],
            }
            report.plots[name] = plot(axis, found)
            report.sections += section(name, axis, found, rows)
        if options.bench:
            add_looks(report, looks(options.cargo_flags.split()))
        else:
            report.skipped.append("the look alone, by the core's bench: --bench")
        report.sections.append(f"Medians of {options.repeat}.")
        return report

    return stage.main("growth", run, options.results)


def add_looks(report: stage.Report, rows: list[Row]) -> None:
    """The bench's curve, as a section of its own."""
    if len(rows) < 2:
        raise ComparisonError("the bench look_among told no times")
    xs, ys = [row["x"] for row in rows], [row["look_us"] for row in rows]
    figure = Figure("look_us", "one look, us", 3)
    # No repeats: twice the way from the fastest look to the median one stands for their spread.
    spreads = [2 * (row["look_us"] - row["fastest_us"]) for row in rows]
    found = Curve("bench", figure, xs, ys, spreads, fits.fit(xs, ys), fits.bends(xs, ys, spreads))
    series = plots.Series("look", xs, ys, (found.line.intercept, found.line.slope))
    report.plots["look"] = plots.svg([plots.Panel(figure.title, "lines in the journal", [series])])
    report.rows["look"] = rows
    report.data["look"] = rows
    report.sections += [
        "## The journal's look",
        "",
        "`cargo bench -p foreword-core --bench prompt -- look_among`: where one more turn of a line stands among many.",
        "",
        "![The journal's look](@STEM@-look.svg)",
        "",
        *stage.markdown(
            rows, [("x", "lines", 0), ("look_us", "median us", 3), ("fastest_us", "fastest us", 3)]
        ),
        *described([found]),
    ]


if __name__ == "__main__":
    sys.exit(main())
