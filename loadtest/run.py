#!/usr/bin/env python3
"""The standard set of load tests, in one run on one machine: line rate, then users.

1. compare.py: Foreword beside nginx as a raw relay, no relay at all, its bare server, and LiteLLM where it is
   installed.
2. locust before the stand-in engine: users of opencode with Foreword between and without, users of Claude Code.

Writes a Markdown table with the machine, the versions and the command into loadtest/results/. What is left out,
because it is not installed, is said there. Status 0: nothing was lost and no user saw an error.
"""

from __future__ import annotations

import argparse
import datetime as dt
import importlib.util
import json
import os
import platform
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from loadtest.compare import (
    ROOT,
    ComparisonError,
    Processes,
    answers,
    free_port,
    has_granian,
    machine,
    version,
    wait_for,
)

HERE = Path(__file__).resolve().parent
BRISK = {
    "LOAD_MODEL": "stand-in",
    "LOAD_THINK_SECONDS": "1",
    "LOAD_TOOL_SECONDS": "0.2",
    "LOAD_MAX_TOKENS": "400",
    "LOAD_QUESTIONS": "4",
}
"""Habits of users in a hurry: a short run has conversations from beginning to end. What is set outside goes first."""


@dataclass(frozen=True)
class Crowd:
    """Users of one client."""

    title: str
    client: str
    relayed: bool
    """Whether Foreword stands between them and the engine."""


CROWDS = (
    Crowd("opencode, no relay", "opencode", relayed=False),
    Crowd("opencode, Foreword", "opencode", relayed=True),
    Crowd("Claude Code, Foreword", "claude-code", relayed=True),
)


@dataclass(frozen=True)
class Figures:
    """What a crowd saw. Milliseconds by their number of samples; None where there was no sample."""

    samples: dict[str, Counter[int]]
    requests: int
    failures: int

    def percentile(self, kind: str, share: float) -> float | None:
        """The time that so large a share of the samples of ``kind`` stays within."""
        counts = self.samples.get(kind, Counter())
        rest = share * counts.total()
        for milliseconds, count in sorted(counts.items()):
            rest -= count
            if rest <= 0:
                return float(milliseconds)
        return None


COLUMNS = (
    ("TTFT p50 ms", "TTFT", 0.5),
    ("TTFT p99 ms", "TTFT", 0.99),
    ("gap mean p50 ms", "gap mean", 0.5),
    ("gap max p99 ms", "gap max", 0.99),
    ("whole answer p50 ms", "stream", 0.5),
)


def figures(report: list[dict[str, Any]]) -> Figures:
    """Sums locust's JSON over the names of requests."""
    samples: dict[str, Counter[int]] = {}
    requests = failures = 0
    for row in report:
        times = samples.setdefault(row["method"], Counter())
        times.update({int(float(time)): count for time, count in row["response_times"].items()})
        if row["method"] in ("stream", "left"):
            requests += row["num_requests"]
            failures += row["num_failures"]
    return Figures(samples, requests, failures)


def table(crowds: list[tuple[Crowd, Figures]]) -> list[str]:
    """Markdown; ratios are to the first crowd, which has no relay, for users of the same client."""
    alone, baseline = crowds[0]
    titles = [title for title, _, _ in COLUMNS]
    lines = [
        f"| users | requests | failures | {' | '.join(titles)} |",
        "|---" + "|--:" * (len(titles) + 2) + "|",
    ]
    for who, found in crowds:
        cells = [str(found.requests), str(found.failures)]
        comparable = who.client == alone.client and who is not alone
        for _, kind, share in COLUMNS:
            mine, other = found.percentile(kind, share), baseline.percentile(kind, share)
            ratio = f" ({mine / other:.2f}x)" if mine and other and comparable else ""
            cells.append("-" if mine is None else f"{mine:.0f}{ratio}")
        lines.append(f"| {who.title} | {' | '.join(cells)} |")
    return lines


def locust(options: argparse.Namespace, who: Crowd, url: str, folder: Path) -> Figures:
    """Runs locust for one crowd. Raises ComparisonError when it gives no report."""
    command = [sys.executable, "-m", "locust", "-f", str(HERE / "locustfile.py"), "--host", url, "--headless"]
    command += ["--users", str(options.users), "--spawn-rate", str(options.users), "--stop-timeout", "30"]
    command += ["--run-time", f"{options.user_seconds}s", "--json", "--exit-code-on-error", "0"]
    print(f"users: {who.title}", file=sys.stderr)
    log = folder / "locust.log"
    with log.open("wb") as sink:
        done = subprocess.run(
            command,
            env=BRISK | os.environ | {"LOAD_CLIENTS": who.client},
            stdout=subprocess.PIPE,
            stderr=sink,
            timeout=options.user_seconds + 120,
            check=False,
        )
    try:
        return figures(json.loads(done.stdout))
    except (ValueError, KeyError, TypeError) as error:
        raise ComparisonError(f"locust, {who.title}: {error}:\n{log.read_text()[-2000:]}") from None


def crowd(options: argparse.Namespace, who: Crowd) -> Figures:
    """One crowd before an engine of its own: none finds what another one left in the cache."""
    processes = Processes()
    with tempfile.TemporaryDirectory(prefix="foreword-loadtest-") as name:
        folder = Path(name)
        try:
            engine_port = free_port()
            url = f"http://127.0.0.1:{engine_port}"
            program = shlex.split(options.foreword.removesuffix(" serve"))
            log = folder / "engine.log"
            command = [*program, "engine", "--host", "127.0.0.1", "--port", str(engine_port)]
            process = processes.start(command, log)
            wait_for("the stand-in engine", process, log, lambda: answers(f"{url}/health"), seconds=60)
            if who.relayed:
                port = free_port()
                env = {"FOREWORD_UPSTREAM": url, "FOREWORD_PORT": str(port), "FOREWORD_HOST": "127.0.0.1"}
                url = f"http://127.0.0.1:{port}"
                log = folder / "foreword.log"
                process = processes.start(shlex.split(options.foreword), log, env=os.environ | env)
                ready = f"{url}/health/ready"
                wait_for("foreword", process, log, lambda: answers(ready), seconds=60)
            return locust(options, who, url, folder)
        finally:
            processes.end()


def users(options: argparse.Namespace) -> tuple[list[str], bool]:
    """The second part: Markdown, and whether a user saw an error."""
    found = [(each, crowd(options, each)) for each in CROWDS]
    lines = [
        "## Users",
        "",
        f"{options.users} users for {options.user_seconds} s before a fresh stand-in engine; (x): over no relay.",
        "",
        *table(found),
        "",
    ]
    return lines, any(seen.failures or not seen.requests for _, seen in found)


def line_rate(options: argparse.Namespace, targets: list[str], data: Path) -> tuple[list[str], bool]:
    """The first part: Markdown, and whether something was lost; all reports go into the file ``data``."""
    command = [
        sys.executable,
        str(HERE / "compare.py"),
        "--foreword",
        options.foreword,
        "--targets",
        ",".join(targets),
    ]
    command += [
        "--repeat",
        str(options.repeat),
        "--seconds",
        str(options.seconds),
        "--scenarios",
        options.scenarios,
    ]
    shown = shlex.join(["loadtest/compare.py", *command[2:]])
    command += ["--rig", str(options.rig)] if options.rig else []
    command += ["--json", str(data)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    lines = ["## Line rate", "", f"`{shown}`; data: [{data.name}]({data.name})", "", done.stdout]
    return lines, done.returncode != 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--foreword", default="foreword serve", metavar="CMD", help="default: %(default)s")
    parser.add_argument("--rig", type=Path, metavar="BINARY", help="foreword-rig; default: built by cargo")
    parser.add_argument("--parts", default="line-rate,users", help="default: %(default)s")
    parser.add_argument("--repeat", type=int, default=3, help="of line rate; default: %(default)s")
    parser.add_argument("--seconds", type=float, default=10, help="of a paced stream; default: %(default)s")
    parser.add_argument(
        "--scenarios", default="burst,spread,flood,body", help="of compare.py; default: %(default)s"
    )
    parser.add_argument("--users", type=int, default=20, help="default: %(default)s")
    parser.add_argument("--user-seconds", type=int, default=60, help="default: %(default)s")
    parser.add_argument("--output", type=Path, metavar="FILE", help="default: loadtest/results/DATE.md")
    options = parser.parse_args()
    options.parts = options.parts.split(",")
    if unknown := set(options.parts) - {"line-rate", "users"}:
        parser.error(f"unknown part: {', '.join(sorted(unknown))}")
    if min(options.repeat, options.users, options.user_seconds) < 1 or options.seconds <= 0:
        parser.error("--repeat, --seconds, --users and --user-seconds must be above 0")
    program = shlex.split(options.foreword)[:1]
    if not program or shutil.which(program[0]) is None:
        parser.error(f"{options.foreword!r} cannot be run; give --foreword CMD")
    return options


def main() -> int:
    options = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    now = dt.datetime.now(dt.UTC)
    nginx = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
    litellm = shutil.which("litellm")
    output = options.output or HERE / "results" / f"{now:%Y-%m-%d-%H%M}.md"
    output.parent.mkdir(parents=True, exist_ok=True)
    skipped: list[str] = []
    versions = [
        version(*shlex.split(options.foreword.removesuffix(" serve")), "--version"),
        f"Python {platform.python_version()}",
    ]
    sections: list[str] = []
    bad = False
    if "line-rate" in options.parts:
        targets = ["direct", "foreword"]
        if nginx:
            targets.insert(1, "nginx")
            versions.append(version(nginx, "-v").removeprefix("nginx version: "))
        else:
            skipped.append("nginx is not installed (Debian package nginx-light): no ratios to it")
        if has_granian():
            targets.append("granian")
        else:
            skipped.append("granian is not installed for this Python (.venv has it): no bare server")
        if litellm:
            targets.append("litellm")
            versions.append(f"LiteLLM {version(litellm, '--version').rpartition(' ')[2]}")
        else:
            skipped.append("LiteLLM is not installed (pip install 'litellm[proxy]'): not measured")
        lines, lost = line_rate(options, targets, output.with_name(f"{output.stem}-line-rate.json"))
        sections += lines
        bad = bad or lost
    if "users" in options.parts and importlib.util.find_spec("locust") is None:
        skipped.append("locust is not installed (requirements/loadtest.txt): no users")
    elif "users" in options.parts:
        versions.append(version(sys.executable, "-m", "locust", "--version").partition(" from ")[0])
        try:
            lines, failed = users(options)
        except (ComparisonError, OSError, subprocess.TimeoutExpired) as error:
            print(f"run.py: {error}", file=sys.stderr)
            return 1
        sections += lines
        bad = bad or failed
    commit = version("git", "-C", str(ROOT), "describe", "--always", "--dirty")
    head = [
        f"# Load tests, {now:%Y-%m-%d %H:%M} UTC",
        "",
        f"- Machine: {machine()}",
        f"- Versions: {'; '.join(versions)}; commit {commit}",
        f"- Command: `loadtest/run.py {shlex.join(sys.argv[1:])}`".rstrip(),
        *(f"- Left out: {each}" for each in skipped),
        "",
    ]
    text = "\n".join([*head, *sections])
    output.write_text(text, encoding="utf-8")
    print(text)
    print(f"written to {output}", file=sys.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
