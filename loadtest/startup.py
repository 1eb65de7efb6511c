#!/usr/bin/env python3
"""Start-up and footprint: from exec to the first answers, what Foreword holds when idle, how large it is.

Starts Foreword again and again before an engine that is up, and asks /health/live and /health/ready every 2 ms. Writes
a page and its data into loadtest/results/. The image's size needs docker, podman or buildah and an image; without them
the sizes of what goes into it are summed, and called so.
"""

from __future__ import annotations

import datetime as dt
import http.client
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from loadtest import stage, watch
from loadtest.compare import ROOT, ComparisonError, Processes, free_port, start_engine, tail
from loadtest.stage import Row, Tools

MIB = 2**20
POLL_SECONDS = 0.002
LIMIT_SECONDS = 60.0
BUILDERS = ("docker", "podman", "buildah")

_SIZES = r"""
import importlib.metadata, importlib.util, json, os, sys, sysconfig

def folder(path, without=()):
    total = 0
    for where, folders, files in os.walk(path):
        folders[:] = [name for name in folders if name != "__pycache__" and name not in without]
        total += sum(os.path.getsize(os.path.join(where, name)) for name in files
                     if not name.endswith(".a") and not os.path.islink(os.path.join(where, name)))
    return total

def package(name):
    try:
        files = importlib.metadata.distribution(name).files or []
    except importlib.metadata.PackageNotFoundError:
        return None
    found = (str(file.locate()) for file in files if not str(file).endswith(".pyc"))
    return sum(os.path.getsize(path) for path in found if os.path.isfile(path))

own = importlib.util.find_spec("foreword").submodule_search_locations[0]
library = sysconfig.get_config_var("LDLIBRARY") or ""
shared = os.path.join(sysconfig.get_config_var("LIBDIR") or "", library)
print(json.dumps({
    "foreword": folder(own),
    "packages": {name: package(name) for name in sys.argv[1:]},
    "standard library": folder(sysconfig.get_path("stdlib"), ("site-packages", "dist-packages", "test")),
    "interpreter": os.path.getsize(os.path.realpath(sys.executable))
        + (os.path.getsize(os.path.realpath(shared)) if shared.endswith(".so") and os.path.isfile(shared) else 0),
}))
"""


def start(tools: Tools, idle_seconds: float) -> tuple[Row, str]:
    """One start: times in seconds from just before exec, memory when idle; and the interpreter's path."""
    processes = Processes()
    with tempfile.TemporaryDirectory(prefix="foreword-startup-") as name:
        folder = Path(name)
        try:
            engine = start_engine(processes, tools.rig, folder)
            port = free_port()
            addresses = {
                "FOREWORD_UPSTREAM": engine,
                "FOREWORD_HOST": "127.0.0.1",
                "FOREWORD_PORT": str(port),
            }
            log = folder / "foreword.log"
            began = time.monotonic()
            process = processes.start(shlex.split(tools.foreword), log, env=os.environ | addresses)
            row: Row = {}
            for path in ("live", "ready"):
                while not answered(port, f"/health/{path}"):
                    if process.poll() is not None or time.monotonic() - began > LIMIT_SECONDS:
                        raise ComparisonError(f"/health/{path} did not come:\n{tail(log)}")
                    time.sleep(POLL_SECONDS)
                row[f"{path}_s"] = time.monotonic() - began
            time.sleep(idle_seconds)
            uses = watch.take(process.pid)
            row["rss_mib"] = watch.rss(uses) / MIB
            shared = watch.proportional(process.pid)
            row["pss_mib"] = None if shared is None else shared / MIB
            row |= {f"{use.role}_rss_mib": use.rss / MIB for use in uses}
            row |= {"processes": len(uses), "threads": sum(use.threads for use in uses)}
            row["fds"] = sum(use.fds for use in uses)
            before = sum(use.cpu_ns for use in uses)
            time.sleep(idle_seconds)
            spent = sum(use.cpu_ns for use in watch.take(process.pid)) - before
            row["idle_cpu_share"] = spent / 1e9 / idle_seconds if idle_seconds else None
            words = Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")
            return row, words[0].decode()
        finally:
            processes.end()


def answered(port: int, path: str) -> bool:
    """Whether this address answers with 200."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def image_size(image: str) -> tuple[int | None, str]:
    """The size of an image in bytes and the tool that told it; None and the reasons where none did."""
    reasons = []
    for tool in BUILDERS:
        if shutil.which(tool) is None:
            continue
        words = {"buildah": ["inspect", "--type", "image", "--format", "{{.Docker.Size}}"]}
        command = [tool, *words.get(tool, ["image", "inspect", "--format", "{{.Size}}"]), image]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        if done.returncode == 0 and done.stdout.strip().isdigit():
            return int(done.stdout), tool
        reasons.append(f"{tool}: {(done.stderr.strip() or 'no size').splitlines()[0]}")
    return None, "; ".join(reasons) or f"none of {', '.join(BUILDERS)} is installed"


def parts(interpreter: str) -> dict[str, Any]:
    """Bytes on disk of what an image holds beside its base system; compiled Python files are not counted."""
    lock = (ROOT / "requirements" / "runtime.txt").read_text(encoding="utf-8")
    names = re.findall(r"^([A-Za-z0-9._-]+)==", lock, re.MULTILINE)
    done = subprocess.run(
        [interpreter, "-c", _SIZES, *names],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if done.returncode:
        raise ComparisonError(f"{interpreter}: {done.stderr.strip()[-1000:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def sizes_table(found: dict[str, Any]) -> tuple[list[Row], list[str]]:
    """The parts as rows with their sum, and the packages that are not installed."""
    packages = {name: size for name, size in found["packages"].items() if name != "foreword"}
    missing = sorted(name for name, size in packages.items() if size is None)
    rows: list[Row] = [
        {"part": name, "mib": found[name] / MIB} for name in ("foreword", "interpreter", "standard library")
    ]
    present = sorted(((size, name) for name, size in packages.items() if size is not None), reverse=True)
    rows += [{"part": name, "mib": size / MIB} for size, name in present]
    rows.append({"part": "sum", "mib": sum(row["mib"] for row in rows)})
    return rows, missing


def main() -> int:
    made = stage.parser(__doc__)
    made.add_argument("--repeat", type=int, default=7, help="starts; default: %(default)s")
    made.add_argument(
        "--idle-seconds", type=float, default=5, help="before memory is read; default: %(default)s"
    )
    made.add_argument("--image", default="foreword", metavar="NAME", help="default: %(default)s")
    options = made.parse_args()
    if options.repeat < 1 or options.idle_seconds < 0:
        made.error("--repeat must be above 0, --idle-seconds not below")
    tools, versions = stage.tools_of(made, options)

    def run(_: dt.datetime) -> stage.Report:
        report = stage.Report("startup", "Start-up and footprint", versions)
        rows: list[Row] = []
        interpreter = sys.executable
        for turn in range(options.repeat):
            print(f"start {turn + 1}/{options.repeat}", file=sys.stderr)
            row, interpreter = start(tools, options.idle_seconds)
            rows.append({"start": turn + 1} | row)
        report.rows = {"starts": rows}
        report.data["starts"] = rows
        names = ["live_s", "ready_s", *(key for key in rows[0] if key not in ("start", "live_s", "ready_s"))]
        table = [summary(name, [row.get(name) for row in rows]) for name in names]
        columns: list[tuple[str, str, int | None]] = [
            ("figure", "figure", None),
            ("median", "median", 3),
            ("least", "least", 3),
            ("most", "most", 3),
        ]
        report.sections += [
            f"## {options.repeat} starts",
            "",
            "Seconds from just before exec to the first 200 of /health/live and of /health/ready, the engine being up.",
            f"Memory, files and threads: {options.idle_seconds:g} s later, nothing asked of it; RSS counts shared",
            "pages in each process, PSS once. The share of a core that it takes when idle: over as long a time again.",
            "",
            *stage.markdown(table, columns),
        ]
        size, reason = image_size(options.image)
        report.data["image_bytes"] = size
        if size is not None:
            report.sections += ["## Image", "", f"{size / MIB:.1f} MiB by `{reason}` ({options.image}).", ""]
        else:
            report.skipped.append(f"the image's size: not measured ({reason}); below, what goes into it")
            found, missing = sizes_table(parts(interpreter))
            report.data["parts_mib"] = {row["part"]: row["mib"] for row in found}
            report.sections += [
                "## What goes into an image, in place of its size",
                "",
                "Files on disk of this environment, without compiled Python files and without the base system.",
                "",
                *stage.markdown(found, [("part", "part", None), ("mib", "MiB", 1)]),
            ]
            if missing:
                report.skipped.append(f"packages that are not installed here: {', '.join(missing)}")
        return report

    return stage.main("startup", run, options.results)


def summary(name: str, values: list[Any]) -> Row:
    """Median and range of a figure over the starts that have it."""
    present = [float(value) for value in values if value is not None]
    if not present:
        return {"figure": name}
    return {"figure": name, "median": median(present), "least": min(present), "most": max(present)}


if __name__ == "__main__":
    sys.exit(main())
