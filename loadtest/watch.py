"""What processes use, read from /proc: memory, files, threads, processor time. Linux only."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from loadtest.compare import descendants

_PROC = Path("/proc")


@dataclass(frozen=True)
class Use:
    """One process at one moment. Memory in bytes."""

    pid: int
    role: str
    """main, worker, or tracker (Python's own, beside the workers that it started)."""
    rss: int
    fds: int
    threads: int
    cpu_ns: int
    """Processor time of all its threads that still live."""


def take(root: int) -> list[Use]:
    """The process and its descendants, the main one first. What ends meanwhile is left out."""
    found = []
    for pid in sorted(descendants(root), key=lambda pid: (pid != root, pid)):
        with contextlib.suppress(OSError, StopIteration, ValueError):
            found.append(_use(pid, root))
    return found


def _use(pid: int, root: int) -> Use:
    folder = _PROC / str(pid)
    status = (folder / "status").read_text(encoding="utf-8")
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    cpu_ns = 0
    for thread in (folder / "task").iterdir():
        with contextlib.suppress(OSError):
            cpu_ns += int((thread / "schedstat").read_text().split()[0])
    command = (folder / "cmdline").read_bytes()
    role = "main" if pid == root else "tracker" if b"resource_tracker" in command else "worker"
    return Use(
        pid,
        role,
        int(fields["VmRSS"].split()[0]) * 1024,
        sum(1 for _ in (folder / "fd").iterdir()),
        int(fields["Threads"]),
        cpu_ns,
    )


def rss(uses: list[Use]) -> int:
    """Resident bytes of all; pages that they share count in each."""
    return sum(use.rss for use in uses)


def proportional(root: int) -> int | None:
    """Bytes of all processes, each shared page counted once (PSS); None where the kernel does not tell."""
    total = 0
    for pid in descendants(root):
        try:
            rollup = (_PROC / str(pid) / "smaps_rollup").read_text(encoding="utf-8")
        except OSError:
            return None
        total += sum(int(line.split()[1]) * 1024 for line in rollup.splitlines() if line.startswith("Pss:"))
    return total


class Watcher:
    """Samples a process and its descendants in a thread of its own while the block runs."""

    def __init__(self, root: int, *, seconds: float = 0.25) -> None:
        self.samples: list[list[Use]] = []
        self._root = root
        self._seconds = seconds
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self.samples.append(take(self._root))

    def _run(self) -> None:
        while not self._over.wait(self._seconds):
            self.samples.append(take(self._root))

    @property
    def peak_rss(self) -> int:
        """The greatest sum of resident bytes at one moment."""
        return max((rss(sample) for sample in self.samples), default=0)

    @property
    def peak_fds(self) -> int:
        """The most files that all had open at one moment."""
        return max((sum(use.fds for use in sample) for sample in self.samples), default=0)


def allow_files(wanted: int) -> int:
    """Raises this process's limit of open files, which those it starts inherit, to the hard limit. Returns the limit;
    raises ValueError where it stays below ``wanted``.
    """
    import resource  # noqa: PLC0415 - not on every system

    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if most < wanted:
        raise ValueError(f"{wanted} open files are needed, {most} allowed: raise the hard limit (ulimit -Hn)")
    return most
