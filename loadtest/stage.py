"""What the instruments that need fresh processes for each measurement have in common: the stage, the report."""

from __future__ import annotations

import argparse
import contextlib
import csv
import datetime as dt
import json
import platform
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loadtest.compare import (
    CHAT,
    HERE,
    MESSAGES,
    ROOT,
    ComparisonError,
    Processes,
    Result,
    Target,
    find_rig,
    finish,
    machine,
    start_engine,
    start_foreword,
    start_nginx,
    version,
)

RESULTS = HERE / "results"
TARGETS = ("direct", "nginx", "foreword")


@dataclass(frozen=True)
class Tools:
    """The programs of a run."""

    rig: Path
    foreword: str
    nginx: str | None
    path: str
    """Foreword's route: /v1/messages, which translates, or /v1/chat/completions."""


@dataclass(frozen=True)
class Play:
    """An engine and a relay before it, both fresh."""

    rig: Path
    engine: str
    target: Target
    folder: Path

    @property
    def base(self) -> str:
        """The relay's address, without a path."""
        return self.target.url.removesuffix(self.target.path)

    def reader(self, *words: str, control: bool = True) -> list[str]:
        """The command of a reader; ``control``: it tells the engine its plan besides."""
        command = [str(self.rig), "read", "--url", self.target.url, "--json", *words]
        command += ["--control", self.engine] if control else []
        return command + (["--pids", str(self.target.pid)] if self.target.pid is not None else [])

    def bodies(self, *words: str) -> list[str]:
        """The command that sends big bodies."""
        return [str(self.rig), "body", "--url", self.target.url, "--json", *words]


@contextlib.contextmanager
def play(tools: Tools, target: str, settings: Mapping[str, str] | None = None) -> Iterator[Play]:
    """Starts an engine and a relay, ends them. ``settings``: Foreword's environment."""
    processes = Processes()
    with tempfile.TemporaryDirectory(prefix="foreword-loadtest-") as name:
        folder = Path(name)
        try:
            engine = start_engine(processes, tools.rig, folder)
            if target == "nginx":
                found = start_nginx(processes, tools.nginx or "nginx", engine, folder)
            elif target == "foreword":
                both = start_foreword(processes, tools.foreword, engine, folder, settings)
                found = next(each for each in both if each.path == tools.path)
            else:
                found = Target("direct", CHAT, engine + CHAT)
            yield Play(tools.rig, engine, found, folder)
        finally:
            processes.end()


@contextlib.contextmanager
def started(command: Sequence[str], word: str) -> Iterator[subprocess.Popen[str]]:
    """A rig command that has said ``word`` on standard error. Killed when the block leaves it running."""
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        said = process.stderr.readline() if process.stderr else ""
        if said != f"{word}\n":
            raise ComparisonError(f"{' '.join(command[1:4])}: {said.strip() or 'ended without a word'}")
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def report_of(command: Sequence[str]) -> Result:
    """Runs a rig command to its end and returns its report."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        return finish(process, " ".join(command[1:4]))
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


@dataclass(frozen=True)
class Ages:
    """When events came and how old they were, in nanoseconds."""

    came: array[int]
    age: array[int]

    @classmethod
    def read(cls, file: Path) -> Ages:
        """What the reader's --ages has written."""
        numbers = array("Q")
        numbers.frombytes(file.read_bytes())
        if sys.byteorder == "big":
            numbers.byteswap()
        return cls(numbers[::2], numbers[1::2])

    def between(self, began_ns: int, ended_ns: int) -> list[float]:
        """Ages in milliseconds of the events that were written in that time, whenever they came: a stall that ends
        after the window belongs to it.
        """
        return [
            age / 1e6
            for came, age in zip(self.came, self.age, strict=True)
            if began_ns <= came - age < ended_ns
        ]


def bad(report: Result) -> list[str]:
    """What went wrong with the events of a reader's report."""
    counts = ("lost", "duplicated", "out_of_order", "unexpected", "failed_streams")
    wrong = [f"{report[count]} {count}" for count in counts if report.get(count)]
    if wrong and (first := report.get("first_failure")):
        wrong.append(str(first))
    return wrong


Row = dict[str, Any]


def markdown(rows: Sequence[Row], columns: Sequence[tuple[str, str, int | None]]) -> list[str]:
    """Rows as a table. Columns: a key, a title, decimals (None: text). What is absent is a dash."""
    lines = [f"| {' | '.join(title for _, title, _ in columns)} |"]
    lines.append("|" + "".join("---|" if decimals is None else "--:|" for _, _, decimals in columns))
    for row in rows:
        cells = (shown(row.get(key), decimals) for key, _, decimals in columns)
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]


def shown(value: object, decimals: int | None) -> str:
    """A cell."""
    if value is None:
        return "-"
    return f"{value:,.{decimals}f}" if isinstance(value, int | float) and decimals is not None else str(value)


@dataclass
class Report:
    """A page of results with its data."""

    name: str
    title: str
    tools: list[str]
    """Versions of what was measured."""
    skipped: list[str] = field(default_factory=list)
    sections: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)
    rows: dict[str, Sequence[Row]] = field(default_factory=dict)
    """CSV files by their names."""
    plots: dict[str, str] = field(default_factory=dict)
    """SVG files by their names."""

    def write(self, folder: Path, now: dt.datetime) -> Path:
        """Writes page, data and plots beside each other; returns the page."""
        folder.mkdir(parents=True, exist_ok=True)
        stem = f"{now:%Y-%m-%d-%H%M}-{self.name}"
        told = {"machine": machine(), "versions": self.tools, "command": command(), "faults": self.faults}
        text = json.dumps(told | self.data, indent=1) + "\n"
        (folder / f"{stem}.json").write_text(text, encoding="utf-8")
        files = [f"{stem}.json"]
        for name, rows in self.rows.items():
            files.append(f"{stem}-{name}.csv")
            with (folder / files[-1]).open("w", newline="", encoding="utf-8") as sink:
                writer = csv.DictWriter(sink, list(rows[0]) if rows else [], lineterminator="\n")
                writer.writeheader()
                writer.writerows(rows)
        for name, plot in self.plots.items():
            (folder / f"{stem}-{name}.svg").write_text(plot, encoding="utf-8")
        page = [
            f"# {self.title}, {now:%Y-%m-%d %H:%M} UTC",
            "",
            f"- Machine: {machine()}",
            f"- Versions: {'; '.join(self.tools)}",
            f"- Command: `{command()}`",
            f"- Data: {', '.join(f'[{name}]({name})' for name in files)}",
            *(f"- Left out: {each}" for each in self.skipped),
            *(f"- **Fault**: {each}" for each in self.faults),
            "",
            *(line.replace("@STEM@", stem) for line in self.sections),
        ]
        file = folder / f"{stem}.md"
        file.write_text("\n".join(page).rstrip() + "\n", encoding="utf-8")
        return file


def command() -> str:
    """The command line, from the project's folder."""
    return shlex.join([f"loadtest/{Path(sys.argv[0]).name}", *sys.argv[1:]])


def parser(text: str | None) -> argparse.ArgumentParser:
    """Options that all instruments have."""
    made = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--foreword", default="foreword serve", metavar="CMD", help="default: %(default)s")
    made.add_argument("--rig", type=Path, metavar="BINARY", help="foreword-rig; default: built by cargo")
    made.add_argument(
        "--results", type=Path, default=RESULTS, metavar="DIR", help="default: loadtest/results"
    )
    made.add_argument(
        "--dialect",
        choices=("messages", "chat"),
        default="messages",
        help="Foreword's route; default: %(default)s",
    )
    return made


def targets_of(made: argparse.ArgumentParser, words: str) -> list[str]:
    """The targets that an option names."""
    targets = words.split(",")
    if unknown := set(targets) - set(TARGETS):
        made.error(f"unknown target: {', '.join(sorted(unknown))}")
    return targets


def tools_of(made: argparse.ArgumentParser, options: argparse.Namespace) -> tuple[Tools, list[str]]:
    """The programs and their versions; ends the command where one cannot be run."""
    words = shlex.split(options.foreword)
    if not words or shutil.which(words[0]) is None:
        made.error(f"{options.foreword!r} cannot be run; give --foreword CMD")
    nginx = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
    path = MESSAGES if options.dialect == "messages" else CHAT
    versions = [
        f"{version(*shlex.split(options.foreword.removesuffix(' serve')), '--version')} ({path})",
        f"commit {version('git', '-C', str(ROOT), 'describe', '--always', '--dirty')}",
        f"Python {platform.python_version()}",
    ]
    if nginx:
        versions.append(version(nginx, "-v").removeprefix("nginx version: "))
    return Tools(find_rig(options.rig), options.foreword, nginx, path), versions


def main(name: str, run: Callable[[dt.datetime], Report], folder: Path) -> int:
    """Runs an instrument, writes and prints its page. Status 0: nothing was lost, and no bound was broken."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    now = dt.datetime.now(dt.UTC)
    try:
        report = run(now)
    except (ComparisonError, OSError, subprocess.CalledProcessError) as error:
        print(f"{name}.py: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    file = report.write(folder, now)
    print(file.read_text(encoding="utf-8"))
    print(f"written to {file}", file=sys.stderr)
    for fault in report.faults:
        print(f"{name}.py: {fault}", file=sys.stderr)
    return 1 if report.faults else 0
