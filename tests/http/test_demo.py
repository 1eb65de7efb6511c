"""`foreword demo` as a user runs it: three processes, and the incident in the form that it had."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest


@pytest.mark.slow
def test_the_incident_happens_and_goes_away() -> None:
    command = Path(sys.executable).parent / "foreword"
    began = time.monotonic()
    demo = subprocess.run(
        [command, "demo", "--json"], capture_output=True, text=True, timeout=180, check=False
    )
    took = time.monotonic() - began
    assert demo.returncode == 0, demo.stderr
    assert took < 120
    outcome = json.loads(demo.stdout)
    before, after, usage = outcome["before"], outcome["after"], outcome["usage"]
    assert before["hit_rate"] <= 0.20
    assert (before["pinned_at"], before["pinned_share"]) == (17_920, 0.85)
    assert after["hit_rate"] >= 0.83
    assert after["pinned_at"] is None
    turns = len(before["ttft_s"])
    assert (
        turns
        == len(after["ttft_s"])
        == len(usage["before_context_tokens"])
        == len(usage["after_context_tokens"])
    )
    assert sum(after["ttft_s"]) < sum(before["ttft_s"]) / 2
    # Raw usage counts nearly every token of the prompt twice.
    assert 175_000 < usage["after_context_tokens"][-1] < 185_000
    assert usage["before_context_tokens"][-1] > 1.9 * usage["after_context_tokens"][-1]
    # One line of progress a turn.
    assert sum("first token" in line for line in demo.stderr.splitlines()) == 2 * turns
