"""Every metric that the sidecar can show with its labels, taken from the code that shows it."""

import re
from collections.abc import Mapping
from functools import cache

from prometheus_client import CollectorRegistry
from tests.conftest import ROOT

from foreword.engines import EngineState
from foreword.findings import IDS
from foreword.metrics import CLASSES, VERDICTS, Metrics, Recorder
from foreword.watching.stats import COUNTERS, GAUGES

# Keys of counters as they stand in the sources: "family|label=value,label={variable}".
_KEY = re.compile(r'"([a-z0-9_]+)\|([a-z_]*=[^"]*)?"')
SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum"), "gauge": ("",)}

VALUES: Mapping[str, set[str]] = {
    "id": set(IDS),
    "verdict": set(VERDICTS),
    "class": {"", *CLASSES},
    "outcome": {"ok", "refused", "client-error", "sidecar-error", "engine-error", "left"},
    "state": {"applied", "dormant", "unknown"},
    "rule": {"billing-header", "late-system"},
    "result": {"ok", "failed"},
}
"""Labels with a closed set of values."""


@cache
def catalogue() -> Mapping[str, frozenset[str]]:
    """Labels of each metric, by its full name as it is scraped."""
    found: dict[str, set[str]] = {}
    sources = [
        *(ROOT / "rust/net/src").rglob("*.rs"),
        *(ROOT / "proxy/foreword").rglob("*.py"),
    ]
    for source in sources:
        for family, labels in _KEY.findall(source.read_text()):
            names = re.findall(r"(?:^|,)([a-z_]+)=", labels)
            found.setdefault(f"foreword_{family}", set()).update(names)
    for family in (*COUNTERS.values(), *GAUGES.values()):
        found.setdefault(f"foreword_{family}", set())
    engine = EngineState(kind="vllm", version="1", clock=lambda: 0.0)
    engine.seen()
    text = Metrics(dict, engine).exposition().decode()
    for name, labels in re.findall(r"^([a-z_]+)(?:\{(.*)\})? ", text, re.MULTILINE):
        found.setdefault(name, set()).update(re.findall(r'([a-z_]+)="', labels))
    registry = CollectorRegistry()
    recorder = Recorder(registry)
    for collector in vars(recorder).values():
        for family in collector.describe() if hasattr(collector, "describe") else ():
            for suffix in SUFFIXES[family.type]:
                of_suffix = {*collector._labelnames, *(["le"] if suffix == "_bucket" else [])}
                found.setdefault(family.name + suffix, set()).update(of_suffix)
    return {name: frozenset(labels) for name, labels in found.items()}
