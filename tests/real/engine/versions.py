"""The versions of vLLM under test."""

import os

OLD = "0.31.0"
"""The last one that does not take the billing header out of chat requests."""

NEW = os.environ.get("FOREWORD_REAL_VLLM", "0.32.0")
"""The newest that is known to work; FOREWORD_REAL_VLLM names another."""

USED = (OLD, NEW)
