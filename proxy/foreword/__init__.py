"""Foreword: a sidecar for one LLM inference engine that keeps the head of every prompt the same."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("foreword")
except PackageNotFoundError:  # imported from a source tree that was never installed
    __version__ = "0.0.0"

__all__ = ["__version__"]
