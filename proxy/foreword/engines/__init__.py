"""What Foreword knows of engines: how to tell them apart, what they serve, how their templates print.

One module an engine (its `Engine` subclass), `probe` for what is found out by asking, `state` for what is known now,
`watch` for the task that goes on asking.
"""

from foreword.engines.base import Engine, Fetch, FetchError
from foreword.engines.probe import Finding, probe
from foreword.engines.state import EngineState
from foreword.engines.watch import Watch

__all__ = ["Engine", "EngineState", "Fetch", "FetchError", "Finding", "Watch", "probe"]
