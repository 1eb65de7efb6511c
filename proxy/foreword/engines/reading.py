"""What an engine's /metrics says, in words that all engines share.

Each engine's module holds a table of where each word stands in its own metrics; `read` applies it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from foreword.engines.exposition import Exposition, Sample, first_known

Counter = Literal[
    "requests",  # that ended
    "prompt_tokens",
    "generated_tokens",
    "cached_tokens",  # prompt tokens from any cache
    "l1_queried_tokens",  # prompt tokens looked up in the engine's own prefix cache
    "l1_hit_tokens",
    "l2_queried_tokens",  # those that L1 had not, looked up in the second level
    "l2_hit_tokens",
    "l2_stored_bytes",
    "l2_loaded_bytes",
    "l2_stored_blocks",  # of connectors that count no bytes
    "l2_loaded_blocks",
    "l2_allocation_failures",
    "l2_stores_skipped",
    "preemptions",
    "parks",  # conversations put away
    "restores",
]
"""Numbers that only grow while the engine runs."""

Gauge = Literal[
    "running",  # requests being read or answered
    "waiting",  # requests in the queue
    "l1_usage",  # 0..1, of the engine's own KV cache
    "l1_tokens",  # its size
    "block_tokens",  # of a block of the prefix cache
    "l2_bytes",  # size of the second level, where the engine tells it
    "l2_pinned",  # 0..1: the share under transfer, which reads like occupancy and is not
    "prefix_caching",  # 1 on, 0 off
    "parking_enabled",  # 1 on, 0 off
    "parking_budget_bytes",
    "parking_slots",
    "parked",  # conversations
    "parked_bytes",
]

_REPLICA = ("engine", "dp_rank", "tp_rank", "pp_rank", "moe_ep_rank", "replica", "worker", "instance", "pid")


class Unreadable(Exception):
    """What came is no metrics of this engine; the text says why."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One scrape. A word that the engine does not tell is absent, never zero."""

    counters: Mapping[Counter, Mapping[str, float]] = field(default_factory=dict)
    """Values by series (`series_of`): several engines behind one /metrics restart one by one."""
    gauges: Mapping[Gauge, float] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    """Expected families that are not there, in the engine's newest spelling."""
    started: Mapping[str, float] = field(default_factory=dict)
    """When each replica began to count, seconds since 1970, where it says so."""


class CounterAt(NamedTuple):
    """Where a counter stands: spellings without ``_total``, the newest first."""

    word: Counter
    spellings: tuple[str, ...]
    labels: Mapping[str, str] | None = None


class GaugeAt(NamedTuple):
    """Where a gauge stands; ``label`` takes the value from a label of an info metric."""

    word: Gauge
    spellings: tuple[str, ...]
    label: str | None = None
    most: bool = False
    """The largest of several samples counts, not their sum: of shares and sizes."""
    scale: float = 1.0


class Expected(NamedTuple):
    """A family that a version of today has, and what cannot be told without it."""

    spellings: tuple[str, ...]
    loses: str


class Table(NamedTuple):
    """Where everything stands in one engine's metrics."""

    counters: tuple[CounterAt, ...]
    gauges: tuple[GaugeAt, ...]
    expected: tuple[Expected, ...]
    started: tuple[str, ...] = ()

    def families(self) -> set[str]:
        """All spellings."""
        rows: Iterable[tuple[str, ...]] = [
            *(row.spellings for row in self.counters),
            *(row.spellings for row in self.gauges),
            *(row.spellings for row in self.expected),
            self.started,
        ]
        return {spelling for row in rows for spelling in row}


def read(table: Table, text: bytes) -> Reading:
    """Reads Prometheus text by ``table``. Raises Unreadable where not one line is a sample."""
    exposition = Exposition(text, table.families())
    if not exposition.lines:
        raise Unreadable("this is no Prometheus text")
    return Reading(
        counters={row.word: values for row in table.counters if (values := _counter(exposition, row))},
        gauges={row.word: value for row in table.gauges if (value := _gauge(exposition, row)) is not None},
        missing=tuple(
            row.spellings[0] for row in table.expected if first_known(exposition, row.spellings) is None
        ),
        started=_started(exposition, table.started),
    )


def _counter(exposition: Exposition, row: CounterAt) -> dict[str, float]:
    family = first_known(exposition, row.spellings)
    values: dict[str, float] = {}
    for sample in exposition.samples(family, row.labels) if family else ():
        if sample.value >= 0:
            series = series_of(sample)
            values[series] = values.get(series, 0.0) + sample.value
    return values


def _gauge(exposition: Exposition, row: GaugeAt) -> float | None:
    family = first_known(exposition, row.spellings)
    found = [
        value
        for sample in (exposition.samples(family) if family else ())
        if (value := _labelled(sample, row.label)) is not None and value >= 0
    ]
    if not found:
        return None
    return (max(found) if row.most else sum(found)) * row.scale


def _labelled(sample: Sample, label: str | None) -> float | None:
    if label is None:
        return sample.value
    text = sample.labels.get(label, "").lower()
    if text in ("true", "false"):
        return float(text == "true")
    try:
        return float(text)
    except ValueError:
        return None


def _started(exposition: Exposition, spellings: tuple[str, ...]) -> dict[str, float]:
    family = first_known(exposition, spellings)
    return {
        replica_of(series_of(sample)): sample.value
        for sample in (exposition.samples(family) if family else ())
    }


def series_of(sample: Sample) -> str:
    """The labels as one key, those of the replica in front."""
    labels = sorted(f"{name}={value}" for name, value in sample.labels.items() if name not in _REPLICA)
    replica = [f"{name}={sample.labels[name]}" for name in _REPLICA if name in sample.labels]
    return f"{','.join(replica)}|{','.join(labels)}"


def replica_of(series: str) -> str:
    """The replica that a series belongs to; an empty text where it names none."""
    return series.partition("|")[0]
