"""Users with coding agents, for locust: half with Claude Code, half with opencode.

    locust -f loadtest/locustfile.py --host http://127.0.0.1:8400       # with its page on port 8089
    locust -f loadtest/locustfile.py --host ... --headless --users 50 --run-time 10m

Variables change their habits: LOAD_ and any field of `sessions.Habits` in capitals, as in LOAD_THINK_SECONDS=0.1.
Beside them LOAD_CLIENTS (claude-code,opencode), LOAD_API_KEY, LOAD_TIMEOUT_SECONDS (600) and LOAD_SEED (0).

What is reported, for each path and kind of request (question, tool, compact):

- ``stream``: the whole answer, with its errors: a status that is not 200, an error event, an end that is missing.
- ``TTFT``: to the first event with text or reasoning.
- ``gap mean``, ``gap max``: between such events; one sample of each a stream.
- ``left``: answers that the user stopped in mid-stream; no errors.

For line rate use compare.py: this is Python on one core.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import gevent
import requests
from locust import User, task

from loadtest.sessions import CLIENTS, Answer, Request, Session, habits
from loadtest.streams import Splitter

HABITS = habits(os.environ)
NAMES = tuple(os.environ.get("LOAD_CLIENTS", ",".join(CLIENTS)).split(","))
if unknown := set(NAMES) - set(CLIENTS):
    sys.exit(f"LOAD_CLIENTS: unknown {', '.join(sorted(unknown))}; there are {', '.join(CLIENTS)}")
KEY = os.environ.get("LOAD_API_KEY")
TIMEOUT_SECONDS = float(os.environ.get("LOAD_TIMEOUT_SECONDS", "600"))
SEED = int(os.environ.get("LOAD_SEED", "0"))
AFTER_FAILURE_SECONDS = 1.0


class StreamError(Exception):
    """What a client would show its user. Few texts: locust makes a row of each."""


@dataclass
class Reading:
    """One answer while it is read. Times are seconds of the performance counter."""

    began: float = field(default_factory=time.perf_counter)
    times: list[float] = field(default_factory=list)
    text: str = ""
    left: bool = False

    def take(self, response: requests.Response, leave_after: int | None) -> None:
        """Reads to the end, or until the user leaves. Raises StreamError."""
        if response.status_code != 200:
            raise StreamError(f"status {response.status_code}")
        splitter = Splitter()
        ended = False
        count = 0
        while data := response.raw.read1(65536):
            for event in splitter.feed(data):
                if event.error is not None:
                    raise StreamError(f"error event: {event.error}")
                ended = ended or event.end
                if event.carries:
                    self.times.append(time.perf_counter())
                    self.text += event.text
                count += 1
                if leave_after is not None and count >= leave_after and not ended:
                    self.left = True
                    return
        if not ended:
            raise StreamError("the stream has no end")


class AgentUser(User):
    """Somebody whose agent has one conversation after the other, sub-agents beside it."""

    _count = 0

    def on_start(self) -> None:
        """Each user is another one, and in every run the same."""
        AgentUser._count += 1
        self._number = AgentUser._count
        self._conversations = 0
        self._connections = requests.Session()
        self._beside: list[gevent.Greenlet] = []

    def on_stop(self) -> None:
        """Sub-agents end with their user."""
        gevent.killall(self._beside)
        self._connections.close()

    @task
    def conversation(self) -> None:
        """From the first question to the last."""
        self._conversations += 1
        client = CLIENTS[NAMES[(self._number + self._conversations) % len(NAMES)]]
        self._run(client(hash((SEED, self._number, self._conversations)), HABITS))
        gevent.joinall(self._beside)
        self._beside.clear()

    def _run(self, session: Session) -> None:
        while not session.done:
            request = session.next()
            gevent.sleep(request.pause)
            answer = self._ask(request)
            if answer is None:
                session.failed()
                gevent.sleep(AFTER_FAILURE_SECONDS)
                return
            session.answered(answer)
            self._beside += [gevent.spawn(self._run, agent) for agent in session.subagents()]

    def _ask(self, request: Request) -> Answer | None:
        """One exchange; None when it failed."""
        reading = Reading()
        error: Exception | None = None
        headers = request.headers | {"content-type": "application/json"}
        if KEY:
            headers["authorization"] = f"Bearer {KEY}"
        try:
            with self._connections.post(
                f"{self.host}{request.path}",
                data=request.body,
                headers=headers,
                stream=True,
                timeout=TIMEOUT_SECONDS,
            ) as response:
                reading.take(response, request.leave_after)
        except StreamError as caught:
            error = caught
        except Exception as caught:  # a broken connection has many names, in three libraries
            error = StreamError(type(caught).__name__)
        self._report(f"{request.path} {request.kind}", reading, error)
        return None if error else Answer(reading.text, complete=not reading.left)

    def _report(self, name: str, reading: Reading, error: Exception | None) -> None:
        def fire(kind: str, seconds: float, exception: Exception | None = None) -> None:
            self.environment.events.request.fire(
                request_type=kind,
                name=name,
                response_time=1000 * seconds,
                response_length=len(reading.text),
                exception=exception,
                context={},
            )

        fire("left" if reading.left else "stream", time.perf_counter() - reading.began, error)
        if reading.times:
            fire("TTFT", reading.times[0] - reading.began)
        if gaps := [later - earlier for earlier, later in pairwise(reading.times)]:
            fire("gap mean", sum(gaps) / len(gaps))
            fire("gap max", max(gaps))
