"""Reads a Dockerfile, and runs its build steps in a scratch folder instead of in images.

Each stage's absolute paths lie under a folder of that stage; system packages are taken from this machine.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Step:
    """One instruction: `RUN`, `COPY` and so on, and what follows it."""

    verb: str
    rest: str


@dataclass
class Stage:
    """What follows one FROM."""

    image: str
    name: str
    steps: list[Step] = field(default_factory=list)

    def last(self, verb: str) -> str:
        """What follows the last instruction of that kind."""
        return [step.rest for step in self.steps if step.verb == verb][-1]

    def listed(self, verb: str) -> list[str]:
        """The words of the last instruction in exec form."""
        words = json.loads(self.last(verb))
        assert isinstance(words, list)
        return words


def parse(text: str) -> list[Stage]:
    """The stages of a Dockerfile."""
    lines = "\n".join(line for line in text.splitlines() if line.strip() and not line.startswith("#"))
    stages: list[Stage] = []
    for line in lines.replace("\\\n", " ").splitlines():
        verb, _, rest = line.strip().partition(" ")
        if verb == "FROM":
            image, _, name = rest.partition(" AS ")
            stages.append(Stage(image, name))
        else:
            stages[-1].steps.append(Step(verb, rest.strip()))
    return stages


def ignored(path: str, patterns: list[str]) -> bool:
    """Whether .dockerignore keeps ``path`` (a file or folder of the context) from the build."""
    verdict = False
    for pattern in patterns:
        plain = pattern.removeprefix("!")
        expression = re.escape(plain).replace(r"\*\*/", "(.*/)?").replace(r"\*", "[^/]*")
        if re.fullmatch(f"{expression}(/.*)?", path):
            verdict = not pattern.startswith("!")
    return verdict


class Scratch:
    """Runs stages below one folder."""

    #: Folders at the root of a stage that its steps write to or read from; all other paths are the machine's.
    OWN = ("src", "build", "wheels", "requirements", "opt/foreword")

    def __init__(self, context: Path, folder: Path, environment: Mapping[str, str]) -> None:
        self._context = context
        self._folder = folder
        self._environment = {**os.environ, **environment}
        self._ignore = [
            line for line in (context / ".dockerignore").read_text().split() if not line.startswith("#")
        ]

    def place(self, stage: Stage, path: str) -> Path:
        """Where an absolute path of a stage lies on this machine."""
        return self._folder / (stage.name or "final") / path.lstrip("/")

    def run(self, stage: Stage, skip: str) -> None:
        """Runs a stage's steps but for the RUNs that begin with ``skip``."""
        here = "/"
        for step in stage.steps:
            if step.verb == "WORKDIR":
                here = step.rest
                self.place(stage, here).mkdir(parents=True, exist_ok=True)
            elif step.verb == "COPY":
                self._copy(stage, here, shlex.split(step.rest))
            elif step.verb == "RUN" and not step.rest.startswith(skip):
                self._run(stage, here, step.rest)

    def _copy(self, stage: Stage, here: str, words: list[str]) -> None:
        source_stage = words.pop(0).removeprefix("--from=") if words[0].startswith("--from=") else None
        *sources, target = words
        into = self.place(stage, os.path.join(here, target))  # noqa: PTH118 - pure paths of an image
        for source in sources:
            origin = (
                self._folder / source_stage / source.lstrip("/") if source_stage else self._context / source
            )
            if source_stage is None:
                assert not ignored(source, self._ignore), f".dockerignore keeps {source} out"
            if origin.is_dir():
                shutil.copytree(origin, into, ignore=None if source_stage else self._left_out, symlinks=True)
            else:
                to_folder = target.endswith("/") or len(sources) > 1
                place = into / origin.name if to_folder else into
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(origin, place)

    def _left_out(self, folder: str, names: list[str]) -> list[str]:
        inside = Path(folder).relative_to(self._context)
        return [name for name in names if ignored(str(inside / name), self._ignore)]

    def _run(self, stage: Stage, here: str, command: str) -> None:
        for own in self.OWN:
            command = re.sub(rf"(?<![\w.-])/{own}(?![\w-])", str(self.place(stage, own)), command)
        result = subprocess.run(
            ["bash", "-euc", command],
            cwd=self.place(stage, here),
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert result.returncode == 0, f"RUN {command}\n{result.stdout}"
