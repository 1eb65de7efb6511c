"""Runs an agent's turns as a user would: its own program, an empty home, a folder to work in."""

import os
import subprocess
from pathlib import Path

from tests.http.sidecar import Sidecar
from tests.real.clients.agents import Agent, Work

TURN_SECONDS = 180


def work_in(folder: Path, sidecar: Sidecar, note: str) -> Work:
    """A place for one session, with ``note`` in the file that it is about."""
    work = Work(folder / "home", folder / "work", f"http://127.0.0.1:{sidecar.port}")
    work.home.mkdir()
    work.folder.mkdir()
    Path(work.note).write_text(note)
    return work


def run(agent: Agent, work: Work, prompt: str, *, resume: bool, seconds: float = TURN_SECONDS) -> str:
    """Runs one turn; returns what the agent printed."""
    turn = agent.turn(work, prompt, resume=resume)
    environment = {"PATH": os.environ["PATH"], "HOME": str(work.home), "LANG": "C.UTF-8", "TERM": "dumb"}
    done = subprocess.run(
        [*agent.package.command(), *turn.arguments],
        env=environment | turn.environment,
        cwd=work.folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout
