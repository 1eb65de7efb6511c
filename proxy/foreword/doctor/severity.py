"""How bad a cost is: measured against what the same client sent."""

from dataclasses import dataclass
from typing import Final

from foreword.doctor.source import Loaded
from foreword.doctor.turns import KNOWN
from foreword.doctor.values import whole
from foreword.findings import Severity

_WORTH_TELLING: Final = 0.01
"""Share of a client's prompt tokens from which a cost is a warning."""

_MOST: Final = 0.5
"""Share of what the client's prompts missed in the cache from which a cost is most of it ..."""

_MUCH: Final = 0.2
"""... if it is also this share of all its prompt tokens."""


@dataclass(frozen=True, slots=True)
class Costs:
    """Prompt tokens and missed tokens of each client of each entry."""

    sent: dict[tuple[str, str], tuple[int, int]]

    @classmethod
    def measure(cls, loaded: Loaded) -> "Costs":
        """From `turns`."""
        rows = loaded.db.execute(
            "SELECT entry, client, coalesce(sum(prompt_tokens), 0)::BIGINT,"
            f" coalesce(sum(prompt_tokens - cached_tokens) FILTER ({KNOWN}), sum(prompt_tokens), 0)::BIGINT"
            " FROM turns GROUP BY ALL"
        ).fetchall()
        return cls(
            {(str(entry), str(client)): (whole(sent), whole(missed)) for entry, client, sent, missed in rows}
        )

    def severity(self, entry: str, client: str, tokens: int) -> Severity:
        """Of a cost of ``tokens`` among the exchanges of one client."""
        return rank(tokens, *self.sent.get((entry, client), (0, 0)))


def rank(tokens: int, sent: int, missed: int) -> Severity:
    """Of a cost of ``tokens`` where ``sent`` prompt tokens were sent and ``missed`` of them were not in the cache."""
    if tokens >= _MOST * missed and tokens >= _MUCH * sent and tokens:
        return "critical"
    return "warning" if tokens >= _WORTH_TELLING * sent and tokens else "info"
