"""How long the tests wait, in seconds: a CPU that is slow, or busy with others, is no fault of what is tested."""

ANSWER_SECONDS = 300.0
"""For the next byte of an answer."""

READY_SECONDS = 60.0
"""For a sidecar that finds out what engine it has, while that engine may be busy."""

START_SECONDS = 900.0
"""For an engine that starts: 25 on an idle machine, more than 300 were seen on a busy one."""
