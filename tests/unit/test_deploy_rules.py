"""The Prometheus rules: they parse, name what exists, and miss no finding. `make test-rules` runs their cases."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.conftest import ROOT
from tests.unit.metrics_catalogue import VALUES, catalogue
from tests.unit.promql import PromQLError, read

from foreword.findings import IDS
from foreword.metrics import HELP

FOLDER = ROOT / "deploy/prometheus"
FILES = sorted(FOLDER.glob("*.rules.yml"))
TARGET = frozenset({"job", "instance"})
"""What Prometheus adds to each series."""


def rules(path: Path) -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(path.read_text())["groups"] for rule in group["rules"]]


RULES = [rule for path in FILES for rule in rules(path)]
ALERTS = {rule["alert"]: rule for rule in RULES if "alert" in rule}
RECORDED = {rule["record"] for rule in RULES if "record" in rule}


@pytest.mark.parametrize(
    ("text", "metrics", "labels"),
    [
        ("up", ["up"], set()),
        ('a{b="c",d=~"e,}f"} > 0', ["a"], set()),
        ("sum without (x, y) (rate(a_total[5m])) / (b:c:d > 1e6)", ["a_total", "b:c:d"], {"x", "y"}),
        ("a and on (p) b unless ignoring(q) c or d offset 1h", ["a", "b", "c", "d"], {"p", "q"}),
        ("a / ignoring (v) group_left () sum by (w) (b)", ["a", "b"], {"v", "w"}),
        ("histogram_quantile(0.9, sum(rate(h_bucket[$__rate_interval])) by (le))", ["h_bucket"], {"le"}),
        ("# a note\nfoo == 2", ["foo"], set()),
    ],
)
def test_what_an_expression_names(text: str, metrics: list[str], labels: set[str]) -> None:
    found = read(text)
    assert [name for name, _ in found.selectors] == metrics
    assert found.labels == labels


def test_matchers_are_read_with_their_values() -> None:
    assert read('a{b="c",d=~"e,}f"}').selectors == [("a", {"b": "c", "d": "e,}f"})]


@pytest.mark.parametrize("text", ["a{b=c}", 'a{b="c"', "a ? b", 'sum by (x "y"'])
def test_what_is_no_expression_is_refused(text: str) -> None:
    with pytest.raises(PromQLError):
        read(text)


def test_the_catalogue_holds_every_metric_that_has_a_help_text() -> None:
    families = {re.sub(r"_(bucket|count|sum)$", "", name) for name in catalogue()}
    assert {f"foreword_{name}" for name in HELP} <= families
    assert catalogue()["foreword_verdicts_total"] == {"verdict", "class"}
    assert catalogue()["foreword_rule_total"] == {"rule", "state"}
    assert catalogue()["foreword_parking_skips_total"] == {"reason"}
    assert catalogue()["foreword_cached_length_tokens_bucket"] == {"entry", "client", "le"}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.get("alert") or rule["record"])
def test_rules_name_what_exists(rule: dict[str, Any]) -> None:
    found = read(rule["expr"])
    assert found.selectors
    available = set(TARGET)
    for name, matchers in found.selectors:
        if name == "up":
            known = TARGET
        elif name in RECORDED:
            known = TARGET | {"entry", "client", "verdict"}
        else:
            assert name in catalogue(), f"{name} is no metric"
            known = catalogue()[name] | TARGET
        assert set(matchers) <= known, f"{name} has no such label"
        for label, value in matchers.items():
            assert set(value.split("|")) <= VALUES.get(label, {value})
        available |= known
    assert found.labels <= available


def test_each_finding_has_an_alert_of_its_own() -> None:
    alerts = {rule["alert"]: read(rule["expr"]).selectors[0] for rule in rules(FOLDER / "findings.rules.yml")}
    assert {name for name, _ in alerts.values()} == {"foreword_open_findings"}
    assert sorted(matchers["id"] for _, matchers in alerts.values()) == sorted(IDS)
    for alert, (_, matchers) in alerts.items():
        assert alert == "Foreword" + "".join(word.capitalize() for word in matchers["id"].split("-"))


@pytest.mark.parametrize("name", ALERTS)
def test_alerts_say_what_to_do(name: str) -> None:
    alert = ALERTS[name]
    assert alert["labels"]["severity"] in ("info", "warning", "critical")
    assert set(alert["annotations"]) == {"summary", "description", "runbook"}
    page, _, anchor = alert["annotations"]["runbook"].partition("#")
    headings = re.findall(r"^#+ (.+)$", (ROOT / page).read_text(), re.MULTILINE)
    known = {heading.lower().replace(" ", "-") for heading in headings}
    assert not anchor or anchor in known


def test_each_alert_has_a_case_in_which_it_fires() -> None:
    told = "".join(path.read_text() for path in FOLDER.glob("*.test.yml"))
    fired = set(re.findall(r'ALERTS\{alertname="(\w+)",alertstate="firing"', told))
    for case in (
        case for path in FOLDER.glob("*.test.yml") for case in yaml.safe_load(path.read_text())["tests"]
    ):
        fired |= {each["alertname"] for each in case.get("alert_rule_test", ()) if each["exp_alerts"]}
    assert fired == set(ALERTS)


def test_the_example_uses_every_rule_file_and_the_job_that_they_expect() -> None:
    config = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
    assert sorted(config["rule_files"]) == [path.name for path in FILES]
    assert [job["job_name"] for job in config["scrape_configs"]] == ["foreword"]
    assert 'job="foreword"' in ALERTS["ForewordDown"]["expr"]
