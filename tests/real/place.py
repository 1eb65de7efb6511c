"""Where the real engines and clients are installed."""

import os
from pathlib import Path


def place() -> Path:
    """The cache folder: ``FOREWORD_REAL_DIR``, else ``target/real`` of the repository."""
    named = os.environ.get("FOREWORD_REAL_DIR")
    return Path(named).resolve() if named else Path(__file__).parents[2] / "target" / "real"
