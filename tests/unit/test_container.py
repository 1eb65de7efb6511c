"""The image's build steps, run without Docker, and the compose file."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.unit.dockerfile import Scratch, Stage, ignored, parse

from foreword.serve import FAREWELL_SECONDS
from foreword.settings import TABLE, Settings, as_comments


@pytest.fixture(scope="module")
def stages(root: Path) -> list[Stage]:
    return parse((root / "Dockerfile").read_text())


@pytest.fixture(scope="module")
def compose(root: Path) -> dict[str, Any]:
    document = yaml.safe_load((root / "deploy/compose.yaml").read_text())
    assert isinstance(document, dict)
    return document


def test_the_image_is_small_and_runs_as_nobody_in_particular(stages: list[Stage]) -> None:
    *_, final = stages
    user, _, group = final.last("USER").partition(":")
    assert user.isdigit()
    assert int(user) > 0
    assert int(group) > 0
    assert [step.verb for step in final.steps if step.verb in ("RUN", "ADD")] == [], "nothing is built in it"
    assert all(step.rest.startswith("--from=") for step in final.steps if step.verb == "COPY")
    assert final.image == stages[1].image, "the environment's links to Python must hold"


def test_images_are_pinned_to_a_version(stages: list[Stage]) -> None:
    for stage in stages:
        assert re.fullmatch(r"[a-z]+:\d+\.\d+-slim-[a-z]+", stage.image)


def test_the_image_starts_the_sidecar_for_everyone_outside(stages: list[Stage]) -> None:
    *_, final = stages
    assert final.listed("ENTRYPOINT") + final.listed("CMD") == ["foreword", "serve"]
    assert final.last("EXPOSE") == str(Settings.from_env({}).port)
    assert "FOREWORD_HOST=0.0.0.0" in final.last("ENV").split()
    assert final.last("STOPSIGNAL") == "SIGTERM"


def test_only_what_is_copied_is_sent_to_the_build(root: Path) -> None:
    patterns = [line for line in (root / ".dockerignore").read_text().split() if not line.startswith("#")]
    for path in (
        ".git/config",
        ".venv/bin/python",
        "target/debug",
        "rust/fuzz/target/x",
        "tests/conftest.py",
    ):
        assert ignored(path, patterns), path
    for path in (
        "proxy/foreword/_core.abi3.so",
        "proxy/foreword/__pycache__/cli.cpython-311.pyc",
        "loadtest/x.py",
    ):
        assert ignored(path, patterns), path
    for path in (
        "Cargo.toml",
        "rust/core/src/lib.rs",
        "loadtest/rig/src/main.rs",
        "requirements/runtime.txt",
    ):
        assert not ignored(path, patterns), path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        assert isinstance(port, int)
        return port


def healthcheck(stage: Stage, python: Path, environment: dict[str, str]) -> int:
    """The exit status of the image's HEALTHCHECK, run with ``python``."""
    command = json.loads(stage.last("HEALTHCHECK").partition("CMD ")[2])
    assert command[0] == "python"
    return subprocess.run(
        [python, *command[1:]], env=environment, capture_output=True, check=False
    ).returncode


def test_the_healthcheck_fails_when_nothing_listens(stages: list[Stage]) -> None:
    assert healthcheck(stages[-1], Path(sys.executable), {"FOREWORD_PORT": str(free_port())}) == 1


@pytest.mark.slow
def test_the_build_steps_make_a_sidecar_that_serves(stages: list[Stage], root: Path, tmp_path: Path) -> None:
    # Crates that are built already are taken from the project's target folder: the steps are tested, not cargo.
    here = {
        "CARGO_TARGET_DIR": str(root / "target"),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    scratch = Scratch(root, tmp_path, here)
    wheel, environment, _ = stages
    scratch.run(wheel, skip="apt-get")
    scratch.run(environment, skip="apt-get")
    programs = scratch.place(environment, "/opt/foreword/bin")

    port = free_port()
    clean = {
        "PATH": f"{programs}:/usr/bin:/bin",
        "FOREWORD_PORT": str(port),
        "FOREWORD_UPSTREAM": f"http://127.0.0.1:{free_port()}",
    }
    with subprocess.Popen(
        [programs / "foreword", "serve"],
        env=clean,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as sidecar:
        try:
            wait_for(f"http://127.0.0.1:{port}/health/live")
            assert healthcheck(stages[-1], programs / "python", clean) == 0
            with pytest.raises(urllib.error.HTTPError) as not_ready:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health/ready", timeout=5)
            not_ready.value.close()
            assert not_ready.value.code == 503, "an absent engine does not stop the start"
        finally:
            sidecar.send_signal(signal.SIGTERM)
            output, told = sidecar.communicate(timeout=20)
    assert sidecar.returncode == 0
    assert output == b""
    assert all(json.loads(line)["level"] for line in told.splitlines())


def wait_for(url: str, seconds: float = 20.0) -> None:
    """Waits until a URL answers."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            urllib.request.urlopen(url, timeout=5).close()
        except OSError:
            assert time.monotonic() < deadline, f"nothing answers at {url}"
            time.sleep(0.1)
        else:
            return


def sidecars(compose: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {name: service for name, service in compose["services"].items() if name.startswith("foreword-")}


def test_each_engine_has_a_sidecar_of_its_own(compose: dict[str, Any]) -> None:
    assert set(sidecars(compose)) == {"foreword-vllm", "foreword-strata"}
    for name, sidecar in sidecars(compose).items():
        engine = name.removeprefix("foreword-")
        assert sidecar["environment"]["FOREWORD_UPSTREAM"].startswith(f"http://{engine}:")
        assert sidecar["environment"]["FOREWORD_ENGINE"] == engine
        assert compose["services"][engine]["profiles"] == sidecar["profiles"]


def filled(value: str, environment: dict[str, str]) -> str:
    """``value`` with ${NAME:-default} filled in as compose does."""
    return re.sub(r"\$\{(\w+):-([^}]*)\}", lambda match: environment.get(match[1]) or match[2], value)


OF_ITS_OWN = {"FOREWORD_UPSTREAM", "FOREWORD_ENGINE", "FOREWORD_UPSTREAM_API_KEY"}
OF_THE_IMAGE = {"FOREWORD_HOST", "FOREWORD_PORT"}
"""Where a sidecar listens inside its container, on which the published port and the health check rely."""


def test_a_sidecar_is_told_every_setting_and_nothing_else(compose: dict[str, Any]) -> None:
    known = {setting.name: setting for setting in TABLE}
    for sidecar in sidecars(compose).values():
        environment = sidecar["environment"]
        assert set(environment) == set(known) - OF_THE_IMAGE
        Settings.from_env({name: filled(value, {}) for name, value in environment.items()})
        for name in set(environment) - OF_ITS_OWN:
            assert environment[name] == f"${{{name}:-{known[name].default}}}"


def test_what_is_set_reaches_the_sidecar(compose: dict[str, Any]) -> None:
    told = {"FOREWORD_PING_SECONDS": "7", "FOREWORD_DIGEST_KEY": "sixteen-letters.", "VLLM_API_KEY": "its"}
    environment = sidecars(compose)["foreword-vllm"]["environment"]
    settings = Settings.from_env({name: filled(value, told) for name, value in environment.items()})
    assert settings.ping_seconds == 7
    assert settings.digest_key == "sixteen-letters."
    assert (settings.upstream, settings.upstream_api_key) == ("http://vllm:8000", "its")


def test_no_container_is_told_what_does_not_concern_it(compose: dict[str, Any]) -> None:
    asked = {
        name: set(re.findall(r"\$\{(\w+)", json.dumps(service)))
        for name, service in compose["services"].items()
    }
    assert not any("env_file" in service for service in compose["services"].values()), (
        "a file holds all of it"
    )
    assert {name for name, names in asked.items() if "HF_TOKEN" in names} == {"vllm"}
    assert {name for name, names in asked.items() if "VLLM_API_KEY" in names} == {"vllm", "foreword-vllm"}
    assert {name for name, names in asked.items() if "STRATA_API_KEY" in names} == {"foreword-strata"}
    for engine in ("vllm", "strata"):
        assert not any(name.startswith("FOREWORD_") for name in asked[engine])


def test_an_engine_takes_all_cards(compose: dict[str, Any]) -> None:
    told = {"VLLM_MODEL": "Qwen/Qwen3-32B", "VLLM_OPTIONS": "--tensor-parallel-size 8"}
    vllm = compose["services"]["vllm"]
    assert filled(vllm["command"], told).split() == [
        "Qwen/Qwen3-32B",
        "--enable-prompt-tokens-details",
        "--tensor-parallel-size",
        "8",
    ]
    (cards,) = vllm["deploy"]["resources"]["reservations"]["devices"]
    assert cards["count"] == "all"


def test_the_compose_comments_are_in_step(root: Path) -> None:
    assert as_comments() in (root / "deploy/compose.yaml").read_text(), "run `make docs`"


def test_the_grace_period_holds_the_drain(compose: dict[str, Any]) -> None:
    for sidecar in sidecars(compose).values():
        grace = int(sidecar["stop_grace_period"].removesuffix("s"))
        assert grace > Settings.from_env({}).drain_seconds + FAREWELL_SECONDS


def test_ports_open_to_this_machine_only_unless_told(compose: dict[str, Any]) -> None:
    for sidecar in sidecars(compose).values():
        (port,) = sidecar["ports"]
        assert filled(port, {}).startswith("127.0.0.1:")
        assert filled(port, {}).endswith(f":{Settings.from_env({}).port}")
