"""The watch beside the requests: the engine's metrics, its log, and the findings that both give.

`observer` holds it all together. `scrape` asks for metrics, `meter` makes totals of them that never fall; `follower`
reads the log, `joiner` finds the exchange of a line. `second_level`, `parking_findings` and `engine_findings` are what
is concluded; `reuse` and `parking` what they remember. `stats` tells it as metrics.
"""

from foreword.watching.observer import Core, Observer
from foreword.watching.stats import observed

__all__ = ["Core", "Observer", "observed"]
