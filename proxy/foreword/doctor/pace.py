"""Lost time: what the lost tokens of a finding took to be read, as far as the records' own times tell.

The rule is that of the findings of a running sidecar (`foreword.findings.pace`), over all exchanges.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from foreword.doctor.source import Loaded
from foreword.doctor.values import real, text, whole
from foreword.findings import Finding
from foreword.findings.pace import APART, LEAST

_DAY: Final = 86_400

Subject = tuple[str | None, str | None, str | None]
"""Entry, client and served model of a finding; None: any."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds a token of each served model, and whose prompts each model read."""

    rates: dict[str, float]
    sent: dict[Subject, int]
    """Prompt tokens by entry, client and model."""

    @classmethod
    def measure(cls, loaded: Loaded) -> "Pace":
        """From `turns`."""
        rows = loaded.rows(
            f"""
            WITH timed AS (
                SELECT served, greatest(0, prompt_tokens - cached_tokens) AS read, streamed_ttft AS seconds
                FROM turns WHERE served IS NOT NULL AND outcome = 'ok' AND cached_tokens IS NOT NULL
                     AND prompt_tokens IS NOT NULL AND streamed_ttft BETWEEN 0 AND {_DAY}),
            thirds AS (SELECT *, ntile(3) OVER (PARTITION BY served ORDER BY read) AS third FROM timed),
            outer_thirds AS (
                SELECT served, third, count(*) AS n, median(read) AS tokens, median(seconds) AS seconds,
                       quantile_cont(seconds, 0.25) AS early, quantile_cont(seconds, 0.75) AS late
                FROM thirds WHERE third <> 2 GROUP BY ALL)
            SELECT few.served, (many.seconds - few.seconds) / (many.tokens - few.tokens) AS rate
            FROM outer_thirds few JOIN outer_thirds many USING (served)
            WHERE few.third = 1 AND many.third = 3 AND 3 * many.n >= {LEAST}
              AND many.tokens - few.tokens >= {APART} AND many.early > few.late
            """
        )
        sent = loaded.rows(
            "SELECT entry, client, served, coalesce(sum(prompt_tokens), 0)::BIGINT AS n FROM turns GROUP BY ALL"
        )
        return cls(
            {str(row["served"]): real(row["rate"]) for row in rows},
            {(text(row["entry"]), text(row["client"]), text(row["served"])): whole(row["n"]) for row in sent},
        )

    def of(self, evidence: Mapping[str, object]) -> float | None:
        """Seconds a token for what a finding is about: a client's prompts of an entry, or a model's.

        The mean of the models' by what they were sent; None unless all are known.
        """
        entry, client, model = (evidence.get(name) for name in ("entry", "client", "model"))
        if entry is None and model is None:
            return None
        # Beside an entry it is the name that clients ask for.
        wanted = (entry, client, None if entry is not None else model)
        found = [
            (count, self.rates.get(subject[2] or ""))
            for subject, count in self.sent.items()
            if count and all(want is None or want == have for want, have in zip(wanted, subject, strict=True))
        ]
        total = sum(count for count, _ in found)
        known = [count * rate for count, rate in found if rate is not None]
        return sum(known) / total if total and len(known) == len(found) else None


def timed(findings: Iterable[Finding], pace: Pace) -> Iterator[Finding]:
    """The findings, each with the seconds that its tokens took."""
    for finding in findings:
        rate = pace.of(finding.evidence)
        known = finding.tokens is not None and rate is not None
        yield replace(finding, seconds=round((finding.tokens or 0) * (rate or 0.0), 3)) if known else finding
