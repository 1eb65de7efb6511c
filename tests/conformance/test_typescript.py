"""The official TypeScript SDKs, where node and npm are at hand.

They are installed once, by the lock file, into a folder of their own below ``target``. openai's is the newest major
version that runs on node 20.
"""

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.http.sidecar import Sidecar

from .clients import base_url, wait_until_ready
from .standin import StandIn

SOURCES = Path(__file__).parent / "typescript"
OLDEST_NODE = 20
UNREACHABLE = re.compile(r"EAI_AGAIN|ENOTFOUND|ENETUNREACH|ECONNREFUSED|ECONNRESET|ETIMEDOUT|EHOSTUNREACH")


@pytest.fixture(scope="module")
def node() -> str:
    """The node that runs the checks."""
    node = shutil.which("node")
    if node is None or shutil.which("npm") is None:
        pytest.skip("node and npm are not installed")
    version = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout
    if int(version.removeprefix("v").partition(".")[0]) < OLDEST_NODE:
        pytest.skip(f"node {version.strip()} is older than {OLDEST_NODE}")
    return node


@pytest.fixture(scope="module")
def installed(node: str, root: Path) -> Path:
    """A folder with the SDKs in it."""
    lock = (SOURCES / "package-lock.json").read_bytes()
    above = root / "target" / "conformance"
    folder = above / hashlib.sha256(lock).hexdigest()[:16]
    if not folder.exists():
        above.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=above) as scratch:
            made = Path(scratch) / "made"
            made.mkdir()
            for name in ("package.json", "package-lock.json"):
                shutil.copy(SOURCES / name, made)
            command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--fetch-retries=1"]
            npm = subprocess.run(command, cwd=made, capture_output=True, text=True, timeout=300, check=False)
            if npm.returncode and UNREACHABLE.search(npm.stderr):
                pytest.skip("the npm registry cannot be reached")
            assert npm.returncode == 0, npm.stderr
            if not folder.exists():  # another run may have been faster
                made.rename(folder)
    return folder


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Where the sidecar and its engine listen: both their own, for the checks queue scripts."""
    logs = tmp_path_factory.mktemp("typescript")
    with StandIn(logs / "engine.log") as standin, Sidecar(standin.url, logs / "sidecar.log") as sidecar:
        wait_until_ready(sidecar)
        yield {"BASE_URL": base_url(sidecar), "ENGINE_URL": standin.url}


@pytest.mark.parametrize("sdk", ["anthropic", "openai"])
def test_sdk(sdk: str, node: str, installed: Path, places: dict[str, str], tmp_path: Path) -> None:
    for source in SOURCES.glob("*.mjs"):
        shutil.copy(source, tmp_path)
    (tmp_path / "node_modules").symlink_to(installed / "node_modules")
    checks = subprocess.run(
        [node, f"{sdk}.mjs"],
        cwd=tmp_path,
        env={**os.environ, **places},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert checks.returncode == 0, checks.stdout + checks.stderr
    assert "ok text in one piece\n" in checks.stdout
