"""The Grafana dashboard asks for metrics and labels that exist, and shows what it should."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from tests.conftest import ROOT
from tests.unit.metrics_catalogue import VALUES, catalogue
from tests.unit.promql import read

DASHBOARD: dict[str, Any] = json.loads((ROOT / "deploy/grafana/foreword.json").read_text())
PANELS: list[dict[str, Any]] = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
TARGET = {"job", "instance"}


def queries() -> Iterator[tuple[str, dict[str, Any]]]:
    for panel in PANELS:
        for target in panel["targets"]:
            yield f"{panel['title']} {target['refId']}", target


QUERIES = dict(queries())


@pytest.mark.parametrize("title", QUERIES)
def test_queries_name_what_exists(title: str) -> None:
    query = QUERIES[title]
    found = read(query["expr"])
    assert found.selectors
    available: set[str] = set()
    for name, matchers in found.selectors:
        assert name in catalogue(), f"{name} is no metric"
        known = catalogue()[name] | TARGET
        assert set(matchers) <= known
        assert {name: matchers[name] for name in TARGET} == {"job": "$job", "instance": "$instance"}
        for label, value in matchers.items():
            assert value in VALUES.get(label, {value})
        available |= known
    assert found.labels <= available
    shown = set(re.findall(r"\{\{(\w+)\}\}", query["legendFormat"]))
    aggregated = re.search(r"\b(sum|histogram_quantile)\b", query["expr"]) is not None
    assert shown <= (found.labels if aggregated else available), "a label that the result does not have"


def test_counters_are_shown_by_rate_or_as_they_are_by_name() -> None:
    for title, query in QUERIES.items():
        bare = re.sub(r"(rate|increase)\((foreword|process)_\w+", "", query["expr"])
        counters = [name for name, _ in read(bare).selectors if name.endswith(("_total", "_bucket"))]
        description = next(panel["description"] for panel in PANELS if title.startswith(panel["title"]))
        assert not counters or "Since the" in description, title


@pytest.mark.parametrize(
    "metric",
    [
        "foreword_prefix_cached_tokens_total",
        "foreword_cached_length_tokens_bucket",
        "foreword_verdicts_total",
        "foreword_wasted_tokens_total",
        "foreword_engine_l1_hit_tokens_total",
        "foreword_engine_l2_loaded_bytes_total",
        "foreword_parking_evictions_total",
        "foreword_parking_bytes",
        "foreword_engine_waiting",
        "foreword_prepare_seconds_bucket",
        "process_cpu_seconds_total",
        "foreword_open_findings",
    ],
)
def test_what_it_is_for_is_shown(metric: str) -> None:
    assert any(metric == name for query in QUERIES.values() for name, _ in read(query["expr"]).selectors)


def test_panels_have_a_place_of_their_own() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    assert len({panel["title"] for panel in PANELS}) == len(PANELS)


def test_the_data_source_is_chosen_and_none_is_baked_in() -> None:
    variables = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}
    assert set(variables) == {"datasource", "job", "instance"}
    sources = {panel["datasource"]["uid"] for panel in PANELS} | {
        query["datasource"]["uid"] for query in QUERIES.values()
    }
    assert sources == {"${datasource}"}
    for name in ("job", "instance"):
        asked = re.match(r"label_values\((\w+)", variables[name]["query"]["query"])
        assert asked is not None
        assert asked[1] in catalogue()
