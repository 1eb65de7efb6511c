#!/usr/bin/env python3
"""Compares Foreword with nginx as a raw relay and with no relay at all, before the rig's engine, in one run.

A LiteLLM proxy is another target, `litellm`, where it is installed. `granian` is Foreword's server without Foreword: it
makes the events of the burst scenarios itself (bare.py), and shows what no relay under it can go below.

Every scenario runs `--repeat` times; within a repeat all targets take turns, so that a slow minute of the
machine hits them alike. The table has the medians; a ratio or difference is the median of those within each
repeat. Nothing is pinned to a core. All processes are ended by their id, however the run ends.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import platform
import resource
import shlex
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
CHAT = "/v1/chat/completions"
MESSAGES = "/v1/messages"
BODY_BYTES = 5_000_000
LITELLM_ALONE = {
    "LITELLM_LOG": "ERROR",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
    "NO_DOCS": "True",
}
"""LiteLLM's environment: it asks nobody else for anything, be it a list of prices; on loopback it needs no key."""

Result = dict[str, Any]
Runs = list[Result]


class ComparisonError(Exception):
    """A process did not do what the comparison needs; the text says which and what it said."""


@dataclass(frozen=True)
class Scenario:
    name: str
    title: str
    streams: int = 100
    rate: float = 50.0
    mode: str = "burst"
    events: int | None = None  # None: as many as `--seconds` holds
    bodies: bool = False  # send big bodies, beside the streams if there are any

    def events_in(self, seconds: float, target: Target) -> int:
        """Of a stream. LiteLLM is flooded with a tenth: at a thousandth of a second each, all would take minutes."""
        if self.events is None:
            return max(2, int(self.rate * seconds))
        return self.events // 10 if target.name == "litellm" else self.events


SCENARIOS = (
    Scenario("burst", "100 streams x 50/s, engine-step bursts"),
    Scenario("spread", "100 streams x 50/s, evenly spread", mode="spread"),
    Scenario("flood", "100 streams x 5000 events, flooded", mode="flood", events=5000),
    Scenario("burst500", "500 streams x 20/s, engine-step bursts", streams=500, rate=20.0),
    Scenario("body", "5 MB request", streams=0, bodies=True),
    Scenario("beside", "100 streams x 50/s in bursts, 5 MB requests beside them", bodies=True),
)


@dataclass(frozen=True)
class Target:
    name: str
    path: str
    url: str
    pid: int | None = None  # None: no relay, nothing to charge

    @property
    def has_engine(self) -> bool:
        """Whether events come from the rig's engine; else the target makes them, and bursts only."""
        return self.name != "granian"


@dataclass
class Processes:
    """What this run has started; ends it all."""

    running: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(
        self, command: Sequence[str], log: Path, env: dict[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        with log.open("wb") as sink:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, env=env)
        self.running.append(process)
        return process

    def end(self) -> None:
        """Asks each process to stop, waits, then kills what is left of it and of its descendants."""
        family: dict[int, int] = {}
        for process in self.running:
            family |= descendants(process.pid)
        for process in reversed(self.running):
            process.terminate()
        for process in reversed(self.running):
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for pid, started in family.items():
            # A worker that outlived its parent. The start time tells it from a later process of the same id.
            if (stat := read_stat(pid)) is not None and stat[1] == started:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self.running.clear()


def read_stat(pid: int) -> tuple[int, int] | None:
    """Parent and start time (clock ticks since boot) of a process; None if it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text[text.rindex(")") + 2 :].split()
    return int(fields[1]), int(fields[19])


def descendants(root: int) -> dict[int, int]:
    """The process and all that descend from it, with their start times."""
    pids = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    stats = {pid: stat for pid in pids if (stat := read_stat(pid)) is not None}
    found: dict[int, int] = {}
    wanted = [root]
    while wanted:
        pid = wanted.pop()
        if pid in stats and pid not in found:
            found[pid] = stats[pid][1]
            wanted += [child for child, (parent, _) in stats.items() if parent == pid]
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_for(
    what: str, process: subprocess.Popen[bytes], log: Path, ready: Callable[[], bool], *, seconds: float
) -> None:
    deadline = time.monotonic() + seconds
    while True:
        if process.poll() is not None:
            raise ComparisonError(f"{what} ended with status {process.returncode}:\n{tail(log)}")
        if ready():
            return
        if time.monotonic() > deadline:
            raise ComparisonError(f"{what} is not ready after {seconds:.0f} s:\n{tail(log)}")
        time.sleep(0.05)


def tail(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace")[-2000:]


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310 - own http: addresses
            status: int = answer.status
            return status == 200
    except (urllib.error.URLError, OSError):
        return False


def start_engine(processes: Processes, rig: Path, folder: Path) -> str:
    log = folder / "engine.log"
    process = processes.start([str(rig), "engine", "--port", "0"], log)
    wait_for("the engine", process, log, lambda: log.read_bytes().endswith(b"\n"), seconds=10)
    return log.read_text().strip()


def start_nginx(processes: Processes, binary: str, engine: str, folder: Path) -> Target:
    prefix = folder / "nginx"
    prefix.mkdir()
    # Started by root, nginx's worker becomes another user, who must reach this folder.
    folder.chmod(0o755)
    port = free_port()
    template = (HERE / "nginx" / "nginx.conf.in").read_text(encoding="utf-8")
    config = template.replace("@PORT@", str(port)).replace("@ENGINE@", engine.removeprefix("http://"))
    (prefix / "nginx.conf").write_text(config, encoding="utf-8")
    log = folder / "nginx.log"
    command = [binary, "-p", str(prefix), "-c", str(prefix / "nginx.conf"), "-e", str(prefix / "error.log")]
    process = processes.start(command, log)
    url = f"http://127.0.0.1:{port}"
    wait_for("nginx", process, log, lambda: answers(f"{url}/health"), seconds=10)
    return Target("nginx", CHAT, url + CHAT, process.pid)


def start_foreword(
    processes: Processes,
    command: str,
    engine: str,
    folder: Path,
    settings: Mapping[str, str] | None = None,
) -> list[Target]:
    """Foreword with these settings beside the addresses; its two routes."""
    port = free_port()
    addresses = {"FOREWORD_UPSTREAM": engine, "FOREWORD_HOST": "127.0.0.1", "FOREWORD_PORT": str(port)}
    env = os.environ | addresses | dict(settings or {})
    log = folder / "foreword.log"
    process = processes.start(shlex.split(command), log, env=env)
    url = f"http://127.0.0.1:{port}"
    wait_for("foreword", process, log, lambda: answers(f"{url}/health/live"), seconds=60)
    return [Target("foreword", path, url + path, process.pid) for path in (MESSAGES, CHAT)]


def has_granian() -> bool:
    """Whether this interpreter can run Foreword's server."""
    return all(importlib.util.find_spec(name) is not None for name in ("granian", "uvloop"))


def start_granian(processes: Processes, folder: Path) -> Target:
    """Foreword's server as Foreword starts it, with an application that makes events."""
    port = free_port()
    command = [sys.executable, "-m", "granian", "--interface", "asgi", "--loop", "uvloop", "--http", "1"]
    command += [
        "--no-ws",
        "--workers",
        "1",
        "--backlog",
        "16384",
        "--backpressure",
        "16384",
        "--no-access-log",
    ]
    command += ["--working-dir", str(ROOT), "--port", str(port), "loadtest.bare:application"]
    log = folder / "granian.log"
    process = processes.start(command, log)
    url = f"http://127.0.0.1:{port}"
    wait_for("granian", process, log, lambda: answers(url), seconds=60)
    return Target("granian", CHAT, url + CHAT, process.pid)


def start_litellm(processes: Processes, binary: str, engine: str, folder: Path) -> list[Target]:
    """LiteLLM's proxy with one worker and one model, without a database, a cache or a log of requests."""
    port = free_port()
    config = {
        "model_list": [
            {
                "model_name": "rig",
                "litellm_params": {"model": "hosted_vllm/rig", "api_base": f"{engine}/v1", "api_key": "none"},
            }
        ],
        "litellm_settings": {"telemetry": False, "request_timeout": 3600},
    }
    file = folder / "litellm.yaml"
    file.write_text(json.dumps(config), encoding="utf-8")  # which is YAML too
    log = folder / "litellm.log"
    command = [
        binary,
        "--config",
        str(file),
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--num_workers",
        "1",
    ]
    process = processes.start(command, log, env=os.environ | LITELLM_ALONE)
    url = f"http://127.0.0.1:{port}"
    wait_for("litellm", process, log, lambda: answers(f"{url}/health/liveliness"), seconds=180)
    return [Target("litellm", path, url + path, process.pid) for path in (MESSAGES, CHAT)]


def find_rig(given: Path | None) -> Path:
    """The rig's binary; built if it is not given."""
    if given is not None:
        return given
    subprocess.run(["cargo", "build", "--release", "--quiet", "-p", "foreword-rig"], cwd=ROOT, check=True)
    return Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target") / "release" / "foreword-rig"


@contextlib.contextmanager
def running(command: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def finish(process: subprocess.Popen[str], what: str) -> Result:
    """The report of a rig command. Lost events (status 1 with a report) are the caller's to judge."""
    out, err = process.communicate()
    if not out.startswith("{"):
        raise ComparisonError(f"{what}: {err.strip()[-1000:]}")
    report: Result = json.loads(out)
    return report


def run_body(rig: Path, target: Target, count: int) -> Result:
    command = [str(rig), "body", "--url", target.url, "--json"]
    command += ["--bytes", str(BODY_BYTES), "--count", str(count)]
    with running(command) as process:
        return finish(process, f"bodies to {target.url}")


@dataclass(frozen=True)
class Bench:
    """What is the same in all scenarios: the tools, and how long and how much."""

    rig: Path
    engine: str
    seconds: float
    bodies: int

    def run(self, scenario: Scenario, target: Target) -> Result:
        """One scenario on one target: the report of `read`, with that of `body` under "body"."""
        if scenario.streams == 0:
            return {"body": run_body(self.rig, target, self.bodies)}
        command = [str(self.rig), "read", "--url", target.url, "--json"]
        command += ["--control", self.engine] if target.has_engine else []
        command += ["--streams", str(scenario.streams), "--rate", str(scenario.rate)]
        command += ["--mode", scenario.mode, "--events", str(scenario.events_in(self.seconds, target))]
        if target.pid is not None:
            command += ["--pids", str(target.pid)]
        with running(command) as reader:
            body: Result | None = None
            # The first line on standard error says that all streams are open.
            if scenario.bodies and reader.stderr is not None and reader.stderr.readline() == "running\n":
                time.sleep(0.5)
                body = run_body(self.rig, target, self.bodies)
                if reader.poll() is not None:
                    raise ComparisonError("the streams ended before the bodies; give more --seconds")
            report = finish(reader, f"{scenario.name} on {target.url}")
        report["body"] = body
        return report


@dataclass(frozen=True)
class Column:
    """A figure of the table: where it stands in a report, the factor to its unit, its decimals."""

    title: str
    path: tuple[str, ...]
    factor: float = 1e3
    decimals: int = 2

    def of(self, report: Result) -> float | None:
        value = lookup(report, self.path)
        return None if value is None else value * self.factor


CPU = Column("CPU us/event", ("cpu_us_per_event",), 1)
READER = Column("reader us/event", ("reader_cpu_us_per_event",), 1)
ADDED = [
    Column(f"{title} ms", ("added_s", key))
    for title, key in (("p50", "p50"), ("p99", "p99"), ("p99.9", "p999"))
]
REST = [
    Column("TTFT p50 ms", ("ttft_s", "p50")),
    Column("TTFT p99 ms", ("ttft_s", "p99")),
    Column("events/s", ("events_per_s",), 1, 0),
    Column("RSS MiB", ("rss_bytes",), 1 / 2**20, 1),
]
LOST = Column("lost", ("lost",), 1, 0)
FIRST_BYTE = Column("first byte p50 ms", ("body", "first_byte_s", "p50"))
WHOLE_BODY = [Column(f"whole body {key} ms", ("body", "received_s", key)) for key in ("p50", "p99")]
BODY_TTFT = Column("TTFT p50 ms", ("body", "ttft_s", "p50"))


def lookup(report: Result, path: tuple[str, ...]) -> float | None:
    value: Any = report
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return float(value) if value is not None else None


def median(values: Iterable[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return statistics.median(present) if present else None


def against(column: Column, mine: Runs, other: Runs | None, sign: str) -> float | None:
    """Median of the ratios ("/") or differences ("-") to another row within each repeat that has both."""
    pairs = [(column.of(a), column.of(b)) for a, b in zip(mine, other or [], strict=False)]
    if sign == "/":
        return median(a / b for a, b in pairs if a is not None and b)
    return median(a - b for a, b in pairs if a is not None and b is not None)


def table(scenario: Scenario, rows: dict[str, Runs], alone: dict[str, Runs]) -> list[str]:
    """A scenario as Markdown. `rows` has the repeats of each target, `alone` those of plain bursts."""
    if not scenario.streams:
        columns = [FIRST_BYTE, *WHOLE_BODY, BODY_TTFT]
    elif scenario.bodies:
        # CPU per event would count the bodies' work here.
        columns = [*ADDED, *WHOLE_BODY, LOST]
    else:
        columns = [CPU, READER, *ADDED, *REST, LOST]
    nginx = next((runs for title, runs in rows.items() if title.startswith("nginx ")), None)
    lines: list[str] = []
    for title, runs in rows.items():
        if not runs:
            continue
        cells = {c.title: (median(c.of(run) for run in runs), c.decimals) for c in columns}
        if not scenario.streams:
            cells["first byte - nginx"] = (against(FIRST_BYTE, runs, nginx, "-"), 2)
            cells["whole body - nginx"] = (against(WHOLE_BODY[0], runs, nginx, "-"), 2)
        elif scenario.bodies:
            cells["p99.9 - without bodies"] = (against(ADDED[2], runs, alone.get(title), "-"), 2)
        else:
            cells["CPU / nginx"] = (against(CPU, runs, nginx, "/"), 2)
        if not lines:
            lines = [
                f"### {scenario.title}",
                "",
                f"| target | {' | '.join(cells)} |",
                "|---" + "|--:" * len(cells) + "|",
            ]
        shown = ("-" if value is None else f"{value:.{decimals}f}" for value, decimals in cells.values())
        lines.append(f"| {title} | {' | '.join(shown)} |")
    return [*lines, ""]


def is_bad(report: Result) -> bool:
    counts = ("lost", "duplicated", "out_of_order", "unexpected", "failed_streams")
    return "error" in report or any(report.get(count) for count in counts)


def machine() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    model = next(models, platform.machine())
    return f"{os.cpu_count()} x {model}, Linux {platform.release()}"


def version(*command: str) -> str:
    """What a program says of its version, in one line."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=60, check=False, env=os.environ | LITELLM_ALONE
        )
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    lines = (done.stdout.strip() or done.stderr.strip()).splitlines()
    return lines[0].strip() if lines else "unknown"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [scenario.name for scenario in SCENARIOS]
    parser.add_argument("--foreword", default="foreword serve", metavar="CMD", help="default: %(default)s")
    parser.add_argument("--nginx", default="nginx", metavar="BINARY", help="default: from PATH or /usr/sbin")
    parser.add_argument("--litellm", default="litellm", metavar="BINARY", help="default: from PATH")
    parser.add_argument("--rig", type=Path, metavar="BINARY", help="foreword-rig; default: built by cargo")
    parser.add_argument("--targets", default="direct,nginx,foreword", help="default: %(default)s")
    parser.add_argument("--scenarios", default=",".join(names), help="default: %(default)s")
    parser.add_argument("--repeat", type=int, default=3, help="default: %(default)s")
    parser.add_argument(
        "--seconds", type=float, default=10, help="length of a paced stream; default: %(default)s"
    )
    parser.add_argument("--bodies", type=int, default=20, help="5 MB requests in a run; default: %(default)s")
    parser.add_argument(
        "--json", metavar="FILE", help="write all reports to FILE too; - : to standard output, no table"
    )
    options = parser.parse_args()
    options.targets = options.targets.split(",")
    options.scenarios = options.scenarios.split(",")
    if unknown := set(options.scenarios) - set(names):
        parser.error(f"unknown scenario: {', '.join(sorted(unknown))}")
    if unknown := set(options.targets) - {"direct", "nginx", "foreword", "granian", "litellm"}:
        parser.error(f"unknown target: {', '.join(sorted(unknown))}")
    if options.repeat < 1 or options.bodies < 1 or options.seconds <= 0:
        parser.error("--repeat, --bodies and --seconds must be above 0")
    options.nginx = shutil.which(options.nginx) or shutil.which(
        options.nginx, path="/usr/sbin:/usr/local/sbin"
    )
    if "nginx" in options.targets and options.nginx is None:
        parser.error("nginx is not installed; give its --nginx BINARY, or leave it out with --targets")
    options.litellm = shutil.which(options.litellm)
    if "litellm" in options.targets and options.litellm is None:
        parser.error("litellm is not installed; give its --litellm BINARY, or leave it out of --targets")
    if "granian" in options.targets and not has_granian():
        parser.error(
            f"granian is not installed for {sys.executable}; run this with .venv/bin/python, "
            "or leave it out of --targets"
        )
    program = shlex.split(options.foreword)[:1]
    if "foreword" in options.targets and not (program and shutil.which(program[0])):
        parser.error(
            f"{options.foreword!r} cannot be run; give --foreword CMD, or leave it out with --targets"
        )
    return options


def start_targets(
    options: argparse.Namespace, processes: Processes, engine: str, folder: Path
) -> list[Target]:
    """All that the options name, in the order of the table."""
    targets: list[Target] = []
    if "direct" in options.targets:
        targets.append(Target("direct", CHAT, engine + CHAT))
    if "nginx" in options.targets:
        targets.append(start_nginx(processes, options.nginx, engine, folder))
    if "foreword" in options.targets:
        targets += start_foreword(processes, options.foreword, engine, folder)
    if "granian" in options.targets:
        targets.append(start_granian(processes, folder))
    if "litellm" in options.targets:
        targets += start_litellm(processes, options.litellm, engine, folder)
    return targets


def compare(options: argparse.Namespace, processes: Processes, folder: Path) -> dict[str, dict[str, Runs]]:
    """Runs everything; reports by scenario and target. A run that fails is a report with "error" alone."""
    rig = find_rig(options.rig)
    engine = start_engine(processes, rig, folder)
    targets = start_targets(options, processes, engine, folder)
    bench = Bench(rig, engine, options.seconds, options.bodies)
    for target in targets:
        bench.run(Scenario("warm-up", "", streams=20, rate=100.0, events=100), target)
    reports: dict[str, dict[str, Runs]] = {}
    for scenario in (scenario for scenario in SCENARIOS if scenario.name in options.scenarios):
        rows: dict[str, Runs] = {f"{target.name} {target.path}": [] for target in targets}
        reports[scenario.name] = rows
        for turn in range(options.repeat):
            for target, runs in zip(targets, rows.values(), strict=True):
                if not target.has_engine and (scenario.mode != "burst" or scenario.bodies):
                    continue
                what = f"{scenario.name} {turn + 1}/{options.repeat}: {target.name} {target.path}"
                print(what, file=sys.stderr)
                try:
                    runs.append(bench.run(scenario, target))
                except ComparisonError as error:
                    print(f"compare.py: {what}: {error}", file=sys.stderr)
                    runs.append({"error": str(error)})
    return reports


def main() -> int:
    options = arguments()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    # So that `finally` runs then too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    processes = Processes()
    with tempfile.TemporaryDirectory(prefix="foreword-compare-") as name:
        try:
            reports = compare(options, processes, Path(name))
        except (ComparisonError, OSError, subprocess.CalledProcessError) as error:
            print(f"compare.py: {error}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            return 130
        finally:
            processes.end()
    settings = {
        "machine": machine(),
        "repeat": options.repeat,
        "seconds": options.seconds,
        "bodies": options.bodies,
    }
    if options.json:
        text = json.dumps(settings | {"scenarios": reports}, indent=1) + "\n"
        if options.json == "-":
            sys.stdout.write(text)
        else:
            Path(options.json).write_text(text, encoding="utf-8")
    if options.json != "-":
        print(f"{settings['machine']}; medians of {options.repeat}.\n")
        for scenario in (scenario for scenario in SCENARIOS if scenario.name in reports):
            print("\n".join(table(scenario, reports[scenario.name], reports.get("burst", {}))))
    bad = [
        f"{name}: {title}"
        for name, rows in reports.items()
        for title, runs in rows.items()
        if any(map(is_bad, runs))
    ]
    for row in bad:
        print(f"compare.py: {row}: failed, or lost or disordered events", file=sys.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
