"""The whole examination: from loaded exchanges to what the report says."""

from dataclasses import dataclass, field

from foreword.doctor import client_causes, engine_causes, lengths, prompt_causes, rates, turns
from foreword.doctor.lengths import Plateau
from foreword.doctor.pace import Pace, timed
from foreword.doctor.position import segment_at
from foreword.doctor.segments import Segment, stability
from foreword.doctor.severity import Costs
from foreword.doctor.source import Loaded, Progress
from foreword.doctor.values import whole
from foreword.findings import Finding
from foreword.findings.finding import worst_first

Row = dict[str, object]


@dataclass(slots=True)
class Diagnosis:
    """What was found in one ledger."""

    name: str
    format: str
    rates: rates.Rates
    lengths: list[Row]
    plateaus: list[tuple[Plateau, tuple[str, str] | None]]
    segments: list[Segment] = field(default_factory=list)
    verdicts: list[Row] = field(default_factory=list)
    divergences: list[Row] = field(default_factory=list)
    shadow: list[Row] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        """Whether nothing was found that costs something."""
        return all(finding.severity == "info" for finding in self.findings)

    def as_json(self) -> Row:
        """The report for machines: shares 0..1, tokens integers, times seconds, arrays worst first."""
        volatile = [segment for segment in self.segments if segment.volatile]
        return {
            "ledger": self.name,
            "format": self.format,
            **self.rates.total,
            "by_entry": self.rates.by_entry,
            "by_client": self.rates.by_client,
            "by_model": self.rates.by_model,
            "by_day": self.rates.by_day,
            "lengths": self.lengths,
            "pinned": [
                _pinned(plateau, segment) for plateau, segment in self.plateaus if not plateau.by_engine
            ],
            "volatile": [
                segment.as_json()
                for segment in sorted(volatile, key=lambda each: (-each.changes, each.position))
            ],
            "segments": [segment.as_json() for segment in self.segments],
            "verdicts": self.verdicts,
            "divergences": self.divergences,
            "shadow": self.shadow,
            "findings": [finding.as_json() for finding in self.findings],
            "notes": self.notes,
            "good": self.good,
        }


def examine(loaded: Loaded, progress: Progress) -> Diagnosis:
    """Runs the steps over one ledger."""
    turns.build(loaded)
    progress("hit rates")
    measured = rates.measure(loaded)
    progress("reused lengths")
    histogram = lengths.histogram(loaded)
    if loaded.format != "ledger":
        found = lengths.plateaus(loaded, conversations=False)
        return Diagnosis(
            loaded.name,
            loaded.format,
            measured,
            histogram,
            [(plateau, None) for plateau in found],
            notes=list(loaded.notes),
        )
    progress("segments of the heads")
    order = {(row["entry"], row["client"]): -n for n, row in enumerate(measured.by_entry)}
    segments = sorted(stability(loaded), key=lambda each: -order.get((each.entry, each.client), 0))
    progress("findings")
    plateaus = [(plateau, segment_at(loaded, plateau, segments)) for plateau in lengths.plateaus(loaded)]
    plateaus = prompt_causes.without_accidents(plateaus, segments)
    costs, saved = Costs.measure(loaded), prompt_causes.shadows(loaded)
    findings = [
        *prompt_causes.volatile_segments(loaded, segments, costs, saved),
        *prompt_causes.pinned_lengths(plateaus, segments, costs, saved),
        *prompt_causes.reassembled_blocks(loaded, segments, costs),
        *engine_causes.eviction_storms(loaded),
        *engine_causes.checkpoint_collapses(loaded),
        *engine_causes.usage_not_reported(loaded),
        *engine_causes.below_minimum(loaded, costs),
        *client_causes.early_compactions(loaded, costs),
        *client_causes.overflow_loops(loaded),
    ]
    return Diagnosis(
        loaded.name,
        loaded.format,
        measured,
        histogram,
        plateaus,
        segments,
        _verdicts(loaded),
        _divergences(loaded),
        _shadow(loaded, measured),
        sorted(timed(findings, Pace.measure(loaded)), key=worst_first),
        list(loaded.notes),
    )


def _pinned(plateau: Plateau, segment: tuple[str, str] | None) -> Row:
    return {
        "entry": plateau.entry,
        "tokens": plateau.tokens,
        "share": plateau.share,
        "segment": segment[0] if segment else None,
        "class": segment[1] if segment else None,
        "client": plateau.client,
        "model": plateau.model,
        "requests": plateau.requests,
        "prompts_from": plateau.shortest,
        "prompts_to": plateau.longest,
        "tokens_lost": plateau.lost,
    }


def _verdicts(loaded: Loaded) -> list[Row]:
    return loaded.rows(
        """
        SELECT verdict AS name, count(*) AS requests, round(count(*) / sum(count(*)) OVER (), 4) AS share,
               coalesce(sum(lost), 0)::BIGINT AS tokens_lost
        FROM turns WHERE verdict IS NOT NULL GROUP BY ALL ORDER BY tokens_lost DESC, requests DESC, name
        """
    )


def _divergences(loaded: Loaded) -> list[Row]:
    """Where prompts first differed from the conversation they belong to."""
    return loaded.rows(
        """
        SELECT entry, client, path, class, mode(kind) AS kind, count(*) AS requests,
               coalesce(sum(lost), 0)::BIGINT AS tokens_lost
        FROM (SELECT * REPLACE (
                  CASE WHEN class IN ('history', 'last-turn') THEN 'messages[..]' ELSE path END AS path) FROM turns)
        WHERE verdict = 'changed' AND path IS NOT NULL
        GROUP BY ALL ORDER BY tokens_lost DESC, requests DESC, path LIMIT 20
        """
    )


def _shadow(loaded: Loaded, measured: rates.Rates) -> list[Row]:
    """What each rule that is off would have saved, and the hit rate that might have been."""
    rows = loaded.rows(
        """
        SELECT key AS rule, count(*) AS requests, sum(value)::BIGINT AS tokens
        FROM (SELECT unnest(map_keys(shadow)) AS key, unnest(map_values(shadow)) AS value FROM exchanges
              WHERE cardinality(shadow) > 0)
        WHERE value > 0 GROUP BY ALL ORDER BY tokens DESC, rule
        """
    )
    prompts, cached = (whole(measured.total[name]) for name in ("prompt_tokens", "cached_tokens"))
    for row in rows:
        might = min(1.0, (cached + whole(row["tokens"])) / prompts) if prompts else None
        row["hit_rate"] = None if might is None else round(might, 4)
    return rows
