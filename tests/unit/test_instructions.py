"""The gate on instruction counts (.ci/instructions): what fails it, what only notes, and how a change is accepted."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GATE = ROOT / ".ci/instructions"
RUSTC = "#!/bin/sh\nprintf 'rustc 9.9\\nrelease: 9.9\\ncommit-hash: 0123456789ab\\nhost: here\\n'\n"

# What callgrind would write for a workload, and what the workload prints.
COUNTING = """#!/bin/sh
for arg; do
    case $arg in
    --version) echo valgrind-9; exit ;;
    --callgrind-out-file=*) out=${arg#*=} ;;
    esac
    name=$arg
done
echo "summary: $(cat "$COUNTS/$name")" > "$out"
echo "1000 bytes"
"""


class Gate:
    """The gate among tools that say what the test says."""

    def __init__(self, folder: Path) -> None:
        self.baseline, self.tools, self.counts = folder / "baseline.json", folder / "tools", folder / "counts"
        self.tools.mkdir()
        self.counts.mkdir()
        built = json.dumps({"reason": "compiler-artifact", "executable": str(self.tools / "workloads")})
        self.tool("cargo", f"#!/bin/sh\necho '{built}'\n")
        self.tool("workloads", '#!/bin/sh\nls "$COUNTS"\n')
        self.tool("rustc", RUSTC)
        self.tool("valgrind", COUNTING)

    def tool(self, name: str, script: str) -> None:
        (self.tools / name).write_text(script)
        (self.tools / name).chmod(0o755)

    def __call__(self, counted: dict[str, int], *args: str) -> subprocess.CompletedProcess[str]:
        """Runs it where workloads cost so many instructions."""
        for old in self.counts.iterdir():
            old.unlink()
        for name, instructions in counted.items():
            (self.counts / name).write_text(str(instructions))
        command = [sys.executable, str(GATE), "--baseline", str(self.baseline), *args]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Gate:
    gate = Gate(tmp_path)
    monkeypatch.setenv("PATH", f"{gate.tools}:/usr/bin:/bin")
    monkeypatch.setenv("COUNTS", str(gate.counts))
    return gate


def test_within_the_tolerance_passes_and_beyond_it_fails(gate: Gate) -> None:
    assert gate({"scan": 100_000}, "--accept", "the first").returncode == 0
    assert gate({"scan": 102_900}).returncode == 0
    beyond = gate({"scan": 103_100})
    assert beyond.returncode == 1
    assert "scan costs 3.1% more" in beyond.stderr
    assert 'make instructions ACCEPT="the reason"' in beyond.stderr


def test_an_accepted_change_is_written_with_its_reason(gate: Gate) -> None:
    gate({"scan": 100_000}, "--accept", "the first")
    assert gate({"scan": 120_000}, "--accept", "numbers keep their spelling").returncode == 0
    written = json.loads(gate.baseline.read_text())
    assert written["reason"] == "numbers keep their spelling"
    assert written["workloads"] == {"scan": {"instructions": 120_000, "work": "1000 bytes"}}
    assert gate({"scan": 120_000}).returncode == 0
    assert gate({"scan": 1}, "--accept", " ").returncode == 2
    assert json.loads(gate.baseline.read_text()) == written


def test_a_gain_passes_and_is_named(gate: Gate) -> None:
    gate({"scan": 100_000}, "--accept", "the first")
    gain = gate({"scan": 90_000})
    assert gain.returncode == 0
    assert "-10.00%" in gain.stdout
    assert "less than the baseline" in gain.stdout


def test_a_workload_neither_comes_nor_goes_unseen(gate: Gate) -> None:
    gate({"scan": 100_000, "cut": 5_000}, "--accept", "the first")
    assert "split has no baseline" in gate({"scan": 100_000, "cut": 5_000, "split": 7}).stderr
    gone = gate({"scan": 100_000})
    assert gone.returncode == 1
    assert "cut is in the baseline, but no workload" in gone.stderr


def test_a_changed_input_is_not_a_changed_cost(gate: Gate) -> None:
    gate({"scan": 100_000}, "--accept", "the first")
    written = json.loads(gate.baseline.read_text())
    written["workloads"]["scan"]["work"] = "500 bytes"
    gate.baseline.write_text(json.dumps(written))
    changed = gate({"scan": 100_000})
    assert changed.returncode == 1
    assert "worked on 500 bytes, now on 1000 bytes" in changed.stderr


def test_counts_of_another_compiler_are_not_compared(gate: Gate) -> None:
    gate({"scan": 100_000}, "--accept", "the first")
    gate.tool("rustc", RUSTC.replace("9.9", "10.0"))
    other = gate({"scan": 200_000})
    assert other.returncode == 0
    assert "notice: this is rustc 10.0" in other.stdout


def test_nothing_counted_is_a_failure(gate: Gate) -> None:
    assert gate({"scan": 0}, "--accept", "the first").returncode == 1
    assert not gate.baseline.exists()


def test_without_valgrind_it_says_so_and_passes(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(gate.tools))
    (gate.tools / "valgrind").unlink()
    absent = gate({"scan": 100_000})
    assert absent.returncode == 0
    assert "nothing was counted" in absent.stdout
    assert gate({"scan": 100_000}, "--accept", "the first").returncode == 1
