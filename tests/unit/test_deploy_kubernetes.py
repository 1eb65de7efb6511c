"""The Kubernetes example: what it says of the sidecar holds."""

from typing import Any

import pytest
import yaml
from tests.conftest import ROOT
from tests.unit.dockerfile import parse

from foreword.control import Control
from foreword.serve import FAREWELL_SECONDS
from foreword.settings import TABLE, Settings

DOCUMENTS = list(yaml.safe_load_all((ROOT / "deploy/kubernetes/vllm.yaml").read_text()))
WORKLOAD, SERVICE = DOCUMENTS
POD: dict[str, Any] = WORKLOAD["spec"]["template"]["spec"]
CONTAINERS: dict[str, dict[str, Any]] = {container["name"]: container for container in POD["containers"]}
SIDECAR, ENGINE = CONTAINERS["foreword"], CONTAINERS["engine"]
ENVIRONMENT = {variable["name"]: variable for variable in SIDECAR["env"]}


@pytest.fixture
def settings() -> Settings:
    return Settings.from_env(
        {name: variable["value"] for name, variable in ENVIRONMENT.items() if "value" in variable}
    )


def test_the_environment_is_settings(settings: Settings) -> None:
    assert set(ENVIRONMENT) <= {setting.name for setting in TABLE}
    assert settings.engine == "vllm"
    secret = [name for name, variable in ENVIRONMENT.items() if "valueFrom" in variable]
    assert secret == ["FOREWORD_API_KEYS"], "a key stands in no file"


def test_the_sidecar_is_the_only_door_to_the_engine(settings: Settings) -> None:
    arguments = dict(each.removeprefix("--").split("=") for each in ENGINE["args"] if "=" in each)
    assert settings.upstream == f"http://{arguments['host']}:{arguments['port']}"
    assert arguments["host"] == "127.0.0.1"
    assert "ports" not in ENGINE
    assert "--enable-prompt-tokens-details" in ENGINE["args"]
    (port,) = SIDECAR["ports"]
    assert (port["name"], port["containerPort"]) == ("http", settings.port)
    assert settings.host == "0.0.0.0"
    assert WORKLOAD["spec"]["template"]["metadata"]["annotations"]["prometheus.io/port"] == str(settings.port)
    assert [each["targetPort"] for each in SERVICE["spec"]["ports"]] == ["http"]


def test_the_probes_ask_what_they_should() -> None:
    asked = {kind: SIDECAR[f"{kind}Probe"]["httpGet"] for kind in ("liveness", "readiness")}
    assert asked["liveness"] == {"path": "/health/live", "port": "http"}
    assert asked["readiness"] == {"path": "/health/ready", "port": "http"}
    assert {probe["path"] for probe in asked.values()} <= set(object.__new__(Control).endpoints())


def test_stopping_lets_running_answers_end(settings: Settings) -> None:
    (_, seconds) = ENGINE["lifecycle"]["preStop"]["exec"]["command"]
    assert int(seconds) > settings.drain_seconds + FAREWELL_SECONDS
    assert POD["terminationGracePeriodSeconds"] > int(seconds)


def test_it_runs_as_the_image_does() -> None:
    *_, final = parse((ROOT / "Dockerfile").read_text())
    security = SIDECAR["securityContext"]
    assert final.last("USER") == f"{security['runAsUser']}:{security['runAsGroup']}"
    assert security["readOnlyRootFilesystem"] is True
    assert security["allowPrivilegeEscalation"] is False
    assert security["capabilities"]["drop"] == ["ALL"]


def test_what_is_written_has_a_volume_with_room(settings: Settings) -> None:
    mounts = {mount["mountPath"]: mount["name"] for mount in SIDECAR["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in POD["volumes"]}
    assert settings.ledger is not None
    assert settings.ledger in mounts
    for container in CONTAINERS.values():
        assert {mount["name"] for mount in container["volumeMounts"]} <= set(volumes)
    assert mebibytes(volumes[mounts[settings.ledger]]["emptyDir"]["sizeLimit"]) > settings.ledger_mib


def test_resources_hold_the_journal_and_throttle_nothing(settings: Settings) -> None:
    resources = SIDECAR["resources"]
    assert set(resources["limits"]) == {"memory"}
    assert mebibytes(resources["limits"]["memory"]) > 2 * settings.journal_mib
    assert mebibytes(resources["requests"]["memory"]) > settings.journal_mib


def mebibytes(size: str) -> int:
    unit = {"Mi": 1, "Gi": 1024}[size[-2:]]
    return int(size[:-2]) * unit


def test_selectors_find_the_pod() -> None:
    labels = WORKLOAD["spec"]["template"]["metadata"]["labels"]
    assert WORKLOAD["spec"]["selector"]["matchLabels"] == labels
    assert SERVICE["spec"]["selector"] == labels
    assert WORKLOAD["spec"]["serviceName"] == SERVICE["metadata"]["name"]
