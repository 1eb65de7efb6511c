"""Tables, plots and pages of the load tests, from figures that are given here."""

import datetime as dt
import json
import struct
import sys
import xml.etree.ElementTree as ET
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from loadtest import growth, plots, scale, soak, stage, startup, watch

SVG = "{http://www.w3.org/2000/svg}"


def test_what_is_absent_is_a_dash_and_zero_is_zero() -> None:
    rows: list[stage.Row] = [{"name": "a", "x": 1234.567, "y": 0}, {"name": "b", "x": None}]
    columns: list[tuple[str, str, int | None]] = [("name", "name", None), ("x", "x ms", 1), ("y", "lost", 0)]
    assert stage.markdown(rows, columns) == [
        "| name | x ms | lost |",
        "|---|--:|--:|",
        "| a | 1,234.6 | 0 |",
        "| b | - | - |",
        "",
    ]


def test_a_page_has_its_data_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/somewhere/loadtest/scale.py", "--foreword", "a b"])
    report = stage.Report("scale", "Scale", ["foreword 1"], skipped=["nginx"], faults=["3 lost"])
    report.sections = ["![plot](@STEM@-it.svg)"]
    report.rows = {"points": [{"x": 1, "y": None}]}
    report.plots = {"it": "<svg/>"}
    report.data = {"points": [1]}
    page = report.write(tmp_path, dt.datetime(2026, 1, 2, 3, 4, tzinfo=dt.UTC)).read_text()
    for text in (
        "# Scale, 2026-01-02 03:04 UTC",
        "- Command: `loadtest/scale.py --foreword 'a b'`",
        "- Left out: nginx",
        "- **Fault**: 3 lost",
        "![plot](2026-01-02-0304-scale-it.svg)",
    ):
        assert text in page
    assert {file.name for file in tmp_path.iterdir()} == {
        f"2026-01-02-0304-scale{end}" for end in (".md", ".json", "-points.csv", "-it.svg")
    }
    assert (tmp_path / "2026-01-02-0304-scale-points.csv").read_text() == "x,y\n1,\n"
    told = json.loads((tmp_path / "2026-01-02-0304-scale.json").read_text())
    assert (told["points"], told["faults"]) == ([1], ["3 lost"])


def test_ages_belong_to_the_time_at_which_an_event_was_written(tmp_path: Path) -> None:
    # When it came and how old it was: written at 0, 10, 20 and 30 ms.
    events = [(1, 1), (12, 2), (55, 35), (31, 1)]
    numbers = [ms * 1_000_000 for event in events for ms in event]
    (tmp_path / "ages").write_bytes(struct.pack("<8Q", *numbers))
    ages = stage.Ages.read(tmp_path / "ages")
    assert ages.between(10_000_000, 30_000_000) == [2, 35]
    assert ages.between(40_000_000, 60_000_000) == []


def test_faults_of_a_reader_are_named() -> None:
    assert stage.bad({"lost": 0, "failed_streams": 0}) == []
    report: dict[str, Any] = {"lost": 2, "failed_streams": 1, "first_failure": "cut"}
    assert stage.bad(report) == ["2 lost", "1 failed_streams", "cut"]


def test_repeats_become_medians_and_losses_add_up() -> None:
    rows: list[stage.Row] = [
        {"p99_ms": 3.0, "lost": 1, "by": "x"},
        {"p99_ms": 9.0, "lost": 2},
        {"p99_ms": 4.0, "rss": 5, "by": "z"},
    ]
    assert scale.merged(rows) == {"p99_ms": 4.0, "lost": 3, "by": "z", "rss": 5}
    assert scale.merged([{}, {"a": None}]) == {"a": None}


def test_what_direct_has_more_is_taken_off() -> None:
    rows: list[stage.Row] = [
        {"target": "direct", "more_ms": 2.0},
        {"target": "nginx", "more_ms": 5.0},
        {"target": "foreword", "more_ms": None},
    ]
    scale.over_direct(rows)
    assert [row.get("more_over_direct_ms") for row in rows] == [None, 3.0, None]
    scale.over_direct(rows[1:2])
    assert rows[1]["more_over_direct_ms"] == 3.0


def test_bodies_that_hold_other_streams_up_are_a_fault() -> None:
    assert scale.judged("bodies", [{"target": "nginx", "more_ms": 50.0}]) == []
    assert scale.judged("bodies", [{"target": "foreword", "more_ms": 4.9}]) == []
    assert "50.0 ms above quiet" in scale.judged("bodies", [{"target": "foreword", "more_ms": 50.0}])[0]
    assert scale.judged("flood", [{"target": "foreword", "more_ms": 50.0}]) == []


@pytest.mark.parametrize(
    ("top", "ends"), [(7.3, 8), (100, 100), (0.031, 0.04), (1999, 2000), (0, 1), (24_000, 25_000)]
)
def test_ticks_are_round_and_reach_the_top(top: float, ends: float) -> None:
    found = plots.ticks(top)
    assert found[0] == 0
    assert found[-1] == pytest.approx(ends)
    assert 2 <= len(found) <= 7


def test_a_plot_has_its_points_where_they_are() -> None:
    series = plots.Series("a < b", [0, 5, 10], [0, 50, 100], (0, 10))
    text = plots.svg([plots.Panel("time & cost", "x", [series, plots.Series("other", [1], [1])])])
    root = ET.fromstring(text)  # noqa: S314 - our own
    circles = [
        (float(each.get("cx", "")), float(each.get("cy", "")))
        for each in root.iter(f"{SVG}circle")
        if each.get("r") == "3.5"
    ][:3]
    (x0, y0), (x1, y1), (x2, y2) = circles
    assert x1 - x0 == pytest.approx(x2 - x1, abs=0.2)
    assert y0 - y1 == pytest.approx(y1 - y2, abs=0.2)
    assert y0 > y1 > y2
    texts = [each.text for each in root.iter(f"{SVG}text")]
    assert {"a < b", "other", "time & cost"} <= set(texts)
    line = next(root.iter(f"{SVG}polyline"))
    points = [tuple(map(float, point.split(","))) for point in line.get("points", "").split()]
    # The fitted line goes through the points that it was made of.
    assert points[0] == pytest.approx((x0, y0), abs=0.2)
    assert points[-1] == pytest.approx((x2, y2), abs=0.2)


def test_a_curve_takes_the_medians_and_the_spread_of_repeats() -> None:
    runs = [[{"x": 1.0, "y": 1.0}, {"x": 2.0, "y": each}] for each in (2.0, 2.5, 3.0)]
    found = growth.curve("foreword", growth.Figure("y", "y", 1), runs)
    assert found is not None
    assert (found.xs, found.ys, found.spreads) == ([1, 2], [1, 2.5], [0, 1])
    assert found.line.slope == pytest.approx(1.5)
    assert growth.curve("nginx", growth.Figure("absent", "", 1), runs) is None


def test_conversations_that_go_on_are_spread_and_none_twice() -> None:
    taken: set[int] = set()
    first = growth.spread(250, taken)
    second = growth.spread(4000, taken)
    assert len(set(first)) == len(set(second)) == growth.GOES_ON
    assert not set(first) & set(second)
    assert max(second) > 3900
    with pytest.raises(ValueError, match="have gone on"):
        growth.spread(500, taken)


def test_the_benchs_table_is_read() -> None:
    text = """Timer precision: 20 ns
prompt         fastest       │ slowest       │ median        │ mean          │ samples │ iters
╰─ look_among                │               │               │               │         │
   ├─ 100      184.6 ns      │ 1.31 µs       │ 187.1 ns      │ 201.9 ns      │ 100     │ 3200
   ╰─ 10000    1.184 µs      │ 2.1 ms        │ 1.287 µs      │ 1.5 µs        │ 100     │ 1600
"""
    assert growth.parsed_looks(text) == [
        {"x": 100.0, "look_us": pytest.approx(0.1871), "fastest_us": pytest.approx(0.1846)},
        {"x": 10000.0, "look_us": pytest.approx(1.287), "fastest_us": pytest.approx(1.184)},
    ]


def minute(number: int, rss: float, **others: float) -> dict[str, Any]:
    row = {
        "minute": number,
        "rss_mib": rss,
        "fds": 40,
        "journal_lines": 10.0,
        "journal_mib": 1.0,
        "lines_seen": 10.0,
    }
    return row | others


def test_only_growth_after_the_warm_up_is_a_fault() -> None:
    settled = [minute(n, 100.0 if n > 10 else 50 + 5 * n) for n in range(1, 61)]
    lines, faults, data = soak.verdicts(settled, 10)
    assert faults == []
    assert data["rss_mib"]["verdict"] == data["fds"]["verdict"] == "flat"
    leaking = [minute(n, 100.0 + n) for n in range(1, 61)]
    lines, faults, data = soak.verdicts(leaking, 10)
    assert data["rss_mib"]["slope"] == pytest.approx(60)
    assert len(faults) == 1
    assert "| RSS of all processes, MiB | 135.50 | +60.000 |" in "\n".join(lines)


def test_memories_that_were_never_full_are_told() -> None:
    """The journal may be full by its bytes; the findings count lines only."""
    rows = [minute(n, 100, journal_mib=8.0) for n in range(1, 4)]
    assert soak.filled(rows, 64) is None
    rows.append(minute(4, 100, journal_lines=50.0, lines_seen=64.0))
    assert soak.filled(rows, 64) == 4


@pytest.mark.parametrize(
    ("slope", "full", "told"),
    [
        (
            0.0,
            4,
            "**Memory: flat**: +0.00 MiB an hour, +- 0.00, on 100.0 MiB, over the 50 minutes after minute 10",
        ),
        (0.5, 4, "**Memory: not flat, it grows**: +30.00 MiB an hour"),
        (-0.5, 4, "**Memory: shrinks**: -30.00 MiB an hour"),
        (0.0, None, "**Memory: not judged**"),
    ],
)
def test_the_page_says_whether_memory_is_flat(slope: float, full: int | None, told: str) -> None:
    rows = [minute(n, 100.0 + slope * n) for n in range(1, 61)]
    _, _, data = soak.verdicts(rows, 10)
    assert soak.statement(rows, 10, full, data).startswith(told)


def test_a_heap_that_settles_is_told_from_a_leak() -> None:
    settling = [minute(n, 100.0 + min(n, 31)) for n in range(1, 61)]
    assert "+60.00 MiB an hour in the first half of these minutes, +0.00 in" in soak.halves(settling, 2)
    leaking = [minute(n, 100.0 + n) for n in range(1, 61)]
    assert "+60.00 MiB an hour in the first half of these minutes, +60.00 in" in soak.halves(leaking, 2)
    assert ": - MiB an hour in the first half of these minutes, - in" in soak.halves(leaking[:3], 1)


def test_a_soak_that_was_too_short_says_so() -> None:
    rows = [minute(n, 100.0) for n in range(1, 4)]
    _, _, data = soak.verdicts(rows, 2)
    assert "undecided" in soak.statement(rows, 2, 1, data)


def test_what_is_in_an_image_is_summed_without_what_is_missing() -> None:
    sizes = {"foreword": 2**20, "interpreter": 2**20, "standard library": 2**21}
    rows, missing = startup.sizes_table(sizes | {"packages": {"a": 2**20, "b": None, "foreword": 5}})
    assert rows[-1] == {"part": "sum", "mib": 5.0}
    assert missing == ["b"]


def test_a_summary_of_nothing_has_no_zero() -> None:
    assert startup.summary("x", [None]) == {"figure": "x"}
    assert startup.summary("x", [3, 1, None, 2]) == {"figure": "x", "median": 2, "least": 1, "most": 3}


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_process_and_its_child_are_seen() -> None:
    import os
    import subprocess

    with subprocess.Popen(["sleep", "30"]) as child, ExitStack() as files:
        with watch.Watcher(os.getpid(), seconds=0.01) as watcher:
            for _ in range(20):
                files.enter_context(Path("/dev/null").open())
        child.kill()
    last = watcher.samples[-1]
    roles = {use.pid: use.role for use in last}
    assert (roles[os.getpid()], roles[child.pid]) == ("main", "worker")
    own = last[0]
    assert own.rss > 2**20
    assert own.fds > 20
    assert own.cpu_ns > 0
    assert watcher.peak_rss >= watch.rss(last)
